//! Where traffic may go.

use super::decision::{Standing, Traffic};
use super::followers::Follower;
use super::survey::{Member, Survey};
use crate::observe::{InstanceId, PodState, ThreadState};

/// Where traffic may go while the record names a primary.
///
/// `serves` says whether that one takes writes for the current term.
pub(super) fn of_term(
    survey: &Survey<'_>,
    primary: Member<'_>,
    serves: bool,
    followers: &[Follower<'_>],
) -> Traffic {
    let alone = survey.view.replicas == 1;
    // Without a primary to compare with, nobody can tell an errant replica from one in sync.
    let comparable = primary.server().is_some();
    let wanted = || followers.iter().filter(|follower| survey.is_wanted(follower.member.id));
    let in_sync = |follower: &&Follower<'_>| {
        follower.standing == Standing::InSync && follower.member.pod == PodState::Running
    };
    let serving = wanted().filter(in_sync).filter(|_| comparable);
    let undecided = wanted().filter(|follower| {
        follower.member.may_be_fine()
            || only_misses(follower, primary.id)
            || (!comparable && in_sync(follower))
    });
    let primary_reads = Some(primary.id).filter(|_| alone && serves);
    let primary_may_read = Some(primary.id).filter(|_| alone && primary.may_be_fine());
    Traffic {
        primary: Some(primary.id).filter(|_| serves),
        undecided_primary: Some(primary.id).filter(|_| primary.may_be_fine()),
        replicas: primary_reads.into_iter().chain(serving.map(|follower| follower.member.id)).collect(),
        undecided_replicas: primary_may_read
            .into_iter()
            .chain(undecided.map(|follower| follower.member.id))
            .collect(),
    }
}

/// Whether a replica lacks nothing but the connection to its primary: a lost primary must not take the reads
/// along.
fn only_misses(follower: &Follower<'_>, primary: InstanceId) -> bool {
    matches!(follower.standing, Standing::CatchingUp | Standing::Closed)
        && follower.member.pod == PodState::Running
        && follower.member.ready().is_some()
        && follower.member.replication_from(primary).is_some_and(|replication| {
            replication.receiver == ThreadState::Connecting && replication.applier == ThreadState::Running
        })
}

/// The instances that keep the reads they have while no primary can be relied on.
pub(super) fn reads_that_may_stay(survey: &Survey<'_>) -> Vec<InstanceId> {
    let stays = |member: &Member<'_>| {
        let replicates = member.ready().and_then(|server| server.replication.as_ref());
        let applies = replicates.is_some_and(|replication| replication.applier == ThreadState::Running);
        member.may_be_fine() || applies || (survey.view.replicas == 1 && member.is_open())
    };
    survey.members().filter(stays).map(|member| member.id).collect()
}
