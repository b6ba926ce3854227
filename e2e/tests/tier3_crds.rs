//! The CustomResourceDefinitions against a real API server: what it refuses, what it fills in.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use e2e::{apiserver, kubernetes};
use fleet_api::v1::MySQLCluster;
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
            created.clusters().list(&kube::api::ListParams::default()).await?;
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
        let object = json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
            "metadata": {"name": name}, "spec": spec,
        });
        // As text, so that what the Rust type would refuse reaches the API server.
        let request = http::Request::post(
            "/apis/mysqlfleet.io/v1/namespaces/default/mysqlclusters?fieldValidation=Strict",
        )
        .header("Content-Type", "application/json")
        .body(object.to_string().into_bytes())
        .unwrap();
        self.client.request(request).await
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
    assert_eq!(made.spec.replicas, 3);
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
        }))
        .unwrap(),
    );
    let clusters = server.clusters();
    let name = made.metadata.name.clone().unwrap();
    clusters.replace_status(&name, &PostParams::default(), &made).await.unwrap();
    let rows = kubernetes::table(&server.client, "/apis/mysqlfleet.io/v1/namespaces/default/mysqlclusters")
        .await
        .unwrap();
    assert_eq!(rows[0][..5], ["Name", "Primary", "Ready", "Version", "Phase"]);
    assert_eq!(rows[1][..5], ["orders", "orders-0", "3/3", "9.7.4", "Healthy"]);
    let scale = clusters.get_scale("orders").await.unwrap();
    assert_eq!(scale.status.unwrap().selector.unwrap(), "mysqlfleet.io/cluster=orders");
}
