use std::{collections::BTreeMap, time::Duration};

use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use tower_test::mock::{self, Handle};

use super::*;

type Server = Handle<Request<Body>, Response<Body>>;

fn applier(gate: Gate) -> (Applier, Server) {
    let (service, server) = mock::pair();
    (Applier::new(Client::new(service, "tenant-a"), gate), server)
}

fn config_map(data: &[(&str, &str)]) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some("orders-config".to_owned());
    object.metadata.namespace = Some("tenant-a".to_owned());
    object.data = Some(data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
    object
}

/// The object as the API server has it after it was applied.
fn applied(desired: &ConfigMap) -> ConfigMap {
    let mut wanted = serde_json::to_value(desired).unwrap();
    let hash = hash(&wanted);
    annotate(&mut wanted, &hash);
    let mut live: ConfigMap = serde_json::from_value(wanted).unwrap();
    live.metadata.uid = Some("u1".to_owned());
    live.metadata.resource_version = Some("7".to_owned());
    live
}

async fn answer(server: &mut Server, code: u16, body: &Value) -> (String, String, Value) {
    let next = tokio::time::timeout(Duration::from_secs(5), server.next_request());
    let (request, send) = next.await.expect("no request was sent").unwrap();
    let (parts, content) = request.into_parts();
    let content = content.collect().await.unwrap().to_bytes();
    let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap();
    send.send_response(response);
    (parts.method.to_string(), parts.uri.to_string(), serde_json::from_slice(&content).unwrap_or(Value::Null))
}

/// The write and the server's answer, side by side.
async fn exchange<T>(
    write: impl Future<Output = T>,
    mut server: Server,
    code: u16,
    body: Value,
) -> (T, (String, String, Value)) {
    tokio::join!(write, answer(&mut server, code, &body))
}

async fn assert_no_request(mut server: Server, applier: Applier) {
    drop(applier);
    assert!(server.next_request().await.is_none(), "a request was sent");
}

#[tokio::test]
async fn an_unchanged_object_costs_no_request() {
    let (applier, server) = applier(Gate::always_open());
    let desired = config_map(&[("my.cnf", "[mysqld]\n")]);
    let mut live = applied(&desired);
    live.metadata.labels = Some(BTreeMap::from([("foreign".to_owned(), "label".to_owned())]));
    assert!(matches!(applier.ensure(&desired, Some(&live)).await.unwrap(), Applied::Unchanged));
    assert_no_request(server, applier).await;
}

#[tokio::test]
async fn an_edited_object_is_applied_once_with_force() {
    let (applier, server) = applier(Gate::always_open());
    let desired = config_map(&[("my.cnf", "[mysqld]\n")]);
    let mut live = applied(&desired);
    live.data = Some(BTreeMap::from([("my.cnf".to_owned(), "edited".to_owned())]));
    let answer = serde_json::to_value(applied(&desired)).unwrap();
    let (result, (method, uri, body)) =
        exchange(applier.ensure(&desired, Some(&live)), server, 200, answer).await;
    assert!(matches!(result.unwrap(), Applied::Written(_)));
    assert_eq!(method, "PATCH");
    assert_eq!(
        uri,
        "/api/v1/namespaces/tenant-a/configmaps/orders-config?&force=true&fieldManager=mysql-fleet"
    );
    assert_eq!(body["data"]["my.cnf"], "[mysqld]\n");
    assert_eq!(body["kind"], "ConfigMap");
}

#[tokio::test]
async fn a_field_that_is_wanted_no_more_is_removed() {
    let (applier, server) = applier(Gate::always_open());
    let live = applied(&config_map(&[("a", "1"), ("b", "2")]));
    let desired = config_map(&[("a", "1")]);
    let answer = serde_json::to_value(applied(&desired)).unwrap();
    let (result, (method, _, body)) =
        exchange(applier.ensure(&desired, Some(&live)), server, 200, answer).await;
    assert!(matches!(result.unwrap(), Applied::Written(_)));
    assert_eq!(method, "PATCH");
    assert_eq!(body["data"], json!({"a": "1"}));
}

#[tokio::test]
async fn nothing_is_sent_through_a_closed_gate() {
    let (applier, server) = applier(Gate::closed(Duration::from_secs(10)));
    let object = applied(&config_map(&[]));
    let error = applier.ensure(&object, None).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "apply ConfigMap tenant-a/orders-config: nothing may be written: this process does not hold the Lease"
    );
    assert_eq!((error.class(), error.reason()), (ErrorClass::Transient, "LeaseNotHeld"));
    assert!(matches!(applier.create(&object).await.unwrap_err(), ApplyError::GateClosed { .. }));
    assert!(matches!(applier.delete(&object).await.unwrap_err(), ApplyError::GateClosed { .. }));
    assert!(matches!(applier.set_finalizers(&object, &[]).await.unwrap_err(), ApplyError::GateClosed { .. }));
    assert!(matches!(
        applier.patch_status(&object, &json!({})).await.unwrap_err(),
        ApplyError::GateClosed { .. }
    ));
    assert_no_request(server, applier).await;
}

#[tokio::test]
async fn an_object_that_is_being_deleted_is_left_alone() {
    let (applier, server) = applier(Gate::always_open());
    let mut live = applied(&config_map(&[("a", "1")]));
    live.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    let error = applier.ensure(&config_map(&[("a", "2")]), Some(&live)).await.unwrap_err();
    assert_eq!((error.class(), error.reason()), (ErrorClass::Blocked, "Terminating"));
    assert_no_request(server, applier).await;
}

#[tokio::test]
async fn only_the_very_object_is_deleted() {
    let live = applied(&config_map(&[]));
    for code in [404, 409] {
        let (applier, server) = applier(Gate::always_open());
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
        let (result, (method, _, body)) = exchange(applier.delete(&live), server, code, status).await;
        result.unwrap();
        assert_eq!(method, "DELETE");
        assert_eq!(body["preconditions"]["uid"], "u1");
    }
    let (applier, server) = applier(Gate::always_open());
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403});
    let (result, _) = exchange(applier.delete(&live), server, 403, status).await;
    assert_eq!(result.unwrap_err().class(), ErrorClass::Blocked);
}

#[tokio::test]
async fn status_and_finalizers_are_guarded_by_the_version_that_was_read() {
    let live = applied(&config_map(&[]));
    let answer = serde_json::to_value(&live).unwrap();
    let (writer, server) = applier(Gate::always_open());
    let (result, (_, uri, body)) =
        exchange(writer.patch_status(&live, &json!({"phase": "Healthy"})), server, 200, answer.clone()).await;
    result.unwrap();
    assert!(uri.contains("/orders-config/status?"), "{uri}");
    assert_eq!(body, json!({"metadata": {"resourceVersion": "7"}, "status": {"phase": "Healthy"}}));

    let (writer, server) = applier(Gate::always_open());
    let (result, (_, _, body)) =
        exchange(writer.set_finalizers(&live, &["f".to_owned()]), server, 200, answer).await;
    result.unwrap();
    assert_eq!(body, json!({"metadata": {"resourceVersion": "7", "finalizers": ["f"]}}));
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_before_another_can_hold_the_lease() {
    let (applier, mut server) = applier(Gate::always_open());
    let desired = config_map(&[]);
    let started = tokio::time::Instant::now();
    let (result, kept) = tokio::join!(applier.ensure(&desired, None), server.next_request());
    assert!(matches!(result.unwrap_err(), ApplyError::NoAnswer { .. }));
    assert_eq!(started.elapsed(), Gate::always_open().write_timeout());
    drop(kept);
}

/// A ConfigMap of the cluster with this UID.
fn owned(uid: &str) -> ConfigMap {
    let mut object = config_map(&[("a", "1")]);
    object.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "name": "orders", "uid": uid, "controller": true,
    }]))
    .unwrap();
    object
}

async fn methods(found: Option<&ConfigMap>, desired: &ConfigMap) -> (Result<(), ApplyError>, Vec<String>) {
    let (applier, mut server) = applier(Gate::always_open());
    let absent =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
    let read = found.map_or((404, absent), |found| (200, serde_json::to_value(found).unwrap()));
    let written = serde_json::to_value(applied(desired)).unwrap();
    let serve = async {
        let mut methods = vec![answer(&mut server, read.0, &read.1).await.0];
        if let Ok(Some((request, send))) =
            tokio::time::timeout(Duration::from_millis(100), server.next_request()).await
        {
            methods.push(request.method().to_string());
            send.send_response(Response::new(Body::from(written.to_string().into_bytes())));
        }
        methods
    };
    let (result, methods) = tokio::join!(applier.ensure(desired, None), serve);
    (result.map(drop), methods)
}

#[tokio::test]
async fn what_the_cache_does_not_show_is_made_or_repaired_and_never_taken_from_somebody_else() {
    let desired = owned("u-orders");
    let (result, asked) = methods(None, &desired).await;
    result.unwrap();
    assert_eq!(asked, ["GET", "PATCH"]);

    let mut unlabelled = owned("u-orders");
    unlabelled.data = None;
    let mut orphan = config_map(&[]);
    orphan.metadata.labels = Some(BTreeMap::from([(LABEL_MANAGED_BY.to_owned(), MANAGER.to_owned())]));
    for ours in [unlabelled, orphan] {
        let (result, asked) = methods(Some(&ours), &desired).await;
        result.unwrap();
        assert_eq!(asked, ["GET", "PATCH"]);
    }

    for foreign in [config_map(&[("a", "mine")]), owned("u-invoices")] {
        let (result, asked) = methods(Some(&foreign), &desired).await;
        let error = result.unwrap_err();
        assert_eq!(asked, ["GET"], "it was overwritten");
        assert_eq!((error.class(), error.reason()), (ErrorClass::Blocked, "NameTaken"));
        let text = error.to_string();
        assert!(text.contains("ConfigMap tenant-a/orders-config") && text.contains("rename"), "{text}");
    }
}

#[tokio::test]
async fn an_object_that_is_introduced_takes_nothing_from_others() {
    let (applier, server) = applier(Gate::always_open());
    let wanted = config_map(&[("my.cnf", "[mysqld]\n")]);
    let answer = serde_json::to_value(applied(&wanted)).unwrap();
    let (result, (method, uri, body)) = exchange(applier.introduce(&wanted), server, 201, answer).await;
    result.unwrap();
    assert_eq!(method, "PATCH");
    assert!(uri.contains("fieldManager=mysql-fleet") && !uri.contains("force=true"), "{uri}");
    assert!(body["metadata"].get("annotations").is_none(), "{body}");
}

#[tokio::test]
async fn fields_are_declared_for_the_object_as_it_was_read() {
    let (applier, server) = applier(Gate::always_open());
    let live = applied(&config_map(&[("my.cnf", "[mysqld]\n"), ("other", "theirs")]));
    let answer = serde_json::to_value(&live).unwrap();
    let fields = json!({"metadata": {"annotations": {"a": "b"}}, "data": {"my.cnf": "x"}});
    let (result, (method, uri, body)) = exchange(applier.declare(&live, &fields), server, 200, answer).await;
    result.unwrap();
    assert_eq!(method, "PATCH");
    assert!(uri.contains("force=true") && uri.contains("orders-config"), "{uri}");
    assert_eq!(
        body,
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "orders-config", "uid": "u1", "resourceVersion": "7", "annotations": {"a": "b"},
            },
            "data": {"my.cnf": "x"},
        })
    );
}

#[tokio::test]
async fn who_does_not_lead_declares_nothing() {
    let (applier, server) = applier(Gate::closed(Duration::from_secs(1)));
    let live = applied(&config_map(&[]));
    assert!(matches!(applier.introduce(&live).await, Err(ApplyError::GateClosed { .. })));
    assert!(matches!(applier.declare(&live, &json!({})).await, Err(ApplyError::GateClosed { .. })));
    assert_no_request(server, applier).await;
}
