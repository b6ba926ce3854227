//! The process: what is started, in which order, and what ends it.

use std::sync::Arc;

use fleet_api::v1::MySQLCluster;
use fleet_proto::{DESCRIPTORS, shard::v1::shard_service_server::ShardServiceServer};
use fleet_runtime::{
    apply::Applier,
    controller::{self, Changed, ControllerError, Options, Totals},
    grpc,
    health::Health,
    lease::LeaseState,
    process::{Process, ProcessError},
    server,
    shutdown::first,
    tls::ReloadingIdentity,
};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, interceptor::InterceptedService};

use crate::{
    agents::Agents,
    cluster::{Reconciler, publish::Publisher},
    config::Config,
    federation::{Federation, FederationApplier, LinkBoard, Work},
    service::{ALLOWED, Requester, Service, ShardState},
    stores::Stores,
    tenant::{Exchange, FoundKeys, Keeper},
};

/// The services that reflection tells of: the descriptors have those of agents too.
const SHARD_SERVICE: &str = fleet_proto::shard::v1::shard_service_server::SERVICE_NAME;
const HEALTH_SERVICE: &str = tonic_health::pb::health_server::SERVICE_NAME;
/// Name of the controller in metrics.
const CONTROLLER: &str = "mysqlcluster";
/// Who reports events.
const REPORTER: &str = "mysqlfleet.io/shard-manager";

/// Runs until a signal, or until an essential task dies.
pub async fn run(config: Config) -> Result<(), ProcessError> {
    let (identity_sender, identity) = watch::channel(None);
    let (keys_sender, keys) = watch::channel(None);
    let (agents_sender, agents) = watch::channel(None);
    let grpc_listener = server::bind("--grpc-addr", config.grpc_addr).await?;
    let mut process = Process::start(&config.process, health(&identity)).await?;
    let namespace = config.process.namespace.clone();
    let advice = format!(
        "Apply what `kubectl fleet shard render {namespace}` prints, and run with its ServiceAccount"
    );
    if !process.namespace_is_there(&advice).await? {
        return process.run().await;
    }

    let (client, shutdown) = (process.client.clone(), process.shutdown.clone());
    let lease = process.lease(&config.lease_name)?;
    let changed = Changed::default();
    let stores = Stores::watch(&mut process, &changed);
    let totals = Totals::new(CONTROLLER, &process.metrics);
    let applier = Applier::new(client.clone(), lease.gate());
    let board = config
        .federation
        .as_ref()
        .map(|settings| LinkBoard::new(settings.endpoint.to_string(), &process.metrics));
    let service = Service {
        state: ShardState::new(
            (namespace.clone(), config.process.pod_name.clone(), config.lease_name.clone()),
            stores.clone(),
            lease.state(),
            totals.clone(),
            agents,
            board.as_ref().map(LinkBoard::watch),
        ),
        requester: Requester {
            clusters: Api::namespaced(client.clone(), &namespace),
            applier: applier.clone(),
        },
        shutdown: shutdown.clone(),
    };
    process.tasks.essential("gRPC server", {
        let shutdown = shutdown.clone();
        let routes = routes(service, &namespace, config.grpc_reflection);
        async move {
            let Some(identity) = first(identity, &shutdown).await else {
                return Ok(());
            };
            grpc::serve(grpc_listener, identity, routes, shutdown).await
        }
    });

    let events = process.events(REPORTER, lease.gate());
    let publisher = Publisher::new(applier.clone(), events.clone());
    let exchange = Exchange::new(&namespace, &stores, &applier, agents_sender.subscribe(), &events);
    let federation = config.federation.clone().zip(board).map(|(settings, board)| Federation {
        settings,
        pod: config.process.pod_name.clone(),
        secrets: Api::namespaced(client.clone(), &namespace),
        work: Work {
            namespace: namespace.clone(),
            clusters: Api::namespaced(client.clone(), &namespace),
            seen: stores.clusters.clone(),
            changed: stores.clusters_changed.clone(),
            applier: FederationApplier::new(&applier),
            events,
        },
        board,
    });
    let leader =
        Leader { config, client, stores, applier, publisher, changed, totals, keys, agents: agents_sender };
    let keeper = Keeper {
        namespace: namespace.clone(),
        stores: leader.stores.clone(),
        applier: leader.applier.clone(),
        secrets: Api::namespaced(leader.client.clone(), &namespace),
        keys: keys_sender,
        identity: identity_sender.clone(),
        exchange,
    };
    let (gate, state) = (lease.gate(), lease.state());
    process.lead(lease, async move {
        if !leader.stores_ready(&shutdown).await {
            return Ok(());
        }
        let leading = {
            let gate = gate.clone();
            move || gate.is_open()
        };
        let federated = async {
            if let Some(federation) = federation {
                federation.run(state.clone(), shutdown.clone()).await;
            }
        };
        let (_, (), worked) = tokio::join!(
            keeper.run(leading, shutdown.clone()),
            federated,
            leader.work(identity_sender.subscribe(), state.clone(), gate, shutdown.clone()),
        );
        worked
    });
    process.run().await
}

fn health(identity: &watch::Receiver<Option<ReloadingIdentity>>) -> Health {
    let missing = "the shard's certificate is not there yet: the leader makes it";
    Health::new().ready_with("certificate", identity, missing)
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
        shutdown.run_until_cancelled(self.stores.ready()).await.is_some_and(|ready| ready.is_ok())
    }

    /// Waits for the Lease, then reconciles until the shutdown.
    async fn work(
        self,
        identity: watch::Receiver<Option<ReloadingIdentity>>,
        mut state: watch::Receiver<LeaseState>,
        gate: fleet_runtime::lease::Gate,
        shutdown: CancellationToken,
    ) -> Result<(), ControllerError> {
        if !LeaseState::leading(&mut state, &shutdown).await {
            return Ok(());
        }
        // Readable or not: a cluster says what is wrong with them, and can be deleted without.
        if first(self.keys.clone(), &shutdown).await.is_none() {
            return Ok(());
        }
        let namespace = self.config.process.namespace;
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
        let options = Options::new(CONTROLLER, namespace.clone(), self.config.process.concurrency);
        let watched = controller::watched::<MySQLCluster>(&self.client, &namespace, &self.changed);
        controller::run(watched, reconciler, options, self.totals, shutdown).await
    }
}
