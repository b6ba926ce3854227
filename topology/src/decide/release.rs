//! What becomes of a person's choice to keep what an instance holds and its primary does not.
//!
//! Such transactions may do no harm, as what `FLUSH TABLES` writes to the binary log. Who chooses to release the
//! instance names them: they count as transactions of the cluster from then on. The primary commits an empty one by
//! the name of each, so every other instance gets those, and the one that is released has nothing of its own left. What
//! they changed in its data stays there and nowhere else, which is why nobody but a person chooses this.

use super::decision::{Action, Decision, Releasing, Role, Standing};
use super::followers::Follower;
use super::force;
use super::state::State;
use super::survey::{Member, Survey};
use super::wish::is_unheard;
use crate::gtid::GtidSet;
use crate::observe::{InstanceId, Release, ServerFacts};

/// The order to a primary that serves, once all that the instance holds is named and executed.
pub(super) fn order(
    survey: &Survey<'_>,
    primary: Member<'_>,
    source: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<(InstanceId, Action)> {
    let release = survey.view.release.as_ref().filter(|chosen| !survey.is_to_be_rebuilt(chosen.instance))?;
    let follower = followers.iter().find(|follower| follower.member.id == release.instance)?;
    let Standing::Errant(errant) = &follower.standing else { return None };
    let executed = follower.member.server().is_some_and(|server| server.executed.contains(errant));
    // A primary that has lost what it was chosen for proves nothing of what others hold.
    let whole = survey.record().promotion_point.as_ref().is_none_or(|point| source.held().contains(point));
    let may = executed && whole && obstacle(survey, release, errant).is_none();
    may.then(|| (primary.id, Action::Adopt { transactions: errant.clone() }))
}

/// Why what the instance holds can't be kept.
fn obstacle(survey: &Survey<'_>, release: &Release, errant: &GtidSet) -> Option<String> {
    let id = release.instance;
    let unnamed = errant.subtract(&release.transactions);
    if !unnamed.is_empty() {
        return Some(format!("{id} also holds transactions that are not named: {unnamed}"));
    }
    let left_behind = force::left_behind(survey, survey.member(id));
    if !left_behind.is_empty() {
        return Some(format!(
            "{id} holds transactions that may have been acknowledged before a primary without them was forced, and \
             empty ones in their place would hide that: {left_behind}"
        ));
    }
    None
}

/// Answers the choice, if there is one.
pub(super) fn outcome(survey: &Survey<'_>, decision: &Decision) -> Option<Releasing> {
    let release = survey.view.release.as_ref()?;
    let id = release.instance;
    let Some(verdict) = decision.instances.iter().find(|verdict| verdict.id == id) else {
        return Some(Releasing::Refused(format!("there is no {id}")));
    };
    if matches!(decision.state, State::Offline | State::Paused) {
        let Decision { state, message, .. } = decision;
        return Some(Releasing::Refused(format!("the cluster is {state}: {message}")));
    }
    if survey.is_to_be_rebuilt(id) {
        return Some(Releasing::Refused(format!("{id} is to be rebuilt, which gives up what it holds")));
    }
    if verdict.role == Role::Primary {
        return Some(Releasing::Refused(format!(
            "{id} is the primary, whose transactions are those of the cluster already"
        )));
    }
    let adopted = survey.record().primary.and_then(|primary| survey.member(primary).server());
    let adopted = adopted.is_some_and(|source| source.executed.contains(&release.transactions));
    Some(match &verdict.standing {
        Standing::Errant(errant) => match obstacle(survey, release, errant) {
            Some(reason) => Releasing::Refused(reason),
            None if decision.orders.iter().any(|order| matches!(order.action, Action::Adopt { .. })) => {
                Releasing::UnderWay
            }
            None => Releasing::Waits,
        },
        Standing::InSync if adopted => Releasing::Done,
        Standing::InSync => {
            Releasing::Refused(format!("{id} is in sync: it holds nothing that the primary does not have"))
        }
        _ if adopted || is_unheard(survey.member(id)) => Releasing::Waits,
        _ => Releasing::Refused(format!(
            "{id} {}: it can be released once it is found to hold what the primary does not have",
            verdict.message
        )),
    })
}
