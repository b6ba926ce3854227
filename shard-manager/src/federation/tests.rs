//! The link over real mutual TLS, against a hub that follows a script, with an API server that follows one, too.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fleet_api::{names::ANNOTATION_FEDERATED_UID, v1::MySQLCluster};
use fleet_proto::federation::v1::{
    ConnectRequest, ConnectResponse, Desired, DesiredCluster, GetFederationStatusRequest,
    GetFederationStatusResponse, Heartbeat, Report, Result as Done, WatchFederationStatusRequest,
    WatchFederationStatusResponse, Welcome, connect_request, connect_response,
    federation_service_server::{FederationService, FederationServiceServer},
};
use fleet_runtime::{
    apply::Applier,
    events,
    grpc::{self, Peer},
    lease::{Gate, LeaseState, LeaseView},
    metrics::Metrics,
    tls::{Authority, CertificateRequest, Identity, Material, ReloadingIdentity, install_provider},
};
use futures::{Stream, StreamExt as _};
use http::{Request, Response as HttpResponse};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    client::Body,
    core::DeserializeGuard,
    runtime::{reflector, watcher::Event},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, Streaming, service::Routes};
use tower_test::mock::{self, Handle};

use super::*;

/// Limit of everything that is waited for.
const LIMIT: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "tenant-a";

/// One stream as the hub has it.
struct Taken {
    caller: Option<Identity>,
    said: Streaming<ConnectRequest>,
    say: mpsc::Sender<Result<ConnectResponse, Status>>,
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
        request: tonic::Request<Streaming<ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let caller = request.extensions().get::<Peer>().and_then(|peer| peer.identity.clone());
        let (say, mut answers) = mpsc::channel(8);
        let taken = Taken { caller, said: request.into_inner(), say };
        self.0.send(taken).await.map_err(|_| Status::permission_denied("unknown"))?;
        Ok(Response::new(futures::stream::poll_fn(move |context| answers.poll_recv(context)).boxed()))
    }

    async fn get_federation_status(
        &self,
        _: tonic::Request<GetFederationStatusRequest>,
    ) -> Result<Response<GetFederationStatusResponse>, Status> {
        Err(Status::unimplemented("a script"))
    }

    async fn watch_federation_status(
        &self,
        _: tonic::Request<WatchFederationStatusRequest>,
    ) -> Result<Response<Self::WatchFederationStatusStream>, Status> {
        Err(Status::unimplemented("a script"))
    }
}

impl Taken {
    async fn hears(&mut self) -> connect_request::Message {
        let next = timeout(LIMIT, self.said.message()).await.expect("the member says nothing");
        next.unwrap().expect("the member has ended the stream").message.unwrap()
    }

    async fn hears_report(&mut self) -> Report {
        loop {
            match self.hears().await {
                connect_request::Message::Report(report) => return report,
                connect_request::Message::Heartbeat(_) => {}
                connect_request::Message::Hello(hello) => panic!("a second hello: {hello:?}"),
            }
        }
    }

    async fn says(&self, message: connect_response::Message) {
        self.say.send(Ok(ConnectResponse { message: Some(message) })).await.unwrap();
    }

    /// Takes the hello, and asks for a heartbeat each 100 ms.
    async fn welcomes(&mut self, silence_ms: u32) {
        assert!(
            matches!(self.hears().await, connect_request::Message::Hello(hello) if hello.pod == "shard-0")
        );
        let welcome = Welcome { version: "1".to_owned(), heartbeat_interval_ms: 100, silence_ms };
        self.says(connect_response::Message::Welcome(welcome)).await;
    }

    /// The stream ends from the member's side.
    async fn ends(mut self) {
        let ended = timeout(LIMIT, async { while let Ok(Some(_)) = self.said.message().await {} });
        ended.await.expect("the member holds the stream");
    }
}

/// What the API server does with one request.
type Answer = Box<dyn Fn(&str, &str, &Value) -> (u16, Value) + Send>;

struct World {
    hub: mpsc::Receiver<Taken>,
    writer: reflector::store::Writer<DeserializeGuard<MySQLCluster>>,
    changed: watch::Sender<u64>,
    state: watch::Receiver<Option<LinkState>>,
    lease: watch::Sender<LeaseState>,
    /// Requests about clusters.
    asked: mpsc::UnboundedReceiver<(String, String, Value)>,
    secret: watch::Sender<Option<Secret>>,
    authority: Authority,
    link: tokio::task::JoinHandle<()>,
    _shutdown: tokio_util::sync::DropGuard,
}

fn issue(authority: &Authority, dns: &[&str], identity: Identity, validity: Duration) -> Material {
    let request = CertificateRequest {
        common_name: "test".to_owned(),
        dns_names: dns.iter().map(|name| (*name).to_owned()).collect(),
        identity: Some(identity),
        validity,
    };
    let issued = authority.issue(&request, Timestamp::now()).unwrap();
    Material { ca: authority.cert_pem().to_owned(), cert: issued.cert, key: issued.key }
}

fn secret(material: &Material) -> Secret {
    Secret { data: Some(crate::tenant::tls_data(material)), ..Secret::default() }
}

fn member(authority: &Authority) -> Secret {
    secret(&issue(authority, &[], Identity::member("east", NAMESPACE), Duration::from_hours(1)))
}

/// Answers for the API server: the Secret as it is now, and clusters by the script.
async fn api_server(
    mut server: Handle<Request<Body>, HttpResponse<Body>>,
    secret: watch::Receiver<Option<Secret>>,
    asked: mpsc::UnboundedSender<(String, String, Value)>,
    answer: Answer,
) {
    while let Some((request, send)) = server.next_request().await {
        let (parts, body) = request.into_parts();
        let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let absent = || json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "none"});
        let (code, value) = if path.contains("/secrets/") {
            let found = secret.borrow().clone();
            found.map_or_else(|| (404, absent()), |found| (200, serde_json::to_value(found).unwrap()))
        } else if path.contains("/mysqlclusters") {
            let done = answer(&method, &path, &body);
            // The test may have ended.
            let _told = asked.send((method, path, body));
            if done.0 == 404 { (404, absent()) } else { done }
        } else {
            (201, body)
        };
        let bytes = value.to_string().into_bytes();
        send.send_response(HttpResponse::builder().status(code).body(Body::from(bytes)).unwrap());
    }
}

impl World {
    async fn new(answer: Answer) -> Self {
        install_provider();
        let authority = Authority::generate("hub", Timestamp::now()).unwrap();
        let shown = issue(&authority, &["localhost"], Identity::Hub, Duration::from_hours(1));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shutdown = CancellationToken::new();
        let (streams, hub) = mpsc::channel(1);
        let routes = Routes::new(FederationServiceServer::new(Hub(streams)));
        let identity = ReloadingIdentity::new(&shown).unwrap();
        tokio::spawn(grpc::serve(listener, identity, routes, shutdown.clone()));

        let (service, server) = mock::pair();
        let client = Client::new(service, NAMESPACE);
        let (secret, secrets) = watch::channel(Some(member(&authority)));
        let (tell, asked) = mpsc::unbounded_channel();
        tokio::spawn(api_server(server, secrets, tell, answer));

        let (seen, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        writer.apply_watcher_event(&Event::InitDone);
        let (changed, news) = watch::channel(0);
        let gate = Gate::always_open();
        let (told, event_writer) =
            events::channel(client.clone(), gate.clone(), "test", "shard-0".to_owned());
        tokio::spawn(event_writer.run(shutdown.clone()));
        let board = LinkBoard::new(format!("https://localhost:{port}"), &Metrics::new());
        let state = board.watch();
        let federation = Federation {
            settings: Settings {
                endpoint: format!("https://localhost:{port}").parse().unwrap(),
                secret: "hub".to_owned(),
            },
            pod: "shard-0".to_owned(),
            secrets: Api::namespaced(client.clone(), NAMESPACE),
            work: Work {
                namespace: NAMESPACE.to_owned(),
                clusters: Api::namespaced(client.clone(), NAMESPACE),
                seen,
                changed: news,
                applier: FederationApplier::new(&Applier::new(client, gate)),
                events: told,
            },
            board,
        };
        let (lease, leading) = watch::channel(LeaseState::Leader(LeaseView::default()));
        let link = tokio::spawn(federation.run(leading, shutdown.clone()));
        Self {
            hub,
            writer,
            changed,
            state,
            lease,
            asked,
            secret,
            authority,
            link,
            _shutdown: shutdown.drop_guard(),
        }
    }

    /// The next stream.
    async fn dialled(&mut self) -> Taken {
        let taken = timeout(LIMIT, self.hub.recv()).await.expect("nobody dials").unwrap();
        assert_eq!(taken.caller, Some(Identity::member("east", NAMESPACE)));
        taken
    }

    fn seen(&mut self, cluster: Value) {
        self.writer.apply_watcher_event(&Event::Apply(serde_json::from_value(cluster).unwrap()));
        self.changed.send_modify(|changes| *changes += 1);
    }

    async fn says(&mut self, words: &str) -> LinkState {
        let said = self.state.wait_for(|state| {
            state.as_ref().is_some_and(|state| !state.connected && state.last_error.contains(words))
        });
        let found = timeout(LIMIT, said).await;
        found.unwrap_or_else(|_| panic!("it is not said: {words}")).unwrap().clone().unwrap()
    }

    async fn connected(&mut self) {
        let connected = self.state.wait_for(|state| state.as_ref().is_some_and(|state| state.connected));
        timeout(LIMIT, connected).await.expect("no link").unwrap();
    }

    /// The next write of a cluster.
    async fn write(&mut self) -> (String, Value) {
        let next = timeout(LIMIT, async {
            loop {
                let (method, _, body) = self.asked.recv().await.unwrap();
                if method != "GET" {
                    return (method, body);
                }
            }
        });
        next.await.expect("nothing is written")
    }
}

fn spec() -> Value {
    json!({"version": "9.7", "storage": {"size": "1Gi"}, "replicas": 3})
}

fn cluster(uid: &str, federated: &str) -> Value {
    json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
        "metadata": {
            "name": "orders", "namespace": NAMESPACE, "uid": uid, "resourceVersion": "7", "generation": 1,
            "annotations": { ANNOTATION_FEDERATED_UID: federated },
        },
        "spec": spec(),
    })
}

fn desired(sequence: u64, cluster: DesiredCluster) -> connect_response::Message {
    let cluster = DesiredCluster { name: "orders".to_owned(), federated_uid: "f1".to_owned(), ..cluster };
    connect_response::Message::Desired(Desired { sequence, clusters: vec![cluster] })
}

fn wanted() -> DesiredCluster {
    DesiredCluster { spec_json: spec().to_string(), ..DesiredCluster::default() }
}

fn nothing_there() -> Answer {
    Box::new(|method, _, body| {
        if method == "GET" {
            return (404, Value::Null);
        }
        let mut made = body.clone();
        made["metadata"]["uid"] = json!("u1");
        (201, made)
    })
}

#[tokio::test]
async fn the_report_comes_first_and_what_the_hub_wants_is_made_and_answered() {
    let mut world = World::new(nothing_there()).await;
    world.seen(cluster("u9", ""));
    let mut stream = world.dialled().await;
    stream.welcomes(LIMIT.as_millis().try_into().unwrap()).await;
    let first = stream.hears_report().await;
    assert_eq!((first.sequence, first.answered), (1, 0));
    world.connected().await;
    stream.says(desired(4, wanted())).await;
    let (method, made) = world.write().await;
    assert_eq!(method, "PATCH");
    assert_eq!(made["metadata"]["annotations"][ANNOTATION_FEDERATED_UID], "f1");
    assert_eq!(made["spec"]["storage"]["size"], "1Gi");
    let answer = loop {
        let report = stream.hears_report().await;
        if report.answered == 4 {
            break report;
        }
    };
    assert_eq!(answer.clusters[0].uid, "u9");
    assert_eq!(
        (answer.outcomes[0].result(), answer.outcomes[0].federated_uid.as_str()),
        (Done::Aligned, "f1")
    );
}

#[tokio::test]
async fn what_was_wanted_before_a_lost_stream_is_not_done_after_it() {
    let broken = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&broken);
    let mut world = World::new(Box::new(move |_, _, _| {
        let broken = json!({"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500, "message": "broken"});
        if fails.load(Ordering::SeqCst) { (500, broken) } else { (404, Value::Null) }
    }))
    .await;
    let mut stream = world.dialled().await;
    stream.welcomes(5_000).await;
    assert_eq!(stream.hears_report().await.sequence, 1);
    stream.says(desired(1, wanted())).await;
    let failed = stream.hears_report().await;
    assert_eq!((failed.answered, failed.outcomes[0].result()), (1, Done::Failed));
    drop(stream);
    broken.store(false, Ordering::SeqCst);

    let mut again = world.dialled().await;
    again.welcomes(5_000).await;
    let report = again.hears_report().await;
    assert_eq!((report.sequence, report.answered), (1, 0), "the second stream begins anew");
    again.says(connect_response::Message::Desired(Desired { sequence: 1, clusters: Vec::new() })).await;
    let report = again.hears_report().await;
    assert_eq!((report.answered, report.outcomes.len()), (1, 0));
    while let Ok((method, path, _)) = world.asked.try_recv() {
        assert_eq!(method, "GET", "{path} was written");
    }
}

#[tokio::test]
async fn a_silent_hub_left_and_dialled_again() {
    let mut world = World::new(nothing_there()).await;
    let mut stream = world.dialled().await;
    stream.welcomes(300).await;
    stream.hears_report().await;
    // It hears the heartbeats, and answers none.
    assert!(matches!(stream.hears().await, connect_request::Message::Heartbeat(Heartbeat { sequence: 1 })));
    let state = world.says("nothing was heard of the hub for 0.3 s").await;
    assert!(state.certificate_expires_at.is_some());
    stream.ends().await;
    let mut again = world.dialled().await;
    again.welcomes(5_000).await;
    assert_eq!(again.hears_report().await.sequence, 1);
}

#[tokio::test]
async fn a_hub_that_wants_something_before_it_welcomes_gets_nothing() {
    let mut world = World::new(nothing_there()).await;
    let mut stream = world.dialled().await;
    stream.says(desired(1, wanted())).await;
    world.says("its first message is no welcome").await;
    stream.hears().await;
    stream.ends().await;
    assert!(world.asked.try_recv().is_err(), "the API server was asked");
}

#[tokio::test]
async fn a_pace_that_can_t_be_kept_is_refused() {
    let mut world = World::new(nothing_there()).await;
    let mut stream = world.dialled().await;
    stream.welcomes(100).await;
    world.says("heartbeat_interval_ms 100 and silence_ms 100").await;
    stream.ends().await;
}

#[tokio::test]
async fn a_certificate_that_is_missing_or_strange_is_said_and_a_good_one_is_taken_at_the_next_dial() {
    let mut world = World::new(nothing_there()).await;
    let mut stream = world.dialled().await;
    let good = world.secret.send_replace(None);
    stream.welcomes(5_000).await;
    stream.hears_report().await;
    drop(stream);
    world.says("Secret hub: it is not there").await;
    let stranger = Authority::generate("stranger", Timestamp::now()).unwrap();
    world.secret.send_replace(Some(member(&stranger)));
    world.says("can't connect to localhost").await;
    let elsewhere = Identity::member("east", "tenant-b");
    let other = issue(&world.authority, &[], elsewhere, Duration::from_hours(1));
    world.secret.send_replace(Some(secret(&other)));
    world.says("not for namespace tenant-a").await;
    world.secret.send_replace(good);
    world.dialled().await.welcomes(5_000).await;
}

#[tokio::test]
async fn a_deletion_is_of_one_object_and_is_answered_when_it_is_gone() {
    let gone = Mutex::new(false);
    let mut world = World::new(Box::new(move |method, _, _| {
        let mut gone = gone.lock().unwrap();
        match method {
            "DELETE" => *gone = true,
            _ if *gone => return (404, Value::Null),
            _ => {}
        }
        (200, cluster("u1", "f1"))
    }))
    .await;
    let mut stream = world.dialled().await;
    stream.welcomes(LIMIT.as_millis().try_into().unwrap()).await;
    stream.hears_report().await;
    let delete = |uid: &str| DesiredCluster { delete_uid: uid.to_owned(), ..DesiredCluster::default() };
    stream.says(desired(1, delete("u2"))).await;
    let report = stream.hears_report().await;
    assert_eq!((report.answered, report.outcomes[0].result()), (1, Done::Deleted));
    assert!(report.outcomes[0].message.contains("left alone"), "{report:?}");
    stream.says(desired(2, delete("u1"))).await;
    let (method, body) = world.write().await;
    assert_eq!((method.as_str(), &body["preconditions"]["uid"]), ("DELETE", &json!("u1")));
    let mut results = VecDeque::new();
    while results.back() != Some(&Done::Deleted) {
        let report = stream.hears_report().await;
        assert_eq!(report.answered, 2);
        results.push_back(report.outcomes[0].result());
    }
    assert_eq!(results, [Done::Failed, Done::Deleted]);
}

#[tokio::test]
async fn a_refusal_of_the_api_server_is_told_in_its_words() {
    let refusal = || json!({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": "storage.size may only grow"});
    let answer = move |method: &str, _: &str, _: &Value| {
        if method == "GET" { (404, Value::Null) } else { (422, refusal()) }
    };
    let mut world = World::new(Box::new(answer)).await;
    let mut stream = world.dialled().await;
    stream.welcomes(LIMIT.as_millis().try_into().unwrap()).await;
    stream.hears_report().await;
    stream.says(desired(1, wanted())).await;
    let report = stream.hears_report().await;
    assert_eq!((report.answered, report.outcomes[0].result()), (1, Done::Refused));
    assert!(report.outcomes[0].message.contains("may only grow"), "{report:?}");
}

#[tokio::test]
async fn who_leads_no_more_holds_no_link() {
    let mut world = World::new(nothing_there()).await;
    let mut stream = world.dialled().await;
    stream.welcomes(LIMIT.as_millis().try_into().unwrap()).await;
    stream.hears_report().await;
    world.connected().await;
    world.lease.send_replace(LeaseState::Lost);
    stream.ends().await;
    timeout(LIMIT, &mut world.link).await.expect("the link is kept").unwrap();
    assert_eq!(*world.state.borrow(), None);
}
