//! The state as text for people.

use std::fmt::Write;

use comfy_table::{Row, Table, presets::NOTHING};
use fleet_proto::shard::v1::{ClusterStatus, CopyProgress, FederationLink, InstanceStatus, ShardStatus};
use jiff::{SignedDuration, Timestamp};

use super::view::{duration, time};

const NONE: &str = "-";

/// The shard, its clusters, their instances, and the conditions that are not as they should be.
pub(super) fn table(status: &ShardStatus, now: Timestamp) -> String {
    let mut text = head(status, now);
    if status.clusters.is_empty() {
        text.push_str("\nNo MySQLCluster in this namespace.\n");
        return text;
    }
    let clusters = status.clusters.iter().map(|cluster| cluster_row(cluster, now));
    section(
        &mut text,
        &["CLUSTER", "PHASE", "PRIMARY", "TERM", "READY", "VERSION", "ROLLOUT", "AGE"],
        clusters,
    );
    let instances = status
        .clusters
        .iter()
        .flat_map(|cluster| cluster.instances.iter().map(|instance| instance_row(cluster, instance)));
    let columns = ["INSTANCE", "CLUSTER", "ROLE", "READY", "LAG", "MYSQL", "DISK", "COPY", "MESSAGE"];
    section(&mut text, &columns, instances);
    let problems: Vec<_> = status.clusters.iter().flat_map(problems).collect();
    if !problems.is_empty() {
        section(&mut text, &["CLUSTER", "CONDITIONS", "REASON", "MESSAGE"], problems);
    }
    text
}

fn head(status: &ShardStatus, now: Timestamp) -> String {
    let lease = status.lease.clone().unwrap_or_default();
    let holder = if lease.holder.is_empty() {
        "held by nobody".to_owned()
    } else {
        let renewed = time(lease.renewed_at).map_or_else(|| "unknown".to_owned(), |time| age(time, now));
        format!("held by {}, renewed {renewed} ago, {} changes of holder", lease.holder, lease.transitions)
    };
    let role = if status.leader { "the leader" } else { "not the leader" };
    let errors: u64 = status
        .reconcile_totals
        .iter()
        .filter(|total| total.result != "success")
        .map(|total| total.count)
        .sum();
    let all: u64 = status.reconcile_totals.iter().map(|total| total.count).sum();
    let hub = status.federation.as_ref().map(|link| hub(link, now)).unwrap_or_default();
    format!(
        "Shard    {} (version {}, asked {}, {role})\n\
         Lease    {} {holder}\n\
         Work     {} waiting, {all} reconciles, {errors} of them failed\n\
         {hub}",
        status.namespace, status.version, status.pod, lease.name, status.queue_depth
    )
}

/// The link to the hub; why there is none, or why there was none before.
fn hub(link: &FederationLink, now: Timestamp) -> String {
    let since = time(link.since).map_or_else(String::new, |since| format!(" for {}", age(since, now)));
    let state = if link.connected { "connected" } else { "not connected" };
    let expiry = time(link.certificate_expires_at)
        .map_or_else(String::new, |end| format!(", the certificate ends at {end}"));
    let error = match one_line(&link.last_error) {
        error if error.is_empty() => error,
        error if link.connected => format!("         before: {error}\n"),
        error => format!("         {error}\n"),
    };
    format!("Hub      {} {state}{since}{expiry}\n{error}", link.endpoint)
}

fn cluster_row(cluster: &ClusterStatus, now: Timestamp) -> Vec<String> {
    let summary = cluster.summary.clone().unwrap_or_default();
    vec![
        summary.name,
        or_none(summary.phase),
        or_none(summary.primary),
        summary.term.to_string(),
        format!("{}/{}", summary.ready_replicas, summary.replicas),
        or_none(summary.version),
        or_none(summary.rollout),
        time(cluster.created_at).map_or_else(|| NONE.to_owned(), |created| age(created, now)),
    ]
}

fn instance_row(cluster: &ClusterStatus, instance: &InstanceStatus) -> Vec<String> {
    let cluster = cluster.summary.as_ref().map(|summary| summary.name.clone()).unwrap_or_default();
    vec![
        instance.name.clone(),
        cluster,
        or_none(instance.role.clone()),
        if instance.ready { "yes" } else { "no" }.to_owned(),
        instance.lag.map_or_else(|| NONE.to_owned(), |lag| format!("{:.1}s", duration(lag).as_secs_f64())),
        or_none(instance.mysqld_version.clone()),
        disk(instance.disk_total_bytes, instance.disk_free_bytes),
        instance.copy.map_or_else(|| NONE.to_owned(), copied),
        one_line(&instance.message),
    ]
}

/// Conditions that keep a cluster from being fine, those with the same words in one row. Which value is fine depends on
/// the type.
fn problems(cluster: &ClusterStatus) -> Vec<Vec<String>> {
    let name = cluster.summary.as_ref().map(|summary| summary.name.clone()).unwrap_or_default();
    let fine = |kind: &str, status: &str| match kind {
        "Available" | "Healthy" | "ReconcileSucceeded" => status == "True",
        _ => status == "False",
    };
    let mut rows: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for condition in cluster.conditions.iter().filter(|one| !fine(&one.r#type, &one.status)) {
        let value = format!("{}={}", condition.r#type, condition.status);
        match rows.iter_mut().find(|row| (row.0, row.1) == (&condition.reason, &condition.message)) {
            Some((_, _, values)) => values.push(value),
            None => rows.push((&condition.reason, &condition.message, vec![value])),
        }
    }
    rows.into_iter()
        .map(|(reason, message, values)| {
            vec![name.clone(), values.join(","), reason.to_owned(), one_line(message)]
        })
        .collect()
}

pub(crate) fn section(text: &mut String, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(Row::from(columns.to_vec()));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    text.push('\n');
    for line in table.lines() {
        let _infallible = writeln!(text, "{}", line.trim_end());
    }
}

pub(crate) fn or_none(text: String) -> String {
    if text.is_empty() { NONE.to_owned() } else { text }
}

/// Text of others must not break the table, nor drive the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn disk(total: u64, free: u64) -> String {
    if total == 0 {
        return NONE.to_owned();
    }
    let used = total.saturating_sub(free);
    let percent = u128::from(used) * 100 / u128::from(total);
    format!("{percent}% of {}", size(total))
}

/// How far a copy is and, within a stage of it, how fast and for how long.
fn copied(copy: CopyProgress) -> String {
    let mut text = format!("{}%", copy.percent);
    if copy.bytes_per_second > 0 {
        let _infallible = write!(text, ", {}/s", size(copy.bytes_per_second));
    }
    if let Some(left) = copy.remaining {
        let _infallible = write!(text, ", {} left", span(duration(left)));
    }
    text
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["Ti", "Gi", "Mi", "Ki"];
    for (index, unit) in UNITS.iter().enumerate() {
        let one = 1_u64 << (10 * (UNITS.len() - index));
        if bytes >= one {
            let tenths = u128::from(bytes) * 10 / u128::from(one);
            return if tenths.is_multiple_of(10) {
                format!("{}{unit}", tenths / 10)
            } else {
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{bytes}")
}

/// As kubectl shows ages: one unit, or two while the first is small.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then))
}

fn span(time: SignedDuration) -> String {
    let seconds = time.max(SignedDuration::ZERO).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 && seconds % 60 != 0 => format!("{minutes}m{}s", seconds % 60),
        () if minutes < 120 => format!("{minutes}m"),
        () if hours < 48 => format!("{hours}h"),
        () => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use fleet_proto::shard::v1::{ClusterSummary, Condition, LeaseStatus, ReconcileTotal};
    use prost_types::Timestamp as Wire;

    use super::{super::view::ShardStatusView, *};

    const NOW: i64 = 1_790_000_000;

    #[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
    fn at(ago: i64) -> Option<Wire> {
        Some(Wire { seconds: NOW - ago, nanos: 0 })
    }

    fn instance(name: &str, role: &str, ready: bool) -> InstanceStatus {
        InstanceStatus {
            name: name.to_owned(),
            role: role.to_owned(),
            ready,
            mysqld_version: "9.7.4".to_owned(),
            disk_total_bytes: 10 << 30,
            disk_free_bytes: 9 << 30,
            ..InstanceStatus::default()
        }
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
        Condition {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: at(90),
        }
    }

    fn status() -> ShardStatus {
        let replica = InstanceStatus {
            lag: Some(prost_types::Duration { seconds: 1, nanos: 250_000_000 }),
            ..instance("orders-1", "Replica", true)
        };
        let joining = InstanceStatus {
            message: "copies the data of\norders-0".to_owned(),
            copy: Some(CopyProgress {
                percent: 42,
                bytes_per_second: 200 << 20,
                remaining: Some(prost_types::Duration { seconds: 150, nanos: 0 }),
            }),
            disk_total_bytes: 0,
            mysqld_version: String::new(),
            ..instance("orders-2", "Joining", false)
        };
        let total = |result: &str, reason: &str, count| ReconcileTotal {
            result: result.to_owned(),
            reason: reason.to_owned(),
            count,
        };
        ShardStatus {
            namespace: "tenant-a".to_owned(),
            version: "0.1.0".to_owned(),
            pod: "shard-manager-7d9-x2x".to_owned(),
            leader: true,
            lease: Some(LeaseStatus {
                name: "shard-tenant-a".to_owned(),
                holder: "shard-manager-7d9-x2x".to_owned(),
                transitions: 2,
                acquired_at: at(4000),
                renewed_at: at(3),
            }),
            clusters: vec![ClusterStatus {
                summary: Some(ClusterSummary {
                    name: "orders".to_owned(),
                    phase: "Degraded".to_owned(),
                    primary: "orders-0".to_owned(),
                    term: 3,
                    replicas: 3,
                    ready_replicas: 2,
                    version: "9.7".to_owned(),
                    rollout: "Updating".to_owned(),
                }),
                instances: vec![instance("orders-0", "Primary", true), replica, joining],
                conditions: vec![
                    condition("Available", "True", "PrimaryOpen", "orders-0 takes writes"),
                    condition("Healthy", "False", "InstanceJoining", "orders-2 joins"),
                    condition("FailoverBlocked", "False", "Ready", ""),
                ],
                observed_at: at(1),
                created_at: at(400),
                answered_requests: Vec::new(),
            }],
            queue_depth: 1,
            reconcile_totals: vec![total("success", "", 40), total("transient", "ApiUnreachable", 2)],
            observed_at: at(0),
            federation: None,
        }
    }

    fn link() -> FederationLink {
        FederationLink {
            endpoint: "https://hub.example:9443".to_owned(),
            connected: true,
            since: at(300),
            last_error: String::new(),
            certificate_expires_at: at(-86_400),
        }
    }

    #[test]
    fn the_link_to_the_hub_says_why_there_is_none() {
        let head = |link: FederationLink| {
            let text = table(&ShardStatus { federation: Some(link), ..status() }, now());
            text.lines()
                .skip(3)
                .take_while(|line| !line.is_empty())
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        };
        let end = Timestamp::from_second(NOW + 86_400).unwrap();
        let state = |state| {
            format!("Hub      https://hub.example:9443 {state} for 5m, the certificate ends at {end}")
        };
        assert_eq!(head(link()), [state("connected")]);
        let broken = FederationLink { last_error: "no\nanswer".to_owned(), ..link() };
        assert_eq!(head(broken.clone()), [state("connected"), "         before: no answer".to_owned()]);
        let cut = FederationLink { connected: false, ..broken };
        assert_eq!(head(cut), [state("not connected"), "         no answer".to_owned()]);
    }

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    #[test]
    fn the_table() {
        insta::assert_snapshot!(table(&status(), now()));
    }

    #[test]
    fn between_the_stages_of_a_copy_its_percentage_stands_alone() {
        let between = CopyProgress { percent: 42, ..CopyProgress::default() };
        assert_eq!(copied(between), "42%");
    }

    #[test]
    fn conditions_with_the_same_words_are_one_row() {
        let mut status = status();
        let words = "waits for orders-0";
        status.clusters[0].conditions = vec![
            condition("Available", "False", "Bootstrapping", words),
            condition("Progressing", "True", "Bootstrapping", words),
            condition("ReconcileSucceeded", "False", "Conflict", words),
        ];
        assert_eq!(
            problems(&status.clusters[0]),
            [
                ["orders", "Available=False,Progressing=True", "Bootstrapping", words],
                ["orders", "ReconcileSucceeded=False", "Conflict", words],
            ]
        );
    }

    #[test]
    fn a_shard_without_clusters_says_so() {
        let empty = ShardStatus { clusters: Vec::new(), lease: None, leader: false, ..status() };
        insta::assert_snapshot!(table(&empty, now()));
    }

    #[test]
    fn the_json() {
        insta::assert_json_snapshot!(ShardStatusView::from(&ShardStatus {
            federation: Some(link()),
            ..status()
        }));
    }

    #[test]
    fn ages_and_sizes_are_short() {
        let ages: Vec<String> = [-5, 0, 119, 120, 245, 3600, 7200, 200_000]
            .map(|ago| age(Timestamp::from_second(NOW - ago).unwrap(), now()))
            .to_vec();
        assert_eq!(ages, ["0s", "0s", "119s", "2m", "4m5s", "60m", "2h", "2d"]);
        assert_eq!([0, 1023, 1024, 1536, 1 << 40].map(size), ["0", "1023", "1Ki", "1.5Ki", "1Ti"]);
        assert_eq!(disk(100, 25), "75% of 100");
    }
}
