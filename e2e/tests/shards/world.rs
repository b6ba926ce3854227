//! Shards as processes of this machine, against an API server without nodes.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{
    apiserver::{self, ApiServer},
    command::Owned,
    paths, wait,
};
use fleet_api::v1::{ConditionType, MySQLCluster};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
    core::NamespaceResourceScope,
};
use serde_json::json;

/// Limit of everything that is waited for.
pub const LIMIT: Duration = Duration::from_secs(40);
pub const NAMESPACE: &str = "default";

/// A shard manager, ended with the test.
pub struct Shard {
    process: Owned,
    pub metrics: String,
    log: tempfile::NamedTempFile,
}

impl Shard {
    /// Waits until it has made the Secrets of the tenant.
    pub async fn leading(self, world: &World) -> Self {
        let secrets = world.api::<Secret>();
        until("the tenant's Secrets", || async { secrets.get_opt("shard-default-client").await.unwrap() })
            .await;
        self
    }
}

pub fn shard(server: &ApiServer, pod: &str) -> Shard {
    let [metrics, health, grpc] = free_addresses();
    let log = tempfile::NamedTempFile::new().unwrap();
    let process = Command::new(paths::program("shard-manager"))
        .env("KUBECONFIG", server.kubeconfig())
        .args(["--namespace", NAMESPACE, "--pod-name", pod, "--agent-image", "fleet:1"])
        .args(["--metrics-addr", &metrics, "--health-addr", &health, "--grpc-addr", &grpc])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.reopen().unwrap())
        .spawn()
        .unwrap();
    Shard { process: Owned(process), metrics, log }
}

fn free_addresses<const N: usize>() -> [String; N] {
    let listeners = [(); N].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

/// Ends a shard with a signal that lets it give the Lease back.
pub fn end(mut shard: Shard) {
    let pid = nix::unistd::Pid::from_raw(shard.process.0.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let code = shard.process.0.wait().unwrap().code();
    assert_eq!(code, Some(0), "{}", std::fs::read_to_string(shard.log.path()).unwrap());
}

/// Waits until the check gives something.
pub async fn until<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    wait::found(what, LIMIT, check).await.unwrap()
}

async fn install_crds(client: &Client) {
    let api = Api::all(client.clone());
    for crd in fleet_api::crds() {
        api.create(&PostParams::default(), &crd).await.unwrap();
    }
    let clusters: Api<MySQLCluster> = Api::namespaced(client.clone(), NAMESPACE);
    until("the CRD is served", || async { clusters.list(&ListParams::default()).await.ok().map(drop) }).await;
}

pub fn orders() -> MySQLCluster {
    serde_json::from_value(json!({
        "apiVersion": "mysqlfleet.io/v1",
        "kind": "MySQLCluster",
        "metadata": { "name": "orders", "namespace": NAMESPACE },
        "spec": {
            "version": "9.7",
            "storage": { "size": "1Gi" },
            "resources": { "requests": { "cpu": "0.5", "memory": "1024Mi" } },
            "mysqld": { "max_connections": "200" }
        }
    }))
    .unwrap()
}

pub struct World {
    client: Client,
    pub server: ApiServer,
}

impl World {
    pub async fn new() -> Self {
        let server = apiserver::start().await.unwrap();
        let client = server.client().await.unwrap();
        install_crds(&client).await;
        Self { client, server }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn created(&self) -> MySQLCluster {
        self.api::<MySQLCluster>().create(&PostParams::default(), &orders()).await.unwrap();
        self.says("Applied", "").await
    }

    /// Waits until `ReconcileSucceeded` has the reason and the words.
    pub async fn says(&self, reason: &str, words: &str) -> MySQLCluster {
        until(&format!("the status says {reason} {words}"), || async {
            let cluster = self.api::<MySQLCluster>().get("orders").await.unwrap();
            let said = cluster.status.as_ref().is_some_and(|status| {
                status.conditions.iter().any(|condition| {
                    condition.type_ == ConditionType::ReconcileSucceeded
                        && condition.reason == reason
                        && condition.message.contains(words)
                })
            });
            said.then_some(cluster)
        })
        .await
    }

    pub async fn deleted(&self) {
        let clusters = self.api::<MySQLCluster>();
        clusters.delete("orders", &DeleteParams::default()).await.unwrap();
        until("the cluster is gone", || async {
            clusters.get_opt("orders").await.unwrap().is_none().then_some(())
        })
        .await;
    }
}
