//! Choosing a primary when the record names none that can be relied on.
//!
//! That is so for a new cluster, and for one whose record was lost or is older than its data (a restored
//! backup of the API server). Nothing but the data itself can be trusted then, so every instance has to be
//! heard: the transactions of one that is silent could be the ones that clients were told of. So has every
//! volume: one that is left of an instance that is not wanted gets a pod until a primary reigns.

use super::decision::{Decision, InstanceVerdict, Progress, Role, Standing, Traffic};
use super::state::State;
use super::survey::{Member, Survey};
use super::{join, traffic};
use crate::gtid::GtidSet;
use crate::observe::{InstanceId, PodState, ServerFacts, Stage, TermRecord};

/// An instance that answers.
type Heard<'a> = (Member<'a>, &'a ServerFacts);

/// Decides which instance the primary is to be, if that can be said.
pub(super) fn decide(survey: &Survey<'_>) -> Decision {
    let asked: Vec<_> = survey
        .everybody()
        .filter(|member| survey.is_wanted(member.id) || member.pod != PodState::Absent || member.has_volume)
        .collect();
    let heard: Vec<Heard<'_>> = asked.iter().filter_map(|member| Some((*member, member.ready()?))).collect();
    let silent: Vec<_> = asked.iter().filter(|member| member.ready().is_none()).collect();
    if !silent.is_empty() {
        let why = join(silent.iter().map(|member| format!("{} {}", member.id, member.why_not_ready())));
        let message = format!("waits for every instance before a primary is chosen: {why}");
        return answer(survey, State::Bootstrapping, message, None);
    }
    match choose(survey, &heard) {
        Ok((primary, server)) => {
            let message = format!("{} holds every transaction there is and becomes the primary", primary.id);
            answer(survey, State::Bootstrapping, message, Some(record(survey, primary, server)))
        }
        Err(reason) => answer(survey, State::Incomplete, reason, None),
    }
}

/// The instance that holds what all of them hold.
///
/// An instance that takes writes is taken or nothing is: clients may be told of its transactions right now.
/// Of the others, one that has nothing left to apply is preferred, then the lowest ordinal.
fn choose<'a>(survey: &Survey<'_>, heard: &[Heard<'a>]) -> Result<Heard<'a>, String> {
    let all = heard.iter().fold(GtidSet::new(), |all, (_, server)| all.union(&server.held()));
    if let Some((member, server)) = the_open_one(heard)? {
        // The others may have received its latest transactions after it was asked.
        let lacking = all.subtract(&server.held()).without_source(server.server_uuid);
        if !lacking.is_empty() {
            return Err(format!(
                "{} takes writes and lacks what another instance holds: {lacking}",
                member.id
            ));
        }
        if !survey.is_wanted(member.id) {
            return Err(format!(
                "{} takes writes and is not wanted: raise the number of instances",
                member.id
            ));
        }
        return Ok((member, server));
    }
    let complete = heard.iter().filter(|(_, server)| server.held().contains(&all));
    let best = complete.min_by_key(|(member, server)| {
        (!survey.is_wanted(member.id), !server.executed.contains(&all), member.id)
    });
    match best {
        Some((member, server)) if survey.is_wanted(member.id) => Ok((*member, server)),
        Some((member, _)) => Err(format!(
            "only {} holds every transaction there is, and it is not wanted: raise the number of instances",
            member.id
        )),
        None => Err(divergence(heard)),
    }
}

/// The instance that takes writes for the highest term of those that do.
fn the_open_one<'a>(heard: &[Heard<'a>]) -> Result<Option<Heard<'a>>, String> {
    let open = || heard.iter().filter(|(member, _)| member.is_open());
    let Some(newest) = open().map(|(_, server)| server.recorded_term).max() else {
        return Ok(None);
    };
    let mut of_newest = open().filter(|(_, server)| server.recorded_term == newest);
    match (of_newest.next(), of_newest.next()) {
        (Some((a, _)), Some((b, _))) => {
            Err(format!("{} and {} both take writes for term {newest}: stop one of them", a.id, b.id))
        }
        (first, _) => Ok(first.copied()),
    }
}

/// Names the instances that hold transactions which no other one does.
fn divergence(heard: &[Heard<'_>]) -> String {
    let alone = heard.iter().filter_map(|(member, server)| {
        let others = heard.iter().filter(|(other, _)| other.id != member.id);
        let others = others.fold(GtidSet::new(), |all, (_, server)| all.union(&server.held()));
        let alone = server.held().subtract(&others);
        (!alone.is_empty()).then(|| format!("{} alone holds {alone}", member.id))
    });
    format!(
        "no instance holds every transaction there is, so a person has to say which ones count: {}",
        join(alone)
    )
}

fn record(survey: &Survey<'_>, primary: Member<'_>, server: &ServerFacts) -> TermRecord {
    let term = survey.highest_term().max(survey.term()).next();
    // One that takes writes has been the primary all along, whatever the record said.
    let adopted = primary.is_open() && !server.recorded_term.is_none();
    TermRecord {
        term,
        primary: Some(primary.id),
        primary_since: if adopted { server.recorded_term } else { term },
        quorum: survey.wanted,
        quorum_since: term,
        stage: Stage::Reign,
        promotion_point: None,
        planned: false,
        forced: survey.record().forced.clone(),
    }
}

fn answer(survey: &Survey<'_>, state: State, message: String, record: Option<TermRecord>) -> Decision {
    let open: Vec<InstanceId> =
        survey.members().filter(|member| member.is_open()).map(|member| member.id).collect();
    Decision {
        state,
        message,
        instances: survey.everybody().map(|member| verdict(survey, member)).collect(),
        record,
        orders: Vec::new(),
        traffic: Traffic {
            // Until there is a record that says otherwise, the only one that takes writes goes on.
            undecided_primary: match open.as_slice() {
                [one] => Some(*one),
                _ => survey.record().primary.filter(|primary| survey.member(*primary).may_be_fine()),
            },
            undecided_replicas: traffic::reads_that_may_stay(survey),
            ..Traffic::default()
        },
        opened: survey.view.opened,
        ackers: survey.view.ackers.clone(),
        catching_up: Vec::new(),
        wish: None,
        rebuilding: None,
        releasing: None,
        forcing: None,
        replace: None,
        progress: Progress::default(),
        pods: survey.view.replicas.max(survey.pods_there_are()).max(survey.pods_of_volumes()),
    }
}

fn verdict(survey: &Survey<'_>, member: Member<'_>) -> InstanceVerdict {
    let role = if survey.is_wanted(member.id) { Role::Replica } else { Role::Leaving };
    let (standing, message) = match member.known() {
        None => (Standing::Unknown, member.why_silent()),
        Some(_) if member.copying().is_some() => (Standing::Cloning, member.why_not_ready()),
        Some(_) if member.is_open() => (Standing::Open, "takes writes".to_owned()),
        Some(_) if member.ready().is_none() => (Standing::Down, member.why_not_ready()),
        Some(_) => (Standing::Closed, "waits for a primary to be chosen".to_owned()),
    };
    InstanceVerdict { id: member.id, role, standing, message }
}
