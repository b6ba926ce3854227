//! From a view to a decision.
//!
//! ```text
//! ClusterView ─► Survey ─► a primary is on record? ── no ──► bootstrap: wait for all, choose by data
//!                             │ yes
//!                             ▼
//!                          followers: what each of the others does and needs
//!                             │
//!                             ├─ primary silent ─► loss: lost, or not known ─► failover: another one, by proof
//!                             │                                                 or by force
//!                             ├─ not open for the term ─► opening: open it once enough acknowledge
//!                             └─ open for the term ─► handover: to another primary
//!                                                  ─► quorum_change: a new term for another quorum
//!                                                  ─► rollout: one outdated pod to be replaced
//! ```
//!
//! How a new template does, and that it is given up ([`trial`]), is said whatever else goes on.
//!
//! What becomes of a person's wish for another primary ([`wish`]), for an instance to be rebuilt ([`rebuild`]) or
//! released ([`release`]), or for one to take over at the price of data ([`force`]), is said last.
//!
//! What holds for every decision:
//! - the only instance that is ever ordered open is the primary of the record, and only while no other
//!   instance is known to take writes that could be acknowledged;
//! - a decision with a record has no orders, so an order's term has always been recorded before;
//! - an instance that can't be asked gets no order and proves nothing, in either direction;
//! - a copy is ordered only onto an instance whose every transaction the donor has, but for those that a lost
//!   primary committed and nobody acknowledged, or that a person gives up; their logs are kept aside first;
//! - an acknowledged transaction is left out of the cluster only by a takeover that a person forces, and what holds it
//!   is left alone from then on.

mod bootstrap;
pub mod decision;
mod donors;
mod failover;
mod followers;
mod force;
mod handover;
mod loss;
mod opening;
mod quorum_change;
mod rebuild;
mod reign;
mod release;
mod rollout;
pub mod state;
mod survey;
mod traffic;
mod trial;
mod wish;

pub use loss::{SUSPECT_AFTER_MS, UNREACHED_AFTER_MS};

use self::decision::{
    Action, Decision, Forcing, Fulfilment, Order, Progress, Rebuilding, Releasing, Traffic,
};
use self::state::State;
use self::survey::Survey;
use crate::observe::{ClusterView, PodState, Stage};
use crate::quorum::Quorum;

/// Decides what is to be done about a cluster, from everything that is known of it.
///
/// Deterministic and total: equal views give equal decisions, and every view gives one.
pub fn decide(view: &ClusterView) -> Decision {
    let wanted = match Quorum::for_replicas(view.replicas) {
        Ok(wanted) => wanted,
        Err(error) => return undecided(view, error.to_string()),
    };
    let survey = Survey::new(view, wanted);
    let decision = match view.record.primary {
        Some(primary) if !reign::is_outdated(&survey, primary) => match view.record.stage {
            Stage::Reign | Stage::Handover { .. } => reign::decide(&survey, primary),
            Stage::Fencing => failover::decide(&survey, primary),
        },
        _ => bootstrap::decide(&survey),
    };
    let decision = if view.offline {
        offline(&survey, decision)
    } else if view.paused {
        paused(decision)
    } else {
        decision
    };
    let (wish, rebuilding) = (wish::fulfilment(&survey, &decision), rebuild::outcome(&survey, &decision));
    let forcing = force::outcome(&survey, &decision);
    let releasing = release::outcome(&survey, &decision);
    let (replace, progress) = (trial::replace(&survey, &decision), trial::progress(&survey, &decision));
    Decision { wish, rebuilding, releasing, forcing, replace, progress, ..decision }
}

/// Nothing is touched in a cluster whose wanted size makes no sense.
fn undecided(view: &ClusterView, message: String) -> Decision {
    Decision {
        state: State::Incomplete,
        wish: view.wanted_primary.map(|_| Fulfilment::Refused(message.clone())),
        rebuilding: view.rebuild.map(|_| Rebuilding::Refused(message.clone())),
        releasing: view.release.as_ref().map(|_| Releasing::Refused(message.clone())),
        forcing: view.force.map(|_| Forcing::Refused(message.clone())),
        message,
        instances: Vec::new(),
        record: None,
        orders: Vec::new(),
        traffic: Traffic {
            undecided_primary: view.record.primary,
            undecided_replicas: view.instances.iter().map(|instance| instance.id).collect(),
            ..Traffic::default()
        },
        opened: view.opened,
        ackers: view.ackers.clone(),
        catching_up: Vec::new(),
        replace: None,
        progress: Progress { proved: view.trial.proved.clone(), ..Progress::default() },
        pods: view
            .instances
            .iter()
            .filter(|instance| instance.pod != PodState::Absent || instance.id.0 < view.replicas)
            .map(|instance| instance.id.0.saturating_add(1))
            .max()
            .unwrap_or_default(),
    }
}

/// An instance that takes writes is closed before its pod goes, so that no commit is answered that nobody
/// acknowledged. One that can't be asked holds up nothing: its agent closes it in the same way.
fn offline(survey: &Survey<'_>, decision: Decision) -> Decision {
    let term = survey.term();
    let open: Vec<_> = survey.members().filter(|member| member.is_open()).collect();
    let message = match open.as_slice() {
        [] => "the cluster is to be stopped, and no instance takes writes".to_owned(),
        open => format!(
            "the cluster is to be stopped: {} closed first",
            are(open.iter().map(|member| member.id.to_string()))
        ),
    };
    Decision {
        state: State::Offline,
        message,
        record: None,
        orders: open
            .iter()
            .filter(|member| member.known().is_some_and(|facts| facts.persisted_term <= term))
            .map(|member| Order { instance: member.id, term, action: Action::Close })
            .collect(),
        traffic: Traffic::default(),
        replace: None,
        pods: if open.is_empty() { 0 } else { survey.pods_there_are() },
        ..decision
    }
}

fn are(names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

fn paused(decision: Decision) -> Decision {
    let Decision { state, message, .. } = &decision;
    Decision {
        message: format!("roles are left alone; without that: {state}: {message}"),
        state: State::Paused,
        record: None,
        orders: Vec::new(),
        replace: None,
        ..decision
    }
}

/// One sentence after the other.
fn join(parts: impl IntoIterator<Item = String>) -> String {
    parts.into_iter().collect::<Vec<_>>().join("; ")
}
