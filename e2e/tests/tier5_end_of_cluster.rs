//! The end of a MySQL cluster: volumes that stay or go, and nothing that blocks it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::{Result, bail};
use e2e::scenario::Stage;
use e2e::tenant::Tenant;
use e2e::wait;
use fleet_api::names::{self, UserRole};
use fleet_api::v1::ConditionType;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use nix::sys::signal::Signal;
use serde_json::json;

const NAMESPACE: &str = "tenant-b";
const LONG: Duration = Duration::from_mins(3);

async fn claims(tenant: &Tenant) -> Vec<PersistentVolumeClaim> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    claims.list(&ListParams::default()).await.unwrap().items
}

async fn no_pods(tenant: &Tenant, cluster: &str) {
    wait::until("the pods to be gone", LONG, Duration::from_millis(200), || async {
        let left: Vec<String> = tenant.instances(cluster).await?.into_keys().collect();
        if left.is_empty() { Ok(()) } else { bail!("{left:?} are left") }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn retained_volumes_are_adopted_with_their_data_and_deleted_ones_are_gone() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    let spec = tenant.spec(json!({"replicas": 1}));
    tenant.apply("ledger", &spec).await.unwrap();
    tenant.wait_for("ledger", ConditionType::Healthy, "True", LONG).await.unwrap();
    let service = names::primary_service("ledger");
    let pod = names::pod("ledger", 0);
    let write =
        "CREATE DATABASE kept; CREATE TABLE kept.t (id INT PRIMARY KEY); INSERT INTO kept.t VALUES (7)";
    tenant.sql("ledger", &pod, &service, UserRole::Admin, write).await.unwrap();
    let before: Vec<_> = claims(&tenant).await.into_iter().map(|claim| claim.metadata.uid).collect();

    tenant.delete("ledger", LONG).await.unwrap();
    no_pods(&tenant, "ledger").await;
    tenant.apply("ledger", &spec).await.unwrap();
    tenant.wait_for("ledger", ConditionType::Healthy, "True", LONG).await.unwrap();
    let after: Vec<_> = claims(&tenant).await.into_iter().map(|claim| claim.metadata.uid).collect();
    assert_eq!(before, after, "the volume was not adopted");
    let rows = tenant.sql("ledger", &pod, &service, UserRole::Reader, "SELECT id FROM kept.t").await.unwrap();
    assert_eq!(rows, "7");

    tenant.apply("ledger", &tenant.spec(json!({"replicas": 1, "deletionPolicy": "Delete"}))).await.unwrap();
    tenant.delete("ledger", LONG).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(tenant.client.clone());
    wait::until("the volumes to be gone", LONG, Duration::from_millis(200), || async {
        let left = claims(&tenant).await.len();
        let mine = volumes.list(&ListParams::default()).await?.items.into_iter().filter(|volume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| claim.namespace.as_deref() == Some(NAMESPACE))
        });
        let mine = mine.count();
        if left + mine > 0 {
            bail!("{left} claims and {mine} volumes are left")
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_dead_mysqld_does_not_block_deletion() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    tenant.apply("stuck", &tenant.spec(json!({"replicas": 1, "deletionPolicy": "Delete"}))).await.unwrap();
    tenant.wait_for("stuck", ConditionType::Healthy, "True", LONG).await.unwrap();
    for pod in tenant.instances("stuck").await.unwrap().values() {
        stage.signal(pod, "mysqld", Signal::SIGSTOP).unwrap();
    }
    tenant.delete("stuck", Duration::from_mins(2)).await.unwrap();
    no_pods(&tenant, "stuck").await;
}

/// Waits until the cluster says what is wrong with it; the words must be in a condition's message.
async fn says(tenant: &Tenant, name: &str, words: &str) -> Result<()> {
    let clusters = tenant.clusters();
    wait::until(
        format!("{name} to say \"{words}\""),
        Duration::from_mins(1),
        Duration::from_millis(200),
        || async {
            let cluster = clusters.get(name).await?;
            let conditions = cluster.status.map(|status| status.conditions).unwrap_or_default();
            if conditions.iter().any(|condition| condition.message.contains(words)) {
                return Ok(());
            }
            let said: Vec<String> =
                conditions.into_iter().map(|found| format!("{:?}: {}", found.type_, found.message)).collect();
            bail!("it says {said:?}")
        },
    )
    .await
}

#[tokio::test]
async fn an_image_without_mysqld_and_a_missing_storage_class_are_said_and_corrected() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    let good = json!({
        "replicas": 1,
        "deletionPolicy": "Delete",
        "storage": {"size": "1Gi", "storageClassName": "loop"},
    });
    let mut bad = good.clone();
    if let Some(fields) = bad.as_object_mut() {
        fields.insert("storage".into(), json!({"size": "1Gi", "storageClassName": "no-such-class"}));
        fields.insert("image".into(), json!(stage.images.fleet));
    }
    tenant.apply("wrong", &tenant.spec(bad.clone())).await.unwrap();
    says(&tenant, "wrong", "no-such-class").await.unwrap();
    if let Some(fields) = bad.as_object_mut() {
        fields.insert("storage".into(), json!({"size": "1Gi", "storageClassName": "loop"}));
    }
    tenant.apply("wrong", &tenant.spec(bad)).await.unwrap();
    says(&tenant, "wrong", "mysqld").await.unwrap();
    tenant.apply("wrong", &tenant.spec(good)).await.unwrap();
    tenant.wait_for("wrong", ConditionType::Healthy, "True", LONG).await.unwrap();

    // A Secret of nonsense: repaired, and the account works.
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let name = names::user_secret("wrong", UserRole::Writer);
    let nonsense = json!({"data": {"password": null, "username": "/////w=="}});
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&nonsense)).await.unwrap();
    wait::until("the Secret to be repaired", Duration::from_secs(30), Duration::from_millis(200), || async {
        tenant.account("wrong", UserRole::Writer).await.map(drop)
    })
    .await
    .unwrap();
    tenant.delete("wrong", LONG).await.unwrap();
}
