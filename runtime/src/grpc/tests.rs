use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, server::NamedService, service::Routes, transport::Channel};
use tower::{Service, ServiceExt};

use super::*;
use crate::tls::{Authority, CertificateRequest, Material, ReloadingIdentity, install_provider};

/// A service that knows one thing: who has called it.
#[derive(Clone, Default)]
struct WhoCalls(Arc<Mutex<Vec<Option<Identity>>>>);

impl NamedService for WhoCalls {
    const NAME: &'static str = "test.WhoCalls";
}

impl Service<http::Request<Body>> for WhoCalls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().expect("a request without a peer");
        self.0.lock().unwrap().push(peer.identity.clone());
        ready(Ok(Status::ok("").into_http()))
    }
}

const SERVER: &str = "shard-manager.tenant-a.svc";

fn material(authority: &Authority, dns_names: &[&str], identity: Option<Identity>) -> Material {
    let request = CertificateRequest {
        common_name: "test".to_owned(),
        dns_names: dns_names.iter().map(|name| (*name).to_owned()).collect(),
        identity,
        validity: Duration::from_hours(1),
    };
    let issued = authority.issue(&request, Timestamp::now()).unwrap();
    Material { ca: authority.cert_pem().to_owned(), cert: issued.cert, key: issued.key }
}

fn authority() -> Authority {
    install_provider();
    Authority::generate("test", Timestamp::now()).unwrap()
}

fn shard() -> Identity {
    Identity::new("tenant-a", Role::Shard)
}

fn client(authority: &Authority) -> ReloadingIdentity {
    let identity = Some(Identity::new("tenant-a", Role::Client));
    ReloadingIdentity::new(&material(authority, &[], identity)).unwrap()
}

struct Running {
    address: SocketAddr,
    identity: ReloadingIdentity,
    calls: WhoCalls,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), GrpcError>>,
}

async fn server(authority: &Authority) -> Running {
    let identity = ReloadingIdentity::new(&material(authority, &[SERVER], Some(shard()))).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (calls, shutdown) = (WhoCalls::default(), CancellationToken::new());
    let serving = serve(listener, identity.clone(), Routes::new(calls.clone()), shutdown.clone());
    Running { address, identity, calls, shutdown, task: tokio::spawn(serving) }
}

async fn call(channel: &mut Channel) -> Result<(), Box<dyn std::error::Error>> {
    let request = http::Request::post("/test.WhoCalls/Call").body(Body::empty()).unwrap();
    channel.ready().await?.call(request).await?;
    Ok(())
}

async fn refusal(
    running: &Running,
    server_name: &str,
    identity: &ReloadingIdentity,
    expected: &Identity,
) -> String {
    match channel(running.address, server_name, identity, expected).await {
        Err(error) => error.to_string(),
        // The server refuses a client's certificate after the client's side of the handshake is done.
        Ok(mut channel) => chain(call(&mut channel).await.expect_err("the call was answered").as_ref()),
    }
}

#[tokio::test]
async fn the_server_sees_who_calls() {
    let authority = authority();
    let running = server(&authority).await;
    let client = client(&authority);
    let mut direct = channel(running.address, SERVER, &client, &shard()).await.unwrap();
    call(&mut direct).await.unwrap();
    let stream = TcpStream::connect(running.address).await.unwrap();
    let mut over = channel_over(stream, SERVER, &client, &shard()).await.unwrap();
    call(&mut over).await.unwrap();
    let caller = Some(Identity::new("tenant-a", Role::Client));
    assert_eq!(*running.calls.0.lock().unwrap(), [caller.clone(), caller]);
    running.shutdown.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn both_sides_refuse_whom_they_do_not_expect() {
    let authority = authority();
    let stranger = self::authority();
    let running = server(&authority).await;
    let good = client(&authority);
    let agent = Identity::new("tenant-a", Role::Agent);
    let text = refusal(&running, SERVER, &good, &agent).await;
    assert!(text.contains("invalid peer certificate"), "another identity: {text}");
    let text = refusal(&running, "orders-0.orders-instances.tenant-a.svc", &good, &shard()).await;
    assert!(text.contains("not valid for name"), "another name: {text}");
    let foreign = client(&stranger);
    let text = refusal(&running, SERVER, &foreign, &shard()).await;
    assert!(text.contains("invalid peer certificate"), "an authority that the client does not know: {text}");
    let mut forged = material(&stranger, &[], Some(Identity::new("tenant-a", Role::Client)));
    authority.cert_pem().clone_into(&mut forged.ca);
    let forged = ReloadingIdentity::new(&forged).unwrap();
    refusal(&running, SERVER, &forged, &shard()).await;
    assert!(running.calls.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn new_connections_use_the_swapped_certificate() {
    let (first, second) = (authority(), authority());
    let running = server(&first).await;
    let mut open = channel(running.address, SERVER, &client(&first), &shard()).await.unwrap();
    call(&mut open).await.unwrap();
    let mut changed = running.identity.changed();
    running.identity.swap(&material(&second, &[SERVER], Some(shard()))).unwrap();
    assert!(changed.has_changed().unwrap() && *changed.borrow_and_update() == 1);
    call(&mut open).await.expect("an open connection goes on");
    let mut new = channel(running.address, SERVER, &client(&second), &shard()).await.unwrap();
    call(&mut new).await.unwrap();
    refusal(&running, SERVER, &client(&first), &shard()).await;
    assert_eq!(running.calls.0.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn material_that_can_not_be_used_leaves_the_old_in_place() {
    let authority = authority();
    let running = server(&authority).await;
    let good = material(&authority, &[SERVER], Some(shard()));
    let other = material(&authority, &[SERVER], Some(shard()));
    for (bad, part) in [
        (Material { ca: String::new(), ..good.clone() }, "ca.crt"),
        (Material { cert: "nonsense".to_owned(), ..good.clone() }, "tls.crt"),
        (Material { key: "nonsense".to_owned(), ..good.clone() }, "tls.key"),
        (Material { key: other.key, ..good }, "tls.crt with tls.key"),
    ] {
        let error = running.identity.swap(&bad).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{part} can't be used: ")), "{error}");
    }
    let mut channel = channel(running.address, SERVER, &client(&authority), &shard()).await.unwrap();
    call(&mut channel).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_changes_is_followed() {
    let authority = authority();
    let directory = std::env::temp_dir().join(format!("fleet-runtime-{}", crate::backoff::random_id()));
    std::fs::create_dir(&directory).unwrap();
    let write = |material: &Material| {
        for (file, text) in
            [("ca.crt", &material.ca), ("tls.crt", &material.cert), ("tls.key", &material.key)]
        {
            std::fs::write(directory.join(file), text).unwrap();
        }
    };
    write(&material(&authority, &[SERVER], Some(shard())));
    let identity = ReloadingIdentity::from_dir(&directory).unwrap();
    let mut changed = identity.changed();
    let shutdown = CancellationToken::new();
    let every = Duration::from_millis(5);
    let watch = tokio::spawn(identity.clone().watch_dir(directory.clone(), every, shutdown.clone()));
    std::fs::write(directory.join("tls.key"), "nonsense").unwrap();
    write(&material(&authority, &[SERVER], Some(shard())));
    tokio::time::timeout(Duration::from_secs(5), changed.wait_for(|generation| *generation == 1))
        .await
        .unwrap()
        .unwrap();
    shutdown.cancel();
    let Ok(()) = watch.await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn open_connections_do_not_hold_up_the_shutdown() {
    let authority = authority();
    let running = server(&authority).await;
    let mut open = channel(running.address, SERVER, &client(&authority), &shard()).await.unwrap();
    call(&mut open).await.unwrap();
    let _handshake_never_begun = TcpStream::connect(running.address).await.unwrap();
    running.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(10), running.task).await.unwrap().unwrap().unwrap();
}

#[test]
fn only_allowed_roles_of_the_namespace_may_call() {
    let ask = |identity: Option<Identity>| {
        let mut request = Request::new(());
        request.extensions_mut().insert(Peer { address: None, identity });
        require_role(&request, "tenant-a", &[Role::Client, Role::Shard]).map_err(|status| status.code())
    };
    assert_eq!(ask(Some(shard())), Ok(shard()));
    for identity in [
        None,
        Some(Identity::new("tenant-a", Role::Agent)),
        Some(Identity::new("tenant-b", Role::Shard)),
        Some(Identity::member("east", "tenant-a")),
        Some(Identity::Hub),
    ] {
        assert_eq!(ask(identity), Err(tonic::Code::PermissionDenied));
    }
    let unknown = require_role(&Request::new(()), "tenant-a", &[Role::Client]).unwrap_err();
    assert_eq!(unknown.message(), "permission denied");
    let intercept = role_interceptor("tenant-a", &[Role::Client]);
    assert_eq!(intercept(Request::new(())).unwrap_err().code(), tonic::Code::PermissionDenied);
}
