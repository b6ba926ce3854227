use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::MySQLClusterSpec;

/// The most conditions of a member's cluster that are kept.
pub const MAX_CONDITIONS: usize = 16;
/// The longest message that is kept, in bytes.
pub const MAX_MESSAGE: usize = 1024;
/// The longest set of transactions that is kept, in bytes; a longer one is left out, since a part of it would
/// be another set.
pub const MAX_GTIDS: usize = 16 * 1024;

/// Wanted state of a MySQL cluster that is the same in several members.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "mysqlfleet.io",
    version = "v1",
    kind = "MySQLClusterFederated",
    plural = "mysqlclustersfederated",
    singular = "mysqlclusterfederated",
    shortname = "mycf",
    category = "mysqlfleet",
    namespaced,
    doc = "A MySQLCluster that the hub keeps in several member clusters.",
    derive = "PartialEq",
    status = "MySQLClusterFederatedStatus",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Members ready", type_ = "string", json_path = ".status.membersReady"),
    printcolumn(name = "Stale", type_ = "string", json_path = ".status.conditions[?(@.type==\"Stale\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 40 characters of a-z, 0-9 and '-', begin with a letter and not end with '-': the members' clusters have the same name"),
    validation = Rule::new("!self.metadata.name.startsWith('shard-')")
        .message("metadata.name must not begin with shard-: the shard's own objects are named so")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MySQLClusterFederatedSpec {
    /// Spec of the MySQLCluster in each member.
    pub template: MySQLClusterSpec,
    /// Members that have the cluster, each once, in the namespace of this object.
    #[schemars(schema_with = "placement_schema")]
    pub placement: Vec<Placement>,
    /// What happens where a member has a MySQLCluster of the name that this object has not made.
    #[serde(default)]
    pub conflict: Conflict,
    /// What becomes of a member's MySQLCluster when this object is deleted, or the member is placed no more.
    #[serde(default)]
    pub deletion_policy: FederatedDeletion,
}

/// A member that has the cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// Name of the MemberCluster.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub member: String,
    /// What is different there.
    #[serde(default)]
    pub overrides: Overrides,
}

/// What may be different in a member. All else is as in the template.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Overrides {
    /// Number of instances: 1, 3 or 5.
    #[schemars(schema_with = "replicas_schema")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Container image with mysqld, such as that of a registry near by.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Volume of each instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageOverrides>,
    /// CPU and memory of each mysqld, in place of the template's as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Keys of my.cnf that are added to the template's, or replace them key by key. What the operator owns is
    /// refused for the member that has it.
    #[schemars(schema_with = "mysqld_schema")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mysqld: BTreeMap<String, String>,
}

/// What may be different in a member's volumes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageOverrides {
    /// Size, as a Kubernetes quantity: at least 512Mi. It may only grow.
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$")
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// StorageClass of the volumes.
    #[schemars(length(min = 1, max = 253))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

/// What happens where a member has a MySQLCluster of the name already.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.policy == 'Adopt' || !has(self.uids)")
        .message("conflict.uids is for policy Adopt: remove it, or set policy to Adopt"),
    validation = Rule::new("self.policy != 'Adopt' || (has(self.uids) && size(self.uids) > 0)")
        .message("conflict.policy Adopt takes over only what conflict.uids names: add the UID of each MySQLCluster under its member's name")
)]
pub struct Conflict {
    /// Abort: it is left as it is, and the member's outcome is Conflict. Adopt: it is taken over if its UID is the
    /// one in uids.
    #[serde(default)]
    pub policy: ConflictPolicy,
    /// UID of the MySQLCluster to take over, by the member's name.
    #[schemars(schema_with = "uids_schema")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uids: BTreeMap<String, String>,
}

/// Whether a member's own MySQLCluster may be taken over.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// It is left as it is.
    #[default]
    Abort,
    /// It is taken over if its UID is named.
    Adopt,
}

/// What becomes of the members' clusters.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FederatedDeletion {
    /// They stay, and go on as clusters of their member alone.
    #[default]
    Retain,
    /// They are deleted. Their volumes go by deletionPolicy of the template.
    Delete,
}

/// Observed state of a federated cluster. It is kept here alone, so that a hub that starts anew has forgotten nothing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MySQLClusterFederatedStatus {
    /// Generation of the resource that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<FederatedPhase>,
    /// Members whose cluster is ready by a report that is not stale, and members wanted, such as 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members_ready: Option<String>,
    /// The members, ordered by name: those that are placed, and those that have to give the cluster up.
    #[serde(default)]
    #[schemars(schema_with = "members_schema")]
    pub members: Vec<PlacedMember>,
    /// Ready: each member's cluster is available; Unknown where a member is silent. Distributed: each member has the
    /// wanted spec. Stale: a member is silent, so that what is known of it may be past.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// State of a federated cluster in one word.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FederatedPhase {
    /// A member does not have the wanted spec yet.
    Distributing,
    /// Each member has the wanted spec, and its cluster is available.
    Ready,
    /// Each member has the wanted spec, but a cluster is not available.
    NotReady,
    /// A member is silent.
    Unknown,
    /// The object is being deleted.
    Deleting,
}

/// A federated cluster on one member.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlacedMember {
    /// Name of the MemberCluster.
    #[schemars(length(max = 63))]
    pub member: String,
    /// What came of the wanted spec there.
    pub outcome: PlacedOutcome,
    /// Why, for people.
    #[schemars(length(max = 1024))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Fields that the member keeps as they are there, as .storage.size; ordered by path.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept_fields: Vec<String>,
    /// When the outcome last became another one.
    pub last_transition_time: Time,
    /// The spec that hub and member last agreed on: all of it when it was Aligned, all but the kept fields when Kept.
    #[schemars(schema_with = "any_object")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreed_spec: Option<Value>,
    /// What was last observed. It stays as it is while the member is silent. Absent before its cluster was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_state: Option<LastObservedState>,
}

/// What came of the wanted spec on a member.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedOutcome {
    /// The member is silent, or has not answered yet.
    Waiting,
    /// The member's cluster is as wanted.
    Aligned,
    /// It is there, but some fields are kept by their owner in the member.
    Kept,
    /// Somebody else's MySQLCluster has the name; nothing was done.
    Conflict,
    /// The member's API refuses the spec.
    Refused,
    /// It could not be done now; the member tries again.
    Failed,
    /// There is no such MemberCluster, or it does not allow the namespace; nothing is sent.
    NotAllowed,
    /// The overrides can't be used; nothing is sent.
    Invalid,
    /// The member has to delete its cluster, and has not said that it is gone.
    Removing,
}

/// A member's cluster as it was last observed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastObservedState {
    /// When it was as it stands here, by the hub's clock.
    pub observed_at: Time,
    /// When the member was last heard. It is written with a change of the rest, not at each heartbeat; once the
    /// member is silent it is the time of its last sign of life.
    pub last_contact: Time,
    /// Whether the member is silent: all of this may be past.
    pub stale: bool,
    /// UID of the MySQLCluster.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// metadata.generation.
    pub generation: i64,
    /// status.observedGeneration.
    pub observed_generation: i64,
    /// SHA-256 of the spec.
    #[schemars(length(max = 64))]
    pub spec_hash: String,
    /// status.phase.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Instance that is the primary.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub primary: String,
    /// Local term.
    pub term: i64,
    /// Instances that are ready.
    pub ready: i32,
    /// Instances that its spec asks for.
    pub replicas: i32,
    /// Transactions that the primary held. Absent where they are not known, or longer than 16 KiB as text.
    #[schemars(length(max = 16384))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gtid_executed: String,
    /// Whether the MySQLCluster is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// status.conditions.
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ObservedCondition>,
}

/// A condition of a member's cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ObservedCondition {
    /// Which condition.
    #[serde(rename = "type")]
    #[schemars(length(max = 63))]
    pub type_: String,
    /// True, False or Unknown.
    #[schemars(length(max = 16))]
    pub status: String,
    /// Why, in one word.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Why, for people.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A map by type, so that server-side apply merges conditions one by one.
pub(super) fn conditions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": generator.subschema_for::<Condition>(),
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

/// A map by member: the API server itself refuses a member that is there twice.
fn placement_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    by_member(&generator.subschema_for::<Placement>(), Some(1), 16)
}

/// Those that are placed, and those that were.
fn members_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    by_member(&generator.subschema_for::<PlacedMember>(), None, 64)
}

fn by_member(items: &schemars::Schema, min: Option<u32>, max: u32) -> schemars::Schema {
    let mut schema = schemars::json_schema!({
        "type": "array",
        "items": items,
        "maxItems": max,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["member"]
    });
    if let Some(min) = min {
        schema.insert("minItems".to_owned(), min.into());
    }
    schema
}

fn replicas_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer", "format": "int32", "enum": [1, 3, 5] })
}

/// Without rules: which keys are owned is checked by the hub, since a rule in a list costs as often as the list is long.
fn mysqld_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 1024, "pattern": "^[^\\n\\r]*$" }
    })
}

fn uids_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "minLength": 1, "maxLength": 64 }
    })
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
