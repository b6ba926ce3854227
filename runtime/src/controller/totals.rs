//! What a controller has done, for metrics and for the status of the shard.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};
use tokio::sync::watch;

use crate::{error::ErrorClass, metrics::Metrics};

/// Reconciles of one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileTotal {
    /// `success`, or the class of the error.
    pub result: &'static str,
    /// Reason of the error, empty for success.
    pub reason: &'static str,
    /// How many since the process started.
    pub count: u64,
}

/// An object that is not reconciled until it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Reason of the error.
    pub reason: &'static str,
    /// The error.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    controller: &'static str,
    result: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
}

type Unsigned = Counter<u64, AtomicU64>;
type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// The numbers of one controller. Clones share them.
#[derive(Clone, Debug)]
pub struct Totals {
    name: &'static str,
    seen: Arc<Mutex<Seen>>,
    generation: Arc<watch::Sender<u64>>,
    results: Family<ResultLabels, Unsigned>,
    reasons: Family<ReasonLabels, Unsigned>,
    time: HistogramFamily<ControllerLabels>,
    errors: Family<ControllerLabels, Unsigned>,
    panics: Family<ControllerLabels, Unsigned>,
    active: Family<ControllerLabels, Gauge>,
    most_active: Family<ControllerLabels, Gauge>,
    aside: Family<ControllerLabels, Gauge>,
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Unsigned>,
    waited: HistogramFamily<QueueLabels>,
}

#[derive(Debug, Default)]
struct Seen {
    waiting: u64,
    totals: BTreeMap<(&'static str, &'static str), u64>,
    set_aside: BTreeMap<(String, String), SetAside>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Totals {
    /// The numbers of the controller `name`, which are registered as metrics too. Once per process and name.
    pub fn new(name: &'static str, metrics: &Metrics) -> Self {
        let totals = Self {
            name,
            seen: Arc::default(),
            generation: Arc::new(watch::Sender::new(0)),
            results: Family::default(),
            reasons: Family::default(),
            time: Family::new_with_constructor(seconds),
            errors: Family::default(),
            panics: Family::default(),
            active: Family::default(),
            most_active: Family::default(),
            aside: Family::default(),
            depth: Family::default(),
            adds: Family::default(),
            waited: Family::new_with_constructor(seconds),
        };
        metrics.register(|registry| {
            registry.register(
                "controller_runtime_reconcile",
                "Reconciles by result: success, error (tried again or waiting), terminal_error (set aside)",
                totals.results.clone(),
            );
            registry.register(
                "mysqlfleet_reconcile",
                "Reconciles by result (success or the error's class) and the error's reason",
                totals.reasons.clone(),
            );
            registry.register(
                "controller_runtime_reconcile_time_seconds",
                "Duration of reconciles",
                totals.time.clone(),
            );
            registry.register(
                "controller_runtime_reconcile_errors",
                "Reconciles that have failed",
                totals.errors.clone(),
            );
            registry.register(
                "controller_runtime_reconcile_panics",
                "Reconciles that have panicked",
                totals.panics.clone(),
            );
            registry.register(
                "controller_runtime_active_workers",
                "Reconciles that run now",
                totals.active.clone(),
            );
            registry.register(
                "controller_runtime_max_concurrent_reconciles",
                "Reconciles that may run at the same time",
                totals.most_active.clone(),
            );
            registry.register(
                "mysqlfleet_set_aside_objects",
                "Objects that are not reconciled until they change, since they can't be or must not be",
                totals.aside.clone(),
            );
            registry.register("workqueue_depth", "Objects that wait for a reconcile", totals.depth.clone());
            registry.register("workqueue_adds", "Objects that were put into the queue", totals.adds.clone());
            registry.register(
                "workqueue_queue_duration_seconds",
                "How long objects waited in the queue",
                totals.waited.clone(),
            );
        });
        // A rate of what has no value yet shows nothing of its first increase.
        let controller = ControllerLabels { controller: name };
        for counter in [&totals.errors, &totals.panics] {
            let _from_zero = counter.get_or_create(&controller);
        }
        for gauge in [&totals.active, &totals.aside] {
            gauge.get_or_create(&controller).set(0);
        }
        totals.depth.get_or_create(&QueueLabels { name }).set(0);
        totals
    }

    /// Objects that wait for a reconcile now.
    pub fn queue_depth(&self) -> u64 {
        self.seen().waiting
    }

    /// All results so far, ordered.
    pub fn snapshot(&self) -> Vec<ReconcileTotal> {
        let of = |(&(result, reason), &count): (&(&'static str, &'static str), &u64)| ReconcileTotal {
            result,
            reason,
            count,
        };
        self.seen().totals.iter().map(of).collect()
    }

    /// Objects that are set aside now, ordered.
    pub fn set_aside(&self) -> Vec<SetAside> {
        self.seen().set_aside.values().cloned().collect()
    }

    /// A number that grows with each reconcile.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Counts an object as waiting until the guard is dropped.
    pub(super) fn wait(&self) -> Waiting {
        self.adds.get_or_create(&QueueLabels { name: self.name }).inc();
        self.count_waiting(|waiting| waiting.saturating_add(1));
        Waiting { totals: self.clone(), since: tokio::time::Instant::now() }
    }

    /// Says how many reconciles may run at the same time.
    pub(super) fn limited_to(&self, concurrency: usize) {
        let most = i64::try_from(concurrency).unwrap_or(i64::MAX);
        self.most_active.get_or_create(&self.labels()).set(most);
    }

    /// Counts a reconcile as running until the guard is dropped.
    pub(super) fn begin(&self) -> Running {
        self.active.get_or_create(&self.labels()).inc();
        Running { totals: self.clone() }
    }

    /// Counts a panic. It is recorded as a failed reconcile, too.
    pub(super) fn panicked(&self) {
        self.panics.get_or_create(&self.labels()).inc();
    }

    fn labels(&self) -> ControllerLabels {
        ControllerLabels { controller: self.name }
    }

    pub(super) fn record(&self, outcome: Result<(), (ErrorClass, &'static str)>, took: Duration) {
        let controller = self.name;
        let (result, reason) = match outcome {
            Ok(()) => ("success", ""),
            Err((class, reason)) => (class.as_str(), reason),
        };
        let known = match outcome {
            Ok(()) => "success",
            Err((ErrorClass::Fatal, _)) => "terminal_error",
            Err(_) => "error",
        };
        if outcome.is_err() {
            self.errors.get_or_create(&self.labels()).inc();
        }
        self.results.get_or_create(&ResultLabels { controller, result: known }).inc();
        self.reasons.get_or_create(&ReasonLabels { controller, result, reason }).inc();
        self.time.get_or_create(&ControllerLabels { controller }).observe(took.as_secs_f64());
        *self.seen().totals.entry((result, reason)).or_insert(0) += 1;
        self.generation.send_modify(|generation| *generation = generation.wrapping_add(1));
    }

    /// Sets an object aside, or takes it back.
    pub(super) fn aside(&self, namespace: &str, name: &str, error: Option<(&'static str, String)>) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut seen = self.seen();
        match error {
            Some((reason, message)) => {
                let (namespace, name) = key.clone();
                seen.set_aside.insert(key, SetAside { namespace, name, reason, message });
            }
            None => drop(seen.set_aside.remove(&key)),
        }
        let count = i64::try_from(seen.set_aside.len()).unwrap_or(i64::MAX);
        self.aside.get_or_create(&self.labels()).set(count);
    }

    fn count_waiting(&self, change: impl Fn(u64) -> u64) {
        let mut seen = self.seen();
        seen.waiting = change(seen.waiting);
        let depth = i64::try_from(seen.waiting).unwrap_or(i64::MAX);
        self.depth.get_or_create(&QueueLabels { name: self.name }).set(depth);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object that waits for a reconcile.
#[derive(Debug)]
pub(super) struct Waiting {
    totals: Totals,
    since: tokio::time::Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let labels = QueueLabels { name: self.totals.name };
        self.totals.waited.get_or_create(&labels).observe(self.since.elapsed().as_secs_f64());
        self.totals.count_waiting(|waiting| waiting.saturating_sub(1));
    }
}

/// A reconcile that runs.
#[derive(Debug)]
pub(super) struct Running {
    totals: Totals,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.totals.active.get_or_create(&self.totals.labels()).dec();
    }
}
