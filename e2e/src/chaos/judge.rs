//! The verdict on a run: what clients were told against what the instances hold.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fleet_api::names::{self, UserRole};
use kube::ResourceExt;

use super::arena::{Arena, CLUSTER};
use super::waiting;
use crate::workload::order;
use crate::workload::reads::{Episode, Stale};
use crate::workload::{Server, Told, Verdict};

/// How long one server may go on giving stale answers: an instance that nobody reaches ends its mysqld after
/// 10 s, and notices that it is alone within some more.
const STALE: Duration = Duration::from_secs(15);
/// How long a replica has to apply what it has received.
const APPLIED: Duration = Duration::from_mins(1);

/// What is found at the end of a run.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Every broken promise, in words.
    pub broken: Vec<String>,
    /// How many writes were acknowledged.
    pub acknowledged: usize,
    /// Of how many writes nobody was told.
    pub unknown: usize,
    /// How many were refused.
    pub refused: usize,
    /// What readers saw.
    pub stale: Stale,
    /// How many terms there were.
    pub terms: usize,
    /// How many times the writer changed, as clients can prove.
    pub takeovers: usize,
}

impl Judgement {
    /// Judges what clients were told. The cluster has to be Healthy, and nobody may write any more.
    ///
    /// `start` is that of the history.
    pub async fn of(arena: &Arena, told: &Told, promised: &[u32], start: Instant) -> Result<Self> {
        let mut judgement = Self::default();
        let roles = arena.roles().await?;
        for pod in roles.all() {
            let name = pod.name_any();
            let verdict = Verdict::once_applied(&told.writes, &arena.tenant, CLUSTER, &name, APPLIED).await?;
            judgement.add(&name, &verdict);
            judgement.promises(arena, &name, promised).await?;
        }
        judgement.terms(arena, &roles.primary.name_any(), told).await?;
        judgement.stale = Stale::among(&told.reads, &told.writes);
        let longest = judgement.stale.longest.as_ref().filter(|episode| episode.duration() > STALE);
        judgement.broken.extend(longest.map(|episode| told_old(episode, start)));
        Ok(judgement)
    }

    fn add(&mut self, pod: &str, verdict: &Verdict) {
        self.acknowledged = verdict.acknowledged;
        self.unknown = verdict.unknown;
        self.refused = verdict.refused;
        self.broken.extend(verdict.broken().into_iter().map(|broken| format!("{pod}: {broken}")));
    }

    /// Commits that waited for lost ackers and were answered with OK must be there, too.
    async fn promises(&mut self, arena: &Arena, pod: &str, promised: &[u32]) -> Result<()> {
        if promised.is_empty() {
            return Ok(());
        }
        let host = names::instance_host(&arena.tenant.namespace, CLUSTER, pod);
        let query = format!("SELECT id FROM {}", waiting::TABLE);
        let rows = arena.tenant.sql(CLUSTER, pod, &host, UserRole::Reader, &query).await?;
        let found: Vec<u32> = rows.lines().filter_map(|line| line.parse().ok()).collect();
        let lost: Vec<&u32> = promised.iter().filter(|id| !found.contains(id)).collect();
        if !lost.is_empty() {
            self.broken.push(format!(
                "{pod}: {} commits were answered with OK while no other instance had them, and are lost: {lost:?}",
                lost.len()
            ));
        }
        Ok(())
    }

    /// Two writers in one instant show as takeovers that no term explains.
    async fn terms(&mut self, arena: &Arena, primary: &str, told: &Told) -> Result<()> {
        let host = names::instance_host(&arena.tenant.namespace, CLUSTER, primary);
        let query = "SELECT term, server_uuid FROM mysql_fleet.term ORDER BY term";
        let rows = arena.tenant.sql(CLUSTER, primary, &host, UserRole::Reader, query).await?;
        let terms = rows
            .lines()
            .map(|row| {
                let server = row.split('\t').nth(1).and_then(Server::parse);
                server.with_context(|| format!("{primary} answered the term {row:?}"))
            })
            .collect::<Result<Vec<Server>>>()?;
        let chain = order::chain(&told.writes);
        self.terms = terms.len();
        self.takeovers = chain.len().saturating_sub(1);
        if !order::is_explained(&chain, &terms) {
            self.broken.push(format!(
                "two instances took writes at once: clients saw the writers {}, the terms are of {}",
                shown(&chain),
                shown(&terms)
            ));
        }
        Ok(())
    }
}

/// A server that went on giving stale answers, in words.
fn told_old(episode: &Episode, start: Instant) -> String {
    let Episode { server, first, last, reads, readers, missed: (seen, acknowledged) } = episode;
    let at = |instant: &Instant| instant.saturating_duration_since(start).as_secs_f64();
    format!(
        "the server {server} gave {reads} stale answers to the readers {readers:?} for {:.1} s, from {:.1} s to {:.1} s \
         of the history; the first one was {seen}, {acknowledged} was acknowledged before",
        episode.duration().as_secs_f64(),
        at(first),
        at(last),
    )
}

fn shown(servers: &[Server]) -> String {
    let all: Vec<String> =
        servers.iter().map(|server| server.to_string().chars().take(8).collect()).collect();
    all.join(" ")
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} writes acknowledged, {} refused, {} unknown; {} terms, {} takeovers seen by clients",
            self.acknowledged, self.refused, self.unknown, self.terms, self.takeovers
        )?;
        writeln!(
            f,
            "{} stale reads (at most {:.1} s by one server), {} reads went back",
            self.stale.reads,
            self.stale.longest.as_ref().map(Episode::duration).unwrap_or_default().as_secs_f64(),
            self.stale.backwards
        )?;
        for broken in &self.broken {
            writeln!(f, "BROKEN: {broken}")?;
        }
        Ok(())
    }
}
