use std::collections::BTreeMap;

use fleet_runtime::tls::{Authority, CertificateRequest};
use http::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;

/// An API server that knows the answers of a few paths, and refuses all others as not found.
fn api(answers: &[(&str, u16, Value)]) -> Client {
    let answers: BTreeMap<String, (u16, Value)> =
        answers.iter().map(|(path, code, body)| ((*path).to_owned(), (*code, body.clone()))).collect();
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            let (code, body) =
                answers.get(request.uri().path()).cloned().unwrap_or_else(|| (404, failure("NotFound", 404)));
            let body = Body::from(body.to_string().into_bytes());
            send.send_response(Response::builder().status(code).body(body).unwrap());
        }
    });
    Client::new(service, "default")
}

fn failure(reason: &str, code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "scripted", "reason": reason, "code": code,
    })
}

const SECRET: &str = "/api/v1/namespaces/tenant-a/secrets/shard-tenant-a-client";
const PODS: &str = "/api/v1/namespaces/tenant-a/pods";

fn secret() -> (&'static str, u16, Value) {
    fleet_runtime::tls::install_provider();
    let now = Timestamp::now();
    let authority = Authority::generate("test", now).unwrap();
    let request = CertificateRequest {
        common_name: "client".to_owned(),
        dns_names: Vec::new(),
        identity: Some(Identity::new("tenant-a", Role::Client)),
        validity: Duration::from_hours(1),
    };
    let issued = authority.issue(&request, now).unwrap();
    let data = BTreeMap::from([
        ("ca.crt".to_owned(), ByteString(authority.cert_pem().into())),
        ("tls.crt".to_owned(), ByteString(issued.cert.into_bytes())),
        ("tls.key".to_owned(), ByteString(issued.key.into_bytes())),
    ]);
    (SECRET, 200, serde_json::to_value(Secret { data: Some(data), ..Secret::default() }).unwrap())
}

async fn error(answers: &[(&str, u16, Value)]) -> StatusError {
    match connect(&api(answers), "tenant-a", Server::Shard).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_a_wrong_argument() {
    let error = error(&[]).await;
    assert!(error.is_usage());
    assert_eq!(
        error.to_string(),
        "namespace tenant-a does not exist: name another one with --namespace, or make it"
    );
}

#[tokio::test]
async fn a_namespace_without_a_shard_says_how_to_deploy_one() {
    let namespace = json!({"metadata": {"name": "tenant-a"}});
    let exists = ("/api/v1/namespaces/tenant-a", 200, namespace);
    let hidden = ("/api/v1/namespaces/tenant-a", 403, failure("Forbidden", 403));
    for answer in [exists, hidden] {
        let text = error(&[answer]).await.to_string();
        assert!(
            text.contains("`kubectl fleet shard render tenant-a --image IMAGE | kubectl apply -f -`"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_namespace_without_a_hub_says_which_flag_names_another() {
    let namespace = json!({"metadata": {"name": "tenant-a"}});
    let exists = ("/api/v1/namespaces/tenant-a", 200, namespace);
    let Err(error) = connect(&api(&[exists]), "tenant-a", Server::Hub).await else {
        panic!("connected");
    };
    let text = error.to_string();
    assert!(error.is_usage() && text.contains("--hub-namespace"), "{text}");
    assert!(text.contains("Secret mysql-fleet-hub-viewer does not exist"), "{text}");
}

#[tokio::test]
async fn what_may_not_be_read_is_named() {
    let error = error(&[(SECRET, 403, failure("Forbidden", 403))]).await;
    assert_eq!(error.to_string(), "you may not read Secret tenant-a/shard-tenant-a-client: scripted");
}

#[tokio::test]
async fn an_api_server_that_refuses_connections_is_told_with_the_cause() {
    fleet_runtime::tls::install_provider();
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = kube::Config::new(format!("http://{unused}").parse().unwrap());
    let Err(error) = connect(&Client::try_from(config).unwrap(), "tenant-a", Server::Shard).await else {
        panic!("it is connected");
    };
    let text = error.to_string();
    assert!(text.starts_with("can't read Secret tenant-a/shard-tenant-a-client: "), "{text}");
    assert_eq!(text.matches("refused").count(), 1, "{text}");
}

#[tokio::test]
async fn a_secret_of_nonsense_is_told() {
    let nonsense = json!({"data": {"ca.crt": "bm9uc2Vuc2U=", "tls.crt": "", "tls.key": ""}});
    let text = error(&[(SECRET, 200, nonsense)]).await.to_string();
    assert!(
        text.starts_with("Secret tenant-a/shard-tenant-a-client can't be used: ca.crt can't be used"),
        "{text}"
    );
    let text = error(&[(SECRET, 200, json!({"data": {}}))]).await.to_string();
    assert!(text.contains("it has no key ca.crt"), "{text}");
}

#[tokio::test]
async fn a_shard_without_a_running_pod_is_told() {
    let pods = json!({"metadata": {}, "items": [pod("shard-manager-x", "Pending", "False")]});
    let text = error(&[secret(), (PODS, 200, pods)]).await.to_string();
    assert_eq!(
        text,
        "no pod of the shard in namespace tenant-a can be asked: shard-manager-x is Pending, not ready; \
         see `kubectl -n tenant-a describe pods`"
    );
    let text = error(&[secret(), (PODS, 200, json!({"metadata": {}, "items": []}))]).await.to_string();
    assert!(
        text.contains("there is none; see `kubectl -n tenant-a describe deployment shard-manager`"),
        "{text}"
    );
}

fn pod(name: &str, phase: &str, ready: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

#[test]
fn the_leader_is_asked_if_it_runs_and_else_a_ready_pod() {
    let pods = [pod("a", "Running", "True"), pod("b", "Running", "False"), pod("c", "Pending", "False")];
    assert_eq!(choose(&pods, "b").as_deref(), Some("b"));
    assert_eq!(choose(&pods, "c").as_deref(), Some("a"));
    assert_eq!(choose(&pods, "gone").as_deref(), Some("a"));
    assert_eq!(choose(&pods[1..], "").as_deref(), None);
}
