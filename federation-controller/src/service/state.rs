//! The state of a hub, in the words of the wire.

use fleet_api::v1::{LastObservedState, MemberCluster, MySQLClusterFederated, PlacedMember, PlacedOutcome};
use fleet_proto::federation::v1::{
    ClusterState, Condition, FederatedStatus, FederationStatus, Field, MemberStatus, Outcome, PlacedStatus,
    Result as Answered,
};
use fleet_runtime::lease::Gate;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as KeptCondition, Time};
use kube::ResourceExt as _;
use serde_json::Value;
use tokio::sync::watch;

use super::drift::{Specs, drift};
use crate::{
    decide::{Contact, Heard},
    overrides::spec_for,
    stores::Stores,
    streams::{Shard, Streams},
};

/// Where the state of a hub is taken from. A pod that does not lead has no streams, and tells what is written.
#[derive(Clone)]
pub struct HubState {
    /// This pod.
    pub pod: String,
    /// Open while this pod leads.
    pub gate: Gate,
    /// The objects.
    pub stores: Stores,
    /// The streams.
    pub streams: Streams,
}

/// The state after each change.
pub struct Changes {
    state: HubState,
    objects: watch::Receiver<u64>,
    streams: watch::Receiver<u64>,
    told: Option<FederationStatus>,
}

impl HubState {
    /// The state now.
    pub fn status(&self) -> FederationStatus {
        let members = self.stores.members.state();
        let mut members: Vec<MemberStatus> = members
            .iter()
            .filter_map(|guard| guard.0.as_ref().ok())
            .map(|member| self.member(member))
            .collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        let clusters = self.stores.federated.state();
        let mut clusters: Vec<FederatedStatus> = clusters
            .iter()
            .filter_map(|guard| guard.0.as_ref().ok())
            .map(|object| self.federated(object))
            .collect();
        clusters.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        FederationStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            members,
            clusters,
            pod: self.pod.clone(),
            leader: self.gate.is_open(),
            observed_at_ms: Timestamp::now().as_millisecond(),
        }
    }

    /// The state now, and after each change.
    pub fn changes(&self) -> Changes {
        let (objects, streams) = (self.stores.changed.clone(), self.streams.generation());
        Changes { state: self.clone(), objects, streams, told: None }
    }

    fn member(&self, member: &MemberCluster) -> MemberStatus {
        let name = member.name_any();
        let status = member.status.clone().unwrap_or_default();
        let contact = self.streams.member(&name);
        let location = member.spec.location.clone();
        MemberStatus {
            conditions: status.conditions.iter().map(condition).collect(),
            namespaces: member.spec.namespaces.clone(),
            region: location.region.unwrap_or_default(),
            zone: location.zone.unwrap_or_default(),
            version: contact.version.or(status.version).unwrap_or_default(),
            last_contact_ms: contact
                .last
                .or(status.last_contact.map(|last| last.0))
                .map(Timestamp::as_millisecond)
                .unwrap_or_default(),
            connected: contact.connected,
            name,
        }
    }

    fn federated(&self, object: &MySQLClusterFederated) -> FederatedStatus {
        let status = object.status.clone().unwrap_or_default();
        FederatedStatus {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            phase: status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default(),
            members: status.members.iter().map(|member| self.placed(object, member)).collect(),
            generation: object.metadata.generation.unwrap_or_default(),
            observed_generation: status.observed_generation.unwrap_or_default(),
            members_ready: status.members_ready.unwrap_or_default(),
            conditions: status.conditions.iter().map(condition).collect(),
        }
    }

    fn placed(&self, object: &MySQLClusterFederated, member: &PlacedMember) -> PlacedStatus {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        let shard =
            Shard { member: member.member.clone(), namespace: object.namespace().unwrap_or_default() };
        let heard = match self.streams.contact(&shard, &name, &uid) {
            Contact::Heard(heard) => Some(heard),
            Contact::Silent { .. } => None,
        };
        let state = member.last_observed_state.as_ref();
        let written = state.map(|state| &state.last_contact).map(millis).unwrap_or_default();
        let spec = heard.as_deref().and_then(|heard| spec_of(heard, &uid));
        PlacedStatus {
            member: member.member.clone(),
            last_observed: state.map(|state| observed(&name, &uid, state)),
            last_contact_ms: heard.as_ref().map_or(written, |heard| heard.at.as_millisecond()),
            stale: state.is_some_and(|state| state.stale),
            outcome: Some(Outcome {
                result: answered(member.outcome).into(),
                message: member.message.clone(),
                fields: fields(object, member, heard.as_deref(), spec.as_ref()),
                name,
                federated_uid: uid,
            }),
            result: format!("{:?}", member.outcome),
            since_ms: millis(&member.last_transition_time),
            compared: spec.is_some(),
        }
    }
}

impl Changes {
    /// Waits for a state that differs from the last one; nothing once the hub has ended. A sign of life alone is no
    /// difference.
    pub async fn next(&mut self) -> Option<FederationStatus> {
        loop {
            self.objects.borrow_and_update();
            self.streams.borrow_and_update();
            let status = self.state.status();
            let lasting = lasting(&status);
            if self.told.as_ref() != Some(&lasting) {
                self.told = Some(lasting);
                return Some(status);
            }
            tokio::select! {
                changed = self.objects.changed() => changed.ok()?,
                changed = self.streams.changed() => changed.ok()?,
            }
        }
    }
}

/// What does not move with time alone: all but when somebody who is heard was heard.
fn lasting(status: &FederationStatus) -> FederationStatus {
    let mut lasting = FederationStatus { observed_at_ms: 0, ..status.clone() };
    for member in lasting.members.iter_mut().filter(|member| !member.connected.is_empty()) {
        member.last_contact_ms = 0;
    }
    for placed in lasting.clusters.iter_mut().flat_map(|cluster| &mut cluster.members) {
        if !placed.stale {
            placed.last_contact_ms = 0;
        }
    }
    lasting
}

/// The fields in which a member is not as wanted. Where the template can't be used, nothing is wanted of it.
fn fields(
    object: &MySQLClusterFederated,
    member: &PlacedMember,
    heard: Option<&Heard>,
    spec: Option<&Value>,
) -> Vec<Field> {
    let placement = object.spec.placement.iter().find(|placement| placement.member == member.member);
    let wanted = placement
        .and_then(|placement| spec_for(&object.spec.template, &placement.overrides).ok())
        .and_then(|spec| serde_json::to_value(spec).ok());
    let Some(wanted) = wanted else {
        return Vec::new();
    };
    let outcome = heard.and_then(|heard| heard.answer.as_ref()?.outcome.as_ref());
    let told = outcome.map_or(&[][..], |outcome| &outcome.fields);
    drift(Specs { wanted: &wanted, agreed: member.agreed_spec.as_ref(), member: spec }, told)
}

/// The spec of the member's cluster, if it is ours and can be read.
fn spec_of(heard: &Heard, uid: &str) -> Option<Value> {
    let cluster = heard.cluster.as_ref().filter(|cluster| cluster.federated_uid == uid)?;
    serde_json::from_str(&cluster.spec_json).ok()
}

fn answered(outcome: PlacedOutcome) -> Answered {
    match outcome {
        PlacedOutcome::Aligned => Answered::Aligned,
        PlacedOutcome::Kept => Answered::Kept,
        PlacedOutcome::Conflict => Answered::Conflict,
        PlacedOutcome::Refused => Answered::Refused,
        PlacedOutcome::Failed => Answered::Failed,
        PlacedOutcome::Waiting
        | PlacedOutcome::NotAllowed
        | PlacedOutcome::Invalid
        | PlacedOutcome::Removing => Answered::Unspecified,
    }
}

fn millis(time: &Time) -> i64 {
    time.0.as_millisecond()
}

fn observed(name: &str, federated_uid: &str, state: &LastObservedState) -> ClusterState {
    let number = |number: i32| u32::try_from(number).unwrap_or_default();
    ClusterState {
        name: name.to_owned(),
        uid: state.uid.clone(),
        generation: state.generation,
        observed_generation: state.observed_generation,
        spec_json: String::new(),
        federated_uid: federated_uid.to_owned(),
        phase: state.phase.clone(),
        primary: state.primary.clone(),
        term: u64::try_from(state.term).unwrap_or_default(),
        ready: number(state.ready),
        replicas: number(state.replicas),
        gtid_executed: state.gtid_executed.clone(),
        conditions: state
            .conditions
            .iter()
            .map(|condition| Condition {
                r#type: condition.type_.clone(),
                status: condition.status.clone(),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            })
            .collect(),
        deleting: state.deleting,
    }
}

fn condition(kept: &KeptCondition) -> Condition {
    Condition {
        r#type: kept.type_.clone(),
        status: kept.status.clone(),
        reason: kept.reason.clone(),
        message: kept.message.clone(),
    }
}
