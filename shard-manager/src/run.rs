//! The process: what is started, in which order, and what ends it.

use std::{sync::Arc, time::Duration};

use fleet_api::v1::MySQLCluster;
use fleet_proto::{DESCRIPTORS, shard::v1::shard_service_server::ShardServiceServer};
use fleet_runtime::{
    apply::Applier,
    controller::{self, ControllerError, Options, Totals},
    grpc,
    health::Health,
    lease::{Lease, LeaseConfig, LeaseError, LeaseState},
    metrics::Metrics,
    server::{self, BindError},
    shutdown::{self, Supervisor, TaskEnded},
    tls::ReloadingIdentity,
};
use futures::StreamExt as _;
use kube::{
    Api, Client,
    core::DeserializeGuard,
    runtime::{Controller, reflector::ObjectRef, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, interceptor::InterceptedService};

use crate::{
    agents::Agents,
    changed::Changed,
    cluster::{Reconciler, publish::Publisher},
    config::Config,
    namespace::{self, NamespaceError},
    service::{ALLOWED, Requester, Service, ShardState},
    stores::Stores,
    tenant::{FoundKeys, Keeper},
};

/// Time that running work has after the shutdown was asked for.
const GRACE: Duration = Duration::from_secs(15);
/// The services that reflection tells of: the descriptors have those of agents too.
const SHARD_SERVICE: &str = fleet_proto::shard::v1::shard_service_server::SERVICE_NAME;
const HEALTH_SERVICE: &str = tonic_health::pb::health_server::SERVICE_NAME;
/// Name of the controller in metrics.
const CONTROLLER: &str = "mysqlcluster";

/// The process can't start, or has ended because of this.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
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
    /// The Lease can't be configured, or was lost.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A task has died.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

impl RunError {
    /// Whether a flag or the environment is to blame: then trying again changes nothing.
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Bind(_) | Self::Kubeconfig(_) | Self::Client(_) | Self::Namespace(_) => true,
            Self::Signals(_) | Self::Lease(_) | Self::Task(_) => false,
        }
    }
}

/// Runs until a signal, or until an essential task dies.
pub async fn run(config: Config) -> Result<(), RunError> {
    let shutdown = shutdown::on_signal()?;
    let metrics_listener = server::bind("--metrics-addr", config.metrics_addr).await?;
    let health_listener = server::bind("--health-addr", config.health_addr).await?;
    let grpc_listener = server::bind("--grpc-addr", config.grpc_addr).await?;
    let metrics = Metrics::new();
    let client = metrics.kube_client(kube::Config::infer().await?)?;
    let mut tasks = Supervisor::new(shutdown.clone());

    let (identity_sender, identity) = watch::channel(None);
    let (keys_sender, keys) = watch::channel(None);
    let (agents_sender, agents) = watch::channel(None);
    let health = health(&identity, &shutdown);
    tasks.essential(
        "metrics server",
        server::serve_http(metrics_listener, metrics.router(), shutdown.clone()),
    );
    tasks.essential("health server", server::serve_http(health_listener, health.router(), shutdown.clone()));
    tokio::select! {
        found = namespace::wait(&client, &config.namespace) => found?,
        () = shutdown.cancelled() => return Ok(tasks.run(GRACE).await?),
    }

    let lease = Lease::new(
        client.clone(),
        LeaseConfig::new(&config.namespace, &config.lease_name, &config.pod_name),
    )?;
    let changed = Changed::default();
    let stores = Stores::watch(&client, &config.namespace, &changed, &mut tasks, &shutdown);
    let totals = Totals::new(CONTROLLER, &metrics);
    let applier = Applier::new(client.clone(), lease.gate());
    let service = Service {
        state: ShardState::new(
            (config.namespace.clone(), config.pod_name.clone(), config.lease_name.clone()),
            stores.clone(),
            lease.state(),
            totals.clone(),
            agents,
        ),
        requester: Requester {
            clusters: Api::namespaced(client.clone(), &config.namespace),
            applier: applier.clone(),
        },
        shutdown: shutdown.clone(),
    };
    tasks.essential("gRPC server", {
        let (shutdown, namespace) = (shutdown.clone(), config.namespace.clone());
        let reflection = config.grpc_reflection;
        async move {
            let Some(identity) = first(identity, &shutdown).await else {
                return Ok(());
            };
            grpc::serve(grpc_listener, identity, routes(service, &namespace, reflection), shutdown).await
        }
    });
    tasks.essential(
        "leadership metric",
        show_leadership(metrics, config.lease_name.clone(), lease.state(), shutdown.clone()),
    );

    let (publisher, teller) =
        Publisher::new(client.clone(), applier.clone(), lease.gate(), config.pod_name.clone());
    tasks.essential("events", teller.run(shutdown.clone()));
    let leader =
        Leader { config, client, stores, applier, publisher, changed, totals, keys, agents: agents_sender };
    let keeper = Keeper {
        namespace: leader.config.namespace.clone(),
        stores: leader.stores.clone(),
        applier: leader.applier.clone(),
        secrets: Api::namespaced(leader.client.clone(), &leader.config.namespace),
        keys: keys_sender,
        identity: identity_sender.clone(),
    };
    let work_stopped = CancellationToken::new();
    let (gate, state) = (lease.gate(), lease.state());
    tasks.essential("Lease", lease.run(work_stopped.clone()));
    tasks.essential("controller", async move {
        if leader.stores_ready(&shutdown).await {
            let leading = {
                let gate = gate.clone();
                move || gate.is_open()
            };
            let (_, worked) = tokio::join!(
                keeper.run(leading, shutdown.clone()),
                leader.work(identity_sender.subscribe(), state, gate, shutdown),
            );
            work_stopped.cancel();
            worked
        } else {
            work_stopped.cancel();
            Ok(())
        }
    });
    Ok(tasks.run(GRACE).await?)
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

fn health(identity: &watch::Receiver<Option<ReloadingIdentity>>, shutdown: &CancellationToken) -> Health {
    let (identity, shutdown) = (identity.clone(), shutdown.clone());
    Health::new()
        .ready("certificate", move || {
            let there = identity.borrow().is_some();
            async move {
                let missing = "the shard's certificate is not there yet: the leader makes it";
                if there { Ok(()) } else { Err(missing.to_owned()) }
            }
        })
        .ready("shutdown", move || {
            let ending = shutdown.is_cancelled();
            async move { if ending { Err("the process is ending".to_owned()) } else { Ok(()) } }
        })
}

fn routes(service: Service, namespace: &str, reflection: bool) -> Routes {
    let only_ours = grpc::role_interceptor(namespace, ALLOWED);
    let (reporter, health) = tonic_health::server::health_reporter();
    let mut routes = Routes::new(ShardServiceServer::new(service))
        .add_service(InterceptedService::new(health, only_ours.clone()));
    if reflection {
        let built = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(SHARD_SERVICE)
            .with_service_name(HEALTH_SERVICE)
            .build_v1();
        match built {
            Ok(reflection) => routes = routes.add_service(InterceptedService::new(reflection, only_ours)),
            Err(error) => tracing::error!(%error, "gRPC reflection is not served"),
        }
    }
    drop(reporter);
    routes
}

/// The first value, unless the shutdown comes before.
async fn first<T: Clone>(mut values: watch::Receiver<Option<T>>, shutdown: &CancellationToken) -> Option<T> {
    tokio::select! {
        found = values.wait_for(Option::is_some) => found.ok()?.clone(),
        () = shutdown.cancelled() => None,
    }
}

/// What the leader alone does.
struct Leader {
    config: Config,
    client: Client,
    stores: Stores,
    applier: Applier,
    publisher: Publisher,
    changed: Changed,
    totals: Totals,
    keys: watch::Receiver<FoundKeys>,
    agents: watch::Sender<Option<Arc<Agents>>>,
}

impl Leader {
    async fn stores_ready(&self, shutdown: &CancellationToken) -> bool {
        tokio::select! {
            ready = self.stores.ready() => ready.is_ok(),
            () = shutdown.cancelled() => false,
        }
    }

    /// Waits for the Lease, then reconciles until the shutdown.
    async fn work(
        self,
        identity: watch::Receiver<Option<ReloadingIdentity>>,
        mut state: watch::Receiver<LeaseState>,
        gate: fleet_runtime::lease::Gate,
        shutdown: CancellationToken,
    ) -> Result<(), ControllerError> {
        tokio::select! {
            leading = state.wait_for(|state| matches!(state, LeaseState::Leader(_))) => {
                if leading.is_err() {
                    return Ok(());
                }
            }
            () = shutdown.cancelled() => return Ok(()),
        }
        // Readable or not: a cluster says what is wrong with them, and can be deleted without.
        if first(self.keys.clone(), &shutdown).await.is_none() {
            return Ok(());
        }
        let namespace = self.config.namespace;
        let agents = Arc::new(Agents::new(namespace.clone(), identity, gate, self.changed.clone()));
        self.agents.send_replace(Some(Arc::clone(&agents)));
        let reconciler = Arc::new(Reconciler {
            namespace: namespace.clone(),
            images: self.config.images,
            stores: self.stores,
            applier: self.applier,
            agents,
            keys: self.keys,
            publisher: self.publisher,
            clusters: Api::namespaced(self.client.clone(), &namespace),
            memory: tokio::sync::Mutex::default(),
        });
        let clusters: Api<DeserializeGuard<MySQLCluster>> = Api::namespaced(self.client, &namespace);
        let options = Options::new(CONTROLLER, namespace.clone(), self.config.concurrency);
        let triggers = self.changed.stream().map(move |name| ObjectRef::new(&name).within(&namespace));
        let watched = Controller::new(clusters, watcher::Config::default()).reconcile_on(triggers);
        controller::run::<MySQLCluster, _>(watched, reconciler, options, self.totals, shutdown).await
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
