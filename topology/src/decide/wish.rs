//! What becomes of a wish for another primary.
//!
//! | the wish | answer |
//! |---|---|
//! | no handover was begun, and the primary takes writes | by what the instances can do ([`handover`](super::handover)) |
//! | no handover was begun, and the primary takes none | refused: what is to be done first is no matter of wishes |
//! | a handover was begun | by the record: it goes on, has ended well, or has come to nothing |
//!
//! A wish is a person's, so it is answered once and soon. What has not been heard yet by whoever decides is
//! waited for; what has been silent for longer is a reason to refuse.

use super::decision::{Decision, Fulfilment};
use super::loss::SUSPECT_AFTER_MS;
use super::state::State;
use super::survey::{Member, Survey};
use crate::observe::{InstanceId, PodState, Stage, TermRecord, Wish};

/// The wish, if no handover was begun for it.
pub(super) fn unbegun(survey: &Survey<'_>) -> Option<Wish> {
    survey.view.wanted_primary.filter(|wish| match wish {
        Wish::Any | Wish::To(_) => true,
        Wish::Begun { term, .. } => survey.term() < *term,
    })
}

/// Answers the wish, if there is one. `decision` has the answer already where the primary takes writes.
pub(super) fn fulfilment(survey: &Survey<'_>, decision: &Decision) -> Option<Fulfilment> {
    let wish = survey.view.wanted_primary?;
    let left_alone = matches!(decision.state, State::Offline | State::Paused);
    Some(match (wish, &decision.wish) {
        (Wish::Begun { to, .. }, _) if unbegun(survey).is_none() => begun(survey, to, decision),
        (_, Some(answer)) if !left_alone => answer.clone(),
        _ => unserved(survey, decision),
    })
}

/// Whether an instance has not been heard yet by somebody who has only begun to listen.
pub(super) fn is_unheard(member: Member<'_>) -> bool {
    let new = member.unknown_for_ms().is_some_and(|for_ms| for_ms < SUSPECT_AFTER_MS);
    new && matches!(member.pod, PodState::Running | PodState::Terminating)
}

fn begun(survey: &Survey<'_>, to: InstanceId, decision: &Decision) -> Fulfilment {
    let record = decision.record.as_ref().unwrap_or(survey.record());
    let TermRecord { term, primary, .. } = *record;
    match record.stage {
        Stage::Handover { to: target } if target == to => Fulfilment::UnderWay { to, term },
        Stage::Reign if primary == Some(to) && decision.traffic.primary == primary => Fulfilment::Done(to),
        Stage::Reign if primary == Some(to) => Fulfilment::UnderWay { to, term },
        Stage::Handover { .. } | Stage::Reign | Stage::Fencing if decision.record.is_some() => {
            Fulfilment::Refused(decision.message.clone())
        }
        Stage::Handover { .. } | Stage::Reign | Stage::Fencing => {
            let now = primary.map_or_else(|| "nobody".to_owned(), |primary| primary.to_string());
            Fulfilment::Refused(format!(
                "the handover to {to} was given up, and {now} is the primary of term {term}"
            ))
        }
    }
}

/// Whether nothing can be said of the primary yet, for that reason.
pub(super) fn primary_is_unheard(survey: &Survey<'_>) -> bool {
    survey.record().primary.is_some_and(|primary| is_unheard(survey.member(primary)))
}

fn unserved(survey: &Survey<'_>, decision: &Decision) -> Fulfilment {
    let passes = match decision.state {
        State::Incomplete => primary_is_unheard(survey),
        // Another handover is under way, or the quorum is being changed while it takes writes.
        State::SwitchoverRequested | State::Healthy | State::Degraded | State::Cloning => true,
        State::Offline
        | State::Paused
        | State::Bootstrapping
        | State::WritesBlocked
        | State::PrimaryLost
        | State::FailoverBlocked => false,
    };
    if passes {
        return Fulfilment::Waits;
    }
    let Decision { state, message, .. } = decision;
    Fulfilment::Refused(format!(
        "the cluster is {state}, and can't hand over until it takes writes: {message}"
    ))
}
