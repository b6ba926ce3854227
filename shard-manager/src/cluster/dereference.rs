//! First step: what the API server has of a cluster, from the kept objects.

use std::{collections::BTreeMap, sync::Arc};

use fleet_api::{
    names::{self, UserRole},
    v1::MySQLCluster,
};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{Resource as _, ResourceExt as _};

use crate::{
    stores::{Stores, cluster_of},
    tenant::{FoundKeys, Keys},
};

/// What a reconcile works with besides the cluster's own object.
#[derive(Debug)]
pub struct Dereferenced {
    /// The tenant's keys.
    pub keys: Arc<Keys>,
    /// The children as they are.
    pub children: Children,
}

/// The children of a cluster as they are.
#[derive(Debug, Default)]
pub struct Children {
    /// The my.cnf of each template, by name.
    pub configs: BTreeMap<String, Arc<ConfigMap>>,
    /// The accounts.
    pub users: BTreeMap<UserRole, Arc<Secret>>,
    /// The certificate.
    pub tls: Option<Arc<Secret>>,
    /// The Services by name.
    pub services: BTreeMap<String, Arc<Service>>,
    /// The EndpointSlices by name.
    pub slices: BTreeMap<String, Arc<EndpointSlice>>,
    /// The PodDisruptionBudget.
    pub disruption_budget: Option<Arc<PodDisruptionBudget>>,
    /// The StatefulSet.
    pub stateful_set: Option<Arc<StatefulSet>>,
    /// The ControllerRevisions of templates that have worked, by name. Those of the StatefulSet are not among them.
    pub revisions: BTreeMap<String, Arc<ControllerRevision>>,
    /// The pods by ordinal.
    pub pods: BTreeMap<u32, Arc<Pod>>,
    /// The volume claims by ordinal.
    pub claims: BTreeMap<u32, Arc<PersistentVolumeClaim>>,
}

/// The objects that a cluster refers to are not there.
#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    /// The tenant's keys have not been made or can't be read.
    #[error("the tenant's keys can't be used: {0}")]
    NoKeys(String),
}

/// Looks up everything that belongs to the cluster.
pub fn dereference(
    cluster: &MySQLCluster,
    stores: &Stores,
    keys: FoundKeys,
) -> Result<Dereferenced, DereferenceError> {
    let keys = keys
        .unwrap_or_else(|| Err("they have not been looked for yet".to_owned()))
        .map_err(DereferenceError::NoKeys)?;
    Ok(Dereferenced { keys, children: children(&cluster.name_any(), stores) })
}

/// The children of the cluster of this name.
pub fn children(name: &str, stores: &Stores) -> Children {
    let services =
        [names::instances_service(name), names::primary_service(name), names::replicas_service(name)];
    Children {
        configs: stores
            .config_maps
            .state()
            .into_iter()
            .filter(|config| cluster_of(config.as_ref()) == Some(name))
            .map(|config| (config.name_any(), config))
            .collect(),
        users: UserRole::ALL
            .into_iter()
            .filter_map(|role| Some((role, stores.get(&stores.secrets, &names::user_secret(name, role))?)))
            .collect(),
        tls: stores.get(&stores.secrets, &names::tls_secret(name)),
        slices: services
            .iter()
            .filter_map(|service| Some((service.clone(), stores.get(&stores.endpoint_slices, service)?)))
            .collect(),
        services: services
            .into_iter()
            .filter_map(|service| {
                let found = stores.get(&stores.services, &service)?;
                Some((service, found))
            })
            .collect(),
        disruption_budget: stores.get(&stores.disruption_budgets, name),
        stateful_set: stores.get(&stores.stateful_sets, name),
        revisions: stores
            .revisions
            .state()
            .into_iter()
            .filter(|revision| cluster_of(revision.as_ref()) == Some(name))
            .filter(|revision| {
                revision.owner_references().iter().any(|owner| owner.kind == MySQLCluster::kind(&()))
            })
            .map(|revision| (revision.name_any(), revision))
            .collect(),
        pods: of_cluster(stores.pods.state(), name, name),
        claims: of_cluster(stores.volume_claims.state(), name, &format!("data-{name}")),
    }
}

fn of_cluster<K: kube::Resource>(all: Vec<Arc<K>>, cluster: &str, prefix: &str) -> BTreeMap<u32, Arc<K>> {
    all.into_iter()
        .filter(|object| cluster_of(object.as_ref()) == Some(cluster))
        .filter_map(|object| {
            let ordinal = names::ordinal(prefix, object.meta().name.as_deref()?)?;
            Some((ordinal, object))
        })
        .collect()
}
