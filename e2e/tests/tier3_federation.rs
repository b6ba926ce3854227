//! The hub, as a program of its own with the rights of its account, against a real API server. The test plays the
//! member: it dials as a shard does, and answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
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
    v1::{FederatedPhase, LastObservedState, MemberCluster, MySQLClusterFederated, PlacedOutcome},
};
use fleet_proto::federation::v1::{
    ClusterState, Condition, ConnectRequest, ConnectResponse, Desired, DesiredCluster, Heartbeat, Hello,
    Outcome, Report, Result as Answered, connect_request::Message as Say, connect_response::Message as Told,
    federation_service_client::FederationServiceClient,
};
use fleet_runtime::{
    grpc,
    tls::{Authority, CertificateRequest, Identity, Material, ReloadingIdentity, install_provider},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Limit of everything that is waited for.
const LIMIT: Duration = Duration::from_mins(1);
const HUB: &str = "mysql-fleet-hub";
const TENANT: &str = "tenant-a";

/// Waits until the check gives something.
async fn until<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    wait::found(what, LIMIT, check).await.unwrap()
}

/// A process of the hub, ended with the test.
struct Hub {
    _child: Owned,
    grpc: String,
}

struct World {
    client: Client,
    server: ApiServer,
}

impl World {
    async fn new() -> Self {
        install_provider();
        let server = apiserver::start().await.unwrap();
        let client = server.client().await.unwrap();
        for namespace in [HUB, TENANT] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            kubernetes::apply(&client, &namespace.to_string(), HUB).await.unwrap();
        }
        for crd in fleet_api::crds() {
            kubernetes::apply(&client, &serde_yaml_ng::to_string(&crd).unwrap(), HUB).await.unwrap();
        }
        let deploy = paths::checkout().join("deploy/federation/federation-controller.yaml");
        kubernetes::apply(&client, &std::fs::read_to_string(deploy).unwrap(), HUB).await.unwrap();
        let world = Self { client, server };
        until("the CRDs are served", async || {
            world.federated().list(&ListParams::default()).await.ok()?;
            world.members().list(&ListParams::default()).await.ok()
        })
        .await;
        world
    }

    fn federated(&self) -> Api<MySQLClusterFederated> {
        Api::namespaced(self.client.clone(), TENANT)
    }

    fn members(&self) -> Api<MemberCluster> {
        Api::all(self.client.clone())
    }

    fn start(&self, pod: &str) -> Hub {
        let user = format!("system:serviceaccount:{HUB}:federation-controller");
        let kubeconfig = self.server.kubeconfig_as(&user).unwrap();
        let listeners = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [metrics, health, grpc] = listeners.map(|listener| listener.local_addr().unwrap().to_string());
        let child = Command::new(paths::program("federation-controller"))
            .env("KUBECONFIG", kubeconfig)
            .args([
                "--namespace",
                HUB,
                "--pod-name",
                pod,
                "--lease-duration",
                "3",
                "--heartbeat-interval",
                "5",
            ])
            .args(["--metrics-addr", &metrics, "--health-addr", &health, "--grpc-addr", &grpc])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Hub { _child: Owned(child), grpc }
    }

    /// Waits until the state of the federated cluster is as asked for.
    async fn state(
        &self,
        what: &str,
        check: impl Fn(&MySQLClusterFederated) -> bool,
    ) -> MySQLClusterFederated {
        until(what, async || self.federated().get("orders").await.ok().filter(|object| check(object))).await
    }

    /// Dials as the shard of the tenant's namespace, until the hub leads and takes the stream.
    async fn dial(&self, hub: &Hub) -> Shard {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), HUB);
        let data = until("the hub has an authority", async || {
            secrets.get_opt(names::HUB_CA_SECRET).await.unwrap()?.data
        })
        .await;
        let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
        let authority = Authority::from_pem(&text("ca.crt"), &text("ca.key")).unwrap();
        let request = CertificateRequest {
            common_name: "member east".to_owned(),
            dns_names: Vec::new(),
            identity: Some(Identity::member("east", TENANT)),
            validity: Duration::from_hours(1),
        };
        let issued = authority.issue(&request, Timestamp::now()).unwrap();
        let material = Material { ca: authority.cert_pem().to_owned(), cert: issued.cert, key: issued.key };
        let identity = ReloadingIdentity::new(&material).unwrap();
        until("the hub takes the stream", async || {
            let host = format!("federation-controller.{HUB}.svc");
            let channel =
                grpc::channel(hub.grpc.parse().unwrap(), &host, &identity, &Identity::Hub).await.ok()?;
            let (say, said) = mpsc::channel(8);
            let hello = Hello { version: "1".to_owned(), pod: "shard-0".to_owned() };
            say.send(ConnectRequest { message: Some(Say::Hello(hello)) }).await.unwrap();
            let told = FederationServiceClient::new(channel).connect(ReceiverStream::new(said)).await.ok()?;
            let mut shard = Shard { say, told: told.into_inner(), reports: 0, there: None };
            matches!(shard.next().await, Told::Welcome(_)).then_some(shard)
        })
        .await
    }
}

/// The shard of the tenant's namespace in the member east.
struct Shard {
    say: mpsc::Sender<ConnectRequest>,
    told: Streaming<ConnectResponse>,
    reports: u64,
    there: Option<ClusterState>,
}

impl Shard {
    async fn next(&mut self) -> Told {
        let message = timeout(LIMIT, self.told.message()).await.expect("nothing is sent").unwrap();
        message.expect("the stream is over").message.unwrap()
    }

    async fn say(&self, message: Say) {
        self.say.send(ConnectRequest { message: Some(message) }).await.unwrap();
    }

    async fn report(&mut self, answered: u64, outcomes: Vec<Outcome>) {
        self.reports += 1;
        let clusters = self.there.iter().cloned().collect();
        self.say(Say::Report(Report { sequence: self.reports, clusters, answered, outcomes })).await;
    }

    /// Waits for a desired state in which the cluster is as asked for.
    async fn wanted(&mut self, check: impl Fn(&DesiredCluster) -> bool) -> (u64, DesiredCluster) {
        loop {
            if let Told::Desired(Desired { sequence, clusters }) = self.next().await
                && let Some(found) = clusters.into_iter().find(|cluster| check(cluster))
            {
                return (sequence, found);
            }
        }
    }

    /// Has the cluster as it is wanted, and says so: also with the desired state that follows the agreement.
    async fn align(&mut self, check: impl Fn(&DesiredCluster) -> bool) -> DesiredCluster {
        let (mut sequence, mut wanted) = self.wanted(check).await;
        loop {
            self.there = Some(cluster(&wanted));
            self.report(sequence, vec![outcome(&wanted, Answered::Aligned)]).await;
            if wanted.agreed_json == wanted.spec_json {
                return wanted;
            }
            let spec = wanted.spec_json.clone();
            (sequence, wanted) = self.wanted(|wanted| wanted.spec_json == spec).await;
        }
    }
}

fn cluster(wanted: &DesiredCluster) -> ClusterState {
    ClusterState {
        name: wanted.name.clone(),
        uid: "c-1".to_owned(),
        federated_uid: wanted.federated_uid.clone(),
        spec_json: wanted.spec_json.clone(),
        phase: "Healthy".to_owned(),
        primary: "orders-0".to_owned(),
        term: 4,
        ready: 1,
        replicas: 1,
        gtid_executed: "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5".to_owned(),
        conditions: vec![Condition {
            r#type: "Available".to_owned(),
            status: "True".to_owned(),
            reason: "Open".to_owned(),
            message: String::new(),
        }],
        ..ClusterState::default()
    }
}

fn outcome(wanted: &DesiredCluster, result: Answered) -> Outcome {
    Outcome {
        name: wanted.name.clone(),
        federated_uid: wanted.federated_uid.clone(),
        result: result.into(),
        ..Outcome::default()
    }
}

fn condition(object: &MySQLClusterFederated, type_: &str) -> (String, String) {
    let status = object.status.clone().unwrap_or_default();
    let found = status.conditions.into_iter().find(|condition| condition.type_ == type_);
    found.map(|condition| (condition.status, condition.message)).unwrap_or_default()
}

fn observed(object: &MySQLClusterFederated) -> Option<LastObservedState> {
    object.status.as_ref()?.members.first()?.last_observed_state.clone()
}

#[tokio::test]
async fn a_member_is_told_after_its_report_and_its_state_outlives_stream_and_hub() {
    let world = World::new().await;
    let member = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MemberCluster", "metadata": {"name": "east"},
        "spec": {"namespaces": [TENANT]},
    });
    let orders = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLClusterFederated", "metadata": {"name": "orders"},
        "spec": {
            "template": {"version": "9.7", "storage": {"size": "1Gi"}},
            "placement": [{"member": "east", "overrides": {"replicas": 1}}],
            "deletionPolicy": "Delete",
        },
    });
    let apply = PatchParams::apply("test").force();
    world.members().patch("east", &apply, &Patch::Apply(&member)).await.unwrap();
    world.federated().patch("orders", &apply, &Patch::Apply(&orders)).await.unwrap();

    let hub = world.start("hub-0");
    let never = world
        .state("the object says that east is silent", |object| condition(object, "Stale").0 == "True")
        .await;
    assert_eq!(condition(&never, "Ready").0, "Unknown");

    let mut shard = world.dial(&hub).await;
    shard.report(0, Vec::new()).await;
    let wanted = shard.align(|wanted| wanted.name == "orders").await;
    assert!(wanted.spec_json.contains("\"replicas\":1"), "{}", wanted.spec_json);
    let ready = world.state("the object is ready", |object| condition(object, "Ready").0 == "True").await;
    let status = ready.status.clone().unwrap();
    assert_eq!(status.phase, Some(FederatedPhase::Ready));
    assert_eq!(status.members[0].outcome, PlacedOutcome::Aligned);
    assert_eq!(status.members[0].agreed_spec.clone().unwrap().to_string(), wanted.spec_json);
    let before = observed(&ready).unwrap();
    assert_eq!((before.uid.as_str(), before.term, before.stale), ("c-1", 4, false));
    let reachable = |member: &MemberCluster, is: &str| {
        let conditions = member.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "Reachable" && condition.status == is)
    };
    until("the member is reachable", async || {
        world.members().get("east").await.ok().filter(|member| reachable(member, "True"))
    })
    .await;

    drop(shard);
    let stale = |object: &MySQLClusterFederated| observed(object).is_some_and(|state| state.stale);
    let cut = world.state("the state is stale", stale).await;
    assert_eq!(condition(&cut, "Ready").0, "Unknown");
    let kept = observed(&cut).unwrap();
    let as_before =
        LastObservedState { stale: false, last_contact: before.last_contact.clone(), ..kept.clone() };
    assert_eq!(as_before, before, "only that it is stale, and the last contact, are new");
    until("the member is not reachable", async || {
        world.members().get("east").await.ok().filter(|member| reachable(member, "False"))
    })
    .await;

    drop(hub);
    let hub = world.start("hub-1");
    let more = json!({"spec": {"template": {"mysqld": {"max_connections": "77"}}}});
    world.federated().patch("orders", &PatchParams::default(), &Patch::Merge(&more)).await.unwrap();
    let seen = |object: &MySQLClusterFederated| {
        object.status.as_ref().is_some_and(|status| status.observed_generation == object.metadata.generation)
    };
    let restarted = world.state("the new hub has seen the new spec", seen).await;
    assert_eq!(observed(&restarted), Some(kept), "the new hub has forgotten something");
    assert_eq!(condition(&restarted, "Ready").0, "Unknown");

    let mut shard = world.dial(&hub).await;
    shard.say(Say::Heartbeat(Heartbeat { sequence: 9 })).await;
    let first = shard.next().await;
    assert!(matches!(first, Told::Heartbeat(Heartbeat { sequence: 9 })), "before the report: {first:?}");
    shard.there = Some(cluster(&wanted));
    shard.report(0, Vec::new()).await;
    let (_, told) = shard.wanted(|wanted| wanted.spec_json.contains("\"77\"")).await;
    assert_eq!(told.agreed_json, wanted.spec_json, "what was agreed before is told");
    let heard =
        world.state("the member is heard again", |object| !stale(object) && observed(object).is_some()).await;
    assert_eq!(condition(&heard, "Ready").0, "True");

    drop(shard);
    world.state("the state is stale again", stale).await;
    world.federated().delete("orders", &DeleteParams::default()).await.unwrap();
    let named =
        |object: &MySQLClusterFederated| condition(object, "Distributed").1.contains("east: Removing");
    let waiting = world.state("the deletion waits for east", named).await;
    assert!(!waiting.finalizers().is_empty());
    let mut shard = world.dial(&hub).await;
    shard.there = Some(cluster(&wanted));
    shard.report(0, Vec::new()).await;
    let (sequence, gone) = shard.wanted(|wanted| !wanted.delete_uid.is_empty()).await;
    assert_eq!(gone.delete_uid, "c-1");
    shard.there = None;
    shard.report(sequence, vec![outcome(&gone, Answered::Deleted)]).await;
    until("the object is gone", async || {
        world.federated().get_opt("orders").await.unwrap().is_none().then_some(())
    })
    .await;
}
