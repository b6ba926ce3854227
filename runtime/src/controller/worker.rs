//! One reconcile and its consequences.

use std::{
    collections::HashMap,
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use kube::{
    Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Options, Reconcile, Totals};
use crate::{
    backoff::{exponential, jitter, random_id},
    error::{Classified, ErrorClass, panic_text},
};

const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_CAP: Duration = Duration::from_secs(30);

/// A failed reconcile.
struct Failure {
    class: ErrorClass,
    reason: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

pub(super) struct Worker<K: Resource<DynamicType = ()> + 'static, R> {
    store: Store<DeserializeGuard<K>>,
    reconciler: Arc<R>,
    options: Options,
    totals: Totals,
    permits: Semaphore,
    /// Failures in a row, by namespace and name.
    failures: Mutex<HashMap<(String, String), u32>>,
    shutdown: CancellationToken,
}

impl<K, R> Worker<K, R>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    R: Reconcile<K>,
{
    pub(super) fn new(
        store: Store<DeserializeGuard<K>>,
        reconciler: Arc<R>,
        options: Options,
        totals: Totals,
        shutdown: CancellationToken,
    ) -> Self {
        let permits = Semaphore::new(options.concurrency.get());
        totals.limited_to(options.concurrency.get());
        Self { store, reconciler, options, totals, permits, failures: Mutex::default(), shutdown }
    }

    /// kube's reconcile function. It has no errors: their consequences are in the action.
    pub(super) async fn reconcile(
        object: Arc<DeserializeGuard<K>>,
        worker: Arc<Self>,
    ) -> Result<Action, Infallible> {
        let key = ObjectRef::from_obj(object.as_ref());
        Ok(worker.one(&key).await)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "kube's signature")]
    pub(super) fn error_policy(_: Arc<DeserializeGuard<K>>, never: &Infallible, _: Arc<Self>) -> Action {
        match *never {}
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, namespace: &str, name: &str) {
        self.failures().remove(&(namespace.to_owned(), name.to_owned()));
        self.totals.aside(namespace, name, None);
    }

    async fn one(&self, key: &ObjectRef<DeserializeGuard<K>>) -> Action {
        let waiting = self.totals.wait();
        let permit = tokio::select! {
            permit = self.permits.acquire() => permit,
            () = self.shutdown.cancelled() => return Action::await_change(),
        };
        drop(waiting);
        let Ok(_permit) = permit else {
            return Action::await_change();
        };
        let namespace = key.namespace.as_deref().unwrap_or_default();
        // It may have changed while it waited.
        let Some(object) = self.store.get(key) else {
            self.forget(namespace, &key.name);
            return Action::await_change();
        };
        let span = tracing::info_span!(
            "reconcile",
            tenant = %self.options.tenant,
            cluster = %key.name,
            reconcile_id = %random_id(),
        );
        self.guarded(&object, namespace).instrument(span).await
    }

    async fn guarded(&self, object: &DeserializeGuard<K>, namespace: &str) -> Action {
        let started = Instant::now();
        let _running = self.totals.begin();
        let outcome = match &object.0 {
            Ok(object) => self.attempt(Arc::new(object.clone())).await,
            Err(invalid) => Err(Failure {
                class: ErrorClass::Fatal,
                reason: "Undecodable",
                message: format!("the object can't be decoded: {}", invalid.error),
                retry_after: None,
            }),
        };
        let counted = outcome.as_ref().map(|_| ()).map_err(|failure| (failure.class, failure.reason));
        let took = started.elapsed();
        let action = self.consequence(namespace, &object.name_any(), outcome);
        self.totals.record(counted, took);
        action
    }

    async fn attempt(&self, object: Arc<K>) -> Result<Action, Failure> {
        let deadline = self.options.deadline;
        // Called within: what it does before its first await may panic, too.
        let reconcile = AssertUnwindSafe(async { self.reconciler.reconcile(object).await }).catch_unwind();
        match timeout(deadline, reconcile).await {
            Ok(Ok(Ok(action))) => Ok(action),
            Ok(Ok(Err(error))) => Err(Failure {
                class: error.class(),
                reason: error.reason(),
                message: error.to_string(),
                retry_after: error.retry_after(),
            }),
            Ok(Err(panic)) => {
                self.totals.panicked();
                Err(Failure {
                    class: ErrorClass::Fatal,
                    reason: "Panicked",
                    message: format!("the reconcile panicked: {}", panic_text(&*panic)),
                    retry_after: None,
                })
            }
            Err(_) => Err(Failure {
                class: ErrorClass::Transient,
                reason: "DeadlineExceeded",
                message: format!("the reconcile was cancelled after {} s", deadline.as_secs_f64()),
                retry_after: None,
            }),
        }
    }

    fn consequence(&self, namespace: &str, name: &str, outcome: Result<Action, Failure>) -> Action {
        let failure = match outcome {
            Ok(action) => {
                self.forget(namespace, name);
                return action;
            }
            Err(failure) => failure,
        };
        let Failure { class, reason, message, retry_after } = failure;
        tracing::warn!(%class, reason, error = %message, "reconcile has failed");
        let key = (namespace.to_owned(), name.to_owned());
        if class != ErrorClass::Transient {
            self.failures().remove(&key);
        }
        self.totals.aside(namespace, name, (class == ErrorClass::Fatal).then_some((reason, message)));
        match class {
            ErrorClass::Transient => {
                let failures = {
                    let mut all = self.failures();
                    let failures = all.entry(key).or_insert(0);
                    *failures = failures.saturating_add(1);
                    *failures
                };
                let delay = exponential(failures, BACKOFF, BACKOFF_CAP);
                Action::requeue(retry_after.map_or(delay, |asked| asked.max(delay)))
            }
            ErrorClass::Blocked => Action::requeue(jitter(self.options.safety_interval, 0.1)),
            ErrorClass::Invalid | ErrorClass::Fatal => Action::await_change(),
        }
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<(String, String), u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
