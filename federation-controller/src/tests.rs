//! Streams over real mutual TLS, with the objects in memory.

use std::{net::SocketAddr, time::Duration};

use fleet_api::v1::{MemberCluster, MySQLClusterFederated, MySQLClusterSpec};
use fleet_proto::federation::v1::{
    ClusterState, ConnectRequest, ConnectResponse, Desired, DesiredCluster, FederationStatus,
    GetFederationStatusRequest, Heartbeat, Hello, Report, WatchFederationStatusRequest,
    WatchFederationStatusResponse, connect_request::Message as Say, connect_response::Message as Told,
    federation_service_client::FederationServiceClient, federation_service_server::FederationServiceServer,
};
use fleet_runtime::{
    controller::Changed,
    grpc,
    lease::Gate,
    tls::{Authority, CertificateRequest, Identity, Material, ReloadingIdentity, Role, install_provider},
};
use jiff::Timestamp;
use kube::runtime::{
    reflector::{self, store::Writer},
    watcher::Event,
};
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status, Streaming, service::Routes};

use crate::{
    config::Pace,
    decide::Contact,
    service::{HubState, Service},
    stores::Stores,
    streams::{Shard, Streams},
};

const HOST: &str = "hub.example";
/// Limit of everything that is waited for.
const LIMIT: Duration = Duration::from_secs(20);
const NEVER_SILENT: Duration = Duration::from_mins(10);

struct Hub {
    authority: Authority,
    address: SocketAddr,
    streams: Streams,
    members: Writer<kube::core::DeserializeGuard<MemberCluster>>,
    federated: Writer<kube::core::DeserializeGuard<MySQLClusterFederated>>,
    changed: watch::Sender<u64>,
    _ends: tokio_util::sync::DropGuard,
}

fn material(authority: &Authority, dns_names: &[&str], identity: Identity) -> Material {
    let request = CertificateRequest {
        common_name: "test".to_owned(),
        dns_names: dns_names.iter().map(|name| (*name).to_owned()).collect(),
        identity: Some(identity),
        validity: Duration::from_hours(1),
    };
    let issued = authority.issue(&request, Timestamp::now()).unwrap();
    Material { ca: authority.cert_pem().to_owned(), cert: issued.cert, key: issued.key }
}

fn member(namespaces: &[&str]) -> kube::core::DeserializeGuard<MemberCluster> {
    let member = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MemberCluster", "metadata": {"name": "east"},
        "spec": {"namespaces": namespaces},
    });
    serde_json::from_value(member).unwrap()
}

/// A hub with the member east, which has the namespace tenant-a.
async fn hub(silence: Duration) -> Hub {
    install_provider();
    let authority = Authority::generate("test", Timestamp::now()).unwrap();
    let (members_store, mut members) = reflector::store();
    members.apply_watcher_event(&Event::Apply(member(&["tenant-a"])));
    let (federated_store, federated) = reflector::store();
    let (changed, generation) = watch::channel(0);
    let stores = Stores::new(federated_store, members_store, generation);
    let streams = Streams::new(stores.clone(), Changed::default(), Changed::default());
    let shutdown = CancellationToken::new();
    let service = Service {
        state: HubState {
            pod: "hub-0".to_owned(),
            gate: Gate::always_open(),
            stores,
            streams: streams.clone(),
        },
        pace: Pace { heartbeat: silence / 3, silence },
        tasks: TaskTracker::new(),
        shutdown: shutdown.clone(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = ReloadingIdentity::new(&material(&authority, &[HOST], Identity::Hub)).unwrap();
    let routes = Routes::new(FederationServiceServer::new(service));
    tokio::spawn(grpc::serve(listener, identity, routes, shutdown.clone()));
    Hub { authority, address, streams, members, federated, changed, _ends: shutdown.drop_guard() }
}

struct Dialled {
    say: mpsc::Sender<ConnectRequest>,
    told: Streaming<ConnectResponse>,
}

impl Hub {
    async fn client(&self, identity: Identity) -> FederationServiceClient<tonic::transport::Channel> {
        let own = ReloadingIdentity::new(&material(&self.authority, &[], identity)).unwrap();
        let channel = grpc::channel(self.address, HOST, &own, &Identity::Hub).await.unwrap();
        FederationServiceClient::new(channel)
    }

    async fn dial(&self, identity: Identity) -> Result<Dialled, Status> {
        let (say, said) = mpsc::channel(8);
        let mut client = self.client(identity).await;
        let hello = Hello { version: "1".to_owned(), pod: "shard-0".to_owned() };
        say.send(ConnectRequest { message: Some(Say::Hello(hello)) }).await.unwrap();
        let told =
            timeout(LIMIT, client.connect(ReceiverStream::new(said))).await.expect("no answer")?.into_inner();
        let mut dialled = Dialled { say, told };
        assert!(matches!(dialled.next().await?, Told::Welcome(_)), "the first answer is a welcome");
        Ok(dialled)
    }

    async fn east(&self) -> Dialled {
        self.dial(Identity::member("east", "tenant-a")).await.unwrap()
    }

    /// Waits until the hub knows of the member what is asked for.
    async fn until(&self, what: &str, check: impl Fn(&Contact) -> bool) {
        let mut news = self.streams.generation();
        let found = timeout(LIMIT, async {
            while !check(&self.streams.contact(&shard(), "orders", "f-1")) {
                news.changed().await.unwrap();
            }
        });
        found.await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"));
    }
}

impl Dialled {
    async fn say(&self, message: Say) {
        self.say.send(ConnectRequest { message: Some(message) }).await.unwrap();
    }

    async fn report(&self, sequence: u64, answered: u64) {
        self.say(Say::Report(Report { sequence, answered, ..Report::default() })).await;
    }

    async fn next(&mut self) -> Result<Told, Status> {
        let message = timeout(LIMIT, self.told.message()).await.expect("nothing is sent")?;
        message.and_then(|response| response.message).ok_or_else(|| Status::ok("the stream is over"))
    }

    async fn desired(&mut self) -> Desired {
        match self.next().await.unwrap() {
            Told::Desired(desired) => desired,
            other => panic!("no desired state: {other:?}"),
        }
    }
}

fn shard() -> Shard {
    Shard { member: "east".to_owned(), namespace: "tenant-a".to_owned() }
}

fn orders(spec: &str) -> DesiredCluster {
    DesiredCluster {
        name: "orders".to_owned(),
        federated_uid: "f-1".to_owned(),
        spec_json: spec.to_owned(),
        ..DesiredCluster::default()
    }
}

#[tokio::test]
async fn only_shards_of_known_members_and_allowed_namespaces_are_listened_to() {
    let hub = hub(NEVER_SILENT).await;
    for stranger in [
        Identity::member("west", "tenant-a"),
        Identity::member("east", "tenant-b"),
        Identity::new("tenant-a", Role::Shard),
        Identity::Viewer,
        Identity::Hub,
    ] {
        let refusal = hub.dial(stranger.clone()).await.err().expect("it was let in");
        assert_eq!(
            (refusal.code(), refusal.message()),
            (Code::PermissionDenied, "permission denied"),
            "{stranger}"
        );
    }
    hub.east().await;
}

#[tokio::test]
async fn only_viewers_may_look() {
    let hub = hub(NEVER_SILENT).await;
    let mut viewer = hub.client(Identity::Viewer).await;
    let status =
        viewer.get_federation_status(GetFederationStatusRequest {}).await.unwrap().into_inner().status;
    assert_eq!(status.unwrap().members[0].name, "east");
    let mut shard = hub.client(Identity::member("east", "tenant-a")).await;
    let refusal = shard.get_federation_status(GetFederationStatusRequest {}).await.unwrap_err();
    assert_eq!(refusal.code(), Code::PermissionDenied);
}

async fn told(states: &mut Streaming<WatchFederationStatusResponse>) -> FederationStatus {
    let message = timeout(LIMIT, states.message()).await.expect("nothing is told").unwrap();
    message.expect("the stream is over").status.unwrap()
}

#[tokio::test]
async fn a_viewer_is_told_each_change_and_no_sign_of_life() {
    let mut hub = hub(NEVER_SILENT).await;
    let mut viewer = hub.client(Identity::Viewer).await;
    let watching = viewer.watch_federation_status(WatchFederationStatusRequest {}).await;
    let mut states = watching.unwrap().into_inner();
    let first = told(&mut states).await;
    assert_eq!((first.pod.as_str(), first.leader, first.clusters.len()), ("hub-0", true, 0));
    assert_eq!(
        (&first.members[0].namespaces[..], first.members[0].last_contact_ms),
        (&["tenant-a".to_owned()][..], 0)
    );
    let east = hub.east().await;
    assert_eq!(told(&mut states).await.members[0].connected, ["tenant-a"]);

    let spec = |connections: &str| {
        let spec =
            json!({"version": "9.7", "storage": {"size": "1Gi"}, "mysqld": {"max_connections": connections}});
        let typed: MySQLClusterSpec = serde_json::from_value(spec).unwrap();
        serde_json::to_value(typed).unwrap()
    };
    let cluster = ClusterState {
        name: "orders".to_owned(),
        federated_uid: "f-1".to_owned(),
        spec_json: spec("7").to_string(),
        ..ClusterState::default()
    };
    east.say(Say::Heartbeat(Heartbeat { sequence: 1 })).await;
    east.say(Say::Report(Report { sequence: 1, clusters: vec![cluster], ..Report::default() })).await;
    hub.until("the report is taken", |contact| matches!(contact, Contact::Heard(_))).await;
    let object = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLClusterFederated",
        "metadata": {"name": "orders", "namespace": "tenant-a", "uid": "f-1", "generation": 3},
        "spec": {"template": spec("100"), "placement": [{"member": "east"}]},
        "status": {"observedGeneration": 2, "members": [{
            "member": "east", "outcome": "Kept", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "agreedSpec": spec("90"),
        }]},
    });
    hub.federated.apply_watcher_event(&Event::Apply(serde_json::from_value(object).unwrap()));
    hub.changed.send_modify(|changed| *changed += 1);
    // What came before this changed nothing that is told: it would have been told first.
    let state = told(&mut states).await;
    assert_eq!((state.clusters[0].generation, state.clusters[0].observed_generation), (3, 2));
    let placed = &state.clusters[0].members[0];
    let field = placed.outcome.as_ref().unwrap().fields[0].clone();
    assert_eq!((placed.result.as_str(), placed.compared), ("Kept", true));
    assert_eq!(
        [field.path, field.agreed_json, field.hub_json, field.member_json],
        [".mysqld.max_connections", "\"90\"", "\"100\"", "\"7\""]
    );

    drop(east);
    let silent = told(&mut states).await;
    let placed = &silent.clusters[0].members[0];
    let field = &placed.outcome.as_ref().unwrap().fields[0];
    assert_eq!(
        (placed.compared, field.agreed_json.as_str(), field.member_json.as_str()),
        (false, "\"90\"", "")
    );
    assert!(silent.members[0].connected.is_empty() && silent.members[0].last_contact_ms > 0);
}

#[tokio::test]
async fn nothing_is_desired_before_the_first_report() {
    let hub = hub(NEVER_SILENT).await;
    let mut east = hub.east().await;
    hub.streams.want(&shard(), "f-1", Some(orders("a")));
    // Answered in order: a desired state would have come before.
    east.say(Say::Heartbeat(Heartbeat { sequence: 7 })).await;
    assert!(matches!(east.next().await.unwrap(), Told::Heartbeat(Heartbeat { sequence: 7 })));
    assert!(matches!(hub.streams.contact(&shard(), "orders", "f-1"), Contact::Silent { .. }));
    east.report(1, 0).await;
    assert_eq!(east.desired().await, Desired { sequence: 1, clusters: vec![orders("a")] });
}

#[tokio::test]
async fn an_answer_is_taken_for_the_newest_desired_state_alone() {
    let hub = hub(NEVER_SILENT).await;
    let mut east = hub.east().await;
    hub.streams.want(&shard(), "f-1", Some(orders("a")));
    east.report(1, 0).await;
    east.desired().await;
    hub.streams.want(&shard(), "f-1", Some(orders("b")));
    assert_eq!(east.desired().await.sequence, 2);
    let answered = |contact: &Contact| match contact {
        Contact::Heard(heard) => heard.answer.as_ref().and_then(|answer| answer.wanted.clone()),
        Contact::Silent { .. } => None,
    };
    east.report(2, 1).await;
    // The heartbeat's answer says that the report was taken.
    east.say(Say::Heartbeat(Heartbeat { sequence: 1 })).await;
    east.next().await.unwrap();
    assert_eq!(answered(&hub.streams.contact(&shard(), "orders", "f-1")), None);
    east.report(3, 2).await;
    hub.until("the answer is taken", |contact| answered(contact) == Some(orders("b"))).await;
}

#[tokio::test]
async fn a_second_stream_of_a_shard_replaces_the_first() {
    let hub = hub(NEVER_SILENT).await;
    let mut first = hub.east().await;
    first.report(1, 0).await;
    first.desired().await;
    let mut second = hub.east().await;
    assert_eq!(first.next().await.unwrap_err().code(), Code::Aborted);
    second.report(1, 0).await;
    second.desired().await;
    assert!(matches!(hub.streams.contact(&shard(), "orders", "f-1"), Contact::Heard(_)));
}

#[tokio::test]
async fn a_slow_reader_is_told_the_latest() {
    let hub = hub(NEVER_SILENT).await;
    let mut east = hub.east().await;
    east.report(1, 0).await;
    hub.until("the report is taken", |contact| matches!(contact, Contact::Heard(_))).await;
    // More than any window of HTTP/2 holds, were each of them sent.
    let big = "x".repeat(1024 * 1024);
    for number in 0..200 {
        hub.streams.want(&shard(), "f-1", Some(orders(&format!("{number} {big}"))));
        tokio::task::yield_now().await;
    }
    let mut read = 0;
    loop {
        let desired = east.desired().await;
        read += 1;
        if desired.clusters.first().is_some_and(|cluster| cluster.spec_json.starts_with("199 ")) {
            break;
        }
    }
    assert!(read < 100, "{read} of 200 states were kept for the reader");
}

#[tokio::test]
async fn a_shard_that_says_nothing_is_silent() {
    let hub = hub(Duration::from_millis(300)).await;
    let mut east = hub.east().await;
    east.report(1, 0).await;
    east.desired().await;
    assert_eq!(east.next().await.unwrap_err().code(), Code::DeadlineExceeded);
    hub.until("it is silent", |contact| matches!(contact, Contact::Silent { last: Some(_) })).await;
}

#[tokio::test]
async fn a_member_that_is_allowed_no_more_is_turned_away_at_its_next_word() {
    let mut hub = hub(NEVER_SILENT).await;
    let mut east = hub.east().await;
    hub.members.apply_watcher_event(&Event::Apply(member(&["tenant-b"])));
    east.say(Say::Heartbeat(Heartbeat { sequence: 1 })).await;
    assert_eq!(east.next().await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn reports_must_rise_and_a_hello_comes_once() {
    let hub = hub(NEVER_SILENT).await;
    let mut east = hub.east().await;
    east.report(2, 0).await;
    east.desired().await;
    east.report(2, 0).await;
    let refusal = east.next().await.unwrap_err();
    assert!(
        refusal.code() == Code::InvalidArgument && refusal.message().contains("report.sequence is 2"),
        "{refusal}"
    );
    let mut again = hub.east().await;
    again.say(Say::Hello(Hello::default())).await;
    assert_eq!(again.next().await.unwrap_err().code(), Code::InvalidArgument);
}
