//! The state as text for people.

use std::fmt::Write;

use comfy_table::{Row, Table, presets::NOTHING};
use fleet_proto::shard::v1::{ClusterStatus, InstanceStatus, ShardStatus};
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
    section(&mut text, &["CLUSTER", "PHASE", "PRIMARY", "TERM", "READY", "VERSION", "AGE"], clusters);
    let instances = status
        .clusters
        .iter()
        .flat_map(|cluster| cluster.instances.iter().map(|instance| instance_row(cluster, instance)));
    let columns = ["INSTANCE", "CLUSTER", "ROLE", "READY", "LAG", "MYSQL", "DISK", "MESSAGE"];
    section(&mut text, &columns, instances);
    let problems: Vec<_> = status.clusters.iter().flat_map(problems).collect();
    if !problems.is_empty() {
        section(&mut text, &["CLUSTER", "CONDITION", "STATUS", "REASON", "MESSAGE"], problems);
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
    format!(
        "Shard    {} (version {}, asked {}, {role})\n\
         Lease    {} {holder}\n\
         Work     {} waiting, {all} reconciles, {errors} of them failed\n",
        status.namespace, status.version, status.pod, lease.name, status.queue_depth
    )
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
        one_line(&instance.message),
    ]
}

/// Conditions that keep a cluster from being fine. Which value is fine depends on the type.
fn problems(cluster: &ClusterStatus) -> Vec<Vec<String>> {
    let name = cluster.summary.as_ref().map(|summary| summary.name.clone()).unwrap_or_default();
    let fine = |kind: &str, status: &str| match kind {
        "Available" | "Healthy" | "ReconcileSucceeded" => status == "True",
        _ => status == "False",
    };
    cluster
        .conditions
        .iter()
        .filter(|condition| !fine(&condition.r#type, &condition.status))
        .map(|condition| {
            vec![
                name.clone(),
                condition.r#type.clone(),
                condition.status.clone(),
                condition.reason.clone(),
                one_line(&condition.message),
            ]
        })
        .collect()
}

fn section(text: &mut String, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
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

fn or_none(text: String) -> String {
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
    let seconds = now.duration_since(then).max(SignedDuration::ZERO).as_secs();
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
            message: "copies the data of orders-0:\n42 %".to_owned(),
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
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    #[test]
    fn the_table() {
        insta::assert_snapshot!(table(&status(), now()));
    }

    #[test]
    fn a_shard_without_clusters_says_so() {
        let empty = ShardStatus { clusters: Vec::new(), lease: None, leader: false, ..status() };
        insta::assert_snapshot!(table(&empty, now()));
    }

    #[test]
    fn the_json() {
        insta::assert_json_snapshot!(ShardStatusView::from(&status()));
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
