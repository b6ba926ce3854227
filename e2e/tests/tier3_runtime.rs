//! The runtime and the rendered shard against a real API server, with the rights of the real account.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use e2e::{apiserver, kubernetes};
use fleet_runtime::{
    apply::{Applied, Applier, Object},
    lease::{Gate, Lease, LeaseConfig, LeaseState},
    tls,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::NamespaceResourceScope,
};
use kubectl_fleet::render::{RenderOptions, render, to_yaml};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "tenant-a";

struct Server {
    /// May do everything.
    admin: Client,
    /// Has the rights of the shard's account.
    shard: Client,
    api: apiserver::ApiServer,
}

async fn server() -> Server {
    tls::install_provider();
    let server = apiserver::start().await.unwrap();
    let admin = server.client().await.unwrap();
    for crd in fleet_api::crds() {
        kubernetes::apply(&admin, &serde_yaml_ng::to_string(&crd).unwrap(), "default").await.unwrap();
    }
    let options = RenderOptions { create_namespace: true, ..RenderOptions::new(NAMESPACE, "x:1") };
    kubernetes::apply(&admin, &to_yaml(&render(&options)).unwrap(), NAMESPACE).await.unwrap();
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{NAMESPACE}:shard-manager"));
    Server { admin, shard: Client::try_from(config).unwrap(), api: server }
}

impl Server {
    fn applier(&self) -> Applier {
        Applier::new(self.shard.clone(), Gate::always_open())
    }

    /// Applies what is wanted, and asserts that what the API server makes of it is not applied again.
    async fn settles<K: Object + Resource<Scope = NamespaceResourceScope>>(
        &self,
        writer: &Applier,
        wanted: Value,
    ) {
        let wanted: K = serde_json::from_value(wanted).unwrap();
        let (kind, name) = (K::kind(&()), wanted.name_any());
        let written = writer.ensure(&wanted, None).await.unwrap();
        assert!(matches!(written, Applied::Written(_)), "{kind} {name} was not written");
        let live = Api::<K>::namespaced(self.admin.clone(), NAMESPACE).get(&name).await.unwrap();
        let again = writer.ensure(&wanted, Some(&live)).await.unwrap();
        assert!(matches!(again, Applied::Unchanged), "{kind} {name} would be written for ever");
    }
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE, "labels": {"mysqlfleet.io/cluster": "orders"}})
}

fn stateful_set() -> Value {
    let labels = json!({"mysqlfleet.io/cluster": "orders"});
    json!({"metadata": metadata("orders"), "spec": {
        "replicas": 3,
        "serviceName": "orders-instances",
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "securityContext": {"runAsNonRoot": true, "fsGroup": 999, "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [{
                "name": "install-agent", "image": "agent", "command": ["/mysql-agent", "install", "/fleet/bin"],
                "volumeMounts": [{"name": "bin", "mountPath": "/fleet/bin"}],
            }],
            "containers": [{
                "name": "mysqld", "image": "mysql",
                "env": [
                    {"name": "EMPTY", "value": ""},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "ports": [{"name": "mysql", "containerPort": 3306}],
                "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "1024Mi"}},
                "livenessProbe": {"httpGet": {"path": "/livez", "port": 8081}},
                "volumeMounts": [
                    {"name": "bin", "mountPath": "/fleet/bin", "readOnly": true},
                    {"name": "data", "mountPath": "/var/lib/mysql", "readOnly": false},
                ],
            }],
            "volumes": [
                {"name": "bin", "emptyDir": {}},
                {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
                {"name": "tls", "secret": {"secretName": "orders-tls"}},
            ],
        }},
        "volumeClaimTemplates": [{
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
        }],
    }})
}

#[tokio::test]
async fn objects_that_the_api_server_fills_in_are_written_once() {
    let server = server().await;
    let shard = server.applier();
    let data = json!({"metadata": metadata("orders-config"), "data": {"my.cnf": "[mysqld]\n"}});
    server.settles::<ConfigMap>(&shard, data).await;
    let secret =
        json!({"metadata": metadata("orders-admin"), "type": "Opaque", "data": {"password": "djE="}});
    server.settles::<Secret>(&shard, secret).await;
    server.settles::<StatefulSet>(&shard, stateful_set()).await;
    let ports = json!([{"name": "mysql", "port": 3306, "targetPort": "mysql"}]);
    let service = json!({"metadata": metadata("orders-primary"), "spec": {"ports": ports}});
    server.settles::<Service>(&shard, service).await;
    for endpoints in [json!([]), json!([{"addresses": ["10.1.1.1"], "conditions": {"ready": true}}])] {
        let slice = json!({
            "metadata": metadata(if endpoints == json!([]) { "orders-replicas" } else { "orders-primary" }),
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "mysql", "port": 3306}],
        });
        server.settles::<EndpointSlice>(&shard, slice).await;
    }
    let budget = json!({"metadata": metadata("orders"), "spec": {"maxUnavailable": 1, "selector": {}}});
    server.settles::<PodDisruptionBudget>(&shard, budget).await;
}

#[tokio::test]
async fn rendered_objects_are_complete() {
    let server = server().await;
    let admin = Applier::new(server.admin.clone(), Gate::always_open());
    for object in render(&RenderOptions { replicas: 3, ..RenderOptions::new(NAMESPACE, "x:1") }) {
        match object["kind"].as_str().unwrap() {
            "ServiceAccount" => server.settles::<ServiceAccount>(&admin, object).await,
            "Role" => server.settles::<Role>(&admin, object).await,
            "RoleBinding" => server.settles::<RoleBinding>(&admin, object).await,
            "Service" => server.settles::<Service>(&admin, object).await,
            "PodDisruptionBudget" => server.settles::<PodDisruptionBudget>(&admin, object).await,
            "Deployment" => server.settles::<Deployment>(&admin, object).await,
            other => panic!("{other} is not known"),
        }
    }
}

#[tokio::test]
async fn edits_are_reverted_and_what_others_added_stays() {
    let server = server().await;
    let shard = server.applier();
    server.settles::<StatefulSet>(&shard, stateful_set()).await;
    let sets = Api::<StatefulSet>::namespaced(server.admin.clone(), NAMESPACE);
    let edit = json!({"spec": {"replicas": 1}, "metadata": {"labels": {"foreign": "kept"}}});
    let edited = sets.patch("orders", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();

    let wanted: StatefulSet = serde_json::from_value(stateful_set()).unwrap();
    let Applied::Written(live) = shard.ensure(&wanted, Some(&edited)).await.unwrap() else {
        panic!("the edit was taken for what is wanted");
    };
    let live_value = serde_json::to_value(&live).unwrap();
    assert_eq!(live_value["spec"]["replicas"], 3);
    assert_eq!(live.labels()["foreign"], "kept");
    assert!(matches!(shard.ensure(&wanted, Some(&live)).await.unwrap(), Applied::Unchanged));

    let mut less = stateful_set();
    less["spec"]["template"]["spec"]["containers"][0]["env"] = json!([]);
    let less: StatefulSet = serde_json::from_value(less).unwrap();
    let Applied::Written(live) = shard.ensure(&less, Some(&live)).await.unwrap() else {
        panic!("the dropped field was not noticed");
    };
    let container = serde_json::to_value(&live).unwrap()["spec"]["template"]["spec"]["containers"][0].clone();
    assert_eq!(container.get("env"), None, "the dropped field is still there");
}

#[tokio::test]
async fn writes_are_guarded_by_version_and_uid() {
    let server = server().await;
    let (shard, admin) = (server.applier(), Applier::new(server.admin.clone(), Gate::always_open()));
    let wanted: StatefulSet = serde_json::from_value(stateful_set()).unwrap();
    let first = shard.create(&wanted).await.unwrap();
    assert!(shard.create(&wanted).await.unwrap_err().is_already_exists());
    let held = shard.set_finalizers(&first, &["mysqlfleet.io/test".to_owned()]).await.unwrap();
    assert!(shard.set_finalizers(&first, &[]).await.unwrap_err().is_conflict());
    shard.delete(&held).await.unwrap();
    let sets = Api::<StatefulSet>::namespaced(server.admin.clone(), NAMESPACE);
    let dying = sets.get("orders").await.unwrap();
    let error = shard.ensure(&wanted, Some(&dying)).await.unwrap_err().to_string();
    assert!(error.contains("it is being deleted"), "{error}");
    admin.set_finalizers(&dying, &[]).await.unwrap();
    let second = shard.create(&wanted).await.unwrap();
    shard.delete(&first).await.expect("one that is gone is no error");
    assert_eq!(sets.get("orders").await.unwrap().uid(), second.uid(), "another object was deleted");
}

#[tokio::test]
async fn the_account_of_a_shard_reaches_its_namespace_alone() {
    let server = server().await;
    let forbidden = |result: Result<(), kube::Error>| match result {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{}", status.message),
        other => panic!("it was allowed: {other:?}"),
    };
    let all = ListParams::default();
    Api::<Pod>::namespaced(server.shard.clone(), NAMESPACE).list(&all).await.unwrap();
    Api::<PersistentVolumeClaim>::namespaced(server.shard.clone(), NAMESPACE).list(&all).await.unwrap();
    let elsewhere = Api::<Secret>::namespaced(server.shard.clone(), "default");
    forbidden(elsewhere.list(&all).await.map(drop));
    forbidden(Api::<Pod>::all(server.shard.clone()).list(&all).await.map(drop));
    forbidden(Api::<Namespace>::all(server.shard.clone()).get(NAMESPACE).await.map(drop));
    forbidden(Api::<Role>::namespaced(server.shard.clone(), NAMESPACE).list(&all).await.map(drop));
    let role: Role = serde_json::from_value(json!({"metadata": {"name": "more"}})).unwrap();
    let roles = Api::<Role>::namespaced(server.shard.clone(), NAMESPACE);
    forbidden(roles.create(&kube::api::PostParams::default(), &role).await.map(drop));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": metadata("more"), "spec": {"containers": [{"name": "any", "image": "any:1"}]},
    }))
    .unwrap();
    let pods = Api::<Pod>::namespaced(server.shard.clone(), NAMESPACE);
    forbidden(pods.create(&kube::api::PostParams::default(), &pod).await.map(drop));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pods_one_leads_and_a_dead_api_server_closes_its_gate() {
    let server = server().await;
    let seconds = Duration::from_secs;
    let start = |identity: &str| {
        let config = LeaseConfig {
            lease_duration: seconds(4),
            renew_deadline: seconds(3),
            retry_period: seconds(1),
            ..LeaseConfig::new(NAMESPACE, "shard-tenant-a", identity)
        };
        let lease = Lease::new(server.shard.clone(), config).unwrap();
        let (gate, state, work_stopped) = (lease.gate(), lease.state(), CancellationToken::new());
        (gate, state, work_stopped.clone(), tokio::spawn(lease.run(work_stopped)))
    };
    let leads = |state: &LeaseState| matches!(state, LeaseState::Leader(_));
    let (first_gate, mut first, first_stopped, first_task) = start("first");
    tokio::time::timeout(seconds(5), first.wait_for(leads)).await.unwrap().unwrap();
    let (second_gate, mut second, _second_stopped, second_task) = start("second");
    assert!(tokio::time::timeout(seconds(6), second.wait_for(leads)).await.is_err(), "two led");
    assert!(first_gate.is_open() && !second_gate.is_open());
    first_stopped.cancel();
    first_task.await.unwrap().unwrap();
    assert!(!first_gate.is_open());
    tokio::time::timeout(seconds(3), second.wait_for(leads)).await.unwrap().unwrap();
    server.api.pause(true).unwrap();
    let error =
        tokio::time::timeout(seconds(6), second_task).await.unwrap().unwrap().unwrap_err().to_string();
    server.api.pause(false).unwrap();
    assert!(error.contains("it could not be renewed for 3 s"), "{error}");
    assert!(!second_gate.is_open());
}
