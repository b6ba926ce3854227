use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::federated::conditions_schema;

/// A Kubernetes cluster whose shards may dial this hub.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "mysqlfleet.io",
    version = "v1",
    kind = "MemberCluster",
    plural = "memberclusters",
    singular = "membercluster",
    category = "mysqlfleet",
    doc = "A Kubernetes cluster whose shards may dial this hub.",
    derive = "PartialEq",
    status = "MemberClusterStatus",
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.location.region"),
    printcolumn(name = "Reachable", type_ = "string", json_path = ".status.conditions[?(@.type==\"Reachable\")].status"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Last contact", type_ = "date", json_path = ".status.lastContact"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 63 characters of a-z, 0-9 and '-', and begin and end with a letter or digit: it stands in the certificates of the member's shards")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemberClusterSpec {
    /// Where the cluster is.
    #[serde(default)]
    pub location: Location,
    /// Namespaces whose shard may dial, and in which the hub may want clusters. Each is listed: there is no
    /// pattern for all of them.
    #[schemars(schema_with = "namespaces_schema")]
    pub namespaces: Vec<String>,
}

/// Where a cluster is, in the words of topology.kubernetes.io.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Location {
    /// Region, as in topology.kubernetes.io/region.
    #[schemars(length(max = 63))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Zone, as in topology.kubernetes.io/zone.
    #[schemars(length(max = 63))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// What the hub knows of a member.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterStatus {
    /// Generation of the resource that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When a shard of the member was last heard, as far as it was written: it is written when a stream begins or
    /// ends, not at each heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<Time>,
    /// Version of the shards that are connected, or were last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Namespaces whose shard is connected, ordered by name.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub connected: Vec<String>,
    /// Joined: a shard has dialled at least once. Reachable: one is connected now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

fn namespaces_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 256,
        "x-kubernetes-list-type": "set",
        "items": { "type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" }
    })
}
