//! The CustomResourceDefinitions against a real API server: what it refuses, what it fills in.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use e2e::{apiserver, kubernetes};
use fleet_api::v1::{MemberCluster, MySQLCluster, MySQLClusterFederated};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

struct Server {
    client: Client,
    _server: apiserver::ApiServer,
}

async fn server() -> Server {
    let server = apiserver::start().await.unwrap();
    let client = server.client().await.unwrap();
    for crd in fleet_api::crds() {
        kubernetes::apply(&client, &serde_yaml_ng::to_string(&crd).unwrap(), "default").await.unwrap();
    }
    let created = Server { client, _server: server };
    // Served a moment after it is established.
    e2e::wait::until(
        "the resource to be served",
        std::time::Duration::from_secs(10),
        std::time::Duration::from_millis(50),
        || async {
            let all = kube::api::ListParams::default();
            created.clusters().list(&all).await?;
            Api::<MySQLClusterFederated>::all(created.client.clone()).list(&all).await?;
            Api::<MemberCluster>::all(created.client.clone()).list(&all).await?;
            Ok(())
        },
    )
    .await
    .unwrap();
    created
}

impl Server {
    fn clusters(&self) -> Api<MySQLCluster> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create(&self, name: &str, spec: Value) -> Result<MySQLCluster, kube::Error> {
        self.post("MySQLCluster", "namespaces/default/mysqlclusters", name, spec).await
    }

    async fn post<K>(&self, kind: &str, path: &str, name: &str, spec: Value) -> Result<K, kube::Error>
    where
        K: serde::de::DeserializeOwned,
    {
        let object = json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        // As text, so that what the Rust type would refuse reaches the API server.
        let request = http::Request::post(format!("/apis/mysqlfleet.io/v1/{path}?fieldValidation=Strict"))
            .header("Content-Type", "application/json")
            .body(object.to_string().into_bytes())
            .unwrap();
        self.client.request(request).await
    }

    async fn federate(&self, name: &str, fields: &Value) -> Result<MySQLClusterFederated, kube::Error> {
        let mut federated = json!({"template": spec(&json!({})), "placement": [{"member": "east"}]});
        federated.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.post("MySQLClusterFederated", "namespaces/default/mysqlclustersfederated", name, federated).await
    }

    async fn refusal(&self, spec: Value) -> String {
        self.create("refused", spec).await.expect_err("the API server took it").to_string()
    }
}

fn spec(fields: &Value) -> Value {
    let mut spec = json!({"version": "9.7.4", "storage": {"size": "1Gi"}});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    spec
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_with_the_reason() {
    let server = server().await;
    for (fields, reason) in [
        (json!({"replicas": 2}), "replicas must be 1, 3 or 5"),
        (json!({"replicas": 0}), "spec.replicas"),
        (json!({"version": "5.7"}), "version must be 9.7 or 8.4"),
        (json!({"storage": {"size": "1Mi"}}), "at least 512Mi"),
        (json!({"storage": {"size": "much"}}), "spec.storage.size"),
        (json!({"mysqld": {"gtid_mode": "OFF"}}), "gtid_mode"),
        (json!({"mysqld": {"Max-Connections": "10"}}), "lower case with underscores"),
        (json!({"deletionPolicy": "Perhaps"}), "deletionPolicy"),
        (json!({"progressDeadline": "29s"}), "progressDeadline must be from 30s to 24h"),
        (json!({"progressDeadline": "24h1s"}), "progressDeadline must be from 30s to 24h"),
        (json!({"progressDeadline": "ten minutes"}), "spec.progressDeadline"),
        (json!({"progressDeadline": ""}), "spec.progressDeadline"),
        (json!({"replica": 3}), "unknown field"),
    ] {
        let refusal = server.refusal(spec(&fields)).await;
        assert!(refusal.contains(reason), "{fields}: {refusal}");
    }
    let long = server.create(&"a".repeat(41), spec(&json!({}))).await.unwrap_err().to_string();
    assert!(long.contains("at most 40 characters"), "{long}");
}

#[tokio::test]
async fn defaults_are_filled_in_and_volumes_may_only_grow() {
    let server = server().await;
    let made = server.create("orders", spec(&json!({}))).await.unwrap();
    assert_eq!((made.spec.replicas, made.spec.progress_deadline.seconds()), (3, 600));
    let clusters = server.clusters();
    let resize = async |size: &str| {
        let patch = json!({"spec": {"storage": {"size": size}}});
        clusters.patch("orders", &PatchParams::default(), &Patch::Merge(&patch)).await
    };
    resize("2Gi").await.unwrap();
    let refusal = resize("1Gi").await.unwrap_err().to_string();
    assert!(refusal.contains("may only grow"), "{refusal}");
}

#[tokio::test]
async fn status_is_written_apart_from_spec_and_shown_in_tables() {
    let server = server().await;
    let mut made = server.create("orders", spec(&json!({}))).await.unwrap();
    made.status = Some(
        serde_json::from_value(json!({
            "phase": "Healthy", "primary": "orders-0", "ready": "3/3", "replicas": 3, "selector": "mysqlfleet.io/cluster=orders",
            "rollout": {"state": "Updating", "template": "a"},
        }))
        .unwrap(),
    );
    let clusters = server.clusters();
    let name = made.metadata.name.clone().unwrap();
    clusters.replace_status(&name, &PostParams::default(), &made).await.unwrap();
    let rows = kubernetes::table(&server.client, "/apis/mysqlfleet.io/v1/namespaces/default/mysqlclusters")
        .await
        .unwrap();
    assert_eq!(rows[0][..6], ["Name", "Primary", "Ready", "Version", "Phase", "Rollout"]);
    assert_eq!(rows[1][..6], ["orders", "orders-0", "3/3", "9.7.4", "Healthy", "Updating"]);
    let scale = clusters.get_scale("orders").await.unwrap();
    assert_eq!(scale.status.unwrap().selector.unwrap(), "mysqlfleet.io/cluster=orders");
}

#[tokio::test]
async fn what_cannot_be_federated_is_refused_with_the_reason() {
    let server = server().await;
    let overridden = |overrides: Value| json!({"placement": [{"member": "east", "overrides": overrides}]});
    for (fields, reason) in [
        (json!({"placement": []}), "spec.placement"),
        (json!({"placement": [{"member": "east"}, {"member": "east"}]}), "Duplicate value"),
        (json!({"placement": [{"member": "East"}]}), "spec.placement[0].member"),
        (overridden(json!({"version": "8.4"})), "unknown field"),
        (overridden(json!({"replicas": 2})), "spec.placement[0].overrides.replicas"),
        (overridden(json!({"storage": {"size": "much"}})), "spec.placement[0].overrides.storage.size"),
        (json!({"template": spec(&json!({"replicas": 2}))}), "replicas must be 1, 3 or 5"),
        (json!({"template": spec(&json!({"mysqld": {"gtid_mode": "OFF"}}))}), "gtid_mode"),
        (json!({"conflict": {"policy": "Adopt"}}), "takes over only what conflict.uids names"),
        (json!({"conflict": {"uids": {"east": "u"}}}), "conflict.uids is for policy Adopt"),
        (json!({"deletionPolicy": "Perhaps"}), "deletionPolicy"),
        (json!({"failover": {}}), "unknown field"),
    ] {
        let refusal =
            server.federate("refused", &fields).await.expect_err("the API server took it").to_string();
        assert!(refusal.contains(reason), "{fields}: {refusal}");
    }
    let long = server.federate(&"a".repeat(41), &json!({})).await.unwrap_err().to_string();
    assert!(long.contains("at most 40 characters"), "{long}");

    let member = async |name: &str, spec: Value| {
        server
            .post::<MemberCluster>("MemberCluster", "memberclusters", name, spec)
            .await
            .unwrap_err()
            .to_string()
    };
    for (spec, reason) in [
        (json!({"namespaces": []}), "spec.namespaces"),
        (json!({"namespaces": ["a", "a"]}), "Duplicate value"),
        (json!({"namespaces": ["*"]}), "spec.namespaces[0]"),
        (json!({"namespaces": ["a"], "location": {"planet": "x"}}), "unknown field"),
    ] {
        let refusal = member("refused", spec).await;
        assert!(refusal.contains(reason), "{refusal}");
    }
    let dotted = member("a.b", json!({"namespaces": ["a"]})).await;
    assert!(dotted.contains("certificates of the member's shards"), "{dotted}");
}

#[tokio::test]
async fn a_federated_cluster_with_all_that_it_can_have_is_taken_and_shown_in_tables() {
    let server = server().await;
    let everything = json!({
        "placement": [
            {"member": "east", "overrides": {
                "replicas": 1, "image": "near/mysql:9.7", "storage": {"size": "2Gi", "storageClassName": "fast"},
                "resources": {"limits": {"memory": "1Gi"}}, "mysqld": {"max_connections": "7"},
            }},
            {"member": "west"},
        ],
        "conflict": {"policy": "Adopt", "uids": {"east": "4b3c"}},
        "deletionPolicy": "Delete",
    });
    let mut made = server.federate("orders", &everything).await.unwrap();
    assert_eq!(made.spec.template.replicas, 3, "defaults are filled in");
    let status = json!({
        "phase": "Unknown", "membersReady": "1/2",
        "conditions": [{"type": "Stale", "status": "True", "reason": "MemberSilent", "message": "west",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "members": [{"member": "east", "outcome": "Aligned", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "agreedSpec": {"replicas": 1, "storage": {"size": "2Gi"}}}],
    });
    made.status = Some(serde_json::from_value(status).unwrap());
    let api = Api::<MySQLClusterFederated>::namespaced(server.client.clone(), "default");
    let written = api.replace_status("orders", &PostParams::default(), &made).await.unwrap();
    let agreed = written.status.unwrap().members[0].agreed_spec.clone().unwrap();
    assert_eq!(agreed["storage"]["size"], "2Gi", "a spec is kept with all its fields");
    let rows =
        kubernetes::table(&server.client, "/apis/mysqlfleet.io/v1/namespaces/default/mysqlclustersfederated");
    let rows = rows.await.unwrap();
    assert_eq!(rows[0][..4], ["Name", "Phase", "Members ready", "Stale"]);
    assert_eq!(rows[1][..4], ["orders", "Unknown", "1/2", "True"]);
}
