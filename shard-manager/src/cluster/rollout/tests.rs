use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::*;
use crate::cluster::{dereference::Children, observe::unobserved};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn cluster(image: &str) -> MySQLCluster {
    serde_json::from_value(json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
        "metadata": { "name": "orders", "uid": "u1" },
        "spec": {
            "version": "9.7.4", "image": image, "storage": { "size": "1Gi" },
            "mysqld": { "max_connections": "100" }, "progressDeadline": "5m"
        }
    }))
    .unwrap()
}

fn mark(cluster: &MySQLCluster) -> String {
    TemplateMark::of(cluster).spec().to_owned()
}

fn revision(number: i64, owner: &str, data: Value) -> Arc<ControllerRevision> {
    Arc::new(ControllerRevision {
        metadata: serde_json::from_value(json!({
            "name": format!("orders-template-{number}"),
            "ownerReferences": [
                { "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "name": "orders", "uid": owner }
            ]
        }))
        .unwrap(),
        data: k8s_openapi::apimachinery::pkg::runtime::RawExtension(data),
        revision: Some(number),
    })
}

fn kept(revisions: Vec<Arc<ControllerRevision>>) -> Children {
    let named = revisions.into_iter().map(|revision| (revision.name_any(), revision));
    Children { revisions: named.collect(), ..Children::default() }
}

fn template(image: &str) -> Value {
    serde_json::to_value(Template::of(&cluster(image).spec)).unwrap()
}

/// The template with image `good` has worked.
fn good() -> Children {
    kept(vec![revision(7, "u1", template("good"))])
}

fn pod(of: &MySQLCluster) -> ObjectMeta {
    serde_json::from_value(json!({ "annotations": { "mysqlfleet.io/spec-hash": mark(of) } })).unwrap()
}

fn with(mut cluster: MySQLCluster, status: MySQLClusterStatus) -> MySQLCluster {
    cluster.status = Some(status);
    cluster
}

/// The cluster whose image `bad` was given up, for orders-2.
fn after_giving_up() -> MySQLCluster {
    let bad = cluster("bad");
    let plan = Plan::of(&bad, &good(), None);
    let status = plan.give_up(&bad, InstanceId(2), "no such image".to_owned(), NOW).unwrap();
    with(bad, status)
}

#[test]
fn what_was_given_up_is_not_in_force_until_the_spec_is_another_one() {
    let bad = after_giving_up();
    let given_up = bad.status.clone().unwrap().rollout.unwrap().given_up.unwrap();
    assert_eq!(given_up.fields, ["spec.image"]);
    assert_eq!((given_up.instance.as_str(), given_up.reason.as_str()), ("orders-2", "no such image"));
    assert_eq!((given_up.template, given_up.restored), (mark(&bad), mark(&cluster("good"))));

    let plan = Plan::of(&bad, &good(), None);
    assert_eq!(plan.cluster.spec, cluster("good").spec);
    assert_eq!(plan.trial.fallback, Fallback::None, "there is nothing else to go back to");
    assert!(plan.is_outdated(&pod(&bad)) && plan.is_abandoned(&pod(&bad)));
    assert!(!plan.is_outdated(&pod(&cluster("good"))));

    let status = bad.status.clone().unwrap();
    let mut other = with(cluster("other"), status.clone());
    let plan = Plan::of(&other, &good(), None);
    assert_eq!((&plan.cluster.spec, plan.trial.fallback), (&other.spec, Fallback::There));
    assert!(plan.is_outdated(&pod(&cluster("good"))) && !plan.is_abandoned(&pod(&cluster("good"))));
    assert!(plan.is_abandoned(&pod(&bad)), "it is neither wanted nor known to work");
    // More time is another try.
    other = with(cluster("bad"), status.clone());
    other.spec.progress_deadline = "10m".to_owned().try_into().unwrap();
    assert_eq!(Plan::of(&other, &good(), None).cluster.spec, other.spec);
    // What no pod is made from is none, and goes on while the rest is given up.
    other = with(cluster("bad"), status);
    other.spec.replicas = 5;
    let spec = Plan::of(&other, &good(), None).cluster.spec;
    assert_eq!((spec.image.as_deref(), spec.replicas), (Some("good"), 5));
}

/// A pod of any of them may start its mysqld again.
#[test]
fn the_keys_of_what_was_given_up_and_of_what_has_worked_stay_known() {
    let marks = |asked: &MySQLCluster, children: &Children| -> Vec<String> {
        let others = Plan::of(asked, children, None).others(asked);
        others.iter().map(|keys| keys.mark.spec().to_owned()).collect()
    };
    let (good, bad) = (mark(&cluster("good")), mark(&cluster("bad")));
    assert!(marks(&cluster("good"), &self::good()).is_empty());
    assert_eq!(marks(&cluster("bad"), &self::good()), [good]);
    assert_eq!(marks(&after_giving_up(), &self::good()), [bad]);
    assert!(marks(&cluster("bad"), &Children::default()).is_empty());
}

#[test]
fn only_what_is_kept_of_this_very_cluster_is_gone_back_to() {
    let bad = cluster("bad");
    let fallback = |children: &Children| Plan::of(&bad, children, None).trial.fallback;
    assert_eq!(fallback(&good()), Fallback::There);
    assert_eq!(fallback(&Children::default()), Fallback::None);
    assert_eq!(
        fallback(&kept(vec![revision(7, "u0", template("good"))])),
        Fallback::None,
        "of one deleted before"
    );
    assert_eq!(fallback(&kept(vec![revision(7, "u1", json!({ "spec": {} }))])), Fallback::None, "not ours");
    let two = vec![revision(7, "u1", template("good")), revision(8, "u1", template("bad"))];
    assert_eq!(fallback(&kept(two)), Fallback::None, "the newest one is what is wanted");
}

#[test]
fn the_way_back_to_a_mysqld_that_may_not_read_the_data_is_barred() {
    let mut bad = cluster("bad");
    bad.spec.version = "9.7".to_owned();
    assert_eq!(Plan::of(&bad, &good(), None).trial.fallback, Fallback::There, "of the same series");
    bad.spec.version = "8.4.2".to_owned();
    assert_eq!(Plan::of(&bad, &good(), None).trial.fallback, Fallback::Barred);
}

#[tokio::test(start_paused = true)]
async fn the_time_that_was_waited_goes_on_with_another_leader_and_stands_still_where_it_does_not_run() {
    let bad = cluster("bad");
    let begun = Instant::now();
    let progress = |runs| Progress {
        waits_for: Some(InstanceId(2)),
        runs,
        verdict: Verdict::Open,
        ..Progress::default()
    };
    let look = |cluster: &MySQLCluster, watch: Option<&Stopwatch>, after: u64| {
        Plan::of(cluster, &good(), watch.map(|watch| (watch, begun + Duration::from_secs(after))))
    };
    let at = |after: u64| begun + Duration::from_secs(after);

    let mut watch = look(&bad, None, 0).stopwatch(None, &progress(true), None, at(0));
    assert_eq!(look(&bad, watch.as_ref(), 40).trial.waiting.unwrap().for_ms, 40_000);
    watch = look(&bad, watch.as_ref(), 40).stopwatch(watch, &progress(false), None, at(40));
    assert_eq!(look(&bad, watch.as_ref(), 90).trial.waiting.unwrap().for_ms, 40_000);
    watch = look(&bad, watch.as_ref(), 90).stopwatch(watch, &progress(true), None, at(90));
    let plan = look(&bad, watch.as_ref(), 100);
    assert_eq!(plan.trial.waiting, Some(Waiting { instance: InstanceId(2), for_ms: 50_000 }));

    let mut decision = fleet_topology::decide(&unobserved());
    (decision.state, decision.progress) = (State::Degraded, progress(true));
    let status = plan.status(&decision, 2, NOW).unwrap();
    assert_eq!(
        (status.state, status.waits_for.as_ref().unwrap().waited_seconds),
        (RolloutState::Updating, 50)
    );
    let written = with(bad, MySQLClusterStatus { rollout: Some(status), ..MySQLClusterStatus::default() });
    let plan = look(&written, None, 1000);
    assert_eq!(
        plan.trial.waiting,
        Some(Waiting { instance: InstanceId(2), for_ms: 50_000 }),
        "by the next leader"
    );
    watch = plan.stopwatch(None, &progress(true), None, at(1000));
    assert_eq!(look(&written, watch.as_ref(), 1010).trial.waiting.unwrap().for_ms, 60_000);
    // It is the time of that instance and template alone.
    let other = Progress { waits_for: Some(InstanceId(1)), ..progress(true) };
    watch = look(&written, watch.as_ref(), 1010).stopwatch(watch, &other, None, at(1010));
    assert_eq!(look(&written, watch.as_ref(), 1010).trial.waiting.unwrap().for_ms, 0);
    let next = with(cluster("next"), written.status.unwrap());
    assert_eq!(look(&next, watch.as_ref(), 1020).trial.waiting, None);
}

#[tokio::test(start_paused = true)]
async fn what_an_instance_said_is_not_forgotten_while_it_tries_again() {
    let plan = Plan::of(&cluster("bad"), &good(), None);
    let progress = Progress { waits_for: Some(InstanceId(2)), runs: true, ..Progress::default() };
    let words = "unknown variable".to_owned();
    let mut watch = plan.stopwatch(None, &progress, None, Instant::now());
    let reason = |watch: &Option<Stopwatch>, now: &str, says_why| {
        watch.as_ref().unwrap().reason(now.to_owned(), says_why)
    };
    assert_eq!(reason(&watch, "starts mysqld", false), "starts mysqld");
    watch = plan.stopwatch(watch, &progress, Some(&words), Instant::now());
    watch = plan.stopwatch(watch, &progress, None, Instant::now());
    assert_eq!(reason(&watch, "starts mysqld", false), "starts mysqld; before: unknown variable");
    assert_eq!(reason(&watch, "ended; unknown variable", true), "ended; unknown variable");
    let other = Progress { waits_for: Some(InstanceId(1)), ..progress };
    watch = plan.stopwatch(watch, &other, None, Instant::now());
    assert_eq!(reason(&watch, "starts mysqld", false), "starts mysqld", "another one said so");
}

#[test]
fn the_status_says_how_far_it_is_until_nothing_is_left_to_do() {
    let mut decision = fleet_topology::decide(&unobserved());
    decision.state = State::Degraded;
    let mut state = |cluster: &MySQLCluster, verdict, outdated| {
        decision.progress.verdict = verdict;
        Plan::of(cluster, &good(), None).status(&decision, outdated, NOW).map(|status| status.state)
    };
    let bad = cluster("bad");
    assert_eq!(state(&bad, Verdict::Open, 2), Some(RolloutState::Updating));
    assert_eq!(
        state(&bad, Verdict::Open, 0),
        Some(RolloutState::Updating),
        "the last one is not in sync yet"
    );
    assert_eq!(state(&bad, Verdict::Overdue, 2), Some(RolloutState::Stopped));
    assert_eq!(state(&bad, Verdict::Works, 0), None);
    assert_eq!(state(&cluster("good"), Verdict::Open, 0), None);
    assert_eq!(
        state(&cluster("good"), Verdict::Open, 1),
        Some(RolloutState::Updating),
        "set back by a person"
    );

    let mut back = after_giving_up();
    assert_eq!(state(&back, Verdict::Open, 1), Some(RolloutState::RollingBack));
    assert_eq!(state(&back, Verdict::Open, 0), Some(RolloutState::RollingBack), "not in sync yet");
    assert_eq!(state(&back, Verdict::Works, 0), Some(RolloutState::RolledBack));
    let rollout = back.status.as_mut().unwrap().rollout.as_mut().unwrap();
    rollout.state = RolloutState::RolledBack;
    assert_eq!(
        state(&back, Verdict::Open, 0),
        Some(RolloutState::RolledBack),
        "an instance is away for another reason"
    );
}
