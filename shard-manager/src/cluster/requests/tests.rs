use std::time::Duration;

use fleet_runtime::lease::Gate;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::Value;
use tower_test::mock::{self, Handle};

use super::*;
use crate::cluster::observe::unobserved;

type Server = Handle<Request<Body>, Response<Body>>;

fn cluster(switchover: &str, version: &str) -> MySQLCluster {
    serde_json::from_value(json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
        "metadata": {
            "name": "orders", "namespace": "tenant-a", "resourceVersion": version,
            "annotations": {names::ANNOTATION_SWITCHOVER: switchover, "team": "shop"},
        },
        "spec": {"version": "9.7", "storage": {"size": "1Gi"}},
    }))
    .unwrap()
}

/// A writer, and the API server that it talks to.
fn applier() -> (Applier, Server) {
    let (service, server) = mock::pair();
    (Applier::new(Client::new(service, "tenant-a"), Gate::always_open()), server)
}

/// Answers one request with an object; returns its path and its body.
async fn serve(server: &mut Server, code: u16, answer: &Value) -> (String, Value) {
    let next = tokio::time::timeout(Duration::from_secs(5), server.next_request());
    let (request, send) = next.await.expect("no request was sent").unwrap();
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    send.send_response(
        Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap(),
    );
    (parts.uri.path().to_owned(), serde_json::from_slice(&body).unwrap())
}

#[test]
fn only_a_pod_of_the_cluster_any_or_what_was_begun_is_a_wish() {
    for (value, wish) in [
        ("any", Wish::Any),
        ("orders-0", Wish::To(InstanceId(0))),
        ("orders-12", Wish::To(InstanceId(12))),
        ("orders-2 in term 7", Wish::Begun { to: InstanceId(2), term: Term(7) }),
    ] {
        assert_eq!(parse("orders", value), Ok(wish), "{value}");
    }
    let long = "x".repeat(10_000);
    for value in
        ["", " ", "Any", "orders", "orders-", "orders-01", "invoices-1", "1", "orders-1 in term x", &long]
    {
        let refusal = parse("orders", value).unwrap_err();
        assert!(
            refusal.contains("mysqlfleet.io/switchover") && refusal.contains("orders-1, or any"),
            "{refusal}"
        );
        assert!(refusal.contains(value.get(..4).unwrap_or(value)) && refusal.len() < 300, "{refusal}");
    }
}

#[test]
fn a_wish_is_answered_once_it_is_over_with_names_that_people_use() {
    let to = InstanceId(2);
    for goes_on in [Fulfilment::Waits, Fulfilment::UnderWay { to, term: Term(2) }] {
        assert_eq!(answer("orders", Wish::Any, &goes_on), None);
    }
    let done = answer("orders", Wish::Begun { to, term: Term(2) }, &Fulfilment::Done(to)).unwrap();
    assert_eq!((done.reason(), done.asked.as_str()), ("SwitchoverDone", "orders-2"));
    let refusal = Fulfilment::Refused("instance 2 is behind".to_owned());
    let refused = answer("orders", Wish::Any, &refusal).unwrap();
    assert_eq!((refused.reason(), refused.asked.as_str()), ("SwitchoverRefused", "any"));
    assert_eq!(refused.message, "orders-2 is behind");
}

#[tokio::test]
async fn what_is_begun_is_written_down_once_and_guarded() {
    let (applier, mut server) = applier();
    let (to, term) = (InstanceId(2), Term(7));
    let after = cluster("orders-2 in term 7", "8");
    let answer = serde_json::to_value(&after).unwrap();
    let (taken_up, (path, body)) =
        tokio::join!(take_up(&applier, cluster("any", "7"), to, term), serve(&mut server, 200, &answer));
    assert_eq!(taken_up.unwrap(), after);
    assert!(path.ends_with("/mysqlclusters/orders"), "{path}");
    assert_eq!(
        body,
        json!({"metadata": {
            "resourceVersion": "7", "annotations": {"mysqlfleet.io/switchover": "orders-2 in term 7"},
        }})
    );
    // Nothing is sent: nobody would answer.
    let again =
        tokio::time::timeout(Duration::from_secs(5), take_up(&applier, after.clone(), to, term)).await;
    assert_eq!(again.unwrap().unwrap(), after);
}

#[tokio::test]
async fn an_answer_is_kept_before_the_annotation_is_taken_off() {
    let (applier, mut server) = applier();
    let answer = Answer {
        kind: RequestKind::Switchover,
        asked: "any".to_owned(),
        outcome: RequestOutcome::Refused,
        message: "no".to_owned(),
    };
    let asked = cluster("any", "7");
    let told = serde_json::to_value(cluster("any", "8")).unwrap();
    let answers = async {
        let first = serve(&mut server, 200, &told).await;
        (first, serve(&mut server, 200, &told).await)
    };
    let (settled, (first, second)) =
        tokio::join!(settle(&applier, &asked, &answer, Timestamp::UNIX_EPOCH), answers);
    settled.unwrap();
    assert!(first.0.ends_with("/mysqlclusters/orders/status"), "{first:?}");
    assert_eq!(first.1["metadata"]["resourceVersion"], "7");
    let kept = &first.1["status"]["answeredRequests"];
    assert_eq!((&kept[0]["kind"], &kept[0]["outcome"]), (&json!("Switchover"), &json!("Refused")));
    assert!(second.0.ends_with("/mysqlclusters/orders"), "{second:?}");
    assert_eq!(
        second.1,
        json!({"metadata": {"resourceVersion": "8", "annotations": {"mysqlfleet.io/switchover": null}}})
    );
}

#[tokio::test]
async fn a_request_that_was_changed_meanwhile_is_not_taken_off() {
    let (applier, mut server) = applier();
    let asked = cluster("any", "7");
    let wish = parse("orders", "any").unwrap();
    let answer = answer("orders", wish, &Fulfilment::Done(InstanceId(1))).unwrap();
    let conflict =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409});
    let (settled, _) = tokio::join!(
        settle(&applier, &asked, &answer, Timestamp::UNIX_EPOCH),
        serve(&mut server, 409, &conflict)
    );
    assert!(settled.unwrap_err().is_conflict());
}

#[test]
fn only_a_pod_of_the_cluster_can_be_rebuilt() {
    let read = |value| parse_rebuild("orders", value);
    assert_eq!(read("orders-1"), Ok(Rebuild { instance: InstanceId(1), begun: false }));
    assert_eq!(read("orders-1 begun"), Ok(Rebuild { instance: InstanceId(1), begun: true }));
    for value in ["", "any", "orders", "invoices-1", "orders-1 begun begun", "orders-1begun"] {
        let refusal = read(value).unwrap_err();
        assert!(
            refusal.contains("mysqlfleet.io/rebuild") && refusal.contains("such as orders-1"),
            "{refusal}"
        );
    }
}

#[test]
fn an_instance_is_released_only_by_its_pod_and_the_transactions_that_it_keeps() {
    const UUID: &str = "9a3c8f0e-0000-0000-0000-000000000001";
    let read = |value: &str| parse_release("orders", value);
    let chosen = |gtids: String| Release { instance: InstanceId(1), transactions: gtids.parse().unwrap() };
    assert_eq!(read(&format!("orders-1 {UUID}:1-2")), Ok(chosen(format!("{UUID}:1-2"))));
    let written = release("orders-1", &format!("{UUID}:1-2,\n{UUID}:backup:7"));
    assert_eq!(read(&written), Ok(chosen(format!("{UUID}:1-2:backup:7"))));
    for value in ["", "any", "orders", "invoices-1"] {
        let refusal = read(&format!("{value} {UUID}:1")).unwrap_err();
        assert!(
            refusal.contains("mysqlfleet.io/release") && refusal.contains("such as orders-1"),
            "{refusal}"
        );
    }
    for gtids in ["", "all", "9a3c8f0e:1", "9a3c8f0e-0000-0000-0000-000000000001:0"] {
        let refusal = read(&format!("orders-1 {gtids}")).unwrap_err();
        assert!(refusal.contains("transactions can't be read") && refusal.contains("orders-1"), "{refusal}");
    }
}

#[test]
fn a_release_is_answered_once_it_is_over() {
    let transactions: GtidSet = "9a3c8f0e-0000-0000-0000-000000000001:1-2".parse().unwrap();
    let release = Release { instance: InstanceId(1), transactions };
    for goes_on in [Releasing::Waits, Releasing::UnderWay] {
        assert_eq!(answer_release("orders", &release, &goes_on), None);
    }
    let done = answer_release("orders", &release, &Releasing::Done).unwrap();
    assert_eq!((done.reason(), done.asked.as_str()), ("ReleaseDone", "orders-1"));
    assert!(done.message.contains(":1-2"), "{}", done.message);
    let refusal = Releasing::Refused("instance 1 is in sync".to_owned());
    let refused = answer_release("orders", &release, &refusal).unwrap();
    assert_eq!((refused.reason(), refused.message.as_str()), ("ReleaseRefused", "orders-1 is in sync"));
}

#[test]
fn each_request_is_answered_by_itself() {
    let mut both = cluster("nonsense", "7");
    both.annotations_mut().insert(names::ANNOTATION_REBUILD.to_owned(), "orders-1 begun".to_owned());
    let both = requests(&both);
    assert_eq!((both.wish, both.rebuild), (None, Some(Rebuild { instance: InstanceId(1), begun: true })));
    let view = fleet_topology::ClusterView {
        wanted_primary: both.wish,
        rebuild: both.rebuild,
        release: both.release.clone(),
        force: both.force,
        ..unobserved()
    };
    let mut decision = fleet_topology::decide(&view);
    let reasons = |decision: &Decision| -> Vec<_> {
        both.answers("orders", decision)
            .iter()
            .map(|answer| (answer.reason(), answer.asked.clone()))
            .collect()
    };
    let refused = ("SwitchoverRefused", "nonsense".to_owned());
    assert_eq!(reasons(&decision), std::slice::from_ref(&refused), "the rebuilding goes on");
    decision.rebuilding = Some(Rebuilding::Done);
    assert_eq!(reasons(&decision), [refused, ("RebuildDone", "orders-1".to_owned())]);
}

#[tokio::test]
async fn what_is_given_up_is_written_down_once_and_guarded() {
    let (applier, mut server) = applier();
    let chosen = InstanceId(1);
    let mut after = cluster("any", "8");
    after.annotations_mut().insert(names::ANNOTATION_REBUILD.to_owned(), "orders-1 begun".to_owned());
    let answer = serde_json::to_value(&after).unwrap();
    let (taken_up, (_, body)) = tokio::join!(
        take_up_rebuild(&applier, cluster("any", "7"), chosen),
        serve(&mut server, 200, &answer)
    );
    assert_eq!(taken_up.unwrap(), after);
    assert_eq!(
        body,
        json!({"metadata": {
            "resourceVersion": "7", "annotations": {"mysqlfleet.io/rebuild": "orders-1 begun"},
        }})
    );
    // Nothing is sent: nobody would answer.
    let again =
        tokio::time::timeout(Duration::from_secs(5), take_up_rebuild(&applier, after.clone(), chosen));
    assert_eq!(again.await.unwrap().unwrap(), after);
}

#[test]
fn a_primary_is_forced_only_by_a_pod_with_the_words_that_accept_the_loss() {
    let read = |value| parse_force("orders", value);
    let chosen = InstanceId(1);
    assert_eq!(read("orders-1 accept-data-loss"), Ok(Force { instance: chosen, begun: None }));
    let begun = Some(Term(7));
    assert_eq!(read("orders-1 accept-data-loss in term 7"), Ok(Force { instance: chosen, begun }));
    assert_eq!(parse_force("orders", &force("orders-1")), Ok(Force { instance: chosen, begun: None }));
    let unaccepted = read("orders-1").unwrap_err();
    assert!(unaccepted.contains("make it \"orders-1 accept-data-loss\""), "{unaccepted}");
    for value in [
        "",
        "any",
        "orders",
        "any accept-data-loss",
        "invoices-1 accept-data-loss",
        "orders-1 in term 7",
        "orders-1 accept-data-loss in term x",
        "orders-1 accept-data-loss accept-data-loss",
    ] {
        let refusal = read(value).unwrap_err();
        assert!(
            refusal.contains("mysqlfleet.io/force-primary")
                && refusal.contains("orders-1, and accept-data-loss"),
            "{refusal}"
        );
    }
}

#[test]
fn a_forced_takeover_is_answered_once_it_is_over_with_what_is_said_of_it() {
    let force = Force { instance: InstanceId(2), begun: Some(Term(7)) };
    for goes_on in [Forcing::Waits, Forcing::UnderWay { begun: Term(7) }] {
        assert_eq!(answer_force("orders", force, &goes_on), None);
    }
    let said = || "instance 2 takes writes".to_owned();
    let done = answer_force("orders", force, &Forcing::Done(said())).unwrap();
    assert_eq!((done.reason(), done.asked.as_str()), ("ForcePrimaryDone", "orders-2"));
    assert_eq!(done.message, "orders-2 takes writes");
    let refused = answer_force("orders", force, &Forcing::Refused(said())).unwrap();
    assert_eq!((refused.reason(), refused.asked.as_str()), ("ForcePrimaryRefused", "orders-2"));
}

#[test]
fn what_is_asked_of_force_gets_to_the_decision_and_back() {
    let mut asked = cluster("any", "7");
    let annotations = asked.annotations_mut();
    annotations.remove(names::ANNOTATION_SWITCHOVER);
    annotations.insert(names::ANNOTATION_FORCE_PRIMARY.to_owned(), force("orders-1"));
    let seen = requests(&asked);
    assert_eq!(seen.force, Some(Force { instance: InstanceId(1), begun: None }));
    let unseen =
        |_: &str| crate::agents::Sighting { facts: None, unknown_for: Duration::ZERO, problem: None };
    let children = crate::cluster::dereference::Children::default();
    let plan = crate::cluster::rollout::Plan::of(&asked, &children, None);
    let observed = crate::cluster::observe::observe(&plan, &children, unseen, Vec::new(), &seen).unwrap();
    let answers = seen.answers("orders", &fleet_topology::decide(&observed.view));
    let told: Vec<_> = answers.iter().map(|answer| (answer.reason(), answer.message.as_str())).collect();
    assert!(
        matches!(told.as_slice(), [("ForcePrimaryRefused", why)] if why.contains("Bootstrapping")),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_takeover_that_begins_is_written_down_once_and_guarded() {
    let (applier, mut server) = applier();
    let (chosen, begun) = (InstanceId(2), Term(7));
    let value = "orders-2 accept-data-loss in term 7";
    let mut after = cluster("any", "8");
    after.annotations_mut().insert(names::ANNOTATION_FORCE_PRIMARY.to_owned(), value.to_owned());
    let answer = serde_json::to_value(&after).unwrap();
    let (taken_up, (_, body)) = tokio::join!(
        take_up_force(&applier, cluster("any", "7"), chosen, begun),
        serve(&mut server, 200, &answer)
    );
    assert_eq!(taken_up.unwrap(), after);
    assert_eq!(
        body,
        json!({"metadata": {
            "resourceVersion": "7", "annotations": {"mysqlfleet.io/force-primary": value},
        }})
    );
    // Nothing is sent: nobody would answer.
    let again = take_up_force(&applier, after.clone(), chosen, begun);
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), again).await.unwrap().unwrap(), after);
}
