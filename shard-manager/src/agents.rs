//! The connections to the agents of a namespace's instances: what they say, and the orders they get.
//!
//! One task holds one stream to each agent. What it says is kept with the moment of its arrival on the
//! monotonic clock; what is older than [`FRESH`] is unknown. Orders run beside the reconcile, one at a
//! time for each instance, so that one agent that hangs delays no other instance and no other cluster.

mod connection;
mod orders;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fleet_proto::agent::v1::InstanceFacts;
use fleet_runtime::{controller::Changed, lease::Gate, tls::ReloadingIdentity};
use tokio::{sync::watch, time::Instant};

use connection::Connection;
pub use orders::{Order, OrderKind};

/// For how long what an agent said counts.
pub const FRESH: Duration = Duration::from_secs(3);

/// An agent to hold a connection to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of its pod.
    pub pod: String,
    /// UID of its pod: another pod of the same name is another agent.
    pub pod_uid: String,
    /// Address of its gRPC services.
    pub address: SocketAddr,
    /// Name in its certificate.
    pub server_name: String,
}

/// What is known of an agent's instance.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The last facts, if they are fresh.
    pub facts: Option<Arc<InstanceFacts>>,
    /// For how long there have been no fresh facts.
    pub unknown_for: Duration,
    /// Why there are none, or why the last order failed.
    pub problem: Option<String>,
}

/// All connections of a shard. Dropping it ends them.
pub struct Agents {
    namespace: String,
    identity: watch::Receiver<Option<ReloadingIdentity>>,
    gate: Gate,
    changed: Changed,
    clusters: Mutex<HashMap<String, HashMap<String, Connection>>>,
}

impl Agents {
    /// No connections yet. A cluster is marked in `changed` when something about one of its
    /// instances has changed that a decision may depend on.
    pub fn new(
        namespace: String,
        identity: watch::Receiver<Option<ReloadingIdentity>>,
        gate: Gate,
        changed: Changed,
    ) -> Self {
        Self { namespace, identity, gate, changed, clusters: Mutex::default() }
    }

    /// Holds connections to these agents of a cluster and to no others: to none while the shard has no
    /// certificate.
    pub fn hold(&self, cluster: &str, targets: Vec<Target>) {
        let mut clusters = self.lock();
        if targets.is_empty() {
            clusters.remove(cluster);
            return;
        }
        let Some(identity) = self.identity.borrow().clone() else { return };
        let connections = clusters.entry(cluster.to_owned()).or_default();
        connections.retain(|_, connection| targets.contains(connection.target()));
        for target in targets {
            if !connections.contains_key(&target.pod) {
                let pod = target.pod.clone();
                let connection = Connection::open(
                    cluster.to_owned(),
                    target,
                    self.namespace.clone(),
                    identity.clone(),
                    self.changed.clone(),
                );
                connections.insert(pod, connection);
            }
        }
    }

    /// What is known of an instance now. An agent that there is no connection to is unknown.
    pub fn sighting(&self, cluster: &str, pod: &str) -> Sighting {
        let now = Instant::now();
        self.lock()
            .get(cluster)
            .and_then(|connections| connections.get(pod))
            .map_or(Sighting { facts: None, unknown_for: Duration::ZERO, problem: None }, |connection| {
                connection.sighting(now)
            })
    }

    /// Whether positions in the stream of transactions are waited for, so that each change of one is news.
    /// Otherwise they move with every write, and nothing is decided by them.
    pub fn attend(&self, cluster: &str, attentive: bool) {
        for connection in self.lock().get(cluster).into_iter().flat_map(HashMap::values) {
            connection.attend(attentive);
        }
    }

    /// Sends an order, unless one to this instance is under way, or the same one was just sent.
    pub fn order(&self, cluster: &str, pod: &str, order: Order) {
        let mut clusters = self.lock();
        if let Some(connection) = clusters.get_mut(cluster).and_then(|connections| connections.get_mut(pod)) {
            connection.order(order, self.gate.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashMap<String, Connection>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
