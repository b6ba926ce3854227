//! What the shard keeps of the API server's objects: the children of its clusters, in its namespace.
//!
//! Each kind has one watch, narrowed by label to what the fleet made. Annotations of field managers are
//! dropped before an object is kept, since nothing reads them.

use std::{convert::Infallible, fmt::Debug, sync::Arc};

use fleet_api::{names, v1::MySQLCluster};
use fleet_runtime::shutdown::Supervisor;
use futures::TryStreamExt as _;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::changed::Changed;

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
    /// Begins to watch, in tasks of the supervisor that end at the shutdown. A cluster is marked
    /// in `changed` whenever one of its children has changed.
    pub fn watch(
        client: &Client,
        namespace: &str,
        changed: &Changed,
        tasks: &mut Supervisor,
        shutdown: &CancellationToken,
    ) -> Self {
        let ours =
            watcher::Config::default().labels(&format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGER));
        let (generation, clusters_changed) = watch::channel(0_u64);
        let count = move |_: &DeserializeGuard<MySQLCluster>| {
            generation.send_modify(|generation| *generation = generation.wrapping_add(1));
            None
        };
        let mut source = Source { client, namespace, changed, tasks, shutdown };
        Self {
            namespace: namespace.to_owned(),
            clusters: source.watch("watch of MySQLClusters", watcher::Config::default(), count),
            clusters_changed,
            stateful_sets: source.watch("watch of StatefulSets", ours.clone(), owner),
            services: source.watch("watch of Services", ours.clone(), owner),
            endpoint_slices: source.watch("watch of EndpointSlices", ours.clone(), owner),
            config_maps: source.watch("watch of ConfigMaps", ours.clone(), owner),
            secrets: source.watch("watch of Secrets", ours.clone(), owner),
            disruption_budgets: source.watch("watch of PodDisruptionBudgets", ours.clone(), owner),
            pods: source.watch("watch of Pods", ours.clone(), owner),
            volume_claims: source.watch("watch of PersistentVolumeClaims", ours, owner),
        }
    }

    /// Waits until every kind has been listed once: before that, an absent object says nothing.
    pub async fn ready(&self) -> Result<(), reflector::store::WriterDropped> {
        self.clusters.wait_until_ready().await?;
        self.stateful_sets.wait_until_ready().await?;
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

struct Source<'a> {
    client: &'a Client,
    namespace: &'a str,
    changed: &'a Changed,
    tasks: &'a mut Supervisor,
    shutdown: &'a CancellationToken,
}

impl Source<'_> {
    /// Watches a kind. For each change, the cluster that `affected` names is looked at.
    fn watch<K>(
        &mut self,
        name: &'static str,
        config: watcher::Config,
        affected: impl Fn(&K) -> Option<String> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let api = Api::<K>::namespaced(self.client.clone(), self.namespace);
        let (store, writer) = reflector::store();
        let changed = self.changed.clone();
        let shutdown = self.shutdown.clone();
        let events = watcher(api, config)
            .modify(|object: &mut K| object.managed_fields_mut().clear())
            .default_backoff()
            .reflect(writer);
        self.tasks.essential(name, async move {
            let mut events = std::pin::pin!(events);
            loop {
                let event = tokio::select! {
                    event = events.try_next() => event,
                    () = shutdown.cancelled() => return Ok::<(), Infallible>(()),
                };
                match event {
                    Ok(Some(
                        watcher::Event::Apply(object)
                        | watcher::Event::InitApply(object)
                        | watcher::Event::Delete(object),
                    )) => {
                        if let Some(cluster) = affected(&object) {
                            changed.mark(&cluster);
                        }
                    }
                    Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                    Ok(None) => return Ok(()),
                    Err(error) => tracing::warn!(%error, "the {name} failed; it is tried again"),
                }
            }
        });
        store
    }
}
