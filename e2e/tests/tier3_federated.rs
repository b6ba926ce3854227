//! A hub and its member, both as programs of their own with the rights of their accounts, each with a real API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
    net::TcpListener,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{
    apiserver::{self, ApiServer},
    command::Owned,
    kubernetes, paths, wait,
};
use fleet_api::{
    names,
    v1::{MySQLCluster, MySQLClusterFederated, PlacedMember, PlacedOutcome},
};
use fleet_runtime::tls::install_provider;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use kubectl_fleet::render::{FederationOptions, RenderOptions, render, to_yaml};
use serde_json::{Value, json};

/// Limit of everything that is waited for.
const LIMIT: Duration = Duration::from_mins(1);
const HUB: &str = "mysql-fleet-hub";
const TENANT: &str = "tenant-a";
const SECRET: &str = "hub";

/// Waits until the check gives something.
async fn until<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    wait::found(what, LIMIT, check).await.unwrap()
}

fn started(command: &mut Command) -> Owned {
    Owned(command.stdin(Stdio::null()).spawn().unwrap())
}

struct World {
    hub: ApiServer,
    east: ApiServer,
    federated: Api<MySQLClusterFederated>,
    clusters: Api<MySQLCluster>,
    port: u16,
}

/// An API server with our CRDs.
async fn server() -> (ApiServer, Client) {
    let server = apiserver::start().await.unwrap();
    let client = server.client().await.unwrap();
    for crd in fleet_api::crds() {
        kubernetes::apply(&client, &serde_yaml_ng::to_string(&crd).unwrap(), "default").await.unwrap();
    }
    until("the CRDs are served", async || {
        let federated: Api<MySQLClusterFederated> = Api::all(client.clone());
        federated.list(&ListParams::default()).await.ok()?;
        Api::<MySQLCluster>::all(client.clone()).list(&ListParams::default()).await.ok()
    })
    .await;
    (server, client)
}

impl World {
    async fn new() -> Self {
        install_provider();
        let (hub, client) = server().await;
        let deploy = paths::checkout().join("deploy/federation/federation-controller.yaml");
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HUB}}).to_string(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}}).to_string(),
            std::fs::read_to_string(deploy).unwrap(),
            json!({
                "apiVersion": "mysqlfleet.io/v1", "kind": "MemberCluster", "metadata": {"name": "east"},
                "spec": {"namespaces": [TENANT]},
            })
            .to_string(),
        ];
        for object in objects {
            kubernetes::apply(&client, &object, HUB).await.unwrap();
        }

        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (east, member) = server().await;
        let options = RenderOptions {
            create_namespace: true,
            federation: Some(FederationOptions {
                endpoint: format!("https://localhost:{port}"),
                secret: SECRET.to_owned(),
            }),
            ..RenderOptions::new(TENANT, "x:1")
        };
        kubernetes::apply(&member, &to_yaml(&render(&options)).unwrap(), TENANT).await.unwrap();
        Self {
            hub,
            east,
            federated: Api::namespaced(client, TENANT),
            clusters: Api::namespaced(member, TENANT),
            port,
        }
    }

    fn start_hub(&self, pod: &str) -> Owned {
        let account = format!("system:serviceaccount:{HUB}:federation-controller");
        started(
            Command::new(paths::program("federation-controller"))
                .env("KUBECONFIG", self.hub.kubeconfig_as(&account).unwrap())
                .args(["--namespace", HUB, "--pod-name", pod, "--lease-duration", "3"])
                .args(["--heartbeat-interval", "1", "--dns-name", "localhost"])
                .args(["--metrics-addr", "127.0.0.1:0", "--health-addr", "127.0.0.1:0"])
                .args(["--grpc-addr", &format!("127.0.0.1:{}", self.port)]),
        )
    }

    fn start_shard(&self, pod: &str) -> Owned {
        let account = format!("system:serviceaccount:{TENANT}:shard-manager");
        started(
            Command::new(paths::program("shard-manager"))
                .env("KUBECONFIG", self.east.kubeconfig_as(&account).unwrap())
                .args(["--namespace", TENANT, "--pod-name", pod, "--agent-image", "fleet:1"])
                .args(["--lease-duration", "3", "--metrics-addr", "127.0.0.1:0"])
                .args(["--health-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"])
                .args(["--federation-secret", SECRET])
                .args(["--federation-endpoint", &format!("https://localhost:{}", self.port)]),
        )
    }

    async fn authorities(&self) -> Api<Secret> {
        Api::namespaced(self.hub.client().await.unwrap(), HUB)
    }

    /// What a person does at the hub, and carries to the member.
    async fn enrol(&self) {
        let secrets = self.authorities().await;
        until("the hub has an authority", async || secrets.get_opt(names::HUB_CA_SECRET).await.unwrap())
            .await;
        let issued = Command::new(paths::program("kubectl-fleet"))
            .args(["member", "certificate", "east", "--namespace", TENANT, "--secret", SECRET])
            .arg("--kubeconfig")
            .arg(self.hub.kubeconfig())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
        let secret = String::from_utf8(issued.stdout).unwrap();
        kubernetes::apply(&self.east.client().await.unwrap(), &secret, TENANT).await.unwrap();
    }

    async fn wants(&self, spec: Value) {
        let object = json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLClusterFederated",
            "metadata": {"name": "orders"}, "spec": spec,
        });
        let params = PatchParams::apply("test").force();
        self.federated.patch("orders", &params, &Patch::Apply(&object)).await.unwrap();
    }

    /// An edit in the member, as `kubectl edit` does it.
    async fn edit(&self, spec: Value) {
        let params = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
        self.clusters.patch("orders", &params, &Patch::Merge(json!({ "spec": spec }))).await.unwrap();
    }

    /// Waits until the member's line of the status is as asked for.
    async fn placed(&self, what: &str, check: impl Fn(&PlacedMember) -> bool) -> PlacedMember {
        until(what, async || {
            let status = self.federated.get("orders").await.ok()?.status?;
            status.members.into_iter().find(|member| member.member == "east" && check(member))
        })
        .await
    }

    async fn condition(&self, type_: &str) -> String {
        let status = self.federated.get("orders").await.unwrap().status.unwrap();
        status.conditions.into_iter().find(|condition| condition.type_ == type_).unwrap().status
    }

    /// Waits until the member's cluster is as asked for.
    async fn has(&self, what: &str, check: impl Fn(&MySQLCluster) -> bool) -> MySQLCluster {
        until(what, async || self.clusters.get_opt("orders").await.unwrap().filter(|cluster| check(cluster)))
            .await
    }
}

fn spec(replicas: u8, connections: &str) -> Value {
    json!({
        "template": {
            "version": "9.7", "storage": {"size": "1Gi"}, "mysqld": {"max_connections": connections},
        },
        "placement": [{"member": "east", "overrides": {"replicas": replicas}}],
        "deletionPolicy": "Delete",
    })
}

fn connections(cluster: &MySQLCluster) -> &str {
    &cluster.spec.mysqld["max_connections"]
}

fn aligned(member: &PlacedMember) -> bool {
    member.outcome == PlacedOutcome::Aligned && !stale(member)
}

fn stale(member: &PlacedMember) -> bool {
    member.last_observed_state.as_ref().is_some_and(|state| state.stale)
}

#[tokio::test]
async fn a_cluster_is_distributed_and_aligned_again_after_each_side_was_away() {
    let world = World::new().await;
    let hub = world.start_hub("hub-0");
    world.enrol().await;
    let shard = world.start_shard("shard-0");

    world.wants(spec(1, "100")).await;
    let made = world.has("the member has the cluster", |_| true).await;
    assert_eq!((made.spec.replicas, connections(&made)), (1, "100"));
    let federated = world.federated.get("orders").await.unwrap();
    assert_eq!(Some(&made.annotations()[names::ANNOTATION_FEDERATED_UID]), federated.uid().as_ref());
    let uid = made.uid().unwrap();
    let placed = world
        .placed("the hub has seen it", |member| aligned(member) && member.last_observed_state.is_some())
        .await;
    assert_eq!(placed.last_observed_state.unwrap().uid, uid);
    world.placed("they agree", |member| member.agreed_spec.is_some()).await;

    let secrets = world.authorities().await;
    let authority = secrets.get(names::HUB_CA_SECRET).await.unwrap().data;
    secrets.delete(names::HUB_CA_SECRET, &DeleteParams::default()).await.unwrap();
    let back =
        until("the authority is put back", async || secrets.get_opt(names::HUB_CA_SECRET).await.unwrap());
    assert_eq!(back.await.data, authority, "no member would get in with another one");

    // The member is away; meanwhile both sides are edited, in the same field and in different ones.
    drop(shard);
    let kept = world.placed("it is called stale", stale).await;
    assert_eq!(kept.last_observed_state.clone().unwrap().uid, uid);
    assert_eq!(world.condition("Ready").await, "Unknown");
    drop(hub);
    world.wants(spec(3, "200")).await;
    world.edit(json!({"mysqld": {"max_connections": "300", "sort_buffer_size": "1M"}})).await;
    let hub = world.start_hub("hub-1");
    let seen = world.federated.get("orders").await.unwrap().metadata.generation;
    until("the new hub has seen the new spec", async || {
        let object = world.federated.get("orders").await.unwrap();
        (object.status.unwrap().observed_generation == seen).then_some(())
    })
    .await;
    let after = world.placed("it is still called stale", stale).await;
    assert_eq!(after.last_observed_state, kept.last_observed_state, "the new hub has forgotten something");

    let shard = world.start_shard("shard-1");
    let back = world.has("the hub's wish is there", |cluster| cluster.spec.replicas == 3).await;
    assert_eq!(back.uid().unwrap(), uid, "it was made anew");
    world
        .has("edits that nobody declares are undone", |cluster| {
            connections(cluster) == "200" && !cluster.spec.mysqld.contains_key("sort_buffer_size")
        })
        .await;
    world.placed("they are aligned", aligned).await;

    // Deleted in the member: made anew. A hub that is away changes nothing, and is found again.
    drop(hub);
    world.clusters.delete("orders", &DeleteParams::default()).await.unwrap();
    let _hub = world.start_hub("hub-2");
    let anew = world.has("the cluster is made anew", |cluster| cluster.uid().unwrap() != uid).await;
    world
        .placed("the new one is observed", |member| {
            aligned(member)
                && member
                    .last_observed_state
                    .as_ref()
                    .is_some_and(|state| Some(&state.uid) == anew.uid().as_ref())
        })
        .await;

    // Deleted at the hub while the member is away: it goes once it is back.
    drop(shard);
    world.placed("it is called stale again", stale).await;
    world.federated.delete("orders", &DeleteParams::default()).await.unwrap();
    world.placed("the member has to remove it", |member| member.outcome == PlacedOutcome::Removing).await;
    assert!(world.clusters.get_opt("orders").await.unwrap().is_some());
    let _shard = world.start_shard("shard-2");
    until("the cluster is gone", async || {
        world.clusters.get_opt("orders").await.unwrap().is_none().then_some(())
    })
    .await;
    until("the object is gone", async || {
        world.federated.get_opt("orders").await.unwrap().is_none().then_some(())
    })
    .await;
}
