//! What users get wrong on a real Kubernetes: each is said in a condition, and all is well once it is corrected.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use anyhow::{Result, bail};
use e2e::scenario::Stage;
use e2e::tenant::Tenant;
use e2e::wait;
use fleet_api::names::{self, UserRole};
use fleet_api::v1::ConditionType;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "tenant-c";
const LONG: Duration = Duration::from_mins(3);

/// One instance, gone with its volume afterwards: `fields` replace or add.
fn spec(tenant: &Tenant, fields: Value) -> Value {
    let mut spec = tenant.spec(json!({"replicas": 1, "deletionPolicy": "Delete"}));
    if let (Some(spec), Value::Object(fields)) = (spec.as_object_mut(), fields) {
        spec.extend(fields);
    }
    spec
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
async fn what_cannot_be_made_is_named_and_made_once_it_is_corrected() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    let class = |name: &str| json!({"storage": {"size": "1Gi", "storageClassName": name}});
    for (name, wrong, words, right) in [
        ("classless", class("no-such-class"), "no-such-class", class("loop")),
        ("empty", json!({"image": stage.images.fleet}), "mysqld", json!({})),
        ("absent", json!({"image": "localhost/nothing:1"}), "localhost/nothing:1", json!({})),
    ] {
        tenant.apply(name, &spec(&tenant, wrong)).await.unwrap();
        says(&tenant, name, words).await.unwrap();
        tenant.apply(name, &spec(&tenant, right)).await.unwrap();
        tenant.wait_for(name, ConditionType::Healthy, "True", LONG).await.unwrap();
        tenant.delete(name, LONG).await.unwrap();
    }
}

#[tokio::test]
async fn an_account_of_nonsense_is_repaired_and_works_again() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    tenant.apply("accounts", &spec(&tenant, json!({}))).await.unwrap();
    tenant.wait_for("accounts", ConditionType::Healthy, "True", LONG).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let name = names::user_secret("accounts", UserRole::Writer);
    let nonsense = json!({"data": {"password": null, "username": "/////w=="}});
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&nonsense)).await.unwrap();
    let service = names::primary_service("accounts");
    wait::until("the account to be repaired", Duration::from_mins(1), Duration::from_millis(200), || async {
        tenant
            .sql("accounts", &names::pod("accounts", 0), &service, UserRole::Writer, "SELECT 1")
            .await
            .map(drop)
    })
    .await
    .unwrap();
    tenant.delete("accounts", LONG).await.unwrap();
}
