use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    reserved,
    v1::{MySQLClusterStatus, Span},
};

/// Wanted state of a MySQL cluster: one primary that takes writes and the replicas that follow it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "mysqlfleet.io",
    version = "v1",
    kind = "MySQLCluster",
    plural = "mysqlclusters",
    singular = "mysqlcluster",
    shortname = "myc",
    category = "mysqlfleet",
    namespaced,
    doc = "A replicated MySQL cluster that fails over by itself.",
    derive = "PartialEq",
    status = "MySQLClusterStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Primary", type_ = "string", json_path = ".status.primary"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Rollout", type_ = "string", json_path = ".status.rollout.state"),
    printcolumn(name = "Term", type_ = "integer", json_path = ".status.term", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 40 characters of a-z, 0-9 and '-', begin with a letter and not end with '-': the names of pods and Services are made from it"),
    validation = Rule::new("!self.metadata.name.startsWith('shard-')")
        .message("metadata.name must not begin with shard-: the shard's own objects are named so")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MySQLClusterSpec {
    /// Number of instances: 1, 3 or 5. With 1 there is no replica that a write could survive on.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 5))]
    #[x_kube(validation = Rule::new("self in [1, 3, 5]")
        .message("replicas must be 1, 3 or 5: of an even number one instance adds no safety"))]
    pub replicas: i32,

    /// Version of MySQL: 9.7 (tested) or 8.4 (supported, not tested), with or without the patch release.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(8\\\\.4|9\\\\.7)(\\\\.[0-9]+)?$')")
        .message("version must be 9.7 or 8.4, with or without a patch release (such as 9.7.4)"))]
    pub version: String,

    /// Container image with this version's mysqld. Any stock MySQL image serves: the agent is copied in.
    /// The default is the image that the shard was started with, at this version.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// Volume of each instance.
    pub storage: Storage,

    /// CPU and memory of each mysqld. MySQL's buffers are sized from the memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Keys of my.cnf, in lower case with underscores, and their values. Keys that the operator owns are
    /// refused.
    #[schemars(schema_with = "mysqld_schema")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mysqld: BTreeMap<String, String>,

    /// What an acknowledged commit survives.
    #[serde(default)]
    pub durability: Durability,

    /// For how long an instance whose pod was made from a changed spec may take to be in sync, from 30s to 24h.
    /// After that the rolling update is given up, and the pods go back to what they were made from before. It is
    /// tried again once what pods are made from, or this span, is another one.
    #[schemars(schema_with = "progress_deadline_schema")]
    #[serde(default = "default_progress_deadline")]
    pub progress_deadline: Span,

    /// What is paused.
    #[serde(default)]
    pub paused: Paused,

    /// Whether all instances are stopped. The volumes are kept.
    #[serde(default)]
    pub offline: bool,

    /// What becomes of the volumes when the cluster is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Volume of each instance.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName)")
    .message("storageClassName can't be added or removed later: make a new cluster"))]
pub struct Storage {
    /// Size, as a Kubernetes quantity: at least 512Mi. It may only grow.
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$")
    )]
    #[x_kube(
        validation = Rule::new("quantity(self).compareTo(quantity('512Mi')) >= 0")
            .message("storage.size must be at least 512Mi"),
        validation = Rule::new("quantity(self).compareTo(quantity(oldSelf)) >= 0")
            .message("storage.size may only grow: a volume can't be shrunk")
    )]
    pub size: String,

    /// StorageClass of the volumes. The default is the default class of the Kubernetes cluster. It can
    /// be changed only while no volume exists yet.
    #[schemars(length(min = 1, max = 253))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

/// What an acknowledged commit survives.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Every crash after which the volumes are there again: logs are synced at each commit, and a commit
    /// is acknowledged once enough replicas hold it.
    #[default]
    Strict,
    /// The loss of the primary's mysqld alone: a commit is acknowledged once enough replicas hold it,
    /// but no instance syncs its logs at each commit.
    Relaxed,
}

/// What is paused.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Paused {
    /// Whether roles stay as they are: no bootstrap, no promotion, no repointing. Objects are still
    /// kept as they should be.
    #[serde(default)]
    pub clustering: bool,
    /// Whether nothing at all is changed.
    #[serde(default)]
    pub reconcile: bool,
}

/// What becomes of the volumes when the cluster is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    /// They are kept; a cluster of the same name adopts them with their data.
    #[default]
    Retain,
    /// They are deleted with their data.
    Delete,
}

fn default_replicas() -> i32 {
    3
}

fn default_progress_deadline() -> Span {
    Span::minutes(10)
}

fn progress_deadline_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "maxLength": 16,
        "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
        "x-kubernetes-validations": [{
            "rule": "duration(self) >= duration('30s') && duration(self) <= duration('24h')",
            "message": "progressDeadline must be from 30s to 24h, such as 10m or 1h30m"
        }]
    })
}

/// Schema of `spec.mysqld`: its rules are made from the lists that the shard itself checks by, so that
/// the API server and the shard can't disagree.
///
/// A rule for each owned key names the key in its message. One `messageExpression` that joins the keys
/// would be refused: its estimated cost exceeds what the API server allows.
fn mysqld_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let list = |items: &[&str]| items.iter().map(|item| format!("'{item}'")).collect::<Vec<_>>().join(", ");
    let abbreviated = format!(
        "[{}].exists(r, r.startsWith(k)) || [{}].exists(p, k.startsWith(p))",
        list(reserved::RESERVED_KEYS),
        list(reserved::RESERVED_PREFIXES)
    );
    let mut rules = vec![
        serde_json::json!({
            "rule": "self.all(k, k.matches('^[a-z][a-z0-9_]*$'))",
            "message": "keys of mysqld are my.cnf keys in lower case with underscores, such as max_connections"
        }),
        serde_json::json!({
            "rule": format!("self.all(k, !({abbreviated}))"),
            "message": format!(
                "mysqld has a key that the operator owns, an abbreviation of one, or one that begins with {}: remove it",
                reserved::RESERVED_PREFIXES.join(", ")
            )
        }),
    ];
    rules.extend(reserved::RESERVED_KEYS.iter().map(|key| {
        serde_json::json!({
            "rule": format!("!('{key}' in self)"),
            "message": format!("{key} is owned by the operator: remove it from mysqld")
        })
    }));
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 1024, "pattern": "^[^\\n\\r]*$" },
        "x-kubernetes-validations": rules
    })
}
