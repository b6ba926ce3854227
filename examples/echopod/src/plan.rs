//! What should be, from what is wanted and what there is. Pure: no client, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fleet_runtime::pods::{has_ended, is_ready, restricted_container, restricted_pod};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Resource as _, ResourceExt as _, api::ObjectMeta};

use crate::api::EchoPod;

/// Who makes the pods: the field manager, and the value of two labels.
pub const ECHOPOD: &str = "echopod";
/// Label of all pods that this controller makes.
pub const CREATED_BY: &str = "created-by";
/// Label with the EchoPod that a pod belongs to.
pub const NAME: &str = "examples.mysqlfleet.io/echopod";
/// Label with the second since 1970 in which the pod was made.
pub const CREATED_AT: &str = "examples.mysqlfleet.io/created-at";
/// Annotation with the image and the message that a pod was made for.
pub const TEMPLATE: &str = "examples.mysqlfleet.io/template";

/// Says the message, and ends at once when it is asked to: as PID 1 it would not without a trap.
const SCRIPT: &str = r#"trap 'exit 0' TERM; echo "$MESSAGE"; sleep 2147483647 & wait"#;

/// What has to be done.
#[derive(Debug, Default)]
pub struct Plan {
    /// Pods that have to be, each with the live one.
    pub wanted: Vec<(Pod, Option<Arc<Pod>>)>,
    /// Pods that have to go.
    pub surplus: Vec<Arc<Pod>>,
}

/// Plans one step: pods that are too many, have ended or say another message go, missing ones are made.
///
/// Pods that are ready and say another message go one at a time, while all others are ready.
pub fn plan(echo: &EchoPod, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let names: BTreeSet<String> =
        (0..echo.spec.replicas).map(|index| format!("{}-{index}", echo.name_any())).collect();
    let mut live: BTreeMap<String, &Arc<Pod>> = pods.iter().map(|pod| (pod.name_any(), pod)).collect();
    let mut may_replace = names.iter().all(|name| live.get(name).is_some_and(|pod| is_ready(pod)));
    let mut plan = Plan::default();
    for name in names {
        let found = live.remove(&name);
        match found {
            // It is made anew when it is gone: that is a change, too.
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) if has_ended(pod) || (!is_current(echo, pod) && !is_ready(pod)) => {
                plan.surplus.push(Arc::clone(pod));
            }
            Some(pod) if !is_current(echo, pod) => {
                if std::mem::take(&mut may_replace) {
                    plan.surplus.push(Arc::clone(pod));
                }
            }
            found => {
                let made = found.and_then(|pod| pod.labels().get(CREATED_AT).cloned());
                let made = made.unwrap_or_else(|| now.as_second().to_string());
                plan.wanted.push((pod(echo, &name, &made), found.cloned()));
            }
        }
    }
    let rest = live.into_values().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    plan.surplus.extend(rest.cloned());
    plan
}

/// Whether a pod says the message that is wanted now.
pub fn is_current(echo: &EchoPod, pod: &Pod) -> bool {
    pod.annotations().get(TEMPLATE) == Some(&template(echo))
}

fn template(echo: &EchoPod) -> String {
    format!("{}: {}", echo.spec.image, echo.spec.message)
}

/// The pod, as the `restricted` Pod Security Standard wants it. Its message is no part of its script.
fn pod(echo: &EchoPod, name: &str, made: &str) -> Pod {
    let labels = [
        (CREATED_BY, ECHOPOD),
        ("app.kubernetes.io/managed-by", ECHOPOD),
        (NAME, &echo.name_any()),
        (CREATED_AT, made),
    ];
    let limits = [("cpu", "50m"), ("memory", "16Mi")];
    let limits = limits.map(|(key, value)| (key.to_owned(), Quantity(value.to_owned()))).into();
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: echo.namespace(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: Some([(TEMPLATE.to_owned(), template(echo))].into()),
            owner_references: echo.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            security_context: Some(restricted_pod(65532)),
            containers: vec![Container {
                name: "echo".to_owned(),
                image: Some(echo.spec.image.clone()),
                command: Some(["/bin/sh", "-c", SCRIPT].map(str::to_owned).into()),
                env: Some(vec![EnvVar {
                    name: "MESSAGE".to_owned(),
                    // Else $(NAME) in a message would be replaced by the kubelet.
                    value: Some(echo.spec.message.replace('$', "$$")),
                    ..EnvVar::default()
                }]),
                resources: Some(ResourceRequirements {
                    limits: Some(limits),
                    ..ResourceRequirements::default()
                }),
                security_context: Some(restricted_container()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    }
}
