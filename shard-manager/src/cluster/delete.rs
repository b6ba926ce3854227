//! The way out: what has to be gone before the finalizer is.
//!
//! Nothing here asks a mysqld anything, so a dead one can't block a deletion. The children go by their
//! ownerReference; the volume claims have none, so that no mistake takes them along.

use fleet_api::{
    names,
    v1::{DeletionPolicy, MySQLCluster},
};
use fleet_runtime::apply::{Applier, ApplyError};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::dereference::Children;

/// How long a deletion waits for children that have been told to go. A node that is lost keeps its pods for
/// as long as it is lost: the cluster's object must not stay for that, and its children are deleted already.
const PATIENCE: SignedDuration = SignedDuration::from_secs(120);

/// How far a deletion is.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something is still there.
    Waiting(String),
    /// The finalizer is removed, and this was left behind, deleted and not gone yet.
    Done {
        /// What is left.
        left: Option<String>,
    },
}

/// Whether the finalizer is there.
pub fn has_finalizer(cluster: &MySQLCluster) -> bool {
    cluster.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER)
}

/// Adds the finalizer.
pub async fn add_finalizer(applier: &Applier, cluster: &MySQLCluster) -> Result<MySQLCluster, ApplyError> {
    let mut finalizers = cluster.finalizers().to_vec();
    finalizers.push(names::FINALIZER.to_owned());
    applier.set_finalizers(cluster, &finalizers).await
}

/// Takes the next step of a deletion.
pub async fn proceed(
    applier: &Applier,
    cluster: &MySQLCluster,
    found: &Children,
    now: Timestamp,
) -> Result<Progress, ApplyError> {
    let patient = cluster
        .metadata
        .deletion_timestamp
        .as_ref()
        .is_some_and(|since| now.duration_since(since.0) < PATIENCE);
    let left = match remove_children(applier, cluster, found).await {
        Ok(Some(left)) if patient => return Ok(Progress::Waiting(left)),
        Err(error) if patient => return Err(error),
        Ok(left) => left,
        Err(error) => Some(error.to_string()),
    };
    let rest: Vec<String> =
        cluster.finalizers().iter().filter(|finalizer| *finalizer != names::FINALIZER).cloned().collect();
    applier.set_finalizers(cluster, &rest).await?;
    Ok(Progress::Done { left })
}

/// Deletes what is not deleted yet; returns something that is still there.
async fn remove_children(
    applier: &Applier,
    cluster: &MySQLCluster,
    found: &Children,
) -> Result<Option<String>, ApplyError> {
    if let Some(set) = &found.stateful_set {
        if set.metadata.deletion_timestamp.is_none() {
            applier.delete(set.as_ref()).await?;
        }
    } else {
        // A pod that the StatefulSet has left behind would keep its volume in use.
        for pod in found.pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            applier.delete(pod.as_ref()).await?;
        }
    }
    let volumes_go = cluster.spec.deletion_policy == DeletionPolicy::Delete;
    if volumes_go {
        // A claim in use goes when its pod has gone.
        for claim in found.claims.values().filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
            applier.delete(claim.as_ref()).await?;
        }
    }
    let set = found.stateful_set.as_ref().map(|set| format!("StatefulSet {}", set.name_any()));
    let pod = || found.pods.values().next().map(|pod| format!("pod {}", pod.name_any()));
    let claim = || {
        let first = found.claims.values().next().filter(|_| volumes_go);
        first.map(|claim| format!("PersistentVolumeClaim {}", claim.name_any()))
    };
    Ok(set.or_else(pod).or_else(claim))
}
