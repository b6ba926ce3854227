//! A shard as a member, with the rights that are rendered for it, against a real API server and a hub that follows
//! a script.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeMap,
    pin::Pin,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{
    apiserver::{self, ApiServer},
    command::Owned,
    kubernetes, paths, wait,
};
use fleet_api::{
    names::{ANNOTATION_FEDERATED_UID, FEDERATION_MANAGER},
    v1::MySQLCluster,
};
use fleet_proto::federation::v1::{
    ConnectRequest, ConnectResponse, Desired, DesiredCluster, GetFederationStatusRequest,
    GetFederationStatusResponse, Outcome, Report, Result as Done, WatchFederationStatusRequest,
    WatchFederationStatusResponse, Welcome, connect_request, connect_response,
    federation_service_server::{FederationService, FederationServiceServer},
};
use fleet_runtime::{
    grpc::{self, Peer},
    tls::{self, Authority, CertificateRequest, Identity, Material, ReloadingIdentity},
};
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{core::v1::Secret, events::v1::Event},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use kubectl_fleet::render::{FederationOptions, RenderOptions, render, to_yaml};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status, Streaming, service::Routes};

/// Limit of everything that is waited for.
const LIMIT: Duration = Duration::from_secs(40);
const NAMESPACE: &str = "tenant-a";
const SECRET: &str = "hub";

/// One stream as the hub has it.
struct Taken {
    caller: Option<Identity>,
    said: Streaming<ConnectRequest>,
    say: mpsc::Sender<Result<ConnectResponse, Status>>,
    sequence: u64,
}

/// A hub that hands each stream to the test.
struct Hub(mpsc::Sender<Taken>);

#[tonic::async_trait]
impl FederationService for Hub {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<ConnectResponse, Status>> + Send>>;
    type WatchFederationStatusStream =
        Pin<Box<dyn Stream<Item = Result<WatchFederationStatusResponse, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let caller = request.extensions().get::<Peer>().and_then(|peer| peer.identity.clone());
        let (say, mut answers) = mpsc::channel(8);
        let taken = Taken { caller, said: request.into_inner(), say, sequence: 0 };
        self.0.send(taken).await.map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(futures::stream::poll_fn(move |context| answers.poll_recv(context)).boxed()))
    }

    async fn get_federation_status(
        &self,
        _: Request<GetFederationStatusRequest>,
    ) -> Result<Response<GetFederationStatusResponse>, Status> {
        Err(Status::unimplemented("a script"))
    }

    async fn watch_federation_status(
        &self,
        _: Request<WatchFederationStatusRequest>,
    ) -> Result<Response<Self::WatchFederationStatusStream>, Status> {
        Err(Status::unimplemented("a script"))
    }
}

impl Taken {
    async fn says(&self, message: connect_response::Message) {
        self.say.send(Ok(ConnectResponse { message: Some(message) })).await.unwrap();
    }

    async fn wants(&mut self, clusters: Vec<DesiredCluster>) {
        self.sequence += 1;
        let desired = Desired { sequence: self.sequence, clusters };
        self.says(connect_response::Message::Desired(desired)).await;
    }

    /// The next report that is as it should be; heartbeats are answered meanwhile.
    async fn hears(&mut self, what: &str, check: impl Fn(&Report) -> bool) -> Report {
        let mut last = None;
        let heard = timeout(LIMIT, async {
            loop {
                match self.said.message().await.unwrap().expect("the stream has ended").message.unwrap() {
                    connect_request::Message::Report(report) if check(&report) => return report,
                    connect_request::Message::Report(report) => last = Some(report),
                    connect_request::Message::Heartbeat(beat) => {
                        self.say
                            .send(Ok(ConnectResponse {
                                message: Some(connect_response::Message::Heartbeat(beat)),
                            }))
                            .await
                            .unwrap();
                    }
                    connect_request::Message::Hello(_) => {}
                }
            }
        });
        heard.await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}; last: {last:?}"))
    }

    /// The outcome of a cluster in what is now wanted, once it is this one.
    async fn outcome(&mut self, name: &str, result: Done) -> Outcome {
        let sequence = self.sequence;
        let find = |report: &Report| {
            let found =
                report.outcomes.iter().find(|one| one.name == name && one.result() == result).cloned();
            found.filter(|_| report.answered == sequence)
        };
        let report = self.hears(&format!("{name} {result:?}"), |report| find(report).is_some()).await;
        find(&report).unwrap()
    }
}

struct World {
    server: ApiServer,
    clusters: Api<MySQLCluster>,
    client: Client,
    hub: mpsc::Receiver<Taken>,
    port: u16,
    _shutdown: DropGuard,
}

fn issue(authority: &Authority, dns: &[&str], identity: Identity) -> Material {
    let request = CertificateRequest {
        common_name: "test".to_owned(),
        dns_names: dns.iter().map(|name| (*name).to_owned()).collect(),
        identity: Some(identity),
        validity: Duration::from_hours(1),
    };
    let issued = authority.issue(&request, Timestamp::now()).unwrap();
    Material { ca: authority.cert_pem().to_owned(), cert: issued.cert, key: issued.key }
}

impl World {
    async fn new() -> Self {
        tls::install_provider();
        let authority = Authority::generate("hub", Timestamp::now()).unwrap();
        let identity = ReloadingIdentity::new(&issue(&authority, &["localhost"], Identity::Hub)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (streams, hub) = mpsc::channel(1);
        let shutdown = CancellationToken::new();
        let routes = Routes::new(FederationServiceServer::new(Hub(streams)));
        tokio::spawn(grpc::serve(listener, identity, routes, shutdown.clone()));

        let server = apiserver::start().await.unwrap();
        let client = server.client().await.unwrap();
        for crd in fleet_api::crds() {
            kubernetes::apply(&client, &serde_yaml_ng::to_string(&crd).unwrap(), "default").await.unwrap();
        }
        let options = RenderOptions {
            create_namespace: true,
            federation: Some(FederationOptions {
                endpoint: format!("https://localhost:{port}"),
                secret: SECRET.to_owned(),
            }),
            ..RenderOptions::new(NAMESPACE, "x:1")
        };
        kubernetes::apply(&client, &to_yaml(&render(&options)).unwrap(), NAMESPACE).await.unwrap();
        let shown = issue(&authority, &[], Identity::member("east", NAMESPACE));
        let parts = [("ca.crt", shown.ca), ("tls.crt", shown.cert), ("tls.key", shown.key)];
        let mut secret = Secret {
            data: Some(parts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(SECRET.to_owned());
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        let clusters: Api<MySQLCluster> = Api::namespaced(client.clone(), NAMESPACE);
        until("the CRD is served", || async { clusters.list(&ListParams::default()).await.ok().map(drop) })
            .await;
        Self { server, clusters, client, hub, port, _shutdown: shutdown.drop_guard() }
    }

    fn shard(&self) -> Owned {
        let account = format!("system:serviceaccount:{NAMESPACE}:shard-manager");
        let process = Command::new(paths::program("shard-manager"))
            .env("KUBECONFIG", self.server.kubeconfig_as(&account).unwrap())
            .args(["--namespace", NAMESPACE, "--pod-name", "shard-0", "--agent-image", "fleet:1"])
            .args(["--metrics-addr", "127.0.0.1:0", "--health-addr", "127.0.0.1:0"])
            .args(["--grpc-addr", "127.0.0.1:0", "--federation-secret", SECRET])
            .args(["--federation-endpoint", &format!("https://localhost:{}", self.port)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Owned(process)
    }

    /// The next stream, welcomed, and its first report.
    async fn dialled(&mut self) -> (Taken, Report) {
        let mut taken = timeout(LIMIT, self.hub.recv()).await.expect("nobody dials").unwrap();
        assert_eq!(taken.caller, Some(Identity::member("east", NAMESPACE)));
        let welcome = Welcome { version: "1".to_owned(), heartbeat_interval_ms: 500, silence_ms: 20_000 };
        taken.says(connect_response::Message::Welcome(welcome)).await;
        let first = taken.hears("the first report", |_| true).await;
        assert_eq!((first.sequence, first.answered), (1, 0));
        (taken, first)
    }

    async fn cluster(&self, name: &str) -> MySQLCluster {
        self.clusters.get(name).await.unwrap()
    }

    /// An edit, as `kubectl edit` does it.
    async fn edited(&self, spec: Value) {
        let params = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.clusters.patch("orders", &params, &patch).await.unwrap();
    }

    async fn has(&self, what: &str, check: impl Fn(&MySQLCluster) -> bool) -> MySQLCluster {
        until(what, || async { Some(self.cluster("orders").await).filter(|cluster| check(cluster)) }).await
    }
}

/// Waits until the check gives something.
async fn until<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    wait::found(what, LIMIT, check).await.unwrap()
}

fn spec(replicas: u8, connections: &str) -> Value {
    json!({
        "version": "9.7",
        "replicas": replicas,
        "storage": { "size": "1Gi" },
        "mysqld": { "max_connections": connections },
    })
}

fn wanted(name: &str, spec: &Value, agreed: Option<&Value>) -> DesiredCluster {
    DesiredCluster {
        name: name.to_owned(),
        federated_uid: format!("federated-{name}"),
        spec_json: spec.to_string(),
        agreed_json: agreed.map(ToString::to_string).unwrap_or_default(),
        ..DesiredCluster::default()
    }
}

fn max_connections(cluster: &MySQLCluster) -> Option<&str> {
    cluster.spec.mysqld.get("max_connections").map(String::as_str)
}

#[tokio::test]
async fn a_member_makes_aligns_and_deletes_what_its_hub_wants() {
    let mut world = World::new().await;
    let _shard = world.shard();
    let (mut stream, first) = world.dialled().await;
    assert!(first.clusters.is_empty());
    let was = spec(3, "200");
    stream.wants(vec![wanted("orders", &was, None)]).await;
    stream.outcome("orders", Done::Aligned).await;
    let made = world.cluster("orders").await;
    assert_eq!(made.annotations()[ANNOTATION_FEDERATED_UID], "federated-orders");
    let ours = made.metadata.managed_fields.iter().flatten().any(|entry| {
        entry.manager.as_deref() == Some(FEDERATION_MANAGER) && entry.operation.as_deref() == Some("Apply")
    });
    assert!(ours, "{:?}", made.metadata.managed_fields);

    reverts_drift(&world, &mut stream, &was).await;
    keeps_what_an_owner_applies(&world, &mut stream, &was).await;
    says_what_the_api_server_refuses(&world, &mut stream, &was).await;
    leaves_somebody_elses_object_until_it_is_adopted(&world, &mut stream, &was).await;

    drop(stream);
    let (mut stream, first) = world.dialled().await;
    let names: Vec<_> = first.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!(names, ["invoices", "orders"]);
    deletes_by_uid(&world, &mut stream).await;
}

async fn reverts_drift(world: &World, stream: &mut Taken, was: &Value) {
    stream.wants(vec![wanted("orders", was, Some(was))]).await;
    stream.outcome("orders", Done::Aligned).await;
    world.edited(json!({ "replicas": 5, "image": "mine:1", "mysqld": { "sort_buffer_size": "1M" } })).await;
    world
        .has("the edit is undone", |cluster| {
            (cluster.spec.replicas, &cluster.spec.image) == (3, &None)
                && cluster.spec.mysqld == BTreeMap::from([("max_connections".to_owned(), "200".to_owned())])
        })
        .await;
    let told = |report: &Report| {
        let fields = report.outcomes.iter().flat_map(|outcome| &outcome.fields);
        let paths: Vec<_> = fields.map(|field| (field.path.as_str(), field.held_by.as_str())).collect();
        paths == [(".image", ""), (".mysqld.sort_buffer_size", ""), (".replicas", "")]
    };
    stream.hears("the drift is told", told).await;
    let events: Api<Event> = Api::namespaced(world.client.clone(), NAMESPACE);
    until("an event tells of it", || async {
        let list = events.list(&ListParams::default()).await.unwrap();
        list.items.into_iter().find(|event| event.reason.as_deref() == Some("FederationReverted"))
    })
    .await;

    let five = spec(5, "200");
    stream.wants(vec![wanted("orders", &five, Some(was))]).await;
    stream.outcome("orders", Done::Aligned).await;
    assert_eq!(world.cluster("orders").await.spec.replicas, 5);
    stream.wants(vec![wanted("orders", was, Some(&five))]).await;
    stream.outcome("orders", Done::Aligned).await;
}

async fn keeps_what_an_owner_applies(world: &World, stream: &mut Taken, was: &Value) {
    stream.wants(vec![wanted("orders", was, Some(was))]).await;
    stream.outcome("orders", Done::Aligned).await;
    let owned = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": { "name": "orders" },
        "spec": { "mysqld": { "max_connections": "300" } },
    });
    let params = PatchParams::apply("gitops").force();
    world.clusters.patch("orders", &params, &Patch::Apply(&owned)).await.unwrap();
    let kept = stream.outcome("orders", Done::Kept).await;
    let field = &kept.fields[0];
    assert_eq!((field.path.as_str(), field.held_by.as_str()), (".mysqld.max_connections", "gitops"));
    assert_eq!((field.hub_json.as_str(), field.member_json.as_str()), ("\"200\"", "\"300\""));
    assert!(!field.both_changed);

    let now = spec(5, "400");
    stream.wants(vec![wanted("orders", &now, Some(was))]).await;
    let kept = stream.outcome("orders", Done::Kept).await;
    assert!(kept.fields.len() == 1 && kept.fields[0].both_changed, "{kept:?}");
    let cluster = world.cluster("orders").await;
    assert_eq!((cluster.spec.replicas, max_connections(&cluster)), (5, Some("300")));

    // Who declares it no more leaves it to the hub.
    let given_up = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": { "name": "orders" }, "spec": {},
    });
    world.clusters.patch("orders", &params, &Patch::Apply(&given_up)).await.unwrap();
    world.has("the hub's value", |cluster| max_connections(cluster) == Some("400")).await;
}

async fn says_what_the_api_server_refuses(world: &World, stream: &mut Taken, was: &Value) {
    let mut smaller = was.clone();
    smaller["storage"]["size"] = json!("600Mi");
    stream.wants(vec![wanted("orders", &smaller, Some(was))]).await;
    let refused = stream.outcome("orders", Done::Refused).await;
    assert!(refused.message.contains("may only grow"), "{refused:?}");
    assert_eq!(world.cluster("orders").await.spec.storage.size, "1Gi");
}

async fn leaves_somebody_elses_object_until_it_is_adopted(world: &World, stream: &mut Taken, was: &Value) {
    let mut theirs = MySQLCluster::new("invoices", serde_json::from_value(spec(1, "100")).unwrap());
    theirs.metadata.namespace = Some(NAMESPACE.to_owned());
    let by = PostParams { field_manager: Some("somebody".to_owned()), ..PostParams::default() };
    let uid = world.clusters.create(&by, &theirs).await.unwrap().uid().unwrap();
    stream.wants(vec![wanted("invoices", was, None)]).await;
    let conflict = stream.outcome("invoices", Done::Conflict).await;
    assert!(conflict.message.contains("somebody") && conflict.message.contains(&uid), "{conflict:?}");
    let left = world.cluster("invoices").await;
    assert_eq!((left.spec.replicas, left.annotations().get(ANNOTATION_FEDERATED_UID)), (1, None));

    let adopt = DesiredCluster { adopt_uid: uid.clone(), ..wanted("invoices", was, None) };
    stream.wants(vec![adopt]).await;
    stream.outcome("invoices", Done::Aligned).await;
    let taken = world.cluster("invoices").await;
    assert_eq!((taken.spec.replicas, taken.uid().unwrap()), (3, uid));
    assert_eq!(taken.annotations()[ANNOTATION_FEDERATED_UID], "federated-invoices");
}

async fn deletes_by_uid(world: &World, stream: &mut Taken) {
    let uid = world.cluster("orders").await.uid().unwrap();
    let delete = |uid: &str| DesiredCluster {
        name: "orders".to_owned(),
        federated_uid: "federated-orders".to_owned(),
        delete_uid: uid.to_owned(),
        ..DesiredCluster::default()
    };
    stream.wants(vec![delete("00000000-0000-0000-0000-000000000000")]).await;
    let left = stream.outcome("orders", Done::Deleted).await;
    assert!(left.message.contains(&uid), "{left:?}");
    assert!(world.cluster("orders").await.metadata.deletion_timestamp.is_none());
    stream.wants(vec![delete(&uid)]).await;
    stream.outcome("orders", Done::Deleted).await;
    assert!(world.clusters.get_opt("orders").await.unwrap().is_none());
    assert!(world.clusters.get_opt("invoices").await.unwrap().is_some());
}
