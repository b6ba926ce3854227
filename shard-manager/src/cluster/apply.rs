//! Fifth step: the only module that writes children to the API server.

use std::{collections::BTreeSet, marker::PhantomData};

use fleet_api::v1::MySQLCluster;
use fleet_runtime::{
    apply::{Applier, ApplyError, amount},
    error::{Classified, ErrorClass},
};
use fleet_topology::InstanceId;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service},
};
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    build::{Applied, Prepared, Resources, TemplateMark, mounted},
    dereference::Children,
    pod_problem,
};

/// The children could not be brought to what they should be.
#[derive(Debug, thiserror::Error)]
pub enum ApplyChildrenError {
    /// A write failed.
    #[error(transparent)]
    Write(#[from] ApplyError),
    /// The volumes exist already, in another class.
    #[error(
        "spec.storage.storageClassName is {wanted}, and the volumes of the cluster are of class {existing}: set it \
         back to {existing}, or make a new cluster"
    )]
    StorageClassFixed {
        /// The class of the spec.
        wanted: String,
        /// The class of the volumes.
        existing: String,
    },
}

impl Classified for ApplyChildrenError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Write(error) => error.class(),
            Self::StorageClassFixed { .. } => ErrorClass::Invalid,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::StorageClassFixed { .. } => "StorageClassFixed",
        }
    }

    fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            Self::Write(error) => error.retry_after(),
            Self::StorageClassFixed { .. } => None,
        }
    }
}

/// Brings all children to what they should be. Where they are so already, nothing is sent. `unable` are the
/// instances whose mysqld can't run as it is, and `replace` is the one whose turn it is in a rolling update.
pub async fn apply(
    applier: &Applier,
    cluster: &MySQLCluster,
    prepared: Resources<Prepared>,
    found: &Children,
    unable: &BTreeSet<u32>,
    replace: Option<InstanceId>,
) -> Result<Resources<Applied>, ApplyChildrenError> {
    let Resources {
        configs,
        unused_configs,
        users,
        tls,
        services,
        slices,
        disruption_budget,
        stateful_set,
        proved_template,
        state: PhantomData,
    } = prepared;
    // Traffic first: it must follow the roles whatever becomes of the rest.
    for slice in &slices {
        applier.ensure_or_replace(slice, found.slices.get(&slice.name_any()).map(AsRef::as_ref)).await?;
    }
    for service in &services {
        ensure_service(applier, service, found.services.get(&service.name_any()).map(AsRef::as_ref)).await?;
    }
    for config in &configs {
        applier.ensure_or_replace(config, found.configs.get(&config.name_any()).map(AsRef::as_ref)).await?;
    }
    for secret in &users {
        let live = found.users.values().find(|live| live.name_any() == secret.name_any());
        applier.ensure_or_replace(secret, live.map(AsRef::as_ref)).await?;
    }
    applier.ensure_or_replace(&tls, found.tls.as_deref()).await?;
    free_unused_volumes(applier, cluster, found).await?;
    match (&disruption_budget, &found.disruption_budget) {
        (Some(budget), live) => applier.ensure_or_replace(budget, live.as_deref()).await?,
        (None, Some(live)) => applier.delete(live.as_ref()).await?,
        (None, None) => {}
    }
    applier.ensure(&stateful_set, found.stateful_set.as_deref()).await?;
    if let Some(proved) = &proved_template {
        keep_template(applier, proved, found).await?;
    }
    grow_volumes(applier, cluster, found).await?;
    for config in &unused_configs {
        applier.delete(config.as_ref()).await?;
    }
    replace_unusable_pods(applier, found, &configs, unable).await?;
    if let Some(pod) = replace.and_then(|instance| replaceable(cluster, found, instance)) {
        applier.delete(pod).await?;
    }
    Ok(Resources {
        configs,
        unused_configs,
        users,
        tls,
        services,
        slices,
        disruption_budget,
        stateful_set,
        proved_template,
        state: PhantomData,
    })
}

/// Keeps a template that has worked, and then none of those before it: at no time is there nothing to go back to.
async fn keep_template(
    applier: &Applier,
    proved: &ControllerRevision,
    found: &Children,
) -> Result<(), ApplyError> {
    let name = proved.name_any();
    applier.ensure(proved, found.revisions.get(&name).map(AsRef::as_ref)).await?;
    for (_, before) in found.revisions.iter().filter(|(before, _)| **before != name) {
        applier.delete(before.as_ref()).await?;
    }
    Ok(())
}

/// Brings a Service to what it should be. A selector that somebody gave to one that has none is no part of
/// what is wanted, so that an apply would leave it: another controller would then send traffic to pods of
/// any role. Such a Service is replaced.
async fn ensure_service(
    applier: &Applier,
    desired: &Service,
    live: Option<&Service>,
) -> Result<(), ApplyError> {
    let selects = |service: &Service| {
        service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .is_some_and(|selector| !selector.is_empty())
    };
    match live.filter(|live| selects(live) && !selects(desired)) {
        Some(live) => applier.replace(desired, live).await,
        None => applier.ensure_or_replace(desired, live).await,
    }
}

/// Takes back claims and StatefulSet of a storage class that the spec does not name any more, while no
/// volume has been made: a class that does not exist would keep the cluster waiting for ever.
async fn free_unused_volumes(
    applier: &Applier,
    cluster: &MySQLCluster,
    found: &Children,
) -> Result<(), ApplyChildrenError> {
    let Some(wanted) = cluster.spec.storage.storage_class_name.as_ref() else {
        return Ok(());
    };
    let class =
        |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let template = found
        .stateful_set
        .as_ref()
        .and_then(|set| set.spec.volume_claim_templates.as_ref()?.first().and_then(class));
    let mut others: Vec<&PersistentVolumeClaim> = Vec::new();
    for claim in found.claims.values() {
        if let Some(existing) = class(claim).filter(|existing| existing != wanted) {
            if pod_problem::claim_phase(claim) != Some("Pending") {
                return Err(ApplyChildrenError::StorageClassFixed { wanted: wanted.clone(), existing });
            }
            others.push(claim);
        }
    }
    if let Some(set) = &found.stateful_set
        && template.is_some_and(|template| template != *wanted)
    {
        applier.delete(set.as_ref()).await?;
    }
    for claim in others {
        applier.delete(claim).await?;
    }
    Ok(())
}

/// Asks for larger volumes, one claim each; the storage driver grows them online.
async fn grow_volumes(applier: &Applier, cluster: &MySQLCluster, found: &Children) -> Result<(), ApplyError> {
    let size = &cluster.spec.storage.size;
    for claim in found.claims.values() {
        let requested = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
            .and_then(|quantity| amount(&quantity.0));
        if pod_problem::claim_phase(claim) == Some("Bound") && requested < amount(size) {
            let patch = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
            applier.merge(claim.as_ref(), &patch).await?;
        }
    }
    Ok(())
}

/// Deletes pods that can't do their work as their template was, once the template is another one. They
/// serve nobody, so nothing is lost; a pod that serves is never touched here.
async fn replace_unusable_pods(
    applier: &Applier,
    found: &Children,
    configs: &[ConfigMap],
    unable: &BTreeSet<u32>,
) -> Result<(), ApplyError> {
    let Some(current) = found.stateful_set.as_deref().and_then(current_revision) else {
        return Ok(());
    };
    for (ordinal, pod) in &found.pods {
        if is_of_another_revision(pod, current)
            && pod.metadata.deletion_timestamp.is_none()
            && (unable.contains(ordinal)
                || pod_problem::template_unusable(pod)
                || waits_for_config(pod, found, configs))
        {
            applier.delete(pod.as_ref()).await?;
        }
    }
    Ok(())
}

/// Whether a pod that was not started mounts a ConfigMap that is not there and is not made: its template
/// was followed by another one while the pod was made.
fn waits_for_config(pod: &Pod, found: &Children, configs: &[ConfigMap]) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_there = |name: &str| {
        found.configs.contains_key(name) || configs.iter().any(|config| config.name_any() == name)
    };
    phase == Some("Pending") && pod.spec.as_ref().and_then(mounted).is_some_and(|name| !is_there(name))
}

/// The pod to be deleted in a rolling update. None while the StatefulSet would make it again as it was: its
/// controller has not seen the template yet.
fn replaceable<'a>(cluster: &MySQLCluster, found: &'a Children, instance: InstanceId) -> Option<&'a Pod> {
    let set = found.stateful_set.as_deref()?;
    let current = current_revision(set)?;
    let template = set.spec.template.metadata.as_ref()?;
    let pod = found.pods.get(&instance.0).map(AsRef::as_ref)?;
    let wanted = TemplateMark::of(cluster).is_of(template) && is_of_another_revision(pod, current);
    Some(pod).filter(|pod| wanted && pod.metadata.deletion_timestamp.is_none())
}

/// The revision that pods are made of from now on, once the controller has seen what the set is.
fn current_revision(set: &StatefulSet) -> Option<&str> {
    let status = set.status.as_ref()?;
    (status.observed_generation == set.metadata.generation).then_some(status.update_revision.as_deref()?)
}

fn is_of_another_revision(pod: &Pod, current: &str) -> bool {
    pod.labels().get("controller-revision-hash").is_some_and(|revision| revision != current)
}

#[cfg(test)]
mod tests;
