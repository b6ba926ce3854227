//! All objects of one shard, as a pure function of a few options.
//!
//! Whoever applies them needs rights in the tenant namespace; nothing here has rights outside it. The
//! Secrets of the shard (its certificate authority and certificates) are made by the shard at its start.

use std::collections::BTreeMap;

use clap::ValueEnum;
use fleet_api::names::{GROUP, PORT_SHARD_GRPC, PORT_SHARD_HEALTH, PORT_SHARD_METRICS, SHARD, shard_lease};
use serde_json::{Value, json};

use crate::network;

/// The user of the mysql-fleet image.
const USER: u32 = 65532;

/// When a node pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// At each start of a container.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Never: it has to be there.
    Never,
}

impl PullPolicy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// What a shard shall be like.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// The tenant namespace, a valid name.
    pub namespace: String,
    /// Image of mysql-fleet.
    pub image: String,
    /// Image of MySQL with `{version}` in place of the version, where it is not the shard's own default.
    pub mysql_image: Option<String>,
    /// When nodes pull the images.
    pub image_pull_policy: PullPolicy,
    /// Pods of the shard.
    pub replicas: u8,
    /// Whether the Namespace is among the objects.
    pub create_namespace: bool,
    /// The hub that the shard gets clusters from, if there is one.
    pub federation: Option<FederationOptions>,
    /// Whether NetworkPolicies are among the objects.
    pub network_policies: bool,
}

/// A hub, and how the shard shows it who it is.
#[derive(Clone, Debug)]
pub struct FederationOptions {
    /// The hub's address, `https://HOST:PORT`.
    pub endpoint: String,
    /// Secret of the namespace with the certificate for the hub.
    pub secret: String,
}

impl FederationOptions {
    fn port(&self) -> Option<u16> {
        self.endpoint.rsplit_once(':')?.1.parse().ok()
    }
}

impl RenderOptions {
    /// The options that `kubectl fleet shard render NAMESPACE --image IMAGE` has by default.
    pub fn new(namespace: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            image: image.into(),
            mysql_image: None,
            image_pull_policy: PullPolicy::IfNotPresent,
            replicas: 2,
            create_namespace: false,
            federation: None,
            network_policies: false,
        }
    }
}

/// Returns the objects, in an order in which they can be applied.
pub fn render(options: &RenderOptions) -> Vec<Value> {
    let mut objects = Vec::new();
    if options.create_namespace {
        objects.push(namespace(options));
    }
    objects.extend([
        service_account(options),
        role(options),
        role_binding(options),
        service(options),
        disruption_budget(options),
        deployment(options),
    ]);
    if options.network_policies {
        let hub = options.federation.as_ref().and_then(FederationOptions::port);
        objects.extend(network::policies(&selector(options), hub, |name| named(options, name)));
    }
    objects
}

/// The objects as one YAML stream.
pub fn to_yaml(objects: &[Value]) -> Result<String, serde_yaml_ng::Error> {
    objects.iter().map(|object| Ok(format!("---\n{}", serde_yaml_ng::to_string(object)?))).collect()
}

fn namespace(options: &RenderOptions) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": options.namespace,
            "labels": {
                "pod-security.kubernetes.io/enforce": "restricted",
                "pod-security.kubernetes.io/warn": "restricted",
            },
        },
    })
}

fn service_account(options: &RenderOptions) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(options)})
}

/// The least that the shard needs: children that go with their owner are not its to delete. It creates no
/// Roles, and reads nothing outside its namespace.
fn role(options: &RenderOptions) -> Value {
    const READ: [&str; 3] = ["get", "list", "watch"];
    let rule = |group: &str, resources: &[&str], write: &[&str]| {
        let verbs: Vec<&str> = READ.iter().chain(write).copied().collect();
        json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
    };
    // Clusters are their users' to make and to delete, unless a hub wants them.
    let clusters: &[&str] =
        if options.federation.is_some() { &["create", "patch", "delete"] } else { &["patch"] };
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(options),
        "rules": [
            rule(GROUP, &["mysqlclusters"], clusters),
            json!({"apiGroups": [GROUP], "resources": ["mysqlclusters/status"], "verbs": ["patch"]}),
            // An owner reference that blocks the owner's deletion needs the right to finalize the owner.
            json!({"apiGroups": [GROUP], "resources": ["mysqlclusters/finalizers"], "verbs": ["update"]}),
            rule("apps", &["statefulsets", "controllerrevisions"], &["create", "patch", "delete"]),
            // Where a field that can't be changed was changed, an object is replaced.
            rule("", &["services", "configmaps", "secrets"], &["create", "patch", "delete"]),
            rule("", &["persistentvolumeclaims"], &["patch", "delete"]),
            rule("", &["pods"], &["delete"]),
            rule("discovery.k8s.io", &["endpointslices"], &["create", "patch", "delete"]),
            rule("policy", &["poddisruptionbudgets"], &["create", "patch", "delete"]),
            // A name can't be demanded of something that is created.
            json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}),
            json!({
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": [shard_lease(&options.namespace)],
                "verbs": ["get", "update"],
            }),
            json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}),
        ],
    })
}

fn role_binding(options: &RenderOptions) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(options),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SHARD},
        "subjects": [{"kind": "ServiceAccount", "name": SHARD, "namespace": options.namespace}],
    })
}

fn service(options: &RenderOptions) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(options),
        "spec": {
            "selector": selector(options),
            "ports": [
                {"name": "grpc", "port": PORT_SHARD_GRPC, "targetPort": "grpc"},
                {"name": "metrics", "port": PORT_SHARD_METRICS, "targetPort": "metrics"},
            ],
        },
    })
}

fn disruption_budget(options: &RenderOptions) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(options),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(options)}},
    })
}

fn deployment(options: &RenderOptions) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(options),
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": selector(options)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": labels(options)},
                "spec": {
                    "serviceAccountName": SHARD,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 45,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": USER,
                        "runAsGroup": USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": selector(options)},
                    }],
                    "containers": [container(options)],
                },
            },
        },
    })
}

fn container(options: &RenderOptions) -> Value {
    let mut arguments = vec![
        format!("--namespace={}", options.namespace),
        format!("--agent-image={}", options.image),
        format!("--image-pull-policy={}", options.image_pull_policy.as_str()),
    ];
    arguments.extend(options.mysql_image.iter().map(|image| format!("--mysql-image={image}")));
    if let Some(FederationOptions { endpoint, secret }) = &options.federation {
        arguments.push(format!("--federation-endpoint={endpoint}"));
        arguments.push(format!("--federation-secret={secret}"));
    }
    let probe = |path: &str, more: Value| {
        let mut probe = json!({"httpGet": {"path": path, "port": "health"}, "timeoutSeconds": 5});
        if let (Some(probe), Value::Object(more)) = (probe.as_object_mut(), more) {
            probe.extend(more);
        }
        probe
    };
    json!({
        "name": SHARD,
        "image": options.image,
        "imagePullPolicy": options.image_pull_policy.as_str(),
        "command": ["/shard-manager"],
        "args": arguments,
        "env": [{"name": "FLEET_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [
            {"name": "grpc", "containerPort": PORT_SHARD_GRPC},
            {"name": "metrics", "containerPort": PORT_SHARD_METRICS},
            {"name": "health", "containerPort": PORT_SHARD_HEALTH},
        ],
        "startupProbe": probe("/livez", json!({"periodSeconds": 1, "failureThreshold": 60})),
        "livenessProbe": probe("/livez", json!({"periodSeconds": 10, "failureThreshold": 3})),
        "readinessProbe": probe("/readyz", json!({"periodSeconds": 2, "failureThreshold": 3})),
        "resources": {
            "requests": {"cpu": "20m", "memory": "48Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

fn metadata(options: &RenderOptions) -> Value {
    named(options, SHARD)
}

fn named(options: &RenderOptions, name: &str) -> Value {
    json!({"name": name, "namespace": options.namespace, "labels": labels(options)})
}

/// Without a managed-by label: the shard takes objects that have its own as a cluster's.
fn labels(options: &RenderOptions) -> BTreeMap<&'static str, String> {
    let mut labels = selector(options);
    labels.insert("app.kubernetes.io/component", "controller".to_owned());
    labels.insert("app.kubernetes.io/part-of", "mysql-fleet".to_owned());
    labels
}

/// The labels by which the shard's pods are found.
pub fn selector(options: &RenderOptions) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name", SHARD.to_owned()),
        ("app.kubernetes.io/instance", options.namespace.clone()),
    ])
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fmt::Debug};

    use k8s_openapi::{
        api::{
            apps::v1::Deployment,
            core::v1::{Namespace, Service, ServiceAccount},
            networking::v1::NetworkPolicy,
            policy::v1::PodDisruptionBudget,
            rbac::v1::{Role, RoleBinding},
        },
        serde::de::DeserializeOwned,
    };
    use serde::Serialize;

    use super::*;

    const IMAGE: &str = "registry.example/mysql-fleet:1";

    fn all() -> RenderOptions {
        RenderOptions {
            mysql_image: Some("registry.example/mysql:{version}".to_owned()),
            image_pull_policy: PullPolicy::Never,
            replicas: 3,
            create_namespace: true,
            federation: Some(FederationOptions {
                endpoint: "https://hub.example:9443".to_owned(),
                secret: "hub".to_owned(),
            }),
            network_policies: true,
            ..RenderOptions::new("tenant-a", IMAGE)
        }
    }

    #[test]
    fn the_text_for_a_tenant() {
        insta::assert_snapshot!(to_yaml(&render(&RenderOptions::new("tenant-a", IMAGE))).unwrap());
    }

    #[test]
    fn options_change_only_what_they_name() {
        let (plain, full) = (render(&RenderOptions::new("tenant-a", IMAGE)), render(&all()));
        assert_eq!(full.len(), plain.len() + 3);
        assert_eq!(full[0]["kind"], "Namespace");
        assert_eq!((&full[1], &full[3..6]), (&plain[0], &plain[2..5]));
        let mut role = full[2].clone();
        assert_eq!(role["rules"][0]["verbs"], json!(["get", "list", "watch", "create", "patch", "delete"]));
        role["rules"][0]["verbs"] = json!(["get", "list", "watch", "patch"]);
        assert_eq!(role, plain[1]);
        let container = &full[6]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Never");
        assert_eq!(
            container["args"],
            json!([
                "--namespace=tenant-a",
                "--agent-image=registry.example/mysql-fleet:1",
                "--image-pull-policy=Never",
                "--mysql-image=registry.example/mysql:{version}",
                "--federation-endpoint=https://hub.example:9443",
                "--federation-secret=hub",
            ])
        );
        assert_eq!(full[6]["spec"]["replicas"], 3);
        assert_eq!(full[7]["kind"], "NetworkPolicy");
    }

    /// A misspelt field would be dropped by the typed object, and missing when it is written again.
    #[test]
    fn every_field_is_one_that_kubernetes_has() {
        fn same<K: DeserializeOwned + Serialize + Debug>(object: &Value) {
            let typed: K = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(serde_json::to_value(typed).unwrap(), *object);
        }
        for object in render(&all()) {
            match object["kind"].as_str().unwrap() {
                "Namespace" => same::<Namespace>(&object),
                "ServiceAccount" => same::<ServiceAccount>(&object),
                "Role" => same::<Role>(&object),
                "RoleBinding" => same::<RoleBinding>(&object),
                "Service" => same::<Service>(&object),
                "PodDisruptionBudget" => same::<PodDisruptionBudget>(&object),
                "Deployment" => same::<Deployment>(&object),
                "NetworkPolicy" => same::<NetworkPolicy>(&object),
                other => panic!("{other} is not checked"),
            }
        }
    }

    #[test]
    fn a_shard_with_a_hub_may_reach_it() {
        let reaches = |options: &RenderOptions| {
            let objects = render(options);
            let policy =
                objects.iter().find(|object| object["metadata"]["name"] == "mysql-fleet-shard").unwrap();
            policy["spec"]["egress"].as_array().unwrap().clone()
        };
        let without = reaches(&RenderOptions { federation: None, ..all() });
        let mut with = reaches(&all());
        assert_eq!(with.pop().unwrap(), json!({"ports": [{"protocol": "TCP", "port": 9443}]}));
        assert_eq!(with, without);
    }

    #[test]
    fn every_port_of_the_shard_is_open_to_somebody() {
        let objects = render(&all());
        let named = |name: &str| objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        let ingress = named("mysql-fleet-shard")["spec"]["ingress"].as_array().unwrap().clone();
        let open = ingress.iter().flat_map(|rule| rule["ports"].as_array().unwrap());
        let open: BTreeSet<u64> = open.map(|port| port["port"].as_u64().unwrap()).collect();
        let pod = &objects[6]["spec"]["template"];
        let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
        let served = ports.iter().map(|port| port["containerPort"].as_u64().unwrap()).collect();
        assert_eq!(open, served);
        let selected = &named("mysql-fleet-shard")["spec"]["podSelector"]["matchLabels"];
        for (key, value) in selected.as_object().unwrap() {
            assert_eq!(&pod["metadata"]["labels"][key], value);
        }
    }

    #[test]
    fn everything_but_the_namespace_is_in_the_namespace() {
        for object in render(&all()).iter().skip(1) {
            assert_eq!(object["metadata"]["namespace"], "tenant-a", "{object}");
        }
    }
}
