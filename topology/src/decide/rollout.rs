//! Which outdated pod is replaced next.
//!
//! ```text
//! nothing else is going on ─► a replica is outdated ─► replace it, the highest ordinal first
//!                              │ none is              └─► not in sync yet: nobody else is touched
//!                              └─ the primary is ─► hand over ─► it is a replica like any other
//!                                                └─ the only instance ─► replace it
//! ```
//!
//! A pod of a template that was given up is not waited for: where its instance is not in sync, it is the first one
//! ([`left_over`]). Whether a template is given up is said by [`trial`](super::trial).
//!
//! While one instance is away all others are in sync: with 3 instances 1 acker where a commit waits for 1, with 5
//! instances 3 where it waits for 2. So a rollout never leaves fewer than a commit waits for.

use super::decision::Standing;
use super::followers::Follower;
use super::quorum_change::keeps_up;
use super::survey::{Member, Survey};
use crate::observe::{InstanceId, PodState};

/// The instance whose pod may be replaced now, if the primary takes writes.
pub(super) fn next(
    survey: &Survey<'_>,
    primary: Member<'_>,
    followers: &[Follower<'_>],
) -> Option<InstanceId> {
    if !is_quiet(survey, primary, followers, None) {
        return None;
    }
    let outdated = followers.iter().map(|follower| follower.member).filter(|member| member.outdated);
    let alone = survey.view.replicas == 1 && primary.outdated;
    outdated.map(|member| member.id).max().or_else(|| alone.then_some(primary.id))
}

/// The instance with a pod of a template that was given up, which is not in sync and would keep all others waiting. The
/// others are as they have to be for any replacement, so that it takes nothing from them.
pub(super) fn left_over(
    survey: &Survey<'_>,
    primary: Member<'_>,
    followers: &[Follower<'_>],
) -> Option<InstanceId> {
    let stuck = followers.iter().filter(|follower| {
        follower.member.abandoned && !matches!(follower.standing, Standing::InSync | Standing::Cloning)
    });
    let stuck = stuck.map(|follower| follower.member).filter(|member| member.pod != PodState::Terminating);
    stuck.map(|member| member.id).max().filter(|id| is_quiet(survey, primary, followers, Some(*id)))
}

/// Whether the primary is the last instance that is outdated, so that another one has to take over.
pub(super) fn reaches_primary(survey: &Survey<'_>, primary: Member<'_>, followers: &[Follower<'_>]) -> bool {
    survey.view.replicas > 1
        && primary.outdated
        && !followers.iter().any(|follower| follower.member.outdated)
        && is_quiet(survey, primary, followers, None)
}

/// Whether all wanted instances are there and in sync, nobody else is, and the quorum is the wanted one. One follower may
/// be left out.
///
/// An instance that was away gets what it has missed first, and acknowledges nothing new until then: the next one must
/// not go before that, or commits would wait for as long.
fn is_quiet(
    survey: &Survey<'_>,
    primary: Member<'_>,
    followers: &[Follower<'_>],
    but: Option<InstanceId>,
) -> bool {
    let stays = |member: Member<'_>| {
        survey.is_wanted(member.id) && member.pod == PodState::Running && !member.leaves()
    };
    survey.record().quorum == survey.wanted
        && stays(primary)
        && followers.iter().filter(|follower| Some(follower.member.id) != but).all(|follower| {
            let current = primary.server().is_some_and(|server| keeps_up(primary, server, follower));
            stays(follower.member) && follower.standing == Standing::InSync && current
        })
}
