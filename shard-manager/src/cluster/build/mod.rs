//! Fourth step: the children as they should be, from the spec and the decision. Pure.

mod config;
mod network;
mod revision;
mod secrets;
mod stateful_set;

use std::{marker::PhantomData, sync::Arc};

use fleet_api::{reserved, v1::MySQLCluster};
use fleet_topology::InstanceId;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSet},
        core::v1::{ConfigMap, Secret, Service},
        discovery::v1::EndpointSlice,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::{Resource as _, ResourceExt as _};
use ring::digest;

pub use config::{MyCnf, mounted};
pub use stateful_set::TemplateMark;

use crate::{cluster::dereference::Dereferenced, config::Images, labels};

/// State of [`Resources`] that have been built and not been applied.
#[derive(Debug)]
pub struct Prepared;

/// State of [`Resources`] that the API server has as they should be.
#[derive(Debug)]
pub struct Applied;

/// All children of a cluster.
#[derive(Debug)]
pub struct Resources<State> {
    /// The my.cnf of the template, and of each other one that is referred to and whose keys are known.
    pub configs: Vec<ConfigMap>,
    /// The my.cnf of templates that nothing refers to any more: they are to go.
    pub unused_configs: Vec<Arc<ConfigMap>>,
    /// The accounts.
    pub users: Vec<Secret>,
    /// The certificate.
    pub tls: Secret,
    /// The Services.
    pub services: Vec<Service>,
    /// The EndpointSlices of the Services without a selector.
    pub slices: Vec<EndpointSlice>,
    /// The PodDisruptionBudget; a cluster of one instance has none.
    pub disruption_budget: Option<PodDisruptionBudget>,
    /// The StatefulSet.
    pub stateful_set: StatefulSet,
    /// The template, once it has worked and is not kept yet.
    pub proved_template: Option<ControllerRevision>,
    /// Which state they are in.
    pub state: PhantomData<State>,
}

/// Where traffic goes.
#[derive(Debug, Default)]
pub struct Traffic {
    /// The instance that takes writes.
    pub primary: Option<InstanceId>,
    /// The instances that serve reads.
    pub replicas: Vec<InstanceId>,
}

/// The spec asks for something that can't be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A my.cnf key that the operator owns.
    #[error("spec.mysqld: {0}")]
    ReservedKey(String),
    /// The certificate can't be made.
    #[error("the certificate of the cluster can't be made: {0}")]
    Certificate(#[from] fleet_runtime::tls::TlsError),
}

/// What a build reads besides the spec.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The cluster.
    pub cluster: &'a MySQLCluster,
    /// Its namespace.
    pub namespace: &'a str,
    /// The my.cnf keys of other templates that pods may be of.
    pub others: &'a [MyCnf],
    /// What the API server has.
    pub found: &'a Dereferenced,
    /// Where traffic goes.
    pub traffic: &'a Traffic,
    /// How many pods there have to be.
    pub pods: u32,
    /// Whether all instances are in sync with the template of the cluster.
    pub works: bool,
    /// The images of the pods.
    pub images: &'a Images,
    /// The time that certificates are judged by.
    pub now: Timestamp,
}

/// Builds all children.
pub fn build(inputs: &Inputs<'_>) -> Result<Resources<Prepared>, BuildError> {
    let cluster = inputs.cluster;
    if let Some(refusal) = cluster.spec.mysqld.keys().find_map(|key| reserved::refusal(key)) {
        return Err(BuildError::ReservedKey(refusal));
    }
    Ok(Resources {
        users: secrets::users(inputs),
        tls: secrets::tls(inputs)?,
        services: network::services(inputs),
        slices: network::slices(inputs),
        disruption_budget: disruption_budget(inputs),
        stateful_set: stateful_set::stateful_set(inputs),
        proved_template: revision::proved_template(inputs),
        configs: config::configs(inputs),
        unused_configs: config::unused(inputs),
        state: PhantomData,
    })
}

impl Inputs<'_> {
    fn name(&self) -> String {
        self.cluster.name_any()
    }

    /// Metadata of a child. A child goes with its cluster, by its ownerReference.
    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(labels::cluster(&self.name())),
            owner_references: self.cluster.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }
}

/// At most one instance is evicted at a time: with three, two evicted ones would block writes.
fn disruption_budget(inputs: &Inputs<'_>) -> Option<PodDisruptionBudget> {
    (inputs.cluster.spec.replicas > 1).then(|| PodDisruptionBudget {
        metadata: inputs.metadata(inputs.name()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(labels::selector(&inputs.name())),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}

/// The first 16 hex digits of a SHA-256.
fn short_hash(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    hex::encode(digest).chars().take(16).collect()
}

#[cfg(test)]
mod tests;
