use std::sync::Arc;

use fleet_runtime::{
    apply::Applier,
    controller::Reconcile as _,
    error::{Classified as _, ErrorClass},
    events,
    lease::{Gate, Lease, LeaseConfig},
};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, ResourceExt as _,
    client::Body,
    runtime::{controller::Action, reflector, watcher::Event},
};
use serde_json::{Value, json};
use tower_test::mock;

use crate::{
    api::EchoPod,
    plan::{CREATED_AT, CREATED_BY, ECHOPOD, Plan, plan},
    reconcile::{EchoPodError, Reconciler},
};

const BEFORE: Timestamp = Timestamp::UNIX_EPOCH;

fn echo(replicas: i32, message: &str) -> EchoPod {
    serde_json::from_value(json!({
        "apiVersion": "examples.mysqlfleet.io/v1", "kind": "EchoPod",
        "metadata": {
            "name": "hello", "namespace": "tenant-a", "uid": "u-hello", "generation": 4, "resourceVersion": "7",
        },
        "spec": {"replicas": replicas, "message": message},
    }))
    .unwrap()
}

/// The pods that the API server would have after a plan was applied to nothing.
fn pods_of(echo: &EchoPod) -> Vec<Pod> {
    plan(echo, &[], BEFORE).wanted.into_iter().map(|(pod, _)| pod).collect()
}

fn ready(mut pod: Pod) -> Pod {
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    pod.status = Some(serde_json::from_value(status).unwrap());
    pod
}

fn terminating(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    pod
}

/// The names of what has to be and what has to go.
fn planned(echo: &EchoPod, pods: Vec<Pod>) -> (Vec<String>, Vec<String>) {
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
    let Plan { wanted, surplus } = plan(echo, &pods, Timestamp::now());
    (
        wanted.iter().map(|(pod, _)| pod.name_any()).collect(),
        surplus.iter().map(|pod| pod.name_any()).collect(),
    )
}

fn names<const N: usize>(indexes: [u8; N]) -> Vec<String> {
    indexes.map(|index| format!("hello-{index}")).into()
}

#[test]
fn missing_pods_are_made_and_the_last_ones_are_too_many() {
    assert_eq!(planned(&echo(3, "hi"), vec![]), (names([0, 1, 2]), names([])));
    let pods = pods_of(&echo(5, "hi"));
    assert_eq!(planned(&echo(3, "hi"), pods), (names([0, 1, 2]), names([3, 4])));
}

#[test]
fn a_pod_that_is_being_deleted_is_waited_for() {
    let pods = pods_of(&echo(3, "hi")).into_iter().map(terminating).collect();
    assert_eq!(planned(&echo(2, "hi"), pods), (names([]), names([])));
}

#[test]
fn a_pod_that_has_ended_is_replaced() {
    for phase in ["Succeeded", "Failed"] {
        let mut pods = pods_of(&echo(2, "hi"));
        pods[1].status = Some(serde_json::from_value(json!({"phase": phase})).unwrap());
        assert_eq!(planned(&echo(2, "hi"), pods), (names([0]), names([1])));
    }
}

#[test]
fn a_new_message_reaches_one_ready_pod_after_the_other() {
    let (old, new) = (echo(3, "hi"), echo(3, "ho"));
    let old: Vec<Pod> = pods_of(&old).into_iter().map(ready).collect();
    assert_eq!(planned(&new, old.clone()), (names([]), names([0])));
    // While the first is made anew, the others go on.
    assert_eq!(planned(&new, old[1..].to_vec()), (names([0]), names([])));
    let mut half = old.clone();
    half[0] = pods_of(&new).remove(0);
    assert_eq!(planned(&new, half.clone()), (names([0]), names([])));
    half[0] = ready(half[0].clone());
    assert_eq!(planned(&new, half), (names([0]), names([1])));
    // Those that serve nobody are not waited for.
    let mut sick = old;
    for pod in &mut sick {
        pod.status = None;
    }
    assert_eq!(planned(&new, sick), (names([]), names([0, 1, 2])));
}

#[test]
fn a_pod_keeps_the_time_it_was_made_at() {
    let pods: Vec<Arc<Pod>> = pods_of(&echo(1, "hi")).into_iter().map(Arc::new).collect();
    let later = Timestamp::from_second(1000).unwrap();
    let again = plan(&echo(2, "hi"), &pods, later);
    let made: Vec<&str> = again.wanted.iter().map(|(pod, _)| pod.labels()[CREATED_AT].as_str()).collect();
    assert_eq!(made, ["0", "1000"]);
}

#[test]
fn pods_are_restricted_labelled_owned_and_say_the_message_literally() {
    let pod = pods_of(&echo(1, "it costs $(PRICE) $5")).remove(0);
    assert_eq!(pod.labels()[CREATED_BY], ECHOPOD);
    assert_eq!(pod.owner_references()[0].uid, "u-hello");
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(container["env"][0]["value"], "it costs $$(PRICE) $$5");
}

/// A request that the controller has sent: method, path and body.
type Sent = (String, String, Value);

/// One reconcile against an API server that gives these answers, one after the other. The answer null is what was
/// sent.
async fn reconcile(
    echo: EchoPod,
    pods: Vec<Pod>,
    open: bool,
    answers: Vec<(u16, Value)>,
) -> (Result<Action, EchoPodError>, Vec<Sent>) {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(service, "tenant-a");
    let gate = if open {
        Gate::always_open()
    } else {
        Lease::new(client.clone(), LeaseConfig::new("tenant-a", "echopod", "a")).unwrap().gate()
    };
    let (store, mut writer) = reflector::store();
    for pod in pods {
        writer.apply_watcher_event(&Event::Apply(pod));
    }
    let (events, unwritten) =
        events::channel(client.clone(), gate.clone(), "examples.mysqlfleet.io/echopod", "a".to_owned());
    let reconciler =
        Reconciler { pods: store, applier: Applier::new(client, gate).managed_by(ECHOPOD), events };
    let script = tokio::spawn(async move {
        let (mut sent, mut answers) = (Vec::new(), answers.into_iter());
        while let Some((request, send)) = server.next_request().await {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            sent.push((parts.method.to_string(), parts.uri.path().to_owned(), body.clone()));
            let (code, answer) = answers.next().unwrap_or_else(|| panic!("not in the script: {sent:?}"));
            let answer = if answer.is_null() { body } else { answer };
            let answer = Body::from(answer.to_string().into_bytes());
            send.send_response(Response::builder().status(code).body(answer).unwrap());
        }
        assert_eq!(answers.next(), None, "the script goes on");
        sent
    });
    let result = reconciler.reconcile(Arc::new(echo)).await;
    drop((reconciler, unwritten));
    (result, script.await.unwrap())
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "no", "code": code}),
    )
}

fn steps(sent: &[Sent]) -> Vec<String> {
    let last = |path: &str| path.trim_start_matches("/api/v1/namespaces/tenant-a/").to_owned();
    sent.iter().map(|(method, path, _)| format!("{method} {}", last(path))).collect()
}

const STATUS: &str = "PATCH /apis/examples.mysqlfleet.io/v1/namespaces/tenant-a/echopods/hello/status";

/// What the API server answers to the patch of a status.
fn as_written() -> (u16, Value) {
    (200, serde_json::to_value(echo(2, "hi")).unwrap())
}

#[tokio::test]
async fn pods_are_applied_and_the_status_tells_of_them() {
    let made = || [failure(404, "NotFound"), (200, Value::Null)];
    let answers = [&made()[..], &made(), &[as_written()]].concat();
    let (result, sent) = reconcile(echo(2, "hi"), vec![], true, answers).await;
    result.unwrap();
    let wanted = ["GET pods/hello-0", "PATCH pods/hello-0", "GET pods/hello-1", "PATCH pods/hello-1", STATUS];
    assert_eq!(steps(&sent), wanted);
    let status = &sent[4].2["status"];
    assert_eq!(status["ready"], "0/2");
    assert_eq!(status["observedGeneration"], 4);
    assert_eq!(status["conditions"][0]["message"], "0 of 2 pods are ready and say the message");
}

#[tokio::test]
async fn what_is_as_wanted_costs_no_request() {
    let pods = || -> Vec<Pod> { pods_of(&echo(1, "hi")).into_iter().map(ready).collect() };
    let apply = [(200, Value::Null), as_written()];
    let (result, sent) = reconcile(echo(1, "hi"), pods(), true, apply.into()).await;
    result.unwrap();
    // As the API server has them now: with the applier's mark, and with the status.
    let mut live: Pod = serde_json::from_value(sent[0].2.clone()).unwrap();
    live.status = pods()[0].status.clone();
    let mut settled = echo(1, "hi");
    settled.status = Some(serde_json::from_value(sent[1].2["status"].clone()).unwrap());
    let (result, sent) = reconcile(settled, vec![live], true, vec![]).await;
    result.unwrap();
    assert!(sent.is_empty());
}

#[tokio::test]
async fn without_the_lease_nothing_is_written() {
    let (result, sent) = reconcile(echo(1, "hi"), pods_of(&echo(2, "hi")), false, vec![]).await;
    assert_eq!(result.unwrap_err().reason(), "LeaseNotHeld");
    assert!(sent.is_empty());
}

#[tokio::test]
async fn a_pod_that_is_refused_is_said_in_the_status_and_not_tried_again_by_itself() {
    let answers = vec![failure(404, "NotFound"), failure(422, "Invalid"), as_written()];
    let (result, sent) = reconcile(echo(1, "hi"), vec![], true, answers).await;
    let error = result.unwrap_err();
    assert_eq!((error.class(), error.reason()), (ErrorClass::Invalid, "Rejected"));
    let condition = &sent[2].2["status"]["conditions"][1];
    assert_eq!((&condition["status"], &condition["reason"]), (&"False".into(), &"Rejected".into()));
    assert!(condition["message"].as_str().unwrap().contains("Pod tenant-a/hello-0"), "{condition}");
}

#[tokio::test]
async fn a_status_of_an_object_that_has_changed_is_left_to_the_next_reconcile() {
    let answers = vec![failure(404, "NotFound"), (200, Value::Null), failure(409, "Conflict")];
    let (result, _) = reconcile(echo(1, "hi"), vec![], true, answers).await;
    assert_eq!(result.unwrap(), Action::await_change());
}

#[tokio::test]
async fn one_that_is_being_deleted_gets_no_pods() {
    let mut dying = echo(1, "hi");
    dying.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let (result, sent) = reconcile(dying, vec![], true, vec![]).await;
    assert_eq!(result.unwrap(), Action::await_change());
    assert!(sent.is_empty());
}

#[test]
fn the_code_of_the_tutorial_is_the_code_of_the_example() {
    let checkout = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| {
        std::fs::read_to_string(checkout.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let page = read("docs/writing-a-controller.md");
    let mut compared = 0;
    for block in page.split("\n```rust\n").skip(1).chain(page.split("\n```toml\n").skip(1)) {
        let (code, _) = block.split_once("\n```").unwrap();
        let (file, code) = code.split_once('\n').unwrap();
        let file = file.trim_start_matches(['/', '#', ' ']);
        assert!(read(file).contains(code), "not in {file}:\n{code}");
        compared += 1;
    }
    assert!(compared > 0, "no code is shown");
}
