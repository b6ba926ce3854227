//! A primary that does not answer.

use super::failover::Proof;
use super::followers::Follower;
use super::state::State;
use super::survey::{Member, Survey};
use crate::observe::{PodState, Stage, TermRecord};

/// For how long a primary has to be silent before it is suspected: three probes, one second apart.
pub const SUSPECT_AFTER_MS: u64 = 3000;

/// What can be said of a cluster whose primary does not answer.
pub(super) struct Judgement {
    pub(super) state: State,
    pub(super) message: String,
    /// The record of the term in which the ackers are revoked.
    pub(super) record: Option<TermRecord>,
}

/// Says what can be said of a cluster whose primary does not answer.
///
/// A primary is lost if its own agent says that mysqld does not run, if its pod is gone, or if it has been
/// silent for long enough and no instance receives from it any more. Anything less is a fault of whoever asks
/// as likely as one of the primary.
pub(super) fn judge(survey: &Survey<'_>, primary: Member<'_>, followers: &[Follower<'_>]) -> Judgement {
    if let Some(doubt) = doubt(primary, followers) {
        return Judgement { state: State::Incomplete, message: doubt, record: None };
    }
    replace(survey, primary, &format!("{} {}", primary.id, primary.why_silent()))
}

/// Begins to replace a primary that is lost, for the reason given, if enough faithful ackers answer.
pub(super) fn replace(survey: &Survey<'_>, primary: Member<'_>, lost: &str) -> Judgement {
    if survey.record().quorum.required_acks() == 0 {
        let message = format!("{lost}; it alone holds all that was committed, and is waited for");
        return Judgement { state: State::FailoverBlocked, message, record: None };
    }
    let others: Vec<_> = survey.others(primary.id).collect();
    let proof = Proof::of(survey, &others);
    match proof.missing() {
        None => Judgement {
            state: State::PrimaryLost,
            message: format!("{lost}; {}", proof.found()),
            record: Some(survey.record().next(Stage::Fencing)),
        },
        Some(missing) => {
            Judgement { state: State::FailoverBlocked, message: format!("{lost}; {missing}"), record: None }
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
