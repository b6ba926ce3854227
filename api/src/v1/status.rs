use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::v1::Span;

/// Observed state of a MySQL cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MySQLClusterStatus {
    /// Generation of the resource that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the cluster in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Pod that takes writes in this term. It is set before the pod is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Number of the current primary's term: raised with every change of the primary or of the quorum,
    /// 0 before the first primary.
    #[serde(default)]
    pub term: i64,
    /// First of the terms in which this primary has been primary without a break.
    #[serde(default)]
    pub primary_since: i64,
    /// The primarySince of the newest primary that was seen to take writes. A primary that looks as if it never
    /// did, and was seen to, has lost its data.
    #[serde(default)]
    pub opened_since: i64,
    /// Number of instances whose acknowledgements count in this term.
    #[serde(default)]
    pub ackers: i32,
    /// Acknowledgements that each commit of this term waits for.
    #[serde(default)]
    pub required_acks: i32,
    /// First of the terms in which this primary has had these numbers of acknowledgements without a break.
    #[serde(default)]
    pub quorum_since: i64,
    /// What the term is for. Absent before the first primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<TermStage>,
    /// Pod that the primary hands over to, in stage Handover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_to: Option<String>,
    /// Transactions (GTID set) that the primary held when it took over from another one: all that had ever been
    /// acknowledged, unless it was forced. Absent for a primary that was chosen when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion_point: Option<String>,
    /// Whether the primary took over from one that was closed for it, rather than lost.
    #[serde(default)]
    pub planned: bool,
    /// The newest takeover that a person forced, though nobody could prove that the new primary held all that had
    /// been acknowledged. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<ForcedTakeover>,
    /// Instances that were in sync, each with the volume it had then: as long as it has that one it holds all
    /// that it acknowledged, and can prove it when the primary is lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_sync: Vec<InSyncInstance>,
    /// What became of the last request of each kind that a person made by an annotation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered_requests: Vec<AnsweredRequest>,
    /// Rolling update that is under way, or that was given up. Absent while all pods are made from the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Number of instances that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Number of instances in sync: an open primary, and replicas that follow it.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Instances in sync and instances wanted, such as 3/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Label selector of the instances' pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The instances, ordered by ordinal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceStatus>,
    /// Conditions. Every type is present once the cluster has been looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// A rolling update. What pods are made from is called a template: version, image, resources, mysqld and durability of
/// the spec.
//
// A status is written as a merge patch: what is absent here has to be sent as null, or it would stay.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// How far it is.
    pub state: RolloutState,
    /// Mark of the template that pods are made from now, as in their annotation mysqlfleet.io/spec-hash.
    pub template: String,
    /// Instances that were in sync with it.
    #[serde(default)]
    pub proved: Vec<String>,
    /// Instance that is waited for.
    #[serde(default)]
    pub waits_for: Option<RolloutWait>,
    /// Template of the spec that was given up, as long as the spec asks for it.
    #[serde(default)]
    pub given_up: Option<GivenUpTemplate>,
}

/// How far a rolling update is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// Pods are replaced by those of the spec, one at a time.
    Updating,
    /// An instance has not got in sync in time, and there is no way back: a person has to see to it.
    Stopped,
    /// The spec was given up, and pods go back to what they were made from before.
    RollingBack,
    /// The spec was given up, and all pods are as they were before.
    RolledBack,
}

/// An instance with a pod of a new template that has not been in sync yet.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutWait {
    /// Name of the pod.
    pub instance: String,
    /// Since when it is waited for.
    pub since: Time,
    /// Whole seconds of that which count. It is refreshed at the cluster's resync alone.
    pub waited_seconds: i64,
}

/// A template that was given up.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GivenUpTemplate {
    /// Its mark.
    pub template: String,
    /// The spec's progressDeadline at that time.
    #[schemars(with = "String")]
    pub progress_deadline: Span,
    /// Pod that was not in sync with it in time.
    pub instance: String,
    /// What the pod or its mysqld said.
    pub reason: String,
    /// Since when the instance had been waited for.
    pub since: Time,
    /// When it was given up.
    pub at: Time,
    /// Fields of the spec that are not in force.
    pub fields: Vec<String>,
    /// Mark of the template that is in force instead, which all instances had been in sync with.
    pub restored: String,
}

/// What a term is for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermStage {
    /// The primary takes writes, or is to be opened for that.
    Reign,
    /// The primary was lost: its ackers are revoked, then another instance takes over.
    Fencing,
    /// The primary is closed, so that another instance can take over.
    Handover,
}

/// A takeover that a person forced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ForcedTakeover {
    /// The primarySince of the primary that took over.
    pub term: i64,
    /// Transactions (GTID set) that it held then. What an instance that was away holds beyond them may have been
    /// acknowledged, so that it is left alone.
    pub point: String,
}

/// An instance that was in sync.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InSyncInstance {
    /// Name of the pod.
    pub name: String,
    /// Identity of its data volume at that time.
    pub volume_id: String,
    /// Boot id of its kernel at that time.
    pub boot_id: String,
    /// Transactions (GTID set) that it holds and the primary does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errant: Option<String>,
}

/// A request of a person, and what became of it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AnsweredRequest {
    /// What was asked for.
    pub kind: RequestKind,
    /// The value of the annotation.
    pub asked: String,
    /// Whether it was done.
    pub outcome: RequestOutcome,
    /// What was done, or why nothing was.
    pub message: String,
    /// When it was answered, in microseconds: by it the same answer is told from the one before.
    pub answered_at: MicroTime,
}

/// What a person can ask for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Another primary.
    Switchover,
    /// A copy in place of the data of an instance that holds what the primary does not.
    Rebuild,
    /// The cluster counts as its own what an instance holds and the primary does not.
    Release,
    /// Another primary where the failover is blocked, at the price of data.
    ForcePrimary,
    /// Another certificate authority of the tenant.
    RotateAuthority,
}

/// What became of a request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was done.
    Done,
    /// It was not, and nothing was changed by it.
    Refused,
}

/// State of a cluster in one word; docs/states.md describes each.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not looked at yet, or what the spec asks for can't be done.
    Pending,
    /// All instances are stopped, as wanted.
    Offline,
    /// Roles stay as they are, as wanted.
    Paused,
    /// No primary has been chosen yet.
    Bootstrapping,
    /// An instance is being copied.
    Cloning,
    /// Another instance is about to become the primary, as wanted.
    SwitchoverRequested,
    /// The primary takes writes and all replicas are in sync.
    Healthy,
    /// The primary takes writes and enough replicas are in sync to acknowledge them.
    Degraded,
    /// The primary is there, and too few replicas are to acknowledge a write.
    WritesBlocked,
    /// The primary is gone, and a replica takes its place.
    PrimaryLost,
    /// The primary is gone, and too few replicas are there to replace it.
    FailoverBlocked,
    /// Too little is known to decide.
    Incomplete,
    /// The cluster is being deleted.
    Deleting,
}

/// What an instance is in its cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceRole {
    /// Takes writes.
    Primary,
    /// Follows the primary.
    Replica,
    /// On its way to following the primary.
    Joining,
    /// Holds transactions that the primary does not have.
    Errant,
    /// Can't be asked.
    Unknown,
}

/// State of one instance. Where it is in the stream of transactions changes with every write, so it is
/// refreshed at the cluster's resync alone; the shard's gRPC services have it fresh.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Name of the pod.
    pub name: String,
    /// What it is in the cluster.
    pub role: InstanceRole,
    /// Whether it serves what its role promises.
    pub ready: bool,
    /// What it waits for, where it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Transactions it has applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtid_executed: Option<String>,
    /// Whole seconds that it is behind the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<i64>,
    /// Random identity of the agent's run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The copy of another instance's data that it is getting. Absent where none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyStatus>,
}

/// How far a copy of another instance's data is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    /// How much of what is known to be copied is there, in percent.
    pub percent: i32,
    /// How fast data arrive. Absent between the stages of a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// Whole seconds that the rest takes at that speed. Absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i64>,
}

/// The types of conditions.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// The primary takes writes.
    Available,
    /// All instances are in sync.
    Healthy,
    /// Something is on its way to what the spec asks for.
    Progressing,
    /// Less than what the spec asks for is there.
    Degraded,
    /// The last reconcile did all it had to.
    ReconcileSucceeded,
    /// The primary is gone and can't be replaced safely; the message says what is missing.
    FailoverBlocked,
    /// The cluster is paused.
    Paused,
    /// The spec did not work and was given up: pods are made from what was wanted before.
    RolledBack,
}

impl ConditionType {
    /// All types, in the order in which they stand in a status.
    pub const ALL: [Self; 8] = [
        Self::Available,
        Self::Healthy,
        Self::Progressing,
        Self::Degraded,
        Self::ReconcileSucceeded,
        Self::FailoverBlocked,
        Self::Paused,
        Self::RolledBack,
    ];
}

/// One condition.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which condition.
    #[serde(rename = "type")]
    pub type_: ConditionType,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Generation of the resource that the condition is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    pub last_transition_time: Time,
}

/// A list map by type, so that server-side apply merges conditions one by one.
fn conditions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": generator.subschema_for::<Condition>(),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}
