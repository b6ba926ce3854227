//! A primary that does not answer, or that its ackers do not get in to.

use super::decision::Forcing;
use super::failover::Proof;
use super::followers::Follower;
use super::force::{self, Choice};
use super::state::State;
use super::survey::{Member, Survey};
use crate::observe::{PodState, Stage, TermRecord};

/// For how long a primary has to be silent before it is suspected: three probes, one second apart.
pub const SUSPECT_AFTER_MS: u64 = 3000;

/// For how long the ackers of a primary that answers must have failed to get in to it before it is replaced: their
/// receivers try once a second and give a source that says nothing up after some seconds.
pub const UNREACHED_AFTER_MS: u64 = 10_000;

/// What can be said of a cluster whose primary does not answer.
pub(super) struct Judgement {
    pub(super) state: State,
    pub(super) message: String,
    /// The record of the term in which the ackers are revoked.
    pub(super) record: Option<TermRecord>,
    /// What becomes of a person's choice of the next primary, where the failover is blocked.
    pub(super) forcing: Option<Forcing>,
}

/// Says what can be said of a cluster whose primary does not answer.
///
/// A primary is lost if its own agent says that mysqld does not run, if its pod is gone, or if it has been
/// silent for long enough and no instance receives from it any more. Anything less is a fault of whoever asks
/// as likely as one of the primary.
pub(super) fn judge(survey: &Survey<'_>, primary: Member<'_>, followers: &[Follower<'_>]) -> Judgement {
    if let Some(doubt) = doubt(primary, followers) {
        return Judgement { state: State::Incomplete, message: doubt, record: None, forcing: None };
    }
    replace(survey, primary, &format!("{} {}", primary.id, primary.why_silent()))
}

/// What is done about a primary that answers and can commit nothing, since so many of its ackers have failed to get in
/// for long. A statement about accounts that waits for its acknowledgement does that to every login, and so does a path
/// between instances that only their shard does not need.
///
/// Where nobody can take over, its mysqld is started anew, which is enough for the first of the two. It is opened again
/// only once ackers have got in, so it is not ended over and over.
pub(super) fn unreached(survey: &Survey<'_>, primary: Member<'_>) -> Option<Unreached> {
    let quorum = survey.record().quorum;
    if quorum.required_acks() == 0 {
        return None;
    }
    let in_vain = |member: &Member<'_>| {
        let replication = member.replication_from(primary.id);
        let connecting_for_ms = replication.and_then(|replication| replication.connecting_for_ms);
        survey.record().counts_acks_of(member.id)
            && connecting_for_ms.is_some_and(|for_ms| for_ms >= UNREACHED_AFTER_MS)
    };
    let in_vain: Vec<_> = survey.others(primary.id).filter(in_vain).collect();
    if u32::try_from(in_vain.len()).unwrap_or(u32::MAX) < quorum.revocations_needed() {
        return None;
    }
    let lost = format!("no commit on {} is acknowledged, since its ackers do not get in", primary.id);
    if Proof::of(survey, &in_vain).missing().is_none() {
        return Some(Unreached::Replaced(replace(survey, primary, &lost)));
    }
    Some(Unreached::StartedAnew(format!("{lost}, and its mysqld is started anew")))
}

/// What is done about a primary that its ackers do not get in to.
pub(super) enum Unreached {
    /// Another instance takes over.
    Replaced(Judgement),
    /// Its mysqld is ended and started again, for the reason given.
    StartedAnew(String),
}

/// Begins to replace a primary that is lost, for the reason given, if enough faithful ackers answer or a person has
/// chosen who takes over.
pub(super) fn replace(survey: &Survey<'_>, primary: Member<'_>, lost: &str) -> Judgement {
    let others: Vec<_> = survey.others(primary.id).collect();
    let proof = Proof::of(survey, &others);
    let fencing = Some(survey.record().next(Stage::Fencing));
    let Some(missing) = proof.missing() else {
        let message = format!("{lost}; {}", proof.found());
        return Judgement { state: State::PrimaryLost, message, record: fencing, forcing: None };
    };
    let choice = force::choice(survey, primary);
    let forcing = choice.as_ref().map(Choice::answer);
    let message = format!("{lost}; {missing}");
    match choice {
        Some(Choice::Stands { chosen, .. }) => {
            let message = force::takes_over(&message, chosen.id);
            Judgement { state: State::PrimaryLost, message, record: fencing, forcing }
        }
        None | Some(Choice::Waits { .. } | Choice::Refused(_)) => {
            Judgement { state: State::FailoverBlocked, message, record: None, forcing }
        }
    }
}

/// Why the silence of the primary is no evidence (yet).
fn doubt(primary: Member<'_>, followers: &[Follower<'_>]) -> Option<String> {
    let for_ms = primary.silent_for_ms()?;
    let silence = primary.why_silent();
    if primary.known().is_none() && matches!(primary.pod, PodState::Absent | PodState::Pending) {
        return None;
    }
    if let Some(witness) = followers.iter().find(|follower| follower.member.receives_from(primary.id)) {
        let (primary, witness) = (primary.id, witness.member.id);
        return Some(format!("{primary} {silence}, but {witness} receives from it"));
    }
    (for_ms < SUSPECT_AFTER_MS)
        .then(|| format!("{} {silence}, and is suspected after {SUSPECT_AFTER_MS} ms", primary.id))
}
