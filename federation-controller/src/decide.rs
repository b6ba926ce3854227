//! What follows from all that is known of one federated cluster: a pure function.
//!
//! | a member is | its cluster is placed there | it is placed there no more, or the object is deleted |
//! |---|---|---|
//! | heard, has reported | the wanted spec is sent; the outcome is its answer | `Delete`: the UID is sent until it is gone; `Retain`: it is let go |
//! | silent | the same is kept ready; the outcome is Waiting, what was observed is kept as stale | `Delete`: it is waited for; `Retain`: it is let go |

use std::collections::{BTreeMap, BTreeSet};

use fleet_api::{
    fields::{FieldPath, leaves, object_of},
    v1::{
        ConflictPolicy, FederatedDeletion, FederatedPhase, LastObservedState, MAX_CONDITIONS, MAX_GTIDS,
        MAX_MESSAGE, MySQLClusterFederated, MySQLClusterFederatedStatus, ObservedCondition, PlacedMember,
        PlacedOutcome, Placement,
    },
};
use fleet_proto::federation::v1::{ClusterState, DesiredCluster, Outcome, Result as Answered};
use fleet_runtime::conditions::{Truth, condition};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use serde_json::Value;

use crate::overrides::spec_for;

/// How often a status is written of which only a member's transactions have moved.
const POSITIONS_EVERY: SignedDuration = SignedDuration::from_secs(10);
/// The most fields that a member keeps which are named.
const MAX_FIELDS: usize = 64;

/// Whether a member's shard is heard now.
#[derive(Clone, Debug, PartialEq)]
pub enum Contact {
    /// It has no stream, or has not reported on it yet.
    Silent {
        /// When it was last heard, if this process ever did.
        last: Option<Timestamp>,
    },
    /// It has reported on the stream that it has now.
    Heard(Box<Heard>),
}

/// What a member's shard has said of one federated cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// When it last spoke.
    pub at: Timestamp,
    /// When it last reported.
    pub reported: Timestamp,
    /// The MySQLCluster of the federated cluster's name, whoever has made it.
    pub cluster: Option<ClusterState>,
    /// What has become of the newest desired state that it worked off whole; absent before the first.
    pub answer: Option<Answer>,
}

/// What has become of one desired cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What it was, if it was in the desired state.
    pub wanted: Option<DesiredCluster>,
    /// What the member has said of it.
    pub outcome: Option<Outcome>,
}

/// What is known of one member.
#[derive(Clone, Debug)]
pub struct MemberFacts {
    /// Whether it may have clusters of the namespace; why not.
    pub allowed: Result<(), String>,
    /// Whether it is heard.
    pub contact: Contact,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub struct Decision {
    /// What each member shall be told of this federated cluster.
    pub wanted: BTreeMap<String, Option<DesiredCluster>>,
    /// The status.
    pub status: MySQLClusterFederatedStatus,
}

impl Decision {
    /// Whether no member has to be told anything any more.
    pub fn nothing_left(&self) -> bool {
        self.status.members.is_empty()
    }
}

/// What is known of a member and what follows, while a status is put together.
struct Judged {
    member: PlacedMember,
    silent: bool,
    ready: bool,
}

/// Decides. A member without facts is silent, and not allowed.
pub fn decide(
    object: &MySQLClusterFederated,
    facts: &BTreeMap<String, MemberFacts>,
    now: Timestamp,
) -> Decision {
    let deleting = object.metadata.deletion_timestamp.is_some();
    let before: BTreeMap<&str, &PlacedMember> = object
        .status
        .iter()
        .flat_map(|status| &status.members)
        .map(|member| (member.member.as_str(), member))
        .collect();
    let placed: BTreeMap<&str, &Placement> = object
        .spec
        .placement
        .iter()
        .filter(|_| !deleting)
        .map(|placement| (placement.member.as_str(), placement))
        .collect();
    let names: BTreeSet<&str> = before.keys().chain(placed.keys()).copied().collect();
    let mut wanted = BTreeMap::new();
    let mut judged = Vec::new();
    for name in names {
        let unknown = || MemberFacts {
            allowed: Err(format!("nothing is known of member {name}")),
            contact: Contact::Silent { last: None },
        };
        let facts = facts.get(name).cloned().unwrap_or_else(unknown);
        let known = before.get(name).copied();
        let (desired, found) = match placed.get(name) {
            Some(placement) => {
                let (desired, found) = keep(object, placement, &facts, known, now);
                (desired, Some(found))
            }
            None => give_up(object, name, &facts, known, now),
        };
        wanted.insert(name.to_owned(), desired);
        judged.extend(found);
    }
    Decision { wanted, status: status(object, judged, now) }
}

/// A member that shall have the cluster.
fn keep(
    object: &MySQLClusterFederated,
    placement: &Placement,
    facts: &MemberFacts,
    before: Option<&PlacedMember>,
    now: Timestamp,
) -> (Option<DesiredCluster>, Judged) {
    let agreed = before.and_then(|before| before.agreed_spec.clone());
    let nothing = |outcome, message: String| (None, agreed.clone(), outcome, message, BTreeSet::new());
    let (desired, agreed, outcome, message, kept) =
        match (&facts.allowed, spec_for(&object.spec.template, &placement.overrides)) {
            (Err(reason), _) => nothing(PlacedOutcome::NotAllowed, reason.clone()),
            (Ok(()), Err(invalid)) => nothing(PlacedOutcome::Invalid, invalid.to_string()),
            (Ok(()), Ok(spec)) => {
                let spec = serde_json::to_value(spec).unwrap_or_default();
                let adopt = (object.spec.conflict.policy == ConflictPolicy::Adopt)
                    .then(|| object.spec.conflict.uids.get(&placement.member).cloned());
                let mut desired = DesiredCluster {
                    name: object.name_any(),
                    federated_uid: object.uid().unwrap_or_default(),
                    spec_json: spec.to_string(),
                    agreed_json: String::new(),
                    adopt_uid: adopt.flatten().unwrap_or_default(),
                    delete_uid: String::new(),
                };
                let (outcome, message, kept) = answer(&desired, &facts.contact);
                let agreed = match outcome {
                    PlacedOutcome::Aligned => Some(spec),
                    PlacedOutcome::Kept => Some(agreed_but(&kept, &spec, agreed.as_ref())),
                    PlacedOutcome::Waiting
                    | PlacedOutcome::Conflict
                    | PlacedOutcome::Refused
                    | PlacedOutcome::Failed
                    | PlacedOutcome::NotAllowed
                    | PlacedOutcome::Invalid
                    | PlacedOutcome::Removing => agreed,
                };
                desired.agreed_json = agreed.as_ref().map(Value::to_string).unwrap_or_default();
                (Some(desired), agreed, outcome, message, kept)
            }
        };
    let mut judged = judge(object, &placement.member, facts, before, (outcome, message), now);
    judged.member.agreed_spec = agreed;
    judged.member.kept_fields = kept.into_iter().take(MAX_FIELDS).collect();
    (desired, judged)
}

/// What is agreed where the member keeps some fields: the wanted spec, but for those, on which nothing new is agreed.
fn agreed_but(kept: &BTreeSet<String>, wanted: &Value, before: Option<&Value>) -> Value {
    let is_kept = |path: &FieldPath| kept.contains(&path.to_string());
    let before = before.map(leaves).unwrap_or_default();
    let mut agreed = leaves(wanted);
    agreed.retain(|path, _| !is_kept(path));
    agreed.extend(before.into_iter().filter(|(path, _)| is_kept(path)));
    object_of(agreed.iter().map(|(path, value)| (path, *value)))
}

/// A member that shall not have the cluster any more. Nothing is left of it once the member has said so, or at once
/// where it may keep its cluster.
fn give_up(
    object: &MySQLClusterFederated,
    name: &str,
    facts: &MemberFacts,
    before: Option<&PlacedMember>,
    now: Timestamp,
) -> (Option<DesiredCluster>, Option<Judged>) {
    match object.spec.deletion_policy {
        FederatedDeletion::Retain => return (None, None),
        FederatedDeletion::Delete => {}
    }
    let ours = ours(object, &facts.contact);
    let told_to_make = |wanted: &DesiredCluster| wanted.delete_uid.is_empty();
    let gone = match &facts.contact {
        // What it was told before may make the cluster after a report in which it is not there.
        Contact::Heard(heard) => {
            ours.is_none()
                && heard
                    .answer
                    .as_ref()
                    .is_some_and(|answer| !answer.wanted.as_ref().is_some_and(told_to_make))
        }
        Contact::Silent { .. } => false,
    };
    if gone {
        return (None, None);
    }
    let kept = before.and_then(|before| before.last_observed_state.as_ref()).map(|state| state.uid.clone());
    let uid = ours.map(|cluster| cluster.uid.clone()).or(kept);
    let message = match (&facts.allowed, &facts.contact) {
        (Err(reason), _) => format!("it can't be told to delete its cluster: {reason}"),
        (Ok(()), Contact::Silent { .. }) => {
            "it is silent, and has to be told to delete its cluster".to_owned()
        }
        (Ok(()), Contact::Heard(_)) => "it has been told to delete its cluster".to_owned(),
    };
    let desired = uid.filter(|_| facts.allowed.is_ok()).map(|delete_uid| DesiredCluster {
        name: object.name_any(),
        federated_uid: object.uid().unwrap_or_default(),
        delete_uid,
        ..DesiredCluster::default()
    });
    let judged = judge(object, name, facts, before, (PlacedOutcome::Removing, message), now);
    (desired, Some(judged))
}

/// The outcome of what is wanted now. An answer to something else says nothing of it.
fn answer(desired: &DesiredCluster, contact: &Contact) -> (PlacedOutcome, String, BTreeSet<String>) {
    let waiting = |message: &str| (PlacedOutcome::Waiting, message.to_owned(), BTreeSet::new());
    let Contact::Heard(heard) = contact else {
        return waiting("it is silent");
    };
    let same = |wanted: &DesiredCluster| {
        // What was agreed changes with the answer itself.
        let agreed_json = desired.agreed_json.clone();
        DesiredCluster { agreed_json, ..wanted.clone() } == *desired
    };
    let outcome = match &heard.answer {
        Some(Answer { wanted: Some(wanted), outcome: Some(outcome) }) if same(wanted) => outcome,
        _ => return waiting("it has not answered yet"),
    };
    let kept = || {
        let held = outcome.fields.iter().filter(|field| !field.held_by.is_empty());
        held.map(|field| field.path.clone()).collect()
    };
    let named = match &heard.cluster {
        Some(cluster) => {
            format!("{} (MySQLCluster {} has UID {})", outcome.message, cluster.name, cluster.uid)
        }
        None => outcome.message.clone(),
    };
    match outcome.result() {
        Answered::Aligned => (PlacedOutcome::Aligned, outcome.message.clone(), BTreeSet::new()),
        Answered::Kept => (PlacedOutcome::Kept, outcome.message.clone(), kept()),
        Answered::Conflict => (PlacedOutcome::Conflict, named.trim_start().to_owned(), BTreeSet::new()),
        Answered::Refused => (PlacedOutcome::Refused, outcome.message.clone(), kept()),
        Answered::Failed => (PlacedOutcome::Failed, outcome.message.clone(), BTreeSet::new()),
        Answered::Deleted | Answered::Unspecified => waiting("its answer is none to what is wanted"),
    }
}

fn judge(
    object: &MySQLClusterFederated,
    name: &str,
    facts: &MemberFacts,
    before: Option<&PlacedMember>,
    (outcome, message): (PlacedOutcome, String),
    now: Timestamp,
) -> Judged {
    let same = before.filter(|before| before.outcome == outcome);
    let observed =
        observe(object, &facts.contact, before.and_then(|before| before.last_observed_state.as_ref()), now);
    let fresh = observed.as_ref().filter(|state| !state.stale && !state.deleting);
    let available = |state: &LastObservedState| {
        state.conditions.iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
    };
    Judged {
        silent: matches!(facts.contact, Contact::Silent { .. }),
        ready: fresh.is_some_and(available),
        member: PlacedMember {
            member: name.to_owned(),
            outcome,
            message: cut(&message, MAX_MESSAGE),
            kept_fields: Vec::new(),
            last_transition_time: same.map_or_else(|| time(now), |same| same.last_transition_time.clone()),
            agreed_spec: before.and_then(|before| before.agreed_spec.clone()),
            last_observed_state: observed,
        },
    }
}

/// The member's MySQLCluster, if it belongs to this object.
fn ours<'a>(object: &MySQLClusterFederated, contact: &'a Contact) -> Option<&'a ClusterState> {
    match contact {
        Contact::Heard(heard) => heard
            .cluster
            .as_ref()
            .filter(|cluster| Some(&cluster.federated_uid) == object.metadata.uid.as_ref()),
        Contact::Silent { .. } => None,
    }
}

/// What is kept of a member's cluster. A silent member's is what it was, and says so.
fn observe(
    object: &MySQLClusterFederated,
    contact: &Contact,
    before: Option<&LastObservedState>,
    now: Timestamp,
) -> Option<LastObservedState> {
    let heard = match contact {
        Contact::Silent { .. } if before.is_none_or(|before| before.stale) => return before.cloned(),
        Contact::Silent { last } => {
            return before.map(|before| LastObservedState {
                stale: true,
                last_contact: last.map_or_else(|| before.last_contact.clone(), time),
                ..before.clone()
            });
        }
        Contact::Heard(heard) => heard,
    };
    let state = observed(ours(object, contact)?, time(heard.reported), time(heard.at));
    let Some(before) = before else {
        return Some(state);
    };
    let with = |gtid_executed: &String| LastObservedState {
        observed_at: before.observed_at.clone(),
        last_contact: before.last_contact.clone(),
        gtid_executed: gtid_executed.clone(),
        ..state.clone()
    };
    let due = now.duration_since(before.observed_at.0) >= POSITIONS_EVERY;
    if with(&state.gtid_executed) == *before || (!due && with(&before.gtid_executed) == *before) {
        return Some(before.clone());
    }
    Some(state)
}

fn observed(cluster: &ClusterState, observed_at: Time, last_contact: Time) -> LastObservedState {
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let conditions = cluster.conditions.iter().take(MAX_CONDITIONS).map(|condition| ObservedCondition {
        type_: cut(&condition.r#type, 63),
        status: cut(&condition.status, 16),
        reason: cut(&condition.reason, 128),
        message: cut(&condition.message, MAX_MESSAGE),
    });
    let known = Some(&cluster.gtid_executed).filter(|gtids| gtids.len() <= MAX_GTIDS);
    LastObservedState {
        observed_at,
        last_contact,
        stale: false,
        uid: cut(&cluster.uid, 64),
        generation: cluster.generation,
        observed_generation: cluster.observed_generation,
        spec_hash: hash(&cluster.spec_json),
        phase: cut(&cluster.phase, 64),
        primary: cut(&cluster.primary, 253),
        term: i64::try_from(cluster.term).unwrap_or(i64::MAX),
        ready: number(cluster.ready),
        replicas: number(cluster.replicas),
        gtid_executed: known.cloned().unwrap_or_default(),
        deleting: cluster.deleting,
        conditions: conditions.collect(),
    }
}

fn status(
    object: &MySQLClusterFederated,
    judged: Vec<Judged>,
    now: Timestamp,
) -> MySQLClusterFederatedStatus {
    let before = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let make = |type_, (truth, reason, message): (Truth, &str, String)| -> Condition {
        condition(before, type_, truth, reason, message, object.metadata.generation, now)
    };
    let (ready, distributed, stale) = (ready(&judged), distributed(&judged), stale(&judged));
    let phase = if object.metadata.deletion_timestamp.is_some() {
        FederatedPhase::Deleting
    } else if stale.0 == Truth::True {
        FederatedPhase::Unknown
    } else if distributed.0 != Truth::True {
        FederatedPhase::Distributing
    } else if ready.0 == Truth::True {
        FederatedPhase::Ready
    } else {
        FederatedPhase::NotReady
    };
    let counted = judged.iter().filter(|judged| judged.ready).count();
    MySQLClusterFederatedStatus {
        observed_generation: object.metadata.generation,
        phase: Some(phase),
        members_ready: Some(format!("{counted}/{}", object.spec.placement.len())),
        conditions: vec![make("Ready", ready), make("Distributed", distributed), make("Stale", stale)],
        members: judged.into_iter().map(|judged| judged.member).collect(),
    }
}

/// What is known to be down counts before what is not known; a silent member is never ready.
fn ready(judged: &[Judged]) -> (Truth, &'static str, String) {
    let down = names(judged, |judged| !judged.silent && !judged.ready);
    let silent = names(judged, |judged| judged.silent);
    if !down.is_empty() {
        (Truth::False, "NotAvailable", format!("the cluster is not available in {down}"))
    } else if !silent.is_empty() {
        (Truth::Unknown, "MemberSilent", format!("nothing is heard of {silent}"))
    } else {
        (Truth::True, "Available", "the cluster is available in each member".to_owned())
    }
}

fn distributed(judged: &[Judged]) -> (Truth, &'static str, String) {
    let settled = |judged: &&Judged| {
        judged.member.outcome != PlacedOutcome::Aligned && judged.member.outcome != PlacedOutcome::Waiting
    };
    let tell = |judged: &Judged| {
        format!("{}: {:?}: {}", judged.member.member, judged.member.outcome, judged.member.message)
    };
    let problems: Vec<String> = judged.iter().filter(settled).map(tell).collect();
    let silent = names(judged, |judged| judged.silent);
    let waiting = names(judged, |judged| judged.member.outcome == PlacedOutcome::Waiting);
    let removing = judged.iter().any(|judged| judged.member.outcome == PlacedOutcome::Removing);
    if !problems.is_empty() {
        let reason = if removing { "Removing" } else { "MemberDiffers" };
        (Truth::False, reason, cut(&problems.join("; "), MAX_MESSAGE))
    } else if !silent.is_empty() {
        (Truth::Unknown, "MemberSilent", format!("nothing is heard of {silent}"))
    } else if !waiting.is_empty() {
        (Truth::False, "Waiting", format!("no answer yet from {waiting}"))
    } else {
        (Truth::True, "Aligned", "each member has the wanted spec".to_owned())
    }
}

fn stale(judged: &[Judged]) -> (Truth, &'static str, String) {
    let since = |judged: &Judged| {
        let name = &judged.member.member;
        match &judged.member.last_observed_state {
            Some(state) => format!("{name} was last heard at {}", state.last_contact.0),
            None => format!("{name} has not been heard of"),
        }
    };
    let silent: Vec<String> = judged.iter().filter(|judged| judged.silent).map(since).collect();
    if silent.is_empty() {
        (Truth::False, "Heard", "each member is heard".to_owned())
    } else {
        (Truth::True, "MemberSilent", cut(&silent.join("; "), MAX_MESSAGE))
    }
}

fn names(judged: &[Judged], chosen: impl Fn(&Judged) -> bool) -> String {
    let chosen = judged.iter().filter(|judged| chosen(judged)).map(|judged| judged.member.member.as_str());
    chosen.collect::<Vec<_>>().join(", ")
}

/// SHA-256 in hexadecimal.
fn hash(text: &str) -> String {
    hex::encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()))
}

fn cut(text: &str, most: usize) -> String {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default().to_owned()
}

/// In whole seconds: with parts of one it would differ from what comes back.
pub fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests;
