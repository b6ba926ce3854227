//! What a shard tells its hub of its clusters. Pure.

use fleet_api::v1::MySQLCluster;
use fleet_proto::federation::v1::{ClusterState, Condition};
use kube::{Resource as _, ResourceExt as _, core::DeserializeGuard};

use super::plan::federated_uid;

/// One MySQLCluster, also one that can't be decoded: of that one, that it is there and why it can't be read.
pub fn cluster_state(cluster: &DeserializeGuard<MySQLCluster>) -> ClusterState {
    match &cluster.0 {
        Ok(cluster) => state(cluster),
        Err(error) => {
            let meta = &error.metadata;
            ClusterState {
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
                generation: meta.generation.unwrap_or_default(),
                deleting: meta.deletion_timestamp.is_some(),
                conditions: vec![Condition {
                    r#type: "ReconcileSucceeded".to_owned(),
                    status: "False".to_owned(),
                    reason: "Undecodable".to_owned(),
                    message: error.error.clone(),
                }],
                ..ClusterState::default()
            }
        }
    }
}

fn state(cluster: &MySQLCluster) -> ClusterState {
    let status = cluster.status.clone().unwrap_or_default();
    let primary = status.primary.unwrap_or_default();
    let gtid_executed = status.instances.iter().find(|instance| instance.name == primary);
    ClusterState {
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        generation: cluster.meta().generation.unwrap_or_default(),
        observed_generation: status.observed_generation.unwrap_or_default(),
        // It was read from JSON, so it can be written as JSON.
        spec_json: serde_json::to_string(&cluster.spec).unwrap_or_default(),
        federated_uid: federated_uid(cluster).unwrap_or_default().to_owned(),
        phase: status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default(),
        term: u64::try_from(status.term).unwrap_or_default(),
        ready: u32::try_from(status.ready_replicas).unwrap_or_default(),
        replicas: u32::try_from(cluster.spec.replicas).unwrap_or_default(),
        gtid_executed: gtid_executed.and_then(|instance| instance.gtid_executed.clone()).unwrap_or_default(),
        conditions: status
            .conditions
            .into_iter()
            .map(|condition| Condition {
                r#type: format!("{:?}", condition.type_),
                status: condition.status,
                reason: condition.reason,
                message: condition.message,
            })
            .collect(),
        deleting: cluster.meta().deletion_timestamp.is_some(),
        primary,
    }
}

#[cfg(test)]
mod tests {
    use fleet_api::names::ANNOTATION_FEDERATED_UID;
    use serde_json::json;

    use super::*;

    fn guarded(object: serde_json::Value) -> DeserializeGuard<MySQLCluster> {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn all_that_the_shard_knows_is_told() {
        let told = cluster_state(&guarded(json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
            "metadata": {
                "name": "orders", "uid": "u1", "generation": 4, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": { ANNOTATION_FEDERATED_UID: "f1" },
            },
            "spec": { "version": "9.7", "storage": { "size": "1Gi" }, "replicas": 3 },
            "status": {
                "observedGeneration": 3, "phase": "Healthy", "primary": "orders-1", "term": 7, "readyReplicas": 2,
                "instances": [
                    { "name": "orders-0", "role": "Replica", "ready": true, "gtidExecuted": "a:1" },
                    { "name": "orders-1", "role": "Primary", "ready": true, "gtidExecuted": "a:1-2" },
                ],
                "conditions": [{
                    "type": "Healthy", "status": "True", "reason": "InSync", "message": "fine",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        })));
        let spec: serde_json::Value = serde_json::from_str(&told.spec_json).unwrap();
        assert_eq!((&spec["version"], &spec["replicas"]), (&json!("9.7"), &json!(3)));
        assert_eq!(
            ClusterState { spec_json: String::new(), ..told },
            ClusterState {
                name: "orders".to_owned(),
                uid: "u1".to_owned(),
                generation: 4,
                observed_generation: 3,
                spec_json: String::new(),
                federated_uid: "f1".to_owned(),
                phase: "Healthy".to_owned(),
                primary: "orders-1".to_owned(),
                term: 7,
                ready: 2,
                replicas: 3,
                gtid_executed: "a:1-2".to_owned(),
                conditions: vec![Condition {
                    r#type: "Healthy".to_owned(),
                    status: "True".to_owned(),
                    reason: "InSync".to_owned(),
                    message: "fine".to_owned(),
                }],
                deleting: true,
            }
        );
    }

    #[test]
    fn what_can_t_be_decoded_is_told_as_that() {
        let told = cluster_state(&guarded(json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
            "metadata": { "name": "orders", "uid": "u1" }, "spec": { "shiny": true },
        })));
        assert_eq!((told.name.as_str(), told.uid.as_str(), told.spec_json.as_str()), ("orders", "u1", ""));
        assert_eq!(told.conditions[0].reason, "Undecodable");
    }
}
