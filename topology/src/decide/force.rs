//! What becomes of a person's choice of the next primary, where nobody can prove what was acknowledged.
//!
//! A failover that is blocked waits for instances that may never come back. Whether to go on without what only they
//! hold is for a person to say, who names the instance that goes on.
//!
//! | the choice | answer |
//! |---|---|
//! | no takeover was begun, and the failover is blocked | taken up, or refused for what the instance is or holds |
//! | no takeover was begun, and the cluster is in any other state | refused: nothing has to be lost |
//! | a takeover was begun, and the ackers are being revoked | it goes on, until it is needless or the instance fails |
//! | a takeover was begun, and there is a later record | by the record: the instance is the primary, or another one |
//!
//! The steps are those of a [failover](super::failover); only the proof is missing. So what an instance that was away
//! holds of the time before is no tail that nobody acknowledged ([`left_behind`]).

use std::cmp::Reverse;

use super::decision::{Decision, Forcing};
use super::failover::alien;
use super::loss::SUSPECT_AFTER_MS;
use super::survey::{Member, Survey};
use super::wish::{is_unheard, primary_is_unheard};
use crate::gtid::GtidSet;
use crate::observe::{Force, InstanceId, ServerFacts, Stage, TermRecord};
use crate::term::Term;

/// What a failover that is blocked does about the choice.
pub(super) enum Choice<'a> {
    /// Somebody has to be heard first. The takeover may have begun.
    Waits {
        /// In which term.
        begun: Option<Term>,
    },
    /// The instance can't take over, for this reason.
    Refused(String),
    /// It takes over.
    Stands {
        /// The instance.
        chosen: Member<'a>,
        /// What it holds.
        server: &'a ServerFacts,
        /// The term in which the others are revoked for it.
        begun: Term,
    },
}

impl Choice<'_> {
    pub(super) fn answer(&self) -> Forcing {
        match self {
            Self::Waits { begun: None } => Forcing::Waits,
            Self::Waits { begun: Some(begun) } | Self::Stands { begun, .. } => {
                Forcing::UnderWay { begun: *begun }
            }
            Self::Refused(reason) => Forcing::Refused(reason.clone()),
        }
    }

    /// Whether the takeover goes on, though perhaps not yet.
    pub(super) const fn goes_on(&self) -> bool {
        matches!(self, Self::Waits { begun: Some(_) } | Self::Stands { .. })
    }
}

/// The choice, if there is one that a failover which is blocked now has to follow.
///
/// Nothing is begun or gone on with while somebody who may well be fine has not been heard: whoever has only begun to
/// decide knows of nobody yet, and would do it without those who can prove what was acknowledged, or without the old
/// primary that is back.
pub(super) fn choice<'a>(survey: &Survey<'a>, lost: Member<'a>) -> Option<Choice<'a>> {
    let Force { instance, begun } = survey.view.force.filter(|_| !is_left_alone(survey))?;
    let (term, fencing) = (survey.term(), survey.record().stage == Stage::Fencing);
    let begins = if fencing { term } else { term.next() };
    // A takeover that was begun in an earlier term has come to something else.
    if begun.is_some_and(|begun| begun < begins) {
        return None;
    }
    if survey.members().any(may_be_heard) {
        return Some(Choice::Waits { begun: begun.filter(|begun| fencing && *begun == term) });
    }
    let chosen = survey.member(instance);
    Some(match able(survey, lost, chosen) {
        Ok(server) => Choice::Stands { chosen, server, begun: begins },
        Err(reason) => Choice::Refused(format!("{instance} can't become the primary: {reason}")),
    })
}

/// Said of a failover that is blocked, which `message` says, and goes on with the chosen instance.
pub(super) fn takes_over(message: &str, chosen: InstanceId) -> String {
    format!("{message}; {chosen} takes over all the same, as a person chose")
}

/// Whether nothing is begun or gone on with, whatever people ask for.
const fn is_left_alone(survey: &Survey<'_>) -> bool {
    survey.view.offline || survey.view.paused
}

fn may_be_heard(member: Member<'_>) -> bool {
    let misses = member.silent_for_ms().is_some_and(|for_ms| for_ms < SUSPECT_AFTER_MS);
    is_unheard(member) || (member.misses_a_look() && misses)
}

/// What an instance holds that can take over, or why it can't.
fn able<'a>(survey: &Survey<'a>, lost: Member<'_>, chosen: Member<'a>) -> Result<&'a ServerFacts, String> {
    if chosen.id == lost.id {
        return Err("it is the primary that was lost".to_owned());
    }
    if !survey.members().any(|member| member.id == chosen.id) {
        return Err("there is no such instance".to_owned());
    }
    // With a primary beyond the lowest ordinals there would be more ackers than the quorum is of.
    let quorum = survey.record().quorum;
    if quorum.required_acks() > 0 && !survey.record().counts_acks_of(chosen.id) {
        return Err(format!(
            "its acknowledgements do not count, but those of the lowest {} ordinals",
            quorum.ackers().saturating_add(1)
        ));
    }
    if quorum.required_acks() == 0 && !survey.is_wanted(chosen.id) {
        return Err("it is leaving".to_owned());
    }
    let Some(server) = chosen.ready() else {
        return Err(format!("it {}", chosen.why_not_ready()));
    };
    if chosen.is_open() {
        return Err("it takes writes without being the primary, and is closed first".to_owned());
    }
    let held = server.held();
    if held.is_empty() {
        return Err("it holds no data".to_owned());
    }
    let own = alien(survey, lost.id, chosen, server);
    match better(survey, lost.id, (chosen.id, &held), &own) {
        None => Ok(server),
        Some((other, lacking)) if lacking.is_empty() => Err(format!(
            "it holds transactions that are not the cluster's, {own}, and {other}, which answers as well, all the rest"
        )),
        Some((other, lacking)) => Err(format!("{other} answers as well, and holds what it lacks: {lacking}")),
    }
}

/// Another instance that answers and has no transactions of its `own`, such that are not the cluster's, but all others
/// that the chosen one holds; and what the chosen one lacks of it. With that one less is lost, or nothing is that
/// matters.
///
/// An instance with transactions of its own takes over only where a person chooses it and nobody is better: they become
/// those of the cluster then.
fn better(
    survey: &Survey<'_>,
    lost: InstanceId,
    (chosen, held): (InstanceId, &GtidSet),
    own: &GtidSet,
) -> Option<(InstanceId, GtidSet)> {
    let kept = held.subtract(own);
    let whole =
        survey.others(lost).filter(|member| member.id != chosen && !member.is_open()).filter_map(|member| {
            let server = member.ready()?;
            let other = server.held();
            let fits = other.contains(&kept) && alien(survey, lost, member, server).is_empty();
            // No primary gave it what it has made itself.
            fits.then(|| (member.id, other.subtract(held).without_source(server.server_uuid)))
        });
    whole
        .filter(|(_, lacking)| !lacking.is_empty() || !own.is_empty())
        .max_by_key(|(id, lacking)| (lacking.count(), Reverse(*id)))
}

/// What an instance holds of the time before the newest forced takeover, and the primary that took over then did not:
/// it may have been acknowledged, whatever the primaries since have made of these numbers.
///
/// An instance that has executed the first transaction of that primary, or of a later one, has gone on with them. One
/// that has not, and was told of them, may have received what came afterwards, but has executed none of it: the first
/// transaction comes first. That it was told is no reason while a person gives up what it holds: it is told to execute
/// what it has received.
pub(super) fn left_behind(survey: &Survey<'_>, member: Member<'_>) -> GtidSet {
    let heard = member.known().zip(member.server());
    match (&survey.record().forced, heard) {
        (Some(forced), Some((facts, server))) if server.recorded_term < forced.since => {
            let untold = facts.persisted_term < forced.since || survey.is_to_be_rebuilt(member.id);
            let before = if untold { server.held() } else { server.executed.clone() };
            before.subtract(&forced.point)
        }
        _ => GtidSet::new(),
    }
}

/// Answers the choice, if there is one. `decision` has the answer already where the failover is blocked.
pub(super) fn outcome(survey: &Survey<'_>, decision: &Decision) -> Option<Forcing> {
    let Force { instance, begun } = survey.view.force?;
    let waits = !is_left_alone(survey) && primary_is_unheard(survey);
    Some(match (&decision.forcing, begun.filter(|begun| *begun <= survey.term())) {
        (Some(answer), _) => answer.clone(),
        (None, Some(begun)) => of_begun(survey, decision, instance, begun),
        (None, None) if waits => Forcing::Waits,
        (None, None) => {
            let Decision { state, message, .. } = decision;
            Forcing::Refused(format!(
                "the cluster is {state}, and a primary is forced only where a failover is blocked: {message}"
            ))
        }
    })
}

/// What has become of a takeover that was begun.
fn of_begun(survey: &Survey<'_>, decision: &Decision, instance: InstanceId, begun: Term) -> Forcing {
    let record = decision.record.as_ref().unwrap_or(survey.record());
    let TermRecord { term, primary, primary_since, stage, .. } = record;
    if *primary == Some(instance) && *primary_since > begun {
        let takes_writes = decision.traffic.primary == *primary;
        return match stage {
            Stage::Reign if !takes_writes => Forcing::UnderWay { begun },
            Stage::Reign | Stage::Handover { .. } => Forcing::Done(now_primary(record, instance)),
            Stage::Fencing => Forcing::Done(format!(
                "{instance} became the primary of term {primary_since}, and was lost: {}",
                decision.message
            )),
        };
    }
    if *stage == Stage::Fencing && *term == begun {
        return Forcing::UnderWay { begun };
    }
    if decision.record.is_some() {
        return Forcing::Refused(decision.message.clone());
    }
    let now = primary.map_or_else(|| "nobody".to_owned(), |primary| primary.to_string());
    Forcing::Refused(format!(
        "the takeover by {instance} was given up, and {now} is the primary of term {term}"
    ))
}

fn now_primary(record: &TermRecord, instance: InstanceId) -> String {
    match &record.forced {
        Some(forced) if record.is_forced() => format!(
            "{instance} takes writes, forced to be the primary in term {}; what was acknowledged before and is not in {} \
             is lost, unless an instance that was away comes back with it",
            forced.since, forced.point
        ),
        _ => format!("{instance} takes writes, with all that was acknowledged"),
    }
}
