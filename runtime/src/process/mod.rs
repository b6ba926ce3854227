//! The frame of a controller's process: flags, what is served, the Lease, the caches, and the end.
//!
//! ```text
//! main ─► exit_code(..., run)          telemetry; exit code 0, 1 or 2
//!          run: Process::start         signals, /metrics, /livez and /readyz, a Kubernetes client
//!               namespace_is_there     waits for the API server; a missing namespace is a usage error
//!               lease                  the Lease, and the gate that every write asks
//!               watch                  a cache of each kind of children
//!               events                 what people are told
//!               control                the reconcile loop, while the Lease is held
//!               run                    until a signal, or until one of these tasks dies
//! ```
//!
//! `docs/writing-a-controller.md` builds a controller with it.

mod args;
mod cache;
mod namespace;

use std::{future::Future, process::ExitCode, time::Duration};

pub use args::{ProcessArgs, image, object_name};
pub use cache::owner;
use kube::{Client, Resource, core::NamespaceResourceScope};
pub use namespace::NamespaceError;
use serde::de::DeserializeOwned;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    apply::Object,
    controller::{self, Changed, Options, Reconcile, Totals},
    events::{self, Events},
    health::Health,
    lease::{Gate, Lease, LeaseError, LeaseState},
    metrics::Metrics,
    server::{self, BindError},
    shutdown::{self, Supervisor, TaskEnded},
    telemetry::{self, TelemetryArgs},
    tls,
};

/// Time that running work has after the shutdown was asked for.
const GRACE: Duration = Duration::from_secs(15);

/// The process can't start, or has ended because of this.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// An address is in use.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No Kubernetes to talk to.
    #[error(
        "no Kubernetes cluster is configured: {0}. Run in a pod with a ServiceAccount, or set KUBECONFIG to a \
         kubeconfig file that exists and has a current context"
    )]
    Kubeconfig(#[from] kube::config::InferConfigError),
    /// The kubeconfig can't be used.
    #[error("the Kubernetes configuration can't be used: {0}")]
    Client(#[from] kube::Error),
    /// The namespace is not there.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Signals can't be listened to.
    #[error("can't listen to signals: {0}")]
    Signals(#[from] std::io::Error),
    /// The Lease can't be configured.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A task has died.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

impl ProcessError {
    /// Whether a flag or the environment is to blame: then trying again changes nothing.
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Bind(_) | Self::Kubeconfig(_) | Self::Client(_) | Self::Namespace(_) => true,
            Self::Signals(_) | Self::Lease(_) | Self::Task(_) => false,
        }
    }
}

/// Runs a program to its end, with its log and traces: 0 after an orderly end, 2 where a flag or the
/// environment is to blame, 1 for all else. Must be called within a tokio runtime.
pub async fn exit_code(
    program: &'static str,
    telemetry: &TelemetryArgs,
    run: impl Future<Output = Result<(), ProcessError>>,
) -> ExitCode {
    tls::install_provider();
    let telemetry = match telemetry::init(program, telemetry) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let code = match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, program, "the program ends");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    };
    telemetry.flush();
    code
}

/// A controller's process, while it is put together.
///
/// All of its tasks are essential: the first that dies ends the others, and the process.
pub struct Process {
    /// The checked flags.
    pub args: ProcessArgs,
    /// The Kubernetes client. Its requests are counted, and none is repeated by itself.
    pub client: Client,
    /// The metrics, which are served.
    pub metrics: Metrics,
    /// Cancelled when the process has to end.
    pub shutdown: CancellationToken,
    /// The tasks. Each has to end with the shutdown.
    pub tasks: Supervisor,
}

impl Process {
    /// Catches signals, serves metrics and health, and makes a client of `KUBECONFIG` or of the pod's
    /// ServiceAccount. Nothing is asked of the API server yet. `/readyz` fails once the shutdown has begun.
    pub async fn start(args: &ProcessArgs, health: Health) -> Result<Self, ProcessError> {
        let shutdown = shutdown::on_signal()?;
        let metrics_listener = server::bind("--metrics-addr", args.metrics_addr).await?;
        let health_listener = server::bind("--health-addr", args.health_addr).await?;
        let metrics = Metrics::new();
        let client = metrics.kube_client(kube::Config::infer().await?)?;
        let tasks = Supervisor::new(shutdown.clone());
        let mut process = Self { args: args.clone(), client, metrics, shutdown, tasks };
        process.serve("metrics server", metrics_listener, process.metrics.router());
        let ending = process.shutdown.clone();
        let health = health.ready("shutdown", move || {
            let ending = ending.is_cancelled();
            async move { if ending { Err("the process is ending".to_owned()) } else { Ok(()) } }
        });
        process.serve("health server", health_listener, health.router());
        Ok(process)
    }

    fn serve(&mut self, name: &'static str, listener: TcpListener, router: axum::Router) {
        self.tasks.essential(name, server::serve_http(listener, router, self.shutdown.clone()));
    }

    /// Waits until the API server answers. False if the shutdown comes before. A namespace that does not
    /// exist, or that the credentials have no rights in, is an error; `advice` says where the rights come from.
    pub async fn namespace_is_there(&self, advice: &str) -> Result<bool, NamespaceError> {
        tokio::select! {
            found = namespace::wait(&self.client, &self.args.namespace, advice) => found.map(|()| true),
            () = self.shutdown.cancelled() => Ok(false),
        }
    }

    /// A Lease of the namespace, which is not yet tried for: see [`Self::lead`] and [`Self::control`].
    pub fn lease(&self, name: &str) -> Result<Lease, LeaseError> {
        Lease::new(self.client.clone(), self.args.lease(name))
    }

    /// Takes events, and writes them while the gate is open. `controller` is who reports them.
    pub fn events(&mut self, controller: &str, gate: Gate) -> Events {
        let pod = self.args.pod_name.clone();
        let (events, writer) = events::channel(self.client.clone(), gate, controller, pod);
        self.tasks.essential("events", writer.run(self.shutdown.clone()));
        events
    }

    /// Competes for the Lease while `work` runs, and gives it up once that has ended. `work` has to wait
    /// until this process leads by itself ([`LeaseState::leading`]), and to end with the shutdown.
    pub fn lead<E>(&mut self, lease: Lease, work: impl Future<Output = Result<(), E>> + Send + 'static)
    where
        E: std::fmt::Display + 'static,
    {
        let name = lease.name().to_owned();
        let shown = show_leadership(self.metrics.clone(), name, lease.state(), self.shutdown.clone());
        self.tasks.essential("leadership metric", shown);
        let work_stopped = CancellationToken::new();
        self.tasks.essential("Lease", lease.run(work_stopped.clone()));
        self.tasks.essential("controller", async move {
            // However it ends: a panic has ended the work, too.
            let _stopped = work_stopped.drop_guard();
            work.await
        });
    }

    /// Runs a controller of the objects `K` of the namespace while this process holds the Lease.
    ///
    /// It begins once `caches` are filled: before that, an absent child says nothing. `name` is the
    /// controller's in metrics. An object is reconciled when it changes, and when `changed` names it.
    pub fn control<K, R>(
        &mut self,
        name: &'static str,
        lease: Lease,
        caches: impl Future<Output = Result<(), kube::runtime::reflector::store::WriterDropped>> + Send + 'static,
        changed: &Changed,
        reconciler: R,
    ) where
        K: Object + Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Send + Sync + 'static,
        R: Reconcile<K>,
    {
        let namespace = &self.args.namespace;
        let totals = Totals::new(name, &self.metrics);
        let options = Options::new(name, namespace, self.args.concurrency);
        let watched = controller::watched::<K>(&self.client, namespace, changed);
        let (mut state, shutdown) = (lease.state(), self.shutdown.clone());
        self.lead(lease, async move {
            let filled = tokio::select! {
                filled = caches => filled.is_ok(),
                () = shutdown.cancelled() => false,
            };
            if !filled || !LeaseState::leading(&mut state, &shutdown).await {
                return Ok(());
            }
            controller::run(watched, reconciler.into(), options, totals, shutdown).await
        });
    }

    /// Runs until a signal, or until a task dies: the error then says which. Running work has 15 s to end.
    pub async fn run(self) -> Result<(), ProcessError> {
        Ok(self.tasks.run(GRACE).await?)
    }
}

/// Shows in the metrics who leads, until the shutdown.
async fn show_leadership(
    metrics: Metrics,
    lease: String,
    mut state: watch::Receiver<LeaseState>,
    shutdown: CancellationToken,
) -> Result<(), watch::error::RecvError> {
    loop {
        metrics.set_leader(&lease, matches!(*state.borrow_and_update(), LeaseState::Leader(_)));
        tokio::select! {
            // First: nobody sends any more once the shutdown has ended the Lease, and that is no failure.
            biased;
            () = shutdown.cancelled() => return Ok(()),
            changed = state.changed() => changed?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_that_ended_at_the_shutdown_is_no_failure() {
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        for _ in 0..100 {
            let (sender, state) = watch::channel(LeaseState::Lost);
            drop(sender);
            show_leadership(Metrics::new(), "shard-a".to_owned(), state, shutdown.clone()).await.unwrap();
        }
    }
}
