//! What clients see when a primary is lost or moved, measured again and again on one cluster.
//!
//! Each run begins with a cluster that is Healthy, and ends when it is again. The judge is the same as that of
//! the tests: every acknowledged write has to be at every instance exactly once.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use fleet_api::names;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde_json::json;

use crate::chaos::action::{Action, Kind, Target};
use crate::chaos::arena::{Arena, CLUSTER, Roles};
use crate::chaos::inject::{Caused, inject};
use crate::images::fleet::Profile;
use crate::workload::{self, Verdict, Workload, outage};

const NAMESPACE: &str = "bench";
/// How long a takeover may take before the run counts as broken.
const LONG: Duration = Duration::from_mins(2);
/// How long all instances may take to be in sync again.
const IN_SYNC: Duration = Duration::from_mins(5);
const SOON: Duration = Duration::from_secs(30);

/// What happens to the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// SIGKILL of its mysqld.
    KillMysqld,
    /// Its pod is deleted by force.
    DeletePodByForce,
    /// SIGSTOP of its agent and mysqld, SIGCONT after another one has taken over.
    StopInstance,
    /// Its node loses the network, and has it again after another one has taken over.
    CutNode,
    /// Its pod is deleted, with the grace period.
    DeletePod,
    /// A switchover is asked for.
    Switchover,
}

impl Event {
    /// All events.
    pub const ALL: [Self; 6] = [
        Self::KillMysqld,
        Self::DeletePodByForce,
        Self::StopInstance,
        Self::CutNode,
        Self::DeletePod,
        Self::Switchover,
    ];

    fn about(self) -> &'static str {
        match self {
            Self::KillMysqld => "SIGKILL of the primary's mysqld",
            Self::DeletePodByForce => "primary's pod deleted by force",
            Self::StopInstance => "primary cut off (SIGSTOP of agent and mysqld)",
            Self::CutNode => "primary cut off (its node loses the network)",
            Self::DeletePod => "primary's pod deleted",
            Self::Switchover => "planned switchover",
        }
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Self::KillMysqld => Some(Kind::KillMysqld),
            Self::DeletePodByForce => Some(Kind::DeletePodByForce),
            Self::StopInstance => Some(Kind::StopInstance),
            Self::CutNode => Some(Kind::CutNode),
            Self::DeletePod => Some(Kind::DeletePod),
            Self::Switchover => None,
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the local cluster.
    pub cluster: String,
    /// The events.
    pub events: Vec<Event>,
    /// How often each.
    pub runs: u32,
    /// Clients that write, without a pause.
    pub clients: u32,
    /// Where the single runs go, a JSON object per line.
    pub output: PathBuf,
    /// How the programs are compiled.
    pub profile: Profile,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// What happened.
    pub event: Event,
    /// Which of its runs.
    pub run: u32,
    /// The longest time without an acknowledged write after the event, in milliseconds.
    pub gap: u128,
    /// Until all instances were in sync, in milliseconds: from the event, or where it lasts, from its end.
    pub redundant: u128,
    /// Acknowledged writes.
    pub acknowledged: usize,
    /// Acknowledged writes that an instance does not have.
    pub lost: usize,
    /// Writes of which nobody was told.
    pub unknown: usize,
    /// What went wrong, if anything did.
    pub broken: Option<String>,
}

/// Measures all that is asked for. An event that goes wrong is not tried again.
pub async fn measure(settings: &Settings) -> Result<Vec<Run>> {
    let arena = Arena::set(&settings.cluster, 3, NAMESPACE, settings.profile).await?;
    if let Some(folder) = settings.output.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    }
    let file = &settings.output;
    let mut output = File::create(file).with_context(|| format!("could not write {}", file.display()))?;
    let mut runs = Vec::new();
    for event in &settings.events {
        for number in 1..=settings.runs {
            let taken = Box::pin(one(&arena, settings, *event, number)).await;
            let run = taken.unwrap_or_else(|error| failed(*event, number, &error));
            println!(
                "{} {number}: no acknowledged write for {:.2} s, all in sync after {:.1} s, {} of {} lost{}",
                event.about(),
                seconds(run.gap),
                seconds(run.redundant),
                run.lost,
                run.acknowledged,
                run.broken.as_ref().map(|why| format!("; BROKEN: {why}")).unwrap_or_default()
            );
            writeln!(output, "{}", serde_json::to_string(&run)?)
                .with_context(|| format!("could not write {}", file.display()))?;
            let broken = run.broken.is_some();
            runs.push(run);
            if broken {
                break;
            }
        }
    }
    Ok(runs)
}

fn failed(event: Event, run: u32, error: &anyhow::Error) -> Run {
    let broken = Some(format!("{} {run}: {error:#}", event.about()));
    Run { event, run, gap: 0, redundant: 0, acknowledged: 0, lost: 0, unknown: 0, broken }
}

async fn one(arena: &Arena, settings: &Settings, event: Event, number: u32) -> Result<Run> {
    arena.settled(IN_SYNC).await?;
    let roles = arena.roles().await?;
    let old = roles.primary.name_any();
    let workload = Workload::start(arena.machine(), &arena.tenant, CLUSTER, settings.clients).await?;
    workload.goes_on(100, SOON).await?;
    let since = Instant::now();
    let caused = happen(arena, &roles, event).await?;
    arena.replaced(&old, LONG).await?;
    let lasts = matches!(event, Event::StopInstance | Event::CutNode);
    let ended = if lasts { Instant::now() } else { since };
    caused.fault.heal()?;
    let in_sync = arena.settled(IN_SYNC).await?;
    workload.goes_on(100, SOON).await?;
    let until = Instant::now();
    let writes = workload.stop().await?;
    let mut run = Run {
        event,
        run: number,
        gap: outage(&writes, since, until).as_millis(),
        redundant: in_sync.saturating_duration_since(ended).as_millis(),
        acknowledged: 0,
        lost: 0,
        unknown: 0,
        broken: None,
    };
    for pod in arena.roles().await?.all() {
        judge(arena, &pod.name_any(), &writes, &mut run).await?;
    }
    Ok(run)
}

/// Adds to a run what one of the instances holds at its end.
async fn judge(arena: &Arena, pod: &str, writes: &[workload::Write], run: &mut Run) -> Result<()> {
    let verdict = Verdict::once_applied(writes, &arena.tenant, CLUSTER, pod, SOON).await?;
    run.acknowledged = verdict.acknowledged;
    run.unknown = verdict.unknown;
    run.lost = run.lost.max(verdict.lost.len());
    if !verdict.is_clean() {
        run.broken = Some(format!("{} {}: {pod}: {verdict}", run.event.about(), run.run));
    }
    Ok(())
}

async fn happen(arena: &Arena, roles: &Roles, event: Event) -> Result<Caused> {
    if let Some(kind) = event.kind() {
        return inject(arena, roles, &Action { kind, target: Target::Primary, hold: 0 }).await;
    }
    let patch = json!({"metadata": {"annotations": {names::ANNOTATION_SWITCHOVER: "any"}}});
    let clusters = arena.tenant.clusters();
    clusters
        .patch(CLUSTER, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .context("could not ask for a switchover")?;
    Ok(Caused::default())
}

/// The runs as a table of docs/failover.md.
pub fn table(runs: &[Run]) -> String {
    let mut text = String::from(
        "| event | runs | first acknowledged write again, p50 / p99 / max | acknowledged writes lost | all in sync again, p50 / max |\n\
         |---|---|---|---|---|\n",
    );
    for event in Event::ALL {
        let of_event: Vec<&Run> =
            runs.iter().filter(|run| run.event == event && run.broken.is_none()).collect();
        if of_event.is_empty() {
            continue;
        }
        let gaps = sorted(of_event.iter().map(|run| run.gap));
        let redundant = sorted(of_event.iter().map(|run| run.redundant));
        let (lost, all): (usize, usize) =
            of_event.iter().fold((0, 0), |(lost, all), run| (lost + run.lost, all + run.acknowledged));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} / {:.2} / {:.2} s | {lost} of {all} | {:.1} / {:.1} s |",
            event.about(),
            of_event.len(),
            seconds(percentile(&gaps, 50)),
            seconds(percentile(&gaps, 99)),
            seconds(percentile(&gaps, 100)),
            seconds(percentile(&redundant, 50)),
            seconds(percentile(&redundant, 100)),
        );
    }
    text
}

fn sorted(values: impl Iterator<Item = u128>) -> Vec<u128> {
    let mut values: Vec<u128> = values.collect();
    values.sort_unstable();
    values
}

/// The smallest value that so many of a hundred do not exceed (nearest rank). 0 for none.
fn percentile(sorted: &[u128], percent: usize) -> u128 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn seconds(milliseconds: u128) -> f64 {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(u64::MAX)).as_secs_f64()
}

/// The machine, for those who read the table.
pub fn machine(settings: &Settings) -> String {
    let first = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory: u64 = first("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores ({}), {} GiB, Linux {}, {} builds, {} clients that write without a pause, 3 instances on \
         3 nodes of one machine, durability Strict",
        first("/proc/cpuinfo", "model name"),
        memory.div_ceil(1 << 20),
        kernel.trim(),
        settings.profile.name(),
        settings.clients
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<u128> = (1..=100).collect();
        assert_eq!(percentile(&values, 50), 50);
        assert_eq!(percentile(&values, 99), 99);
        assert_eq!(percentile(&values, 100), 100);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[7, 9], 99), 9);
        assert_eq!(percentile(&[], 99), 0);
    }

    #[test]
    fn the_table_has_a_line_per_event_that_was_measured() {
        let run = |event, gap, broken: Option<&str>| Run {
            event,
            run: 1,
            gap,
            redundant: 5_000,
            acknowledged: 10,
            lost: 0,
            unknown: 1,
            broken: broken.map(str::to_owned),
        };
        let runs = [
            run(Event::KillMysqld, 700, None),
            run(Event::KillMysqld, 900, None),
            run(Event::Switchover, 0, Some("no other primary")),
        ];
        let table = table(&runs);
        assert!(
            table.contains("SIGKILL of the primary's mysqld | 2 | 0.70 / 0.90 / 0.90 s | 0 of 20"),
            "{table}"
        );
        assert!(!table.contains("switchover"), "{table}");
    }
}
