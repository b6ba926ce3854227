//! The reconcile loop: watches and queue are kube's, and what happens to a reconcile is decided here.
//!
//! Each reconcile has a deadline, a span, and one outcome:
//!
//! | outcome | next reconcile |
//! |---|---|
//! | success | as the reconciler says |
//! | `Transient` | after a delay that doubles per failure up to 30 s, with jitter; `Retry-After` if longer |
//! | `Invalid` | when the object, or something it is watched for, changes |
//! | `Blocked` | at such a change, and at the safety interval |
//! | `Fatal` | when it changes; until then the object is set aside, in [`Totals::set_aside`] |
//!
//! A reconcile that panics is `Fatal`, one that passes its deadline `Transient`. An object that can't be
//! decoded is `Fatal` and never reaches the reconciler.

mod changed;
mod totals;
mod worker;

use std::{fmt::Debug, future::Future, num::NonZeroUsize, sync::Arc, time::Duration};

pub use changed::Changed;
use futures::{FutureExt as _, StreamExt as _};
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::{
        Config, Controller,
        controller::{Action, Error},
        reflector::ObjectRef,
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
pub use totals::{ReconcileTotal, SetAside, Totals};
use worker::Worker;

use crate::error::Classified;

/// Changes that come within this time of each other are one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Brings one object to what it says.
pub trait Reconcile<K>: Send + Sync + 'static {
    /// Why it can't.
    type Error: Classified + Send + 'static;

    /// One reconcile, which is dropped at the deadline: it must be safe to cancel at every await.
    fn reconcile(&self, object: Arc<K>) -> impl Future<Output = Result<Action, Self::Error>> + Send;
}

/// How a controller runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the controller in metrics.
    pub name: &'static str,
    /// Namespace it works for, in every log line.
    pub tenant: String,
    /// Reconciles at the same time.
    pub concurrency: NonZeroUsize,
    /// Limit of one reconcile.
    pub deadline: Duration,
    /// Time after which a blocked object is looked at although nothing has changed.
    pub safety_interval: Duration,
}

impl Options {
    /// The fleet's times: a deadline of 30 s, and a safety interval of 10 s.
    pub fn new(name: &'static str, tenant: impl Into<String>, concurrency: NonZeroUsize) -> Self {
        Self {
            name,
            tenant: tenant.into(),
            concurrency,
            deadline: Duration::from_secs(30),
            safety_interval: Duration::from_secs(10),
        }
    }
}

/// The loop has ended though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// kube's queue has stopped.
    #[error("the queue of controller {0} has stopped")]
    Stopped(&'static str),
    /// kube's runner can't go on.
    #[error("controller {name} can't go on: {message}")]
    Runner {
        /// Name of the controller.
        name: &'static str,
        /// Why.
        message: String,
    },
}

/// The controller of a namespace's objects: each is reconciled when it changes, and when `changed` names it.
pub fn watched<K>(client: &Client, namespace: &str, changed: &Changed) -> Controller<DeserializeGuard<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<DeserializeGuard<K>>::namespaced(client.clone(), namespace);
    let namespace = namespace.to_owned();
    let triggers = changed.stream().map(move |(_, name)| ObjectRef::new(&name).within(&namespace));
    Controller::new(api, watcher::Config::default()).reconcile_on(triggers)
}

/// The controller of the objects of all namespaces, or of a kind without namespaces: each is reconciled when it
/// changes, and when `changed` names it.
pub fn watched_everywhere<K>(client: &Client, changed: &Changed) -> Controller<DeserializeGuard<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<DeserializeGuard<K>>::all(client.clone());
    let triggers = changed.stream().map(|(namespace, name)| match namespace.as_str() {
        "" => ObjectRef::new(&name),
        namespace => ObjectRef::new(&name).within(namespace),
    });
    Controller::new(api, watcher::Config::default()).reconcile_on(triggers)
}

/// Runs a controller until `shutdown`. Reconciles that run then are finished, within their deadline.
///
/// The watches are `controller`'s; concurrency and debouncing of its configuration are overridden.
pub async fn run<K, R>(
    controller: Controller<DeserializeGuard<K>>,
    reconciler: Arc<R>,
    options: Options,
    totals: Totals,
    shutdown: CancellationToken,
) -> Result<(), ControllerError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    R: Reconcile<K>,
{
    let name = options.name;
    let store = controller.store();
    let worker = Worker::new(store.clone(), reconciler, options, totals, shutdown.clone());
    let worker = Arc::new(worker);
    // The number of reconciles at a time is the worker's own: kube does not tell how many wait.
    let mut outcomes = controller
        .with_config(Config::default().debounce(DEBOUNCE))
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(Worker::reconcile, Worker::error_policy, worker.clone())
        .boxed();
    // Before the objects are listed kube's loop does not end, and no reconcile runs.
    let ended_before_listed = async {
        shutdown.cancelled().await;
        if store.wait_until_ready().now_or_never().is_some() {
            std::future::pending::<()>().await;
        }
    };
    let mut ended_before_listed = std::pin::pin!(ended_before_listed);
    loop {
        let outcome = tokio::select! {
            outcome = outcomes.next() => outcome,
            () = &mut ended_before_listed => return Ok(()),
        };
        let Some(outcome) = outcome else { break };
        match outcome {
            Ok(_) => {}
            Err(Error::ObjectNotFound(object)) => {
                worker.forget(object.namespace.as_deref().unwrap_or_default(), &object.name);
            }
            Err(Error::ReconcilerFailed(never, _)) => match never {},
            // Watches come back by themselves, with a backoff.
            Err(Error::QueueError(error)) => tracing::warn!(controller = name, %error, "a watch has failed"),
            Err(Error::RunnerError(error)) => {
                return Err(ControllerError::Runner { name, message: error.to_string() });
            }
        }
    }
    if shutdown.is_cancelled() { Ok(()) } else { Err(ControllerError::Stopped(name)) }
}

#[cfg(test)]
mod tests;
