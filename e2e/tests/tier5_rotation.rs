//! Another certificate authority under load: nothing is restarted, and no session or channel is lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use e2e::scenario::Stage;
use e2e::tenant::Tenant;
use e2e::wait;
use e2e::workload::{Clients, Verdict, Workload, reaches};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, RequestKind, RequestOutcome};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

const NAMESPACE: &str = "tenant-rotation";
const ORDERS: &str = "orders";
const LONG: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(500);
/// Load enough to notice, for minutes.
const PAUSE: Duration = Duration::from_millis(200);
/// The shortest wait, twice, and for each step the time that kubelet needs to show a Secret.
const EXCHANGE: Duration = Duration::from_mins(12);

/// What is still the same afterwards.
#[derive(Debug, PartialEq)]
struct Undisturbed {
    term: i64,
    mysqld: BTreeMap<String, Vec<i32>>,
    dumps: String,
    passwords: Vec<(String, String)>,
}

async fn undisturbed(stage: &Stage, tenant: &Tenant) -> Undisturbed {
    let status = tenant.clusters().get(ORDERS).await.unwrap().status.unwrap();
    let primary = status.primary.unwrap();
    let pods = tenant.instances(ORDERS).await.unwrap();
    let mysqld =
        pods.iter().map(|(name, pod)| (name.clone(), stage.processes(pod, "mysqld").unwrap())).collect();
    let host = names::instance_host(NAMESPACE, ORDERS, &primary);
    let query = "SELECT GROUP_CONCAT(ID ORDER BY ID) FROM information_schema.processlist WHERE COMMAND LIKE 'Binlog Dump%'";
    let dumps = tenant.sql(ORDERS, &primary, &host, UserRole::Admin, query).await.unwrap();
    let mut passwords = Vec::new();
    for role in UserRole::ALL {
        passwords.push(tenant.account(ORDERS, role).await.unwrap());
    }
    Undisturbed { term: status.term, mysqld, dumps, passwords }
}

async fn authorities(tenant: &Tenant, secret: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let data = secrets.get(secret).await.unwrap().data.unwrap();
    String::from_utf8(data["ca.crt"].0.clone()).unwrap()
}

#[tokio::test]
async fn another_authority_under_load_restarts_nothing_and_loses_no_connection() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    tenant.apply(ORDERS, &tenant.spec(json!({}))).await.unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let clients = Clients { writers: 8, readers: 0, nodes: vec![0], pause: PAUSE };
    let workload = Workload::start_with(&stage.cluster, &tenant, ORDERS, &clients).await.unwrap();
    let before = undisturbed(&stage, &tenant).await;
    let old = authorities(&tenant, &names::tls_secret(ORDERS)).await;

    let clusters = tenant.clusters();
    let patch = json!({"metadata": {"annotations": {names::ANNOTATION_ROTATE_AUTHORITY: "2m"}}});
    clusters.patch(ORDERS, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let answer = wait::until("the authority to be another one", EXCHANGE, OFTEN, || async {
        let cluster = clusters.get(ORDERS).await?;
        let pending = cluster.annotations().get(names::ANNOTATION_ROTATE_AUTHORITY);
        let answers =
            cluster.status.as_ref().map(|status| status.answered_requests.clone()).unwrap_or_default();
        let answer = answers.into_iter().find(|answer| answer.kind == RequestKind::RotateAuthority);
        ensure!(pending.is_none() && answer.is_some(), "asked for {pending:?}, answered {answer:?}");
        Ok(answer.unwrap())
    })
    .await
    .unwrap();
    assert_eq!(answer.outcome, RequestOutcome::Done, "{answer:?}");

    let new = authorities(&tenant, &names::shard_ca_secret(NAMESPACE)).await;
    assert_ne!(new, old);
    let secrets = [
        names::tls_secret(ORDERS),
        names::shard_tls_secret(NAMESPACE),
        names::shard_client_secret(NAMESPACE),
    ];
    for secret in &secrets {
        wait::until(format!("{secret} to trust the new one alone"), SOON, OFTEN, || async {
            ensure!(authorities(&tenant, secret).await == new);
            Ok(())
        })
        .await
        .unwrap();
    }
    // Who connects now is one who knows the new authority alone: a client and the plugin.
    assert_eq!(undisturbed(&stage, &tenant).await, before);
    tenant.status("table").await.unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let primary = clusters.get(ORDERS).await.unwrap().status.unwrap().primary.unwrap();
    reaches(&tenant, ORDERS, &primary, SOON).await.unwrap();

    let events: Api<Event> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let told: Vec<String> = events
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|event| event.reason)
        .collect();
    for reason in [
        "AuthorityIntroduced",
        "AuthorityTrusted",
        "AuthorityReplaced",
        "AuthorityShown",
        "AuthorityWithdrawn",
    ] {
        assert!(told.iter().any(|found| found == reason), "{reason} is not among {told:?}");
    }

    let writes = workload.stop().await.unwrap();
    for pod in tenant.instances(ORDERS).await.unwrap().keys() {
        let verdict = Verdict::once_applied(&writes, &tenant, ORDERS, pod, SOON).await.unwrap();
        assert!(verdict.is_clean() && verdict.refused == 0, "{pod}: {verdict}");
    }
}
