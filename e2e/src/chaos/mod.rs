//! Faults under load, drawn from a seed, and the verdict on what clients were told meanwhile.
//!
//! [`action`] says what can be done, [`inject`] does it, [`fault`] ends it whatever happens, [`judge`] compares.
//! docs/chaos.md describes it for people.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::images::fleet::Profile;
use crate::workload::{Clients, Told, Workload};
use action::{Kind, Plan, Step};
use arena::{Arena, CLUSTER};
use history::History;
use inject::{Caused, inject};
use judge::Judgement;

pub mod action;
pub mod arena;
pub mod fault;
pub mod history;
pub mod inject;
pub mod judge;
pub mod waiting;

/// The namespace of the tenant.
const NAMESPACE: &str = "chaos";
/// How long the cluster may take until it is in sync after the faults have ended.
const IN_SYNC: Duration = Duration::from_mins(5);
/// How long the clients may take until they are at work again after that.
const AT_WORK: Duration = Duration::from_secs(20);
/// How long the API server may take to answer after it was gone.
const SERVED: Duration = Duration::from_mins(1);
/// How long it may take to cause a fault on top of another one.
const CAUSED: Duration = Duration::from_secs(10);
const OFTEN: Duration = Duration::from_millis(50);
/// How long each client waits after an answer: hours of history have to fit into memory.
const PAUSE: Duration = Duration::from_millis(20);

/// What to do.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the local cluster.
    pub cluster: String,
    /// Its nodes besides that of the control plane.
    pub nodes: u8,
    /// Clients that write; half as many read.
    pub clients: u32,
    /// The seed of the faults.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
    /// The kinds of faults; all where there is none.
    pub kinds: Vec<Kind>,
    /// Where the history goes.
    pub history: PathBuf,
    /// How the programs are compiled.
    pub profile: Profile,
}

/// How one step went.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The step.
    pub step: Step,
    /// From the end of the faults until all instances were in sync.
    pub redundant: Duration,
}

/// How a run went.
#[derive(Debug)]
pub struct Report {
    /// The steps that were taken.
    pub taken: Vec<Taken>,
    /// Why the run ended before its time, if it did.
    pub ended_early: Option<String>,
    /// The verdict; none where the cluster could not be asked any more.
    pub judgement: Option<Judgement>,
    /// Where the history is.
    pub history: PathBuf,
}

impl Report {
    /// Whether every promise was kept and the cluster was in sync again after each step.
    pub fn is_clean(&self) -> bool {
        let kept = self.judgement.as_ref().is_some_and(|judgement| judgement.broken.is_empty());
        self.ended_early.is_none() && kept
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} steps; the history is {}", self.taken.len(), self.history.display())?;
        if let Some(why) = &self.ended_early {
            writeln!(f, "ended early: {why}")?;
        }
        self.judgement.as_ref().map_or(Ok(()), |judgement| write!(f, "{judgement}"))
    }
}

/// Causes the faults of a seed one step after the other, and judges.
pub async fn run(settings: &Settings) -> Result<Report> {
    let arena = Arena::set(&settings.cluster, settings.nodes, NAMESPACE, settings.profile).await?;
    let plan = Plan::new(settings.seed, &settings.kinds);
    let deadline = Instant::now() + settings.time;
    run_steps(&arena, settings, plan.take_while(|_| Instant::now() < deadline)).await
}

/// Takes steps, and judges. The first one that fails ends the run.
pub async fn run_steps(
    arena: &Arena,
    settings: &Settings,
    steps: impl IntoIterator<Item = Step>,
) -> Result<Report> {
    let mut history = History::begin(settings.history.clone())?;
    let nodes = arena.machine().plan().each_node().collect();
    let clients =
        Clients { writers: settings.clients, readers: settings.clients.div_ceil(2), nodes, pause: PAUSE };
    history.event(
        "begin",
        json!({"seed": settings.seed, "clients": settings.clients, "nodes": settings.nodes}),
    )?;
    let workload = Workload::start_with(arena.machine(), &arena.tenant, CLUSTER, &clients).await?;
    let mut run = Run { arena, history, workload, promised: Vec::new() };
    let mut taken = Vec::new();
    let mut ended_early = None;
    for (number, step) in (1_u32..).zip(steps) {
        let at = run.history.start().elapsed().as_secs_f64();
        println!("{number}: {} (at {at:.1} s of the history)", describe(&step));
        match Box::pin(run.take(&step)).await {
            Ok(done) => {
                println!("   in sync {:.1} s after its end", done.redundant.as_secs_f64());
                taken.push(done);
            }
            Err(error) => {
                let error = format!("step {number} ({}): {error:#}", describe(&step));
                run.history.event("failed", json!({"why": error}))?;
                ended_early = Some(error);
                break;
            }
        }
    }
    let Run { mut history, workload, promised, .. } = run;
    let told = workload.finish().await?;
    let judged = judge(arena, &mut history, &told, &promised).await;
    let judgement = match judged {
        Ok(judgement) => Some(judgement),
        Err(error) => {
            ended_early.get_or_insert(format!("the instances could not be asked: {error:#}"));
            None
        }
    };
    let history = history.end(&told)?;
    Ok(Report { taken, ended_early, judgement, history })
}

async fn judge(arena: &Arena, history: &mut History, told: &Told, promised: &[u32]) -> Result<Judgement> {
    let judgement = Judgement::of(arena, told, promised, history.start()).await?;
    history.event("judged", json!({"broken": judgement.broken, "verdict": judgement.to_string()}))?;
    Ok(judgement)
}

fn describe(step: &Step) -> String {
    let one = |action: &action::Action| {
        let target = serde_json::to_value(action.target).unwrap_or_default();
        let target = target.as_str().unwrap_or_default();
        format!("{} ({target}) for {:.1} s", action.kind, action.duration().as_secs_f64())
    };
    match &step.second {
        None => one(&step.first),
        Some((after, second)) => format!("{}, and {after} ms later {}", one(&step.first), one(second)),
    }
}

/// A run under way.
struct Run<'a> {
    arena: &'a Arena,
    history: History,
    workload: Workload,
    promised: Vec<u32>,
}

impl Run<'_> {
    /// Takes one step and waits until all is well again.
    async fn take(&mut self, step: &Step) -> Result<Taken> {
        self.workload.goes_on(20, AT_WORK).await?;
        tokio::time::sleep(Duration::from_millis(step.pause)).await;
        self.history.event("step", json!({"step": step}))?;
        let roles = self.arena.roles().await?;
        let first = self.cause(&roles, &step.first).await?;
        // Both end at their own times; what was first may end last.
        let first_ends = tokio::time::sleep(step.first.duration());
        tokio::pin!(first_ends);
        let mut second = None;
        if let Some((after, action)) = &step.second {
            tokio::time::sleep(Duration::from_millis(*after)).await;
            // What the first fault has taken away can't be disturbed any more, nor be asked for ever.
            let causing = tokio::time::timeout(CAUSED, self.cause(&roles, action));
            match causing.await.context("it took too long").flatten() {
                Ok(caused) => second = Some((caused, tokio::time::Instant::now() + action.duration())),
                Err(error) => self.history.event("not caused", json!({"why": format!("{error:#}")}))?,
            }
        }
        if let Some((caused, ends)) = second {
            let second_ends = tokio::time::sleep_until(ends);
            tokio::pin!(second_ends);
            tokio::select! {
                () = &mut first_ends => {
                    self.heal(first)?;
                    second_ends.await;
                    self.heal(caused)?;
                }
                () = &mut second_ends => {
                    self.heal(caused)?;
                    first_ends.await;
                    self.heal(first)?;
                }
            }
        } else {
            first_ends.await;
            self.heal(first)?;
        }
        let healed = Instant::now();
        self.restore().await?;
        let since = self.arena.settled(IN_SYNC).await?;
        let redundant = since.saturating_duration_since(healed);
        self.history.event(
            "in sync",
            json!({"after_ms": u64::try_from(redundant.as_millis()).unwrap_or(u64::MAX)}),
        )?;
        Ok(Taken { step: *step, redundant })
    }

    async fn cause(&mut self, roles: &arena::Roles, action: &action::Action) -> Result<Caused> {
        self.history.event("inject", json!({"action": action}))?;
        let mut caused = inject(self.arena, roles, action).await?;
        self.promised.append(&mut caused.promised);
        if let Some(note) = &caused.note {
            println!("   {note}");
            self.history.event("caused", json!({"note": note}))?;
        }
        Ok(caused)
    }

    fn heal(&mut self, caused: Caused) -> Result<()> {
        caused.fault.heal()?;
        self.history.event("healed", json!({}))
    }

    /// The daemons of the cluster and the spec as they were, once the API server answers.
    async fn restore(&self) -> Result<()> {
        let whole = || async {
            self.arena.revive()?;
            self.arena.wanted(3).await
        };
        crate::wait::until("the cluster to be as it was", SERVED, OFTEN, whole).await
    }
}

/// Reads the names of kinds, separated by commas.
pub fn kinds(names: &str) -> Result<Vec<Kind>> {
    let kinds: Vec<Kind> = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(Kind::parse)
        .collect::<Result<_>>()
        .context("--actions can't be used")?;
    if kinds.is_empty() {
        bail!("--actions names none: leave it out for all, or see --list");
    }
    Ok(kinds)
}
