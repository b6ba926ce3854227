//! What the shard keeps of the API server's objects: the children of its clusters, in its namespace.
//!
//! Each kind has one watch, narrowed by label to what the fleet made. Annotations of field managers are
//! dropped before an object is kept, since nothing reads them.

use std::sync::Arc;

use fleet_api::{names, v1::MySQLCluster};
use fleet_runtime::{controller::Changed, process::Process};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Resource,
    core::DeserializeGuard,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use tokio::sync::watch;

/// The kept objects of one namespace.
#[derive(Clone)]
pub struct Stores {
    namespace: String,
    /// The clusters themselves, those that can't be decoded among them.
    pub clusters: Store<DeserializeGuard<MySQLCluster>>,
    /// Grows with each change of a cluster.
    pub clusters_changed: watch::Receiver<u64>,
    /// StatefulSets.
    pub stateful_sets: Store<StatefulSet>,
    /// ControllerRevisions: those of the clusters' templates, and those of their StatefulSets.
    pub revisions: Store<ControllerRevision>,
    /// Services.
    pub services: Store<Service>,
    /// EndpointSlices.
    pub endpoint_slices: Store<EndpointSlice>,
    /// ConfigMaps.
    pub config_maps: Store<ConfigMap>,
    /// Secrets, those of the shard itself among them.
    pub secrets: Store<Secret>,
    /// PodDisruptionBudgets.
    pub disruption_budgets: Store<PodDisruptionBudget>,
    /// Pods of MySQL instances.
    pub pods: Store<Pod>,
    /// Volume claims of MySQL instances.
    pub volume_claims: Store<PersistentVolumeClaim>,
}

impl Stores {
    /// Begins to watch, in tasks of the process. A cluster is marked in `changed` whenever one of its children
    /// has changed.
    pub fn watch(process: &mut Process, changed: &Changed) -> Self {
        let ours =
            watcher::Config::default().labels(&format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGER));
        let (generation, clusters_changed) = watch::channel(0_u64);
        let count = move |_: &DeserializeGuard<MySQLCluster>| {
            generation.send_modify(|generation| *generation = generation.wrapping_add(1));
            None
        };
        let all = watcher::Config::default();
        Self {
            namespace: process.args.namespace.clone(),
            clusters: process.watch("watch of MySQLClusters", all, changed, count),
            clusters_changed,
            stateful_sets: process.watch("watch of StatefulSets", ours.clone(), changed, owner),
            revisions: process.watch("watch of ControllerRevisions", ours.clone(), changed, owner),
            services: process.watch("watch of Services", ours.clone(), changed, owner),
            endpoint_slices: process.watch("watch of EndpointSlices", ours.clone(), changed, owner),
            config_maps: process.watch("watch of ConfigMaps", ours.clone(), changed, owner),
            secrets: process.watch("watch of Secrets", ours.clone(), changed, owner),
            disruption_budgets: process.watch("watch of PodDisruptionBudgets", ours.clone(), changed, owner),
            pods: process.watch("watch of Pods", ours.clone(), changed, owner),
            volume_claims: process.watch("watch of PersistentVolumeClaims", ours, changed, owner),
        }
    }

    /// Waits until every kind has been listed once: before that, an absent object says nothing.
    pub async fn ready(&self) -> Result<(), reflector::store::WriterDropped> {
        self.clusters.wait_until_ready().await?;
        self.stateful_sets.wait_until_ready().await?;
        self.revisions.wait_until_ready().await?;
        self.services.wait_until_ready().await?;
        self.endpoint_slices.wait_until_ready().await?;
        self.config_maps.wait_until_ready().await?;
        self.secrets.wait_until_ready().await?;
        self.disruption_budgets.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.volume_claims.wait_until_ready().await
    }

    /// The object of this name.
    pub fn get<K>(&self, store: &Store<K>, name: &str) -> Option<Arc<K>>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        store.get(&ObjectRef::new(name).within(&self.namespace))
    }
}

/// The clusters' label of an object.
pub fn cluster_of<K: Resource>(object: &K) -> Option<&str> {
    object.meta().labels.as_ref()?.get(names::LABEL_CLUSTER).map(String::as_str)
}

fn owner<K: Resource>(object: &K) -> Option<String> {
    cluster_of(object).map(ToOwned::to_owned)
}
