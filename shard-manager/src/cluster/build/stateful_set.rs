//! The StatefulSet and its pod.

use std::collections::BTreeMap;

use fleet_api::{
    names::{self, UserRole},
    v1::{Durability, MySQLCluster},
};
use fleet_runtime::pods::{restricted_container, restricted_pod};
use k8s_openapi::{
    api::{
        apps::v1::{
            StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
            StatefulSetUpdateStrategy,
        },
        core::v1::{
            ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
            HTTPGetAction, KeyToPath, ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimSpec,
            PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ProjectedVolumeSource, SecretProjection,
            SecretVolumeSource, TopologySpreadConstraint, Volume, VolumeMount, VolumeProjection,
            VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt as _;
use ring::digest;
use serde_json::json;

use super::{Inputs, config, short_hash};
use crate::labels;

/// User and group of mysqld: those of the stock images.
const MYSQL_ID: i64 = 999;
/// Time that a pod has to end by itself.
const GRACE_SECONDS: i64 = 30;
/// Annotation that changes with the my.cnf keys, so that the template does.
const ANNOTATION_CONFIG: &str = "mysqlfleet.io/config-hash";

/// Annotation that changes with all that the user's spec says of a pod, and with nothing else: a pod that has
/// another value than the template is replaced.
const ANNOTATION_SPEC: &str = "mysqlfleet.io/spec-hash";

/// What marks the pods of the template that a spec asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateMark {
    /// Of all that the spec says of a pod. Images that the operator was given are no part of it, so an upgrade of
    /// the operator by itself restarts nothing.
    spec: String,
    /// Of the my.cnf keys alone, which also pods of earlier releases have.
    config: String,
}

impl TemplateMark {
    /// The mark of the template that the spec asks for.
    pub fn of(cluster: &MySQLCluster) -> Self {
        let spec = &cluster.spec;
        let text = config::my_cnf(&spec.mysqld);
        let image = match &spec.image {
            Some(image) => json!({ "image": image }),
            None => json!({ "version": spec.version }),
        };
        let said = json!([image, spec.resources, spec.durability, text]).to_string();
        Self { spec: short_hash(&said), config: short_hash(&text) }
    }

    /// Whether the pod, or the template of the set, is of another spec. One of a release that did not mark all of
    /// the spec is told by its my.cnf keys only.
    pub fn is_missing_from(&self, metadata: &ObjectMeta) -> bool {
        let value = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
        match (value(ANNOTATION_SPEC), value(ANNOTATION_CONFIG)) {
            (Some(spec), _) => *spec != self.spec,
            (None, Some(config)) => *config != self.config,
            (None, None) => false,
        }
    }

    /// Whether a template has exactly this mark.
    pub fn is_of(&self, metadata: &ObjectMeta) -> bool {
        metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_SPEC)) == Some(&self.spec)
    }

    /// The value of the annotation.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    fn annotations(self) -> BTreeMap<String, String> {
        BTreeMap::from([(ANNOTATION_CONFIG.to_owned(), self.config), (ANNOTATION_SPEC.to_owned(), self.spec)])
    }
}

pub(super) fn stateful_set(inputs: &Inputs<'_>) -> StatefulSet {
    let name = inputs.name();
    StatefulSet {
        metadata: inputs.metadata(name.clone()),
        spec: StatefulSetSpec {
            replicas: Some(i32::try_from(inputs.pods).unwrap_or(i32::MAX)),
            service_name: Some(names::instances_service(&name)),
            selector: LabelSelector {
                match_labels: Some(labels::selector(&name)),
                ..LabelSelector::default()
            },
            pod_management_policy: Some("Parallel".to_owned()),
            // The shard chooses when a pod is replaced: a controller that knows no roles must not.
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                ..StatefulSetUpdateStrategy::default()
            }),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some("Retain".to_owned()),
                when_scaled: Some("Retain".to_owned()),
            }),
            template: pod_template(inputs),
            volume_claim_templates: Some(vec![volume_claim(inputs)]),
            ..StatefulSetSpec::default()
        },
        ..StatefulSet::default()
    }
}

/// The claim template can't be changed once it exists: then what exists is kept, and claims grow one by one.
fn volume_claim(inputs: &Inputs<'_>) -> PersistentVolumeClaim {
    let storage = &inputs.cluster.spec.storage;
    let existing = inputs
        .found
        .children
        .stateful_set
        .as_ref()
        .and_then(|set| set.spec.volume_claim_templates.as_ref()?.first()?.spec.clone());
    let spec = existing.map_or_else(
        || PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: storage.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(storage.size.clone()))])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        },
        |existing| PersistentVolumeClaimSpec {
            access_modes: existing.access_modes,
            storage_class_name: existing.storage_class_name,
            resources: existing.resources,
            ..PersistentVolumeClaimSpec::default()
        },
    );
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some("data".to_owned()),
            labels: Some(labels::cluster(&inputs.name())),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        ..PersistentVolumeClaim::default()
    }
}

fn pod_template(inputs: &Inputs<'_>) -> PodTemplateSpec {
    let name = inputs.name();
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels::cluster(&name)),
            annotations: Some(TemplateMark::of(inputs.cluster).annotations()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            security_context: Some(PodSecurityContext {
                fs_group: Some(MYSQL_ID),
                fs_group_change_policy: Some("OnRootMismatch".to_owned()),
                ..restricted_pod(MYSQL_ID)
            }),
            topology_spread_constraints: Some(
                ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
                    .map(|key| spread(&name, key))
                    .into(),
            ),
            init_containers: Some(vec![install_agent(inputs)]),
            containers: vec![mysqld(inputs)],
            volumes: Some(volumes(&name, TemplateMark::of(inputs.cluster).spec())),
            ..PodSpec::default()
        }),
    }
}

/// Instances go to different nodes and zones where there are any.
fn spread(name: &str, topology_key: &str) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: topology_key.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(labels::selector(name)),
            ..LabelSelector::default()
        }),
        ..TopologySpreadConstraint::default()
    }
}

/// Copies the agent into the pod, so that any image with a mysqld serves.
fn install_agent(inputs: &Inputs<'_>) -> Container {
    Container {
        name: "install-agent".to_owned(),
        image: Some(inputs.images.agent.clone()),
        image_pull_policy: Some(inputs.images.pull_policy.as_str().to_owned()),
        command: Some(["/mysql-agent", "install", "/fleet/bin"].map(ToOwned::to_owned).into()),
        security_context: Some(restricted_container()),
        volume_mounts: Some(vec![mount("bin", "/fleet/bin")]),
        ..Container::default()
    }
}

fn mysqld(inputs: &Inputs<'_>) -> Container {
    let spec = &inputs.cluster.spec;
    let durability = match spec.durability {
        Durability::Strict => "Strict",
        Durability::Relaxed => "Relaxed",
    };
    let image = spec.image.clone().unwrap_or_else(|| inputs.images.mysql.replace("{version}", &spec.version));
    let read_only = |mount: VolumeMount| VolumeMount { read_only: Some(true), ..mount };
    Container {
        name: "mysqld".to_owned(),
        image: Some(image),
        image_pull_policy: Some(inputs.images.pull_policy.as_str().to_owned()),
        command: Some(["/fleet/bin/mysql-agent", "run"].map(ToOwned::to_owned).into()),
        env: Some(vec![
            from_field("FLEET_NAMESPACE", "metadata.namespace"),
            from_field("FLEET_POD_NAME", "metadata.name"),
            value("FLEET_CLUSTER", inputs.name()),
            value(
                "FLEET_SERVER_ID_BASE",
                server_id_base(&inputs.cluster.uid().unwrap_or_default()).to_string(),
            ),
            value("FLEET_DURABILITY", durability.to_owned()),
        ]),
        ports: Some(vec![
            port("mysql", names::PORT_MYSQL),
            port("agent", names::PORT_AGENT),
            port("health", names::PORT_AGENT_HEALTH),
        ]),
        resources: spec.resources.clone(),
        security_context: Some(restricted_container()),
        // The agent lives on while mysqld is down or can't run: only an agent that hangs is restarted.
        liveness_probe: Some(Probe {
            period_seconds: Some(10),
            timeout_seconds: Some(5),
            ..probe("/livez", 6)
        }),
        startup_probe: Some(Probe { period_seconds: Some(1), ..probe("/livez", 60) }),
        readiness_probe: Some(Probe {
            period_seconds: Some(2),
            timeout_seconds: Some(2),
            ..probe("/readyz", 2)
        }),
        volume_mounts: Some(vec![
            read_only(mount("bin", "/fleet/bin")),
            mount("data", "/var/lib/mysql"),
            mount("run", "/fleet/run"),
            mount("tmp", "/tmp"),
            read_only(mount(config::VOLUME, "/fleet/config")),
            read_only(mount("tls", "/fleet/tls")),
            read_only(mount("users", "/fleet/users")),
        ]),
        ..Container::default()
    }
}

fn volumes(name: &str, mark: &str) -> Vec<Volume> {
    let empty = |volume: &str, source: EmptyDirVolumeSource| Volume {
        name: volume.to_owned(),
        empty_dir: Some(source),
        ..Volume::default()
    };
    vec![
        empty("bin", EmptyDirVolumeSource::default()),
        empty(
            "run",
            EmptyDirVolumeSource {
                medium: Some("Memory".to_owned()),
                size_limit: Some(Quantity("16Mi".to_owned())),
                ..EmptyDirVolumeSource::default()
            },
        ),
        empty("tmp", EmptyDirVolumeSource::default()),
        Volume {
            name: config::VOLUME.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: names::config_map(name, mark),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: "tls".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(names::tls_secret(name)),
                default_mode: Some(0o440),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: "users".to_owned(),
            projected: Some(ProjectedVolumeSource {
                default_mode: Some(0o440),
                sources: Some(UserRole::ALL.map(|role| account(name, role)).into()),
                ..ProjectedVolumeSource::default()
            }),
            ..Volume::default()
        },
    ]
}

fn account(name: &str, role: UserRole) -> VolumeProjection {
    let item =
        |key: &str| KeyToPath { key: key.to_owned(), path: format!("{role}/{key}"), ..KeyToPath::default() };
    VolumeProjection {
        secret: Some(SecretProjection {
            name: names::user_secret(name, role),
            items: Some(vec![item("username"), item("password")]),
            optional: None,
        }),
        ..VolumeProjection::default()
    }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn value(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), value_from: None }
}

fn from_field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: None }),
            ..EnvVarSource::default()
        }),
    }
}

fn port(name: &str, port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("health".to_owned()),
            ..HTTPGetAction::default()
        }),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// Where the server ids of a cluster begin: from its UID, so that two clusters that replicate from one
/// another almost surely differ; a multiple of 16, so that the ordinals fit; never 0.
fn server_id_base(uid: &str) -> u32 {
    let hash = digest::digest(&digest::SHA256, uid.as_bytes());
    let bits = hash.as_ref().iter().take(4).fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte));
    (bits & 0x7fff_fff0).max(16)
}

#[cfg(test)]
mod tests {
    use super::server_id_base;

    #[test]
    fn server_ids_leave_room_for_ordinals() {
        for uid in ["", "a", "b", "c"] {
            let base = server_id_base(uid);
            assert!(base >= 16 && base.is_multiple_of(16) && base < u32::MAX - 16, "{base}");
        }
        assert_ne!(server_id_base("a"), server_id_base("b"));
    }
}
