//! A primary that does not answer.

use super::decision::Forcing;
use super::failover::Proof;
use super::followers::Follower;
use super::force::{self, Choice};
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
            let message = format!("{message}; {} takes over all the same, as a person chose", chosen.id);
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
