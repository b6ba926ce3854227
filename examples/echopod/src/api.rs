//! The resource: what people write, and what the controller answers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Wanted state: so many pods that say the message.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "examples.mysqlfleet.io",
    version = "v1",
    kind = "EchoPod",
    namespaced,
    doc = "Some pods that say a message.",
    status = "EchoPodStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Message", type_ = "string", json_path = ".spec.message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 50 characters of a-z, 0-9 and '-': pods and labels are named after it")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EchoPodSpec {
    /// Number of pods, 1 to 10.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: i32,
    /// What each pod writes to its log.
    #[schemars(length(min = 1, max = 1024))]
    pub message: String,
    /// Image of the pods. It needs /bin/sh and sleep.
    #[serde(default = "busybox")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: String,
}

fn one() -> i32 {
    1
}

fn busybox() -> String {
    "docker.io/library/busybox:1.37".to_owned()
}

/// Observed state.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EchoPodStatus {
    /// Generation of the resource that the rest is about.
    pub observed_generation: i64,
    /// Number of pods there are.
    pub replicas: i32,
    /// Ready and wanted pods: `2/3`.
    pub ready: String,
    /// Label selector of the pods, for the scale subresource.
    pub selector: String,
    /// `Available`: all pods are ready, and say the present message. `ReconcileSucceeded`: the last reconcile has worked.
    #[schemars(schema_with = "fleet_runtime::conditions::schema")]
    pub conditions: Vec<Condition>,
}
