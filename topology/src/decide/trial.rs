//! Whether a new template works, and what becomes of one that does not.
//!
//! ```text
//! another template was in sync with all ─► an instance of the wanted one is not in sync, and never was with it
//!                                           ├─ it is ─► proved, whatever happens to it later
//!                                           └─ not within the deadline ─► the way back is barred: overdue
//!                                                                      └─ it is not: given up, the other one is wanted
//! all instances are of the wanted one and in sync ─► it works, and is what there is to go back to
//! ```
//!
//! Going back is a rolling update like any other, by [`rollout`](super::rollout), but for the pods of the template that
//! was given up: one that serves nobody is replaced at once.

use super::decision::{Decision, Progress, Standing, Verdict};
use super::loss::SUSPECT_AFTER_MS;
use super::state::State;
use super::survey::{Member, Survey};
use crate::observe::{Fallback, InstanceId, PodState};

/// How the wanted template does, by what was decided of the instances.
pub(super) fn progress(survey: &Survey<'_>, decision: &Decision) -> Progress {
    let trial = &survey.view.trial;
    let wanted = || survey.members().filter(|member| survey.is_wanted(member.id));
    let in_sync = |member: &Member<'_>| serves(decision, member.id) && member.pod == PodState::Running;
    let mut proved: Vec<_> = wanted()
        .filter(|member| !member.outdated && (in_sync(member) || trial.proved.contains(&member.id)))
        .map(|member| member.id)
        .collect();
    proved.sort();
    if decision.state == State::Healthy && wanted().all(|member| !member.outdated && in_sync(&member)) {
        return Progress { proved, verdict: Verdict::Works, ..Progress::default() };
    }
    if trial.fallback == Fallback::None || matches!(decision.state, State::Offline | State::Paused) {
        return Progress { proved, ..Progress::default() };
    }
    let unproved = || wanted().filter(|member| !member.outdated && !proved.contains(&member.id));
    let waited_for = trial.waiting.filter(|waiting| unproved().any(|member| member.id == waiting.instance));
    let Some(id) = waited_for.map(|waiting| waiting.instance).or_else(|| unproved().map(|one| one.id).max())
    else {
        return Progress { proved, ..Progress::default() };
    };
    let waited_ms = waited_for.map(|waiting| waiting.for_ms).unwrap_or_default();
    let runs = is_judged(survey.member(id), decision);
    let has_had_its_time = runs && waited_ms >= trial.deadline_ms;
    let barred = trial.fallback == Fallback::Barred;
    let verdict = match (has_had_its_time, barred) {
        (false, _) => Verdict::Open,
        (true, true) => Verdict::Overdue,
        (true, false) => Verdict::GivenUp,
    };
    Progress { proved, waits_for: Some(id), runs, verdict }
}

/// Whether an instance that is not in sync says something about its template. One that gets a copy works, however long
/// that takes; and where nobody at all is heard, that may be the fault of who listens.
fn is_judged(member: Member<'_>, decision: &Decision) -> bool {
    let heard = member.known().is_some() || member.pod != PodState::Running;
    member.copying().is_none() && (heard || decision.state != State::Incomplete)
}

fn serves(decision: &Decision, id: InstanceId) -> bool {
    decision.instances.iter().any(|instance| {
        instance.id == id
            && match instance.standing {
                Standing::InSync => true,
                Standing::Open => decision.state.takes_writes() && decision.traffic.primary == Some(id),
                Standing::Unknown
                | Standing::Down
                | Standing::Closed
                | Standing::CatchingUp
                | Standing::Cloning
                | Standing::Errant(_)
                | Standing::Blocked => false,
            }
    })
}

/// The instance whose pod may be replaced: the one that was decided on, or one that serves nobody with a template that
/// was given up, whatever else goes on. Its data stay on its volume.
pub(super) fn replace(survey: &Survey<'_>, decision: &Decision) -> Option<InstanceId> {
    let left_alone = matches!(decision.state, State::Offline | State::Paused);
    let useless = || {
        let pods = survey.members().filter(|member| member.abandoned && survey.is_wanted(member.id));
        pods.filter(|member| serves_nobody(survey, *member)).map(|member| member.id).max()
    };
    decision.replace.or_else(|| useless().filter(|_| !left_alone && decision.record.is_none()))
}

/// Whether nothing is lost for now with the pod of an instance: it was not started, or its mysqld has not answered its
/// agent. Of one that can't be asked that is not known; only where it is the only one, nobody else could tell. A primary
/// is lost before its pod is touched: what becomes of it is the failover's.
fn serves_nobody(survey: &Survey<'_>, member: Member<'_>) -> bool {
    if survey.view.replicas > 1 && survey.record().primary == Some(member.id) {
        return false;
    }
    match (member.pod, member.known()) {
        (PodState::Absent | PodState::Terminating, _) => false,
        (PodState::Pending, _) => true,
        (PodState::Running, Some(facts)) => {
            facts.server.is_none() && !member.misses_a_look() && member.copying().is_none()
        }
        (PodState::Running, None) => {
            let silent = member.unknown_for_ms().is_some_and(|for_ms| for_ms >= SUSPECT_AFTER_MS);
            survey.view.replicas == 1 && silent
        }
    }
}
