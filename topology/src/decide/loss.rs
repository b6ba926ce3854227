//! A primary that does not answer.

use super::decision::Standing;
use super::followers::Follower;
use super::join;
use super::state::State;
use super::survey::{Member, Survey};
use crate::observe::{Durability, PodState};

/// For how long a primary has to be silent before it is suspected: three probes, one second apart.
pub const SUSPECT_AFTER_MS: u64 = 3000;

/// Says what can be said of a cluster whose primary does not answer.
///
/// A primary is lost if its own agent says that mysqld does not run, if its pod is gone, or if it has been
/// silent for long enough and no instance receives from it any more. Anything less is a fault of whoever asks
/// as likely as one of the primary.
///
/// What was acknowledged in the term is proved by `R` faithful ackers, but only if the term itself is: before
/// its first transaction was acknowledged, the quorum of the term before may still have been in force. That
/// transaction is the term's own record, and an instance that has executed it holds everything before it.
pub(super) fn judge(survey: &Survey<'_>, primary: Member<'_>, followers: &[Follower<'_>]) -> (State, String) {
    if let Some(doubt) = doubt(primary, followers) {
        return (State::Incomplete, doubt);
    }
    let lost = format!("{} {}", primary.id, primary.why_silent());
    let quorum = survey.record().quorum;
    if quorum.required_acks() == 0 {
        let message = format!("{lost}; it alone holds all that was committed, and is waited for");
        return (State::FailoverBlocked, message);
    }
    let needed = quorum.revocations_needed();
    let ackers: Vec<_> =
        followers.iter().filter(|follower| survey.record().counts_acks_of(follower.member.id)).collect();
    let reasons: Vec<_> =
        ackers.iter().filter_map(|acker| Some((acker, why_not_faithful(survey, acker)?))).collect();
    let faithful = ackers.len() - reasons.len();
    let proved =
        survey.members().filter_map(Member::server).any(|server| server.recorded_term >= survey.term());
    if u32::try_from(faithful).is_ok_and(|faithful| faithful >= needed) && proved {
        let message = format!("{lost}; {faithful} faithful ackers hold all that was acknowledged");
        return (State::PrimaryLost, message);
    }
    let mut missing: Vec<_> =
        reasons.iter().map(|(acker, reason)| format!("{} {reason}", acker.member.id)).collect();
    if !proved {
        missing.push(format!(
            "no instance that answers has executed the first transaction of term {}",
            survey.term()
        ));
    }
    let message = format!(
        "{lost}; {needed} faithful ackers have to prove what was acknowledged, {faithful} do: {}",
        join(missing)
    );
    (State::FailoverBlocked, message)
}

/// Why the silence of the primary is no evidence (yet).
fn doubt(primary: Member<'_>, followers: &[Follower<'_>]) -> Option<String> {
    if primary.misses_a_look() {
        return Some(format!("{} {}", primary.id, primary.why_silent()));
    }
    let for_ms = primary.unknown_for_ms()?;
    if matches!(primary.pod, PodState::Absent | PodState::Pending) {
        return None;
    }
    if let Some(witness) = followers.iter().find(|follower| follower.member.receives_from(primary.id)) {
        let (primary, witness) = (primary.id, witness.member.id);
        return Some(format!("{primary} does not answer, but {witness} receives from it"));
    }
    (for_ms < SUSPECT_AFTER_MS)
        .then(|| format!("{} does not answer, and is suspected after {SUSPECT_AFTER_MS} ms", primary.id))
}

/// Why an acker can't be relied on to hold all that it has acknowledged, if it can't.
fn why_not_faithful(survey: &Survey<'_>, acker: &Follower<'_>) -> Option<String> {
    let Some((facts, _)) = acker.member.known().zip(acker.member.ready()) else {
        return Some(acker.member.why_silent());
    };
    if matches!(acker.standing, Standing::Errant(_) | Standing::Blocked | Standing::Open) {
        return Some(acker.message.clone());
    }
    let Some(remembered) =
        survey.view.ackers.iter().find(|remembered| remembered.instance == acker.member.id)
    else {
        return Some("was not in sync with the primary before".to_owned());
    };
    if remembered.volume_id != facts.volume_id {
        return Some("has another volume than when it was in sync with the primary".to_owned());
    }
    if survey.view.durability == Durability::Relaxed && remembered.boot_id != facts.boot_id {
        return Some("was on a kernel that has ended since, with relay logs that were not synced".to_owned());
    }
    None
}
