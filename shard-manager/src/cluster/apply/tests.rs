use std::sync::Arc;

use serde_json::json;

use super::*;

fn cluster() -> MySQLCluster {
    serde_json::from_value(json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": { "name": "orders" },
        "spec": { "version": "9.7", "storage": { "size": "1Gi" } }
    }))
    .unwrap()
}

/// A set of the cluster's template in generation 2, of which its controller has seen `observed`.
fn set(observed: i64, mark: &str) -> StatefulSet {
    serde_json::from_value(json!({
        "metadata": { "name": "orders", "generation": 2 },
        "spec": {
            "selector": {}, "serviceName": "orders",
            "template": { "metadata": { "annotations": { "mysqlfleet.io/spec-hash": mark } } }
        },
        "status": { "replicas": 1, "observedGeneration": observed, "updateRevision": "new" }
    }))
    .unwrap()
}

fn found(set: StatefulSet, revision: &str) -> Children {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "orders-0", "labels": { "controller-revision-hash": revision } }
    }))
    .unwrap();
    Children { stateful_set: Some(Arc::new(set)), pods: [(0, Arc::new(pod))].into(), ..Children::default() }
}

fn is_replaced(found: &Children) -> bool {
    replaceable(&cluster(), found, InstanceId(0)).is_some()
}

#[test]
fn a_pod_is_replaced_once_its_successor_would_be_another() {
    let mark = TemplateMark::of(&cluster()).spec().to_owned();
    assert!(is_replaced(&found(set(2, &mark), "old")));
    assert!(!is_replaced(&found(set(1, &mark), "old")), "the controller has not seen the template");
    assert!(!is_replaced(&found(set(2, "before"), "old")), "the template is not written yet");
    assert!(!is_replaced(&found(set(2, &mark), "new")), "the pod is of the template");
}

#[test]
fn a_pod_whose_my_cnf_is_gone_is_made_anew_only_while_it_was_not_started() {
    let pod = |phase: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "orders-0" },
            "spec": { "containers": [], "volumes": [
                { "name": "config", "configMap": { "name": "orders-config-a" } },
                { "name": "of-a-sidecar", "configMap": { "name": "mesh" } }
            ] },
            "status": { "phase": phase }
        }))
        .unwrap()
    };
    let config = |name: &str| {
        let mut config = ConfigMap::default();
        config.metadata.name = Some(name.to_owned());
        config
    };
    let there = Children {
        configs: [("orders-config-a".to_owned(), Arc::new(config("orders-config-a")))].into(),
        ..Children::default()
    };
    let none = Children::default();
    assert!(waits_for_config(&pod("Pending"), &none, &[config("orders-config-b")]));
    assert!(!waits_for_config(&pod("Running"), &none, &[config("orders-config-b")]));
    assert!(!waits_for_config(&pod("Pending"), &there, &[]));
    assert!(!waits_for_config(&pod("Pending"), &none, &[config("orders-config-a")]), "it is being made");
}
