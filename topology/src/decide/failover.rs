//! Another primary in place of a lost one.
//!
//! ```text
//! lost ─► record: term + 1, Fencing ─► revoke all ackers that answer, end the old primary's mysqld
//!                                        │
//!                R faithful ones revoked ├──────────► record: term + 2, primary: one that holds it all
//!      fewer, and the old primary is back├──────────► record: term + 2, primary: the old one
//!         fewer, and a person chooses one└──────────► record: term + 2, primary: that one, by force
//! ```
//!
//! Everything the next step needs is in the record or observed anew, so whoever decides can be replaced between
//! any two steps. The new primary is then opened as any other is: once its ackers follow it.

use super::decision::{Action, Decision, InstanceVerdict, Order, Progress, Role, Standing, Traffic};
use super::followers::{self, role};
use super::force::{self, left_behind};
use super::loss::SUSPECT_AFTER_MS;
use super::opening;
use super::state::State;
use super::survey::{Member, Survey};
use super::{join, traffic};
use crate::gtid::GtidSet;
use crate::observe::{
    AckerIdentity, Durability, InstanceId, PodState, ServerFacts, Stage, Takeover, TermRecord,
};

/// What a number of instances prove of what the primary of the record has acknowledged.
///
/// What was acknowledged in a term is proved by `R` faithful ackers, but only if the term itself is: before
/// its first transaction was acknowledged, the quorum of the term before may still have been in force. That
/// transaction is the term's own record, and an instance that has executed it holds everything before it. A
/// primary that took over had to hold everything acknowledged before, which is on record: instances that hold
/// all of that prove its first term, too.
pub(super) struct Proof {
    /// How many faithful ackers are needed. Nothing is proved where no commit had to be acknowledged.
    needed: Option<u32>,
    faithful: u32,
    /// What is missing, each with its instance.
    missing: Vec<String>,
}

impl Proof {
    pub(super) fn of(survey: &Survey<'_>, heard: &[Member<'_>]) -> Self {
        let record = survey.record();
        let ackers = survey.members().filter(|member| record.counts_acks_of(member.id));
        let mut faithful = 0;
        let mut missing = Vec::new();
        for acker in ackers {
            let reason = why_not_faithful(survey, acker).or_else(|| {
                let revoked = heard.iter().any(|member| member.id == acker.id);
                (!revoked).then(|| "is not revoked yet".to_owned())
            });
            match reason {
                None => faithful += 1,
                Some(reason) => missing.push(format!("{} {reason}", acker.id)),
            }
        }
        let needed = Some(record.quorum.revocations_needed()).filter(|_| record.quorum.required_acks() > 0);
        if is_term_proved(record, &faithful_of(survey, heard)) {
            if needed.is_some_and(|needed| faithful >= needed) {
                missing.clear();
            }
        } else {
            missing.push(format!(
                "no instance that answers has executed the first transaction of term {}",
                record.quorum_since
            ));
        }
        Self { needed, faithful, missing }
    }

    /// What keeps it from being a proof, if anything does.
    pub(super) fn missing(&self) -> Option<String> {
        let Self { needed, faithful, missing } = self;
        let Some(needed) = needed else {
            return Some("it alone holds all that was committed, and is waited for".to_owned());
        };
        (!missing.is_empty() || faithful < needed).then(|| {
            format!(
                "{needed} faithful ackers have to prove what was acknowledged, {faithful} do: {}",
                join(missing.iter().cloned())
            )
        })
    }

    pub(super) fn found(&self) -> String {
        format!("{} faithful ackers hold all that was acknowledged", self.faithful)
    }
}

/// Those that can be relied on: nothing else is needed to hold all that was acknowledged, and what others hold
/// may be anything.
fn faithful_of<'a>(survey: &Survey<'_>, heard: &[Member<'a>]) -> Vec<Member<'a>> {
    let counted = heard.iter().filter(|member| survey.record().counts_acks_of(member.id));
    counted.filter(|member| why_not_faithful(survey, **member).is_none()).copied().collect()
}

/// Whether nothing can have been acknowledged by less than the quorum on record that these instances do not
/// hold.
fn is_term_proved(record: &TermRecord, heard: &[Member<'_>]) -> bool {
    let answering = || heard.iter().filter_map(|member| member.server());
    let took_over = record.promotion_point.as_ref().filter(|_| record.quorum_since == record.primary_since);
    answering().any(|server| server.recorded_term >= record.quorum_since)
        || took_over.is_some_and(|point| {
            answering().fold(GtidSet::new(), |all, server| all.union(&server.held())).contains(point)
        })
}

/// Why an acker can't be relied on to hold all that it has acknowledged, if it can't.
fn why_not_faithful(survey: &Survey<'_>, acker: Member<'_>) -> Option<String> {
    let Some((facts, _)) = acker.known().zip(acker.server()) else {
        return Some(acker.why_silent());
    };
    if acker.copying().is_some() {
        return Some(acker.why_not_ready());
    }
    if acker.is_open() {
        return Some("takes writes without being the primary".to_owned());
    }
    if acker.highest_term() > survey.term() {
        return Some(format!("knows of term {}, higher than that of the cluster", acker.highest_term()));
    }
    let Some(remembered) = remembered(survey, acker.id) else {
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

fn remembered<'a>(survey: &Survey<'a>, instance: InstanceId) -> Option<&'a AckerIdentity> {
    survey.view.ackers.iter().find(|remembered| remembered.instance == instance)
}

/// Decides about a cluster whose primary was lost.
pub(super) fn decide(survey: &Survey<'_>, deposed: InstanceId) -> Decision {
    let deposed = survey.member(deposed);
    let revoked: Vec<_> =
        survey.others(deposed.id).filter(|member| is_revoked(survey, *member, deposed.id)).collect();
    let proof = Proof::of(survey, &revoked);
    let same_volume = deposed.known().is_some_and(|facts| {
        remembered(survey, deposed.id).is_none_or(|known| known.still_holds(facts, survey.view.durability))
    });
    let choice = force::choice(survey, deposed);
    // One that has lost data is kept closed where it stays the primary, which helps nobody who chose another one.
    let is_passed_over = || {
        let has_lost = deposed.server().is_some_and(|server| {
            let followers = followers::assess(survey, deposed);
            opening::gap(survey, deposed, server, &followers).is_some()
        });
        has_lost && choice.as_ref().is_some_and(force::Choice::goes_on)
    };
    let back = deposed.ready().is_some() && same_volume && !is_passed_over();
    let stays = |why: &str| {
        let message = format!("{} is back and stays the primary, since {why}", deposed.id);
        let record = survey.record().next(Stage::Reign);
        answer(survey, deposed, &revoked, State::PrimaryLost, message, Some(record), Vec::new())
    };
    let lost = format!("{} was lost as primary", deposed.id);
    if proof.missing().is_none() {
        return match choose(survey, deposed.id, &faithful_of(survey, &revoked)) {
            Ok(Choice::Complete(candidate, held)) => {
                let message =
                    format!("{lost}; {} holds all that was acknowledged and takes over", candidate.id);
                let record = survey.record().taken_over(candidate.id, held, Takeover::Proved);
                answer(survey, deposed, &revoked, State::PrimaryLost, message, Some(record), Vec::new())
            }
            Ok(Choice::Fetches { candidate, from }) if back && candidate.fails_to_follow(from) => {
                stays(&format!("{} can't get what {from} holds", candidate.id))
            }
            Ok(Choice::Fetches { candidate, from }) => {
                let message =
                    format!("{lost}; {} takes over, and gets what {from} holds first", candidate.id);
                let fetch = Action::Follow { source: from, acknowledge: false };
                let mut orders = vec![(candidate.id, fetch)];
                // It gives away only what it has applied, which it is to go on with.
                let idle = |member: &&Member<'_>| member.id == from && member.leaves_unapplied();
                orders.extend(revoked.iter().find(idle).map(|member| (member.id, Action::Close)));
                answer(survey, deposed, &revoked, State::PrimaryLost, message, None, orders)
            }
            Err(reason) if back => stays(&reason),
            Err(reason) => blocked(survey, deposed, &revoked, &reason, choice.as_ref()),
        };
    }
    let others: Vec<_> = survey.others(deposed.id).collect();
    let possible = Proof::of(survey, &others).missing();
    match (possible, back) {
        (None, _) => {
            let message = format!("{lost}; its ackers are told to receive nothing more from it");
            let orders = revocations(survey, deposed, &revoked);
            answer(survey, deposed, &revoked, State::PrimaryLost, message, None, orders)
        }
        (Some(missing), true) => stays(&missing),
        (Some(missing), false) => blocked(survey, deposed, &revoked, &missing, choice.as_ref()),
    }
}

/// Nobody can prove what was acknowledged. It is waited for, unless a person has chosen who takes over: then whoever
/// answers is revoked all the same, and the others are not waited for.
fn blocked(
    survey: &Survey<'_>,
    deposed: Member<'_>,
    revoked: &[Member<'_>],
    why: &str,
    choice: Option<&force::Choice<'_>>,
) -> Decision {
    let message = format!("{} was lost as primary; {why}", deposed.id);
    let forcing = choice.map(force::Choice::answer);
    let orders = revocations(survey, deposed, revoked);
    let Some(force::Choice::Stands { chosen, server, .. }) = choice else {
        let decision = answer(survey, deposed, revoked, State::FailoverBlocked, message, None, orders);
        return Decision { forcing, ..decision };
    };
    let message = force::takes_over(&message, chosen.id);
    let untold = untold(survey, deposed, revoked);
    let decision = if untold.is_empty() {
        let record = survey.record().taken_over(chosen.id, server.held(), Takeover::Forced);
        answer(survey, deposed, revoked, State::PrimaryLost, message, Some(record), Vec::new())
    } else {
        let untold = join(untold.iter().map(|id| format!("{id} takes no part in its reign any more")));
        let message = format!("{message}, as soon as {untold}");
        answer(survey, deposed, revoked, State::PrimaryLost, message, None, orders)
    };
    Decision { forcing, ..decision }
}

/// The instances that answer and can still take part in the lost primary's reign. One whose mysqld does not run boots
/// closed and receives from nobody, and one that gets a copy receives nothing else.
fn untold(survey: &Survey<'_>, deposed: Member<'_>, revoked: &[Member<'_>]) -> Vec<InstanceId> {
    let takes_part = |member: &Member<'_>| {
        let Some(facts) = member.known().filter(|_| member.copying().is_none()) else {
            return false;
        };
        let knows = facts.persisted_term == survey.term();
        match member.server() {
            _ if member.id == deposed.id => !knows || member.is_open(),
            Some(_) => !revoked.iter().any(|other| other.id == member.id),
            None => member.misses_a_look() && !knows,
        }
    };
    survey.members().filter(takes_part).map(|member| member.id).collect()
}

/// Whether an instance acknowledges nothing to the lost primary any more, whatever becomes of that one: it
/// receives nothing from it, and refuses every order of its term.
fn is_revoked(survey: &Survey<'_>, member: Member<'_>, deposed: InstanceId) -> bool {
    member.known().is_some_and(|facts| facts.persisted_term == survey.term())
        && member.server().is_some()
        && member.copying().is_none()
        && !member.is_open()
        && member.highest_term() <= survey.term()
        && !member.may_receive_from(deposed)
}

/// Which instance takes over.
enum Choice<'a> {
    /// One that holds everything, with all that it has to hold.
    Complete(Member<'a>, GtidSet),
    /// One that gets what it lacks from another first.
    Fetches { candidate: Member<'a>, from: InstanceId },
}

/// Chooses among revoked and faithful ackers: of those that hold everything that any of them does, a wanted
/// one, then one that has nothing left to apply, then the lowest ordinal.
///
/// What an acker holds beyond that, errant transactions or the tail of the primary before, never gets into the
/// cluster this way: such an acker neither takes over nor gives anything to another.
fn choose<'a>(
    survey: &Survey<'_>,
    deposed: InstanceId,
    revoked: &[Member<'a>],
) -> Result<Choice<'a>, String> {
    let alien = |member: Member<'_>, server: &ServerFacts| alien(survey, deposed, member, server);
    let heard: Vec<(Member<'a>, &'a ServerFacts)> =
        revoked.iter().filter_map(|member| Some((*member, member.server()?))).collect();
    let all = heard.iter().fold(GtidSet::new(), |all, (member, server)| {
        all.union(&server.held().subtract(&alien(*member, server)))
    });
    let clean: Vec<_> = heard.iter().filter(|(member, server)| alien(*member, server).is_empty()).collect();
    let candidates: Vec<_> = clean.iter().filter(|(member, _)| member.ready().is_some()).collect();
    let lacks = |server: &ServerFacts| all.subtract(&server.held()).count();
    let best = candidates.iter().min_by_key(|(member, server)| {
        let unapplied = all.subtract(&server.executed).count();
        (lacks(server), !survey.is_wanted(member.id), unapplied, member.id)
    });
    let Some((candidate, server)) = best else {
        return Err(
            "none of the instances that hold what was acknowledged can become the primary: they have \
                    errant transactions or are stopping"
                .to_owned(),
        );
    };
    let lacking = all.subtract(&server.held());
    if lacking.is_empty() {
        return Ok(Choice::Complete(*candidate, all));
    }
    let source = clean
        .iter()
        .filter(|(member, _)| member.id != candidate.id)
        .max_by_key(|(_, server)| server.executed.intersect(&lacking).count())
        .map(|(member, _)| member.id);
    source
        .map(|from| Choice::Fetches { candidate: *candidate, from })
        .ok_or_else(|| format!("{} lacks {lacking}, and nobody can give it", candidate.id))
}

/// What an instance holds, as far as is known, that is none of the cluster's transactions: errant ones, the tail of the
/// primary before, and what a forced takeover has left behind.
pub(super) fn alien(
    survey: &Survey<'_>,
    deposed: InstanceId,
    member: Member<'_>,
    server: &ServerFacts,
) -> GtidSet {
    let record = survey.record();
    let errant = remembered(survey, member.id).map(|known| known.errant.clone()).unwrap_or_default();
    errant.union(&tail(record, deposed, server)).union(&left_behind(survey, member))
}

/// What an instance holds of the primary before the lost one and nobody acknowledged: it has not gone on to the
/// reign of the lost one, of which all that was acknowledged before is on record.
///
/// One that replicates from the lost one has gone on, though it may not have executed anything of that reign.
fn tail(record: &TermRecord, deposed: InstanceId, server: &ServerFacts) -> GtidSet {
    let follows = server.replication.as_ref().is_some_and(|replication| replication.source == Some(deposed));
    match (&record.promotion_point, server.recorded_by) {
        (Some(point), Some(before)) if server.recorded_term < record.primary_since && !follows => {
            server.held().subtract(point).of_source(before)
        }
        _ => GtidSet::new(),
    }
}

/// Tells everybody who answers and is not revoked to take no part in the lost primary's reign any more.
fn revocations(
    survey: &Survey<'_>,
    deposed: Member<'_>,
    revoked: &[Member<'_>],
) -> Vec<(InstanceId, Action)> {
    let known_term =
        |member: Member<'_>| member.known().is_some_and(|facts| facts.persisted_term <= survey.term());
    let is_done =
        |member: &Member<'_>| revoked.iter().any(|other| other.id == member.id) && !member.leaves_unapplied();
    let mut orders: Vec<_> = survey
        .others(deposed.id)
        .filter(|member| !is_done(member) && member.ready().is_some() && known_term(*member))
        .map(|member| (member.id, Action::Close))
        .collect();
    // One that hangs is ended, too: it can't be asked what it receives.
    let hangs = |member: &Member<'_>| {
        member.silent_for_ms().is_some_and(|for_ms| for_ms >= SUSPECT_AFTER_MS)
            && member.misses_a_look()
            && member.pod != PodState::Terminating
            && known_term(*member)
    };
    orders.extend(survey.others(deposed.id).filter(hangs).map(|member| (member.id, Action::Fence)));
    let fenced = deposed.known().is_some_and(|facts| facts.persisted_term == survey.term())
        && !deposed.is_open()
        && !deposed.misses_a_look();
    if deposed.known().is_some() && deposed.pod != PodState::Terminating && known_term(deposed) && !fenced {
        orders.push((deposed.id, Action::Fence));
    }
    orders
}

fn answer(
    survey: &Survey<'_>,
    deposed: Member<'_>,
    revoked: &[Member<'_>],
    state: State,
    message: String,
    record: Option<TermRecord>,
    actions: Vec<(InstanceId, Action)>,
) -> Decision {
    let term = survey.term();
    let pods = survey
        .view
        .replicas
        .max(survey.record().quorum.ackers().saturating_add(1))
        .max(survey.pods_there_are());
    Decision {
        state,
        message,
        instances: survey.members().map(|member| verdict(survey, deposed, revoked, member)).collect(),
        record,
        orders: actions.into_iter().map(|(instance, action)| Order { instance, term, action }).collect(),
        traffic: Traffic { undecided_replicas: traffic::reads_that_may_stay(survey), ..Traffic::default() },
        opened: survey.view.opened,
        ackers: survey.view.ackers.clone(),
        catching_up: Vec::new(),
        wish: None,
        rebuilding: None,
        releasing: None,
        forcing: None,
        replace: None,
        progress: Progress::default(),
        pods,
    }
}

fn verdict(
    survey: &Survey<'_>,
    deposed: Member<'_>,
    revoked: &[Member<'_>],
    member: Member<'_>,
) -> InstanceVerdict {
    let id = member.id;
    let role = if id == deposed.id { Role::Primary } else { role(survey, id) };
    let (standing, message) = match member.known() {
        None => (Standing::Unknown, member.why_silent()),
        Some(_) if member.copying().is_some() => (Standing::Cloning, member.why_not_ready()),
        Some(_) if member.server().is_none() => (Standing::Down, member.why_silent()),
        Some(_) if member.is_open() => {
            (Standing::Open, "takes writes that nobody acknowledges, and is ended".to_owned())
        }
        Some(_) if id == deposed.id => (Standing::Closed, "was the primary, and is closed".to_owned()),
        Some(_) if revoked.iter().any(|other| other.id == id) => {
            (Standing::Closed, format!("receives nothing more from {}", deposed.id))
        }
        Some(_) => (Standing::CatchingUp, format!("is told to receive nothing more from {}", deposed.id)),
    };
    InstanceVerdict { id, role, standing, message }
}
