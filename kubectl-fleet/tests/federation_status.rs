//! `kubectl fleet federation status` from the kubeconfig to the text: the hub's own services over mutual TLS, through an
//! API server that knows a few objects and forwards one port.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Seek as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use federation_controller::{
    config::Pace,
    service::{HubState, Service},
    stores::Stores,
    streams::Streams,
};
use fleet_proto::federation::v1::federation_service_server::FederationServiceServer;
use fleet_runtime::{
    controller::Changed,
    grpc,
    lease::Gate,
    tls::{Authority, CertificateRequest, Identity, Material, ReloadingIdentity, install_provider, tls_data},
};
use futures::{SinkExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{reflector, watcher::Event};
use kubectl_fleet::{
    federation::{FederationError, FederationStatusOptions, Selection, status},
    status::{Format, ShardOptions},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_tungstenite::tungstenite::{
    Message,
    handshake::server::{Request, Response},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const HUB: &str = "mysql-fleet-hub";
const POD: &str = "federation-controller-0";
/// The port that the hub's pods listen on, and its two bytes as the protocol wants them.
const PORT: [u8; 2] = fleet_api::names::PORT_SHARD_GRPC.to_le_bytes();

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

/// A hub whose member east has never dialled, and has the cluster tenant-a/orders placed on it.
async fn hub(authority: &Authority, shutdown: CancellationToken) -> SocketAddr {
    let (members, mut known_members) = reflector::store();
    let east = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MemberCluster", "metadata": {"name": "east"},
        "spec": {"namespaces": ["tenant-a"]},
    });
    known_members.apply_watcher_event(&Event::Apply(serde_json::from_value(east).unwrap()));
    let (federated, mut known_clusters) = reflector::store();
    let orders = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLClusterFederated",
        "metadata": {"name": "orders", "namespace": "tenant-a", "uid": "f-1", "generation": 1},
        "spec": {
            "template": {"version": "9.7", "storage": {"size": "1Gi"}}, "placement": [{"member": "east"}],
        },
        "status": {"observedGeneration": 1, "phase": "Unknown", "membersReady": "0/1", "members": [{
            "member": "east", "outcome": "Waiting", "message": "it is silent",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    known_clusters.apply_watcher_event(&Event::Apply(serde_json::from_value(orders).unwrap()));
    let stores = Stores::new(federated, members, watch::channel(0).1);
    let streams = Streams::new(stores.clone(), Changed::default(), Changed::default());
    let service = Service {
        state: HubState { pod: POD.to_owned(), gate: Gate::always_open(), stores, streams },
        pace: Pace { heartbeat: Duration::from_secs(5), silence: Duration::from_secs(15) },
        tasks: TaskTracker::new(),
        shutdown: shutdown.clone(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let host = format!("federation-controller.{HUB}.svc");
    let identity = ReloadingIdentity::new(&material(authority, &[&host], Identity::Hub)).unwrap();
    let routes = tonic::service::Routes::new(FederationServiceServer::new(service));
    tokio::spawn(grpc::serve(listener, identity, routes, shutdown));
    address
}

/// An API server with these objects by their paths, that forwards the hub's port to `hub`.
struct Server {
    objects: BTreeMap<String, Value>,
    hub: SocketAddr,
}

impl Server {
    async fn answer(&self, mut stream: TcpStream) {
        let mut head = vec![0; 8192];
        let request = loop {
            let seen = stream.peek(&mut head).await.unwrap();
            let text = String::from_utf8_lossy(&head[..seen]).into_owned();
            if text.contains("\r\n\r\n") {
                break text;
            }
            tokio::task::yield_now().await;
        };
        let path = request.split(['?', ' ']).nth(1).unwrap().to_owned();
        if path == format!("/api/v1/namespaces/{HUB}/pods/{POD}/portforward") {
            return self.forward(stream).await;
        }
        stream.read_exact(&mut vec![0; request.len()]).await.unwrap();
        let failure = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not there",
            "reason": "NotFound", "code": 404,
        });
        let (code, body) = match self.objects.get(&path) {
            Some(object) => ("200 OK", object.to_string()),
            None => ("404 Not Found", failure.to_string()),
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {code}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    /// As kubelet does it: a first message of each channel with the port, then the bytes after the channel's number.
    async fn forward(&self, stream: TcpStream) {
        #[expect(clippy::result_large_err, reason = "the trait of the callback has it so")]
        let protocol = |_: &Request, mut response: Response| {
            response.headers_mut().insert("sec-websocket-protocol", "v4.channel.k8s.io".parse().unwrap());
            Ok(response)
        };
        let socket = tokio_tungstenite::accept_hdr_async(stream, protocol).await.unwrap();
        let (mut say, mut said) = socket.split();
        for channel in [0, 1] {
            say.send(Message::binary([&[channel][..], &PORT].concat())).await.unwrap();
        }
        let (mut from_hub, mut to_hub) = TcpStream::connect(self.hub).await.unwrap().into_split();
        let there = async {
            while let Some(Ok(message)) = said.next().await {
                if let Message::Binary(bytes) = message
                    && to_hub.write_all(&bytes[1..]).await.is_err()
                {
                    break;
                }
            }
        };
        let back = async {
            let mut bytes = vec![0; 8192];
            while let Ok(count @ 1..) = from_hub.read(&mut bytes).await {
                if say.send(Message::binary([&[0][..], &bytes[..count]].concat())).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = there => {}
            () = back => {}
        }
    }
}

struct World {
    folder: tempfile::TempDir,
    _ends: tokio_util::sync::DropGuard,
}

impl World {
    /// A hub whose viewer's certificate is for this identity.
    async fn new(viewer: Identity) -> Self {
        install_provider();
        let authority = Authority::generate("test", Timestamp::now()).unwrap();
        let shutdown = CancellationToken::new();
        let hub = hub(&authority, shutdown.clone()).await;
        let secret = Secret { data: Some(tls_data(&material(&authority, &[], viewer))), ..Secret::default() };
        let pod = json!({
            "metadata": {"name": POD},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let objects = BTreeMap::from([
            (
                format!("/api/v1/namespaces/{HUB}/secrets/mysql-fleet-hub-viewer"),
                serde_json::to_value(secret).unwrap(),
            ),
            (
                format!("/apis/coordination.k8s.io/v1/namespaces/{HUB}/leases/federation-controller"),
                json!({"metadata": {}, "spec": {"holderIdentity": POD}}),
            ),
            (format!("/api/v1/namespaces/{HUB}/pods"), json!({"metadata": {}, "items": [pod]})),
        ]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(Server { objects, hub });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = Arc::clone(&server);
                tokio::spawn(async move { server.answer(stream).await });
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "hub",
            "clusters": [{"name": "hub", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "me"}}],
        });
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { folder, _ends: shutdown.drop_guard() }
    }

    async fn shows(&self, hub: &str, cluster: Option<&str>) -> Result<String, FederationError> {
        let options = FederationStatusOptions {
            hub: ShardOptions {
                namespace: Some(hub.to_owned()),
                context: None,
                kubeconfig: Some(self.folder.path().join("kubeconfig")),
            },
            selection: Selection { namespace: None, cluster: cluster.map(ToOwned::to_owned) },
            format: Format::Table,
            watch: false,
        };
        let mut output: File = tempfile::tempfile().unwrap();
        status(&options, &mut output).await?;
        output.rewind().unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        Ok(text)
    }
}

#[tokio::test]
async fn the_hub_is_found_and_asked() {
    let world = World::new(Identity::Viewer).await;
    let text = world.shows(HUB, Some("orders")).await.unwrap();
    for part in [
        format!("hub {HUB} (version {}, asked {POD}, the leader)", env!("CARGO_PKG_VERSION")),
        "tenant-a/orders: Unknown, 0/1 members ready, generation 1".to_owned(),
        "east: Waiting for".to_owned(),
        "its cluster was never seen".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is missing:\n{text}");
    }
    let unknown = world.shows(HUB, Some("orderz")).await.unwrap_err();
    assert_eq!(unknown.to_string(), "the hub has no MySQLClusterFederated orderz; it has tenant-a/orders");
    let elsewhere = world.shows("tenant-a", None).await.unwrap_err();
    assert!(elsewhere.is_usage() && elsewhere.to_string().contains("tenant-a"), "{elsewhere}");
}

#[tokio::test]
async fn a_certificate_that_is_not_the_viewer_s_is_refused() {
    let world = World::new(Identity::member("east", "tenant-a")).await;
    let error = world.shows(HUB, None).await.unwrap_err().to_string();
    assert!(error.contains("the certificate is not the viewer's"), "{error}");
}
