//! The process: what is started, in which order, and what ends it.

use std::sync::Arc;

use fleet_api::v1::{MemberCluster, MySQLClusterFederated};
use fleet_proto::federation::v1::federation_service_server::FederationServiceServer;
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
use kube::Api;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;

use crate::{
    config::Config,
    federated,
    keys::Keeper,
    member,
    service::{HubState, Service},
    stores::Stores,
    streams::Streams,
};

/// Who reports events.
const REPORTER: &str = "mysqlfleet.io/federation-controller";
/// Names of the controllers in metrics.
const FEDERATED: &str = "mysqlclusterfederated";
const MEMBER: &str = "membercluster";

/// Runs until a signal, or until an essential task dies.
pub async fn run(config: Config) -> Result<(), ProcessError> {
    let (identity_sender, identity) = watch::channel(None);
    let grpc_listener = server::bind("--grpc-addr", config.grpc_addr).await?;
    let mut process = Process::start(&config.process, health(&identity)).await?;
    let namespace = config.process.namespace.clone();
    let advice = "Apply deploy/federation, and run with its ServiceAccount";
    if !process.namespace_is_there(advice).await? {
        return process.run().await;
    }

    let (client, shutdown) = (process.client.clone(), process.shutdown.clone());
    let lease = process.lease(fleet_api::names::FEDERATION)?;
    let (federated_changed, members_changed) = (Changed::default(), Changed::default());
    let stores = Stores::watch(&mut process, &federated_changed);
    let streams = Streams::new(stores.clone(), federated_changed.clone(), members_changed.clone());
    let applier = Applier::new(client.clone(), lease.gate());
    let keeper = Keeper {
        namespace: namespace.clone(),
        dns_names: config.dns_names,
        secrets: Api::namespaced(client.clone(), &namespace),
        applier: applier.clone(),
        gate: lease.gate(),
        identity: identity_sender,
    };
    process.tasks.essential("keeper of the hub's Secrets", keeper.run(shutdown.clone()));
    let tasks = TaskTracker::new();
    let service = Service {
        state: HubState {
            pod: config.process.pod_name.clone(),
            gate: lease.gate(),
            stores: stores.clone(),
            streams: streams.clone(),
        },
        pace: config.pace,
        tasks: tasks.clone(),
        shutdown: shutdown.clone(),
    };
    process.tasks.essential("gRPC server", {
        let (shutdown, stores) = (shutdown.clone(), stores.clone());
        let server = FederationServiceServer::new(service).max_decoding_message_size(grpc::MAX_MESSAGE_BYTES);
        async move {
            // A shard that dials before the members are known would be turned away.
            if !stores_ready(&stores, &shutdown).await {
                return Ok(());
            }
            let Some(identity) = first(identity, &shutdown).await else {
                return Ok(());
            };
            let result = grpc::serve(grpc_listener, identity, Routes::new(server), shutdown).await;
            tasks.close();
            tasks.wait().await;
            result
        }
    });

    let events = process.events(REPORTER, lease.gate());
    let concurrency = config.process.concurrency;
    let totals = (Totals::new(FEDERATED, &process.metrics), Totals::new(MEMBER, &process.metrics));
    let mut state = lease.state();
    process.lead(lease, async move {
        if !stores_ready(&stores, &shutdown).await || !LeaseState::leading(&mut state, &shutdown).await {
            return Ok::<(), ControllerError>(());
        }
        let of_members = controller::run(
            controller::watched_everywhere::<MemberCluster>(&client, &members_changed),
            Arc::new(member::Reconciler { streams: streams.clone(), applier: applier.clone() }),
            Options::new(MEMBER, namespace.clone(), concurrency),
            totals.1,
            shutdown.clone(),
        );
        let of_federated = controller::run(
            controller::watched_everywhere::<MySQLClusterFederated>(&client, &federated_changed),
            Arc::new(federated::Reconciler { stores, streams, applier, events }),
            Options::new(FEDERATED, namespace, concurrency),
            totals.0,
            shutdown,
        );
        tokio::try_join!(of_members, of_federated).map(|((), ())| ())
    });
    process.run().await
}

fn health(identity: &watch::Receiver<Option<ReloadingIdentity>>) -> Health {
    let missing = "the hub's certificate is not there yet: the leader makes it";
    Health::new().ready_with("certificate", identity, missing)
}

async fn stores_ready(stores: &Stores, shutdown: &CancellationToken) -> bool {
    shutdown.run_until_cancelled(stores.ready()).await.is_some_and(|ready| ready.is_ok())
}
