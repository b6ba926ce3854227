use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    client::Body,
    runtime::{
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher::Event,
    },
};
use serde_json::json;
use tokio::{sync::Semaphore, time::Instant};

use super::*;
use crate::{error::ErrorClass, metrics::Metrics};

type Guarded = DeserializeGuard<ConfigMap>;

#[derive(Debug, thiserror::Error)]
#[error("it is {0}")]
struct Scripted(ErrorClass);

impl Classified for Scripted {
    fn class(&self) -> ErrorClass {
        self.0
    }

    fn reason(&self) -> &'static str {
        "Scripted"
    }
}

enum Step {
    Done,
    Fail(ErrorClass),
    Panic,
    Hang,
}

/// Does what the script says, one step per reconcile, then succeeds.
#[derive(Default)]
struct Script {
    steps: Mutex<VecDeque<Step>>,
    /// Without permits reconciles wait here.
    hold: Option<Semaphore>,
}

impl Reconcile<ConfigMap> for Script {
    type Error = Scripted;

    async fn reconcile(&self, _: Arc<ConfigMap>) -> Result<Action, Scripted> {
        if let Some(hold) = &self.hold {
            hold.acquire().await.unwrap().forget();
        }
        let step = self.steps.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match step.unwrap_or(Step::Done) {
            Step::Done => Ok(Action::requeue(Duration::from_secs(10))),
            Step::Fail(class) => Err(Scripted(class)),
            Step::Panic => panic!("lost invariant"),
            Step::Hang => std::future::pending().await,
        }
    }
}

struct Fixture {
    worker: Arc<Worker<ConfigMap, Script>>,
    totals: Totals,
    metrics: Metrics,
    script: Arc<Script>,
    store: Store<Guarded>,
    _writer: Writer<Guarded>,
}

fn object(name: &str) -> Guarded {
    let object = json!({"metadata": {"name": name, "namespace": "tenant-a"}, "data": {}});
    serde_json::from_value(object).unwrap()
}

fn fixture(script: Script, objects: Vec<Guarded>) -> Fixture {
    let (metrics, script) = (Metrics::new(), Arc::new(script));
    let totals = Totals::new("mysqlcluster", &metrics);
    let (store, mut writer) = reflector::store();
    for object in objects {
        writer.apply_watcher_event(&Event::Apply(object));
    }
    let options = Options::new("mysqlcluster", "tenant-a", NonZeroUsize::MIN);
    let worker =
        Worker::new(store.clone(), script.clone(), options, totals.clone(), CancellationToken::new());
    Fixture { worker: Arc::new(worker), totals, metrics, script, store, _writer: writer }
}

fn script(steps: impl IntoIterator<Item = Step>) -> Script {
    Script { steps: Mutex::new(steps.into_iter().collect()), hold: None }
}

impl Fixture {
    async fn reconcile(&self, name: &str) -> Action {
        let object = self.store.get(&ObjectRef::new(name).within("tenant-a")).unwrap();
        let Ok(action) = Worker::reconcile(object, self.worker.clone()).await;
        action
    }

    fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.totals.snapshot().into_iter().map(|total| (total.result, total.reason, total.count)).collect()
    }
}

/// Some time within the bounds, since delays are random. An action shows its delay to nobody but in its
/// debug text.
fn assert_after(action: &Action, from: f64, to: f64) {
    let text = format!("{action:?}");
    let delay = text.trim_start_matches("Action { requeue_after: Some(").trim_end_matches(") }");
    let seconds = match delay.strip_suffix("ms") {
        Some(millis) => millis.parse::<f64>().unwrap() / 1000.0,
        None => delay.trim_end_matches('s').parse().unwrap(),
    };
    assert!((from..=to).contains(&seconds), "{text} is not from {from} s to {to} s");
}

#[tokio::test(start_paused = true)]
async fn success_is_answered_by_the_reconcilers_own_action() {
    let fixture = fixture(script([]), vec![object("orders")]);
    assert_eq!(fixture.reconcile("orders").await, Action::requeue(Duration::from_secs(10)));
    assert_eq!(fixture.counts(), [("success", "", 1)]);
}

#[tokio::test(start_paused = true)]
async fn transient_errors_back_off_up_to_the_cap_and_start_anew_after_success() {
    let fail = || Step::Fail(ErrorClass::Transient);
    let mut steps: Vec<Step> = (0..10).map(|_| fail()).collect();
    steps.extend([Step::Done, fail()]);
    let fixture = fixture(script(steps), vec![object("orders")]);
    assert_after(&fixture.reconcile("orders").await, 0.25, 0.5);
    assert_after(&fixture.reconcile("orders").await, 0.5, 1.0);
    for _ in 2..10 {
        fixture.reconcile("orders").await;
    }
    assert_eq!(fixture.reconcile("orders").await, Action::requeue(Duration::from_secs(10)));
    assert_after(&fixture.reconcile("orders").await, 0.25, 0.5);
    assert_eq!(fixture.counts(), [("success", "", 1), ("transient", "Scripted", 11)]);
}

#[tokio::test(start_paused = true)]
async fn each_class_has_its_consequence() {
    let steps = [ErrorClass::Invalid, ErrorClass::Blocked, ErrorClass::Fatal].map(Step::Fail);
    let fixture = fixture(script(steps), vec![object("orders")]);
    assert_eq!(fixture.reconcile("orders").await, Action::await_change());
    assert_after(&fixture.reconcile("orders").await, 10.0, 11.0);
    assert_eq!(fixture.totals.set_aside(), []);
    assert_eq!(fixture.reconcile("orders").await, Action::await_change());
    let aside = fixture.totals.set_aside();
    assert_eq!((aside[0].name.as_str(), aside[0].reason), ("orders", "Scripted"));
    fixture.reconcile("orders").await;
    assert_eq!(fixture.totals.set_aside(), []);
}

#[tokio::test(start_paused = true)]
async fn a_panic_sets_the_object_aside_and_others_go_on() {
    let fixture = fixture(script([Step::Panic]), vec![object("orders"), object("other")]);
    assert_eq!(fixture.reconcile("orders").await, Action::await_change());
    fixture.reconcile("other").await;
    let aside = fixture.totals.set_aside();
    assert_eq!(aside.len(), 1);
    assert_eq!(aside[0].message, "the reconcile panicked: lost invariant");
    let text = fixture.metrics.encode().unwrap();
    for line in [
        "controller_runtime_reconcile_total{controller=\"mysqlcluster\",result=\"terminal_error\"} 1",
        "controller_runtime_reconcile_total{controller=\"mysqlcluster\",result=\"success\"} 1",
        "mysqlfleet_reconcile_total{controller=\"mysqlcluster\",result=\"fatal\",reason=\"Panicked\"} 1",
        "controller_runtime_reconcile_time_seconds_count{controller=\"mysqlcluster\"} 2",
        "controller_runtime_reconcile_errors_total{controller=\"mysqlcluster\"} 1",
        "controller_runtime_reconcile_panics_total{controller=\"mysqlcluster\"} 1",
        "controller_runtime_active_workers{controller=\"mysqlcluster\"} 0",
        "controller_runtime_max_concurrent_reconciles{controller=\"mysqlcluster\"} 1",
        "mysqlfleet_set_aside_objects{controller=\"mysqlcluster\"} 1",
        "workqueue_queue_duration_seconds_count{name=\"mysqlcluster\"} 2",
        "workqueue_depth{name=\"mysqlcluster\"} 0",
        "workqueue_adds_total{name=\"mysqlcluster\"} 2",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

/// Panics before it has made a future, as a function that is not `async` can.
struct AtOnce;

impl Reconcile<ConfigMap> for AtOnce {
    type Error = Scripted;

    fn reconcile(&self, object: Arc<ConfigMap>) -> impl Future<Output = Result<Action, Scripted>> + Send {
        assert!(object.data.is_none(), "too early");
        async { Ok(Action::await_change()) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_is_caught_too() {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Apply(object("orders")));
    let totals = Totals::new("mysqlcluster", &Metrics::new());
    let options = Options::new("mysqlcluster", "tenant-a", NonZeroUsize::MIN);
    let token = CancellationToken::new();
    let worker = Worker::new(store.clone(), Arc::new(AtOnce), options, totals.clone(), token);
    let object = store.get(&ObjectRef::new("orders").within("tenant-a")).unwrap();
    let Ok(action) = Worker::reconcile(object, Arc::new(worker)).await;
    assert_eq!(action, Action::await_change());
    assert_eq!(totals.set_aside()[0].message, "the reconcile panicked: too early");
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_is_cancelled_at_its_deadline() {
    let fixture = fixture(script([Step::Hang]), vec![object("orders")]);
    let started = Instant::now();
    assert_after(&fixture.reconcile("orders").await, 0.25, 0.5);
    assert_eq!(started.elapsed().as_secs(), 30);
    assert_eq!(fixture.counts(), [("transient", "DeadlineExceeded", 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_never_reaches_the_reconciler() {
    let nonsense = json!({"metadata": {"name": "orders", "namespace": "tenant-a"}, "data": 7});
    let fixture = fixture(script([Step::Panic]), vec![serde_json::from_value(nonsense).unwrap()]);
    assert_eq!(fixture.reconcile("orders").await, Action::await_change());
    assert_eq!(fixture.totals.set_aside()[0].reason, "Undecodable");
}

#[tokio::test(start_paused = true)]
async fn objects_that_wait_for_their_turn_are_the_queue() {
    let script = Script { hold: Some(Semaphore::new(0)), ..script([]) };
    let fixture = fixture(script, vec![object("a"), object("b"), object("c")]);
    let (a, b, c) = (fixture.reconcile("a"), fixture.reconcile("b"), fixture.reconcile("c"));
    let watched = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let depth = fixture.totals.queue_depth();
        fixture.script.hold.as_ref().unwrap().add_permits(3);
        depth
    };
    let (_, _, _, depth) = tokio::join!(a, b, c, watched);
    assert_eq!(depth, 2);
    assert_eq!(fixture.totals.queue_depth(), 0);
}

#[tokio::test]
async fn a_shutdown_before_the_objects_are_listed_is_no_failure() {
    let (service, mut server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let controller = watched::<ConfigMap>(&Client::new(service, "tenant-a"), "tenant-a", &Changed::default());
    let options = Options::new("mysqlcluster", "tenant-a", NonZeroUsize::MIN);
    let totals = Totals::new("mysqlcluster", &Metrics::new());
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(run(controller, script([]).into(), options, totals, shutdown.clone()));
    let _unanswered = server.next_request().await.unwrap();
    shutdown.cancel();
    running.await.unwrap().unwrap();
}
