//! The end of a MySQL cluster: volumes that stay or go, and nothing that blocks it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::bail;
use e2e::scenario::Stage;
use e2e::tenant::Tenant;
use e2e::wait;
use fleet_api::names::{self, UserRole};
use fleet_api::v1::ConditionType;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::ListParams;
use nix::sys::signal::Signal;
use serde_json::json;

const NAMESPACE: &str = "tenant-b";
const LONG: Duration = Duration::from_mins(3);

/// The volume claims of a cluster.
async fn claims(tenant: &Tenant, cluster: &str) -> Vec<PersistentVolumeClaim> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let all = claims.list(&ListParams::default()).await.unwrap().items;
    let prefix = format!("data-{cluster}-");
    all.into_iter()
        .filter(|claim| claim.metadata.name.as_deref().is_some_and(|name| name.starts_with(&prefix)))
        .collect()
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
    let before: Vec<_> =
        claims(&tenant, "ledger").await.into_iter().map(|claim| claim.metadata.uid).collect();

    tenant.delete("ledger", LONG).await.unwrap();
    no_pods(&tenant, "ledger").await;
    tenant.apply("ledger", &spec).await.unwrap();
    tenant.wait_for("ledger", ConditionType::Healthy, "True", LONG).await.unwrap();
    let after: Vec<_> = claims(&tenant, "ledger").await.into_iter().map(|claim| claim.metadata.uid).collect();
    assert_eq!(before, after, "the volume was not adopted");
    let rows = tenant.sql("ledger", &pod, &service, UserRole::Reader, "SELECT id FROM kept.t").await.unwrap();
    assert_eq!(rows, "7");

    tenant.apply("ledger", &tenant.spec(json!({"replicas": 1, "deletionPolicy": "Delete"}))).await.unwrap();
    tenant.delete("ledger", LONG).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(tenant.client.clone());
    wait::until("the volumes to be gone", LONG, Duration::from_millis(200), || async {
        let left = claims(&tenant, "ledger").await.len();
        let mine = volumes.list(&ListParams::default()).await?.items.into_iter().filter(|volume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| {
                claim.namespace.as_deref() == Some(NAMESPACE)
                    && claim.name.as_deref().is_some_and(|name| name.starts_with("data-ledger-"))
            })
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
