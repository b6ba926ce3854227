//! The only writes of the federation: each one through the gate, and only to the object as it was read.

use fleet_api::{
    fields::{FieldPath, object_of},
    names::{ANNOTATION_FEDERATED_UID, FEDERATION_MANAGER},
    v1::{MySQLCluster, MySQLClusterSpec},
};
use fleet_runtime::apply::{Applier, ApplyError};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{align::Alignment, plan::federated_uid};

/// Writes what a hub wants, as its own field manager.
#[derive(Clone, Debug)]
pub struct FederationApplier(Applier);

impl FederationApplier {
    /// Writes by the gate of the shard's own writer.
    pub fn new(applier: &Applier) -> Self {
        Self(applier.clone().managed_by(FEDERATION_MANAGER))
    }

    /// Makes a cluster that is not there.
    pub async fn create(
        &self,
        (namespace, name): (&str, &str),
        federated: &str,
        spec: &MySQLClusterSpec,
    ) -> Result<(), ApplyError> {
        let mut cluster = MySQLCluster::new(name, spec.clone());
        cluster.metadata.namespace = Some(namespace.to_owned());
        cluster.annotations_mut().insert(ANNOTATION_FEDERATED_UID.to_owned(), federated.to_owned());
        self.0.introduce(&cluster).await.map(drop)
    }

    /// Brings the spec of the cluster to what was decided, and says whether anything had to be written.
    pub async fn align(
        &self,
        live: &MySQLCluster,
        federated: &str,
        alignment: &Alignment,
    ) -> Result<bool, ApplyError> {
        let ours = federated_uid(live) == Some(federated);
        if ours && !alignment.changes {
            return Ok(false);
        }
        // An apply takes away only what this manager has declared itself.
        let removed = match removal(&alignment.removed) {
            Some(patch) => Some(self.0.merge(live, &patch).await?),
            None => None,
        };
        let fields = json!({
            "metadata": { "annotations": { ANNOTATION_FEDERATED_UID: federated } },
            "spec": alignment.declared,
        });
        self.0.declare(removed.as_ref().unwrap_or(live), &fields).await?;
        Ok(true)
    }

    /// Deletes exactly this object.
    pub async fn delete(&self, live: &MySQLCluster) -> Result<(), ApplyError> {
        self.0.delete(live).await
    }
}

/// The JSON merge patch that takes these fields of the spec away.
fn removal(removed: &[FieldPath]) -> Option<Value> {
    let nothing = Value::Null;
    (!removed.is_empty()).then(|| json!({ "spec": object_of(removed.iter().map(|path| (path, &nothing))) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_go_are_null_in_the_patch() {
        let paths = [["image"].into_iter().collect(), ["mysqld", "max_connections"].into_iter().collect()];
        assert_eq!(
            removal(&paths),
            Some(json!({"spec": {"image": null, "mysqld": {"max_connections": null}}}))
        );
        assert_eq!(removal(&[]), None);
    }
}
