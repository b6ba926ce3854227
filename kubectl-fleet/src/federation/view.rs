//! The state as JSON and YAML: what `federation.proto` says, with times in words and the fields' values as they are in
//! the spec.

use fleet_proto::federation::v1::{
    ClusterState, Condition, FederatedStatus, FederationStatus, Field, MemberStatus, PlacedStatus,
};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// The state of a federation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct FederationStatusView {
    pub version: String,
    pub pod: String,
    pub leader: bool,
    pub observed_at: Option<Timestamp>,
    pub members: Vec<MemberView>,
    pub clusters: Vec<FederatedView>,
}

/// A member cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct MemberView {
    pub name: String,
    pub region: String,
    pub zone: String,
    pub namespaces: Vec<String>,
    pub connected: Vec<String>,
    pub version: String,
    pub last_contact: Option<Timestamp>,
    pub conditions: Vec<ConditionView>,
}

/// A federated cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct FederatedView {
    pub namespace: String,
    pub name: String,
    pub phase: String,
    pub members_ready: String,
    pub generation: i64,
    pub observed_generation: i64,
    pub conditions: Vec<ConditionView>,
    pub members: Vec<PlacedView>,
}

/// A federated cluster on one member.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct PlacedView {
    pub member: String,
    pub outcome: String,
    pub message: String,
    pub since: Option<Timestamp>,
    pub stale: bool,
    pub last_contact: Option<Timestamp>,
    /// Whether `drift` compares with the member's spec as it is now, or with what was last agreed on.
    pub compared: bool,
    pub drift: Vec<DriftView>,
    pub last_observed: Option<ObservedView>,
}

/// A field in which the member is not as wanted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct DriftView {
    pub path: String,
    /// Null for nothing.
    pub agreed: Option<Value>,
    /// Null for nothing.
    pub hub: Option<Value>,
    /// Null for nothing, and where it is not known.
    pub member: Option<Value>,
    pub held_by: String,
    pub both_changed: bool,
}

/// A member's cluster as it was last seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct ObservedView {
    pub uid: String,
    pub generation: i64,
    pub observed_generation: i64,
    pub phase: String,
    pub primary: String,
    pub term: u64,
    pub ready: u32,
    pub replicas: u32,
    pub gtid_executed: String,
    pub deleting: bool,
    pub conditions: Vec<ConditionView>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are described in federation.proto")]
pub struct ConditionView {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

impl From<&FederationStatus> for FederationStatusView {
    fn from(status: &FederationStatus) -> Self {
        Self {
            version: status.version.clone(),
            pod: status.pod.clone(),
            leader: status.leader,
            observed_at: time(status.observed_at_ms),
            members: status.members.iter().map(member).collect(),
            clusters: status.clusters.iter().map(federated).collect(),
        }
    }
}

fn member(member: &MemberStatus) -> MemberView {
    MemberView {
        name: member.name.clone(),
        region: member.region.clone(),
        zone: member.zone.clone(),
        namespaces: member.namespaces.clone(),
        connected: member.connected.clone(),
        version: member.version.clone(),
        last_contact: time(member.last_contact_ms),
        conditions: conditions(&member.conditions),
    }
}

fn federated(cluster: &FederatedStatus) -> FederatedView {
    FederatedView {
        namespace: cluster.namespace.clone(),
        name: cluster.name.clone(),
        phase: cluster.phase.clone(),
        members_ready: cluster.members_ready.clone(),
        generation: cluster.generation,
        observed_generation: cluster.observed_generation,
        conditions: conditions(&cluster.conditions),
        members: cluster.members.iter().map(placed).collect(),
    }
}

fn placed(placed: &PlacedStatus) -> PlacedView {
    let outcome = placed.outcome.clone().unwrap_or_default();
    PlacedView {
        member: placed.member.clone(),
        outcome: placed.result.clone(),
        message: outcome.message,
        since: time(placed.since_ms),
        stale: placed.stale,
        last_contact: time(placed.last_contact_ms),
        compared: placed.compared,
        drift: outcome.fields.iter().map(drift).collect(),
        last_observed: placed.last_observed.as_ref().map(observed),
    }
}

fn drift(field: &Field) -> DriftView {
    DriftView {
        path: field.path.clone(),
        agreed: json(&field.agreed_json),
        hub: json(&field.hub_json),
        member: json(&field.member_json),
        held_by: field.held_by.clone(),
        both_changed: field.both_changed,
    }
}

fn observed(state: &ClusterState) -> ObservedView {
    ObservedView {
        uid: state.uid.clone(),
        generation: state.generation,
        observed_generation: state.observed_generation,
        phase: state.phase.clone(),
        primary: state.primary.clone(),
        term: state.term,
        ready: state.ready,
        replicas: state.replicas,
        gtid_executed: state.gtid_executed.clone(),
        deleting: state.deleting,
        conditions: conditions(&state.conditions),
    }
}

fn conditions(conditions: &[Condition]) -> Vec<ConditionView> {
    let view = |condition: &Condition| ConditionView {
        type_: condition.r#type.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    };
    conditions.iter().map(view).collect()
}

/// Nothing for an empty text; a text that is no JSON as it is.
fn json(text: &str) -> Option<Value> {
    if text.is_empty() {
        return None;
    }
    Some(serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)))
}

fn time(millis: i64) -> Option<Timestamp> {
    Some(millis).filter(|millis| *millis != 0).and_then(|millis| Timestamp::from_millisecond(millis).ok())
}
