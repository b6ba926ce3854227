//! Another primary in place of one that works.
//!
//! ```text
//! record: term + 1, Handover ─► the primary is closed ─► the other one has executed all of it
//!                                 │                        └─► record: term + 2, primary: the other one
//!                                 ├─ the other one can't any more ─► record: term + 2, primary: the same
//!                                 └─ the primary is lost ─► failover
//! ```
//!
//! A closed primary commits nothing more, and no order of the term before can open it again. So what it holds
//! is all that it ever acknowledged, and no acker has to prove anything.

use super::decision::{Action, Decision, Standing};
use super::followers::Follower;
use super::loss;
use super::quorum_change::keeps_up;
use super::reign::Reign;
use super::state::State;
use super::survey::{Member, Survey};
use crate::observe::{InstanceId, PodState, ServerFacts, Stage, TermRecord, ThreadState};

/// The record that begins a handover, or what that waits for. Nothing if the primary is the right one.
pub(super) fn wanted(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    followers: &[Follower<'_>],
) -> Option<Result<TermRecord, String>> {
    let able = |follower: &&Follower<'_>| obstacle(survey, primary, server, follower).is_none();
    let leaves = !survey.is_wanted(primary.id);
    let to = match survey.view.wanted_primary.filter(|wanted| *wanted != primary.id) {
        Some(wanted) => {
            let Some(follower) = followers.iter().find(|follower| follower.member.id == wanted) else {
                return Some(Err(format!("{wanted} can't become the primary: there is no such instance")));
            };
            match obstacle(survey, primary, server, follower) {
                None => wanted,
                Some(_) if leaves => followers.iter().find(able)?.member.id,
                Some(reason) => return Some(Err(format!("{wanted} can't become the primary: {reason}"))),
            }
        }
        None if leaves => {
            let Some(follower) = followers.iter().find(able) else {
                let id = primary.id;
                return Some(Err(format!("{id} is the primary and leaves once another one can take over")));
            };
            follower.member.id
        }
        None => return None,
    };
    Some(Ok(survey.record().next(Stage::Handover { to })))
}

/// Why an instance can't take over now, said of it.
fn obstacle(
    survey: &Survey<'_>,
    primary: Member<'_>,
    server: &ServerFacts,
    follower: &Follower<'_>,
) -> Option<String> {
    let id = follower.member.id;
    if !survey.is_wanted(id) || !survey.record().counts_acks_of(id) {
        return Some(format!("{id} is no acker of the cluster"));
    }
    if follower.member.pod != PodState::Running || follower.member.ready().is_none() {
        return Some(format!("{id} is stopping or does not answer"));
    }
    if follower.standing != Standing::InSync {
        return Some(format!("{id} {}", follower.message));
    }
    (!keeps_up(primary, server, follower)).then(|| format!("{id} is behind"))
}

/// Decides about a cluster whose primary hands over to another instance.
///
/// `orders` are those that bring the followers back to the primary: the one that takes over may need one, too.
pub(super) fn decide(
    reign: Reign<'_, '_>,
    to: InstanceId,
    mut orders: Vec<(InstanceId, Action)>,
) -> Decision {
    let (survey, primary) = (reign.survey(), reign.primary());
    let Some(server) = primary.server() else {
        let judgement = loss::judge(survey, primary, reign.followers());
        return reign.replaced(judgement, Vec::new());
    };
    let from = primary.id;
    let closed =
        primary.known().is_some_and(|facts| facts.persisted_term == survey.term()) && !primary.is_open();
    let other = reign.followers().iter().find(|follower| follower.member.id == to);
    if let Some(reason) = other.and_then(|follower| unable(follower, from, closed)) {
        let message = format!("{from} stays the primary: {to} can't take over, {reason}");
        let record = survey.record().next(Stage::Reign);
        return reign.recorded(State::SwitchoverRequested, message, record);
    }
    if !closed {
        let message = format!("{from} is closed, to hand over to {to}");
        orders.extend(primary.ready().map(|_| (from, Action::Close)));
        return reign.decision(State::SwitchoverRequested, message, orders);
    }
    let held = server.held();
    if !survey.member(to).server().is_some_and(|other| other.executed.contains(&held)) {
        let message = format!("{from} is closed, {to} gets its last transactions");
        return reign.decision(State::SwitchoverRequested, message, orders);
    }
    let record = survey.record().taken_over(to, held, true);
    let message = format!("{to} has executed all that {from} has, and takes over");
    reign.recorded(State::SwitchoverRequested, message, record)
}

/// Why an instance can't go on taking over, said of it. Once the primary is closed nobody writes, so one that
/// can't get or apply the last transactions is not waited for.
fn unable(follower: &Follower<'_>, from: InstanceId, closed: bool) -> Option<String> {
    if follower.member.ready().is_none() {
        return Some(follower.member.why_not_ready());
    }
    let unreachable = follower.member.replication_from(from).is_some_and(|replication| {
        replication.receiver == ThreadState::Connecting && !replication.receiver_error.is_empty()
    });
    if closed && (unreachable || follower.member.fails_to_follow(from)) {
        return Some(follower.message.clone());
    }
    matches!(
        follower.standing,
        Standing::Errant(_) | Standing::Blocked | Standing::Open | Standing::Cloning | Standing::Down
    )
    .then(|| follower.message.clone())
}
