//! A changed spec reaches running instances one at a time; a bad one does not reach more than one, and is taken back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::scenario::Stage;
use e2e::tenant::Tenant;
use e2e::wait;
use e2e::workload::{Clients, Verdict, Workload, outage};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, MySQLCluster, RolloutState, RolloutStatus};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const NAMESPACE: &str = "tenant-r";
const ORDERS: &str = "orders";
const LONG: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(20);
const CLIENTS: u32 = 8;

type Uids = BTreeMap<String, String>;

/// The pods by name, and which of them is which.
async fn uids(tenant: &Tenant) -> Result<Uids> {
    let pods = tenant.instances(ORDERS).await?;
    Ok(pods.into_iter().filter_map(|(name, pod)| Some((name, pod.uid()?))).collect())
}

async fn apply(tenant: &Tenant, fields: Value) {
    tenant.apply(ORDERS, &tenant.spec(fields)).await.unwrap();
}

/// Watches until every pod is another one and the cluster is Healthy: in which order they were replaced.
async fn order_of_replacement(tenant: &Tenant, before: &Uids) -> Vec<String> {
    let order = std::sync::Mutex::new(Vec::new());
    wait::until("all pods to be replaced", LONG, OFTEN, || async {
        let now = uids(tenant).await?;
        let mut order = order.lock().unwrap();
        for (pod, uid) in &now {
            if before[pod] != *uid && !order.contains(pod) {
                order.push(pod.clone());
            }
        }
        ensure!(order.len() == before.len(), "replaced: {order:?}");
        Ok(())
    })
    .await
    .unwrap();
    order.into_inner().unwrap()
}

async fn has_max_connections(tenant: &Tenant, expected: &str) {
    for ordinal in 0..3 {
        let pod = names::pod(ORDERS, ordinal);
        let host = names::instance_host(NAMESPACE, ORDERS, &pod);
        let query = "SELECT @@max_connections";
        assert_eq!(
            tenant.sql(ORDERS, &pod, &host, UserRole::Reader, query).await.unwrap(),
            expected,
            "{pod}"
        );
    }
}

#[tokio::test]
async fn a_changed_spec_reaches_one_instance_after_the_other() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    apply(&tenant, json!({})).await;
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let primary = cluster.status.unwrap().primary.unwrap();
    let workload =
        Workload::start_with(&stage.cluster, &tenant, ORDERS, &Clients::paced(CLIENTS)).await.unwrap();

    let before = uids(&tenant).await.unwrap();
    let since = Instant::now();
    let good = json!({"mysqld": {"max_connections": "123"}});
    apply(&tenant, good.clone()).await;
    let order = order_of_replacement(&tenant, &before).await;
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let until = Instant::now();
    let mut expected: Vec<_> = before.keys().filter(|pod| **pod != primary).rev().cloned().collect();
    expected.push(primary.clone());
    assert_eq!(order, expected);
    let status = cluster.status.unwrap();
    assert!(status.planned && status.primary.as_ref() != Some(&primary), "no handover: {status:?}");
    has_max_connections(&tenant, "123").await;
    let primary = status.primary.unwrap();
    no_other_than_the_first_replica_meets_a_bad_image(&tenant, &primary, good).await;
    a_key_that_mysqld_refuses_is_taken_back_also_by_another_leader(&stage, &tenant, &primary).await;
    a_corrected_spec_goes_on_by_itself(&tenant).await;

    let writes = workload.stop().await.unwrap();
    for pod in before.keys() {
        let verdict = Verdict::once_applied(&writes, &tenant, ORDERS, pod, SOON).await.unwrap();
        assert!(verdict.is_clean() && verdict.acknowledged > 0, "{pod}: {verdict}");
    }
    let gap = outage(&writes, since, until).as_secs_f64();
    println!("{:.0} s for all; no acknowledged write for {gap:.2} s", (until - since).as_secs_f64());
}

/// The update stops at the first replica, and the corrected spec makes that one good again.
async fn no_other_than_the_first_replica_meets_a_bad_image(tenant: &Tenant, primary: &str, good: Value) {
    let before = uids(tenant).await.unwrap();
    let first = before.keys().rev().find(|pod| *pod != primary).unwrap().clone();
    let mut bad = good.clone();
    bad["image"] = json!("registry.invalid/mysql:none");
    apply(tenant, bad).await;
    wait::until(format!("{first} to fail"), LONG, OFTEN, || async {
        let cluster = tenant.clusters().get(ORDERS).await?;
        let status = cluster.status.unwrap();
        let message =
            status.instances.iter().find(|one| one.name == first).and_then(|one| one.message.clone());
        let says = message.unwrap_or_default();
        ensure!(says.contains("registry.invalid/mysql:none"), "{says}; {:?}", status.conditions);
        let progress = status.conditions.iter().find(|one| one.type_ == ConditionType::Progressing).unwrap();
        ensure!(progress.reason == "RollingUpdate" && progress.message.contains("1 of 3"), "{progress:?}");
        Ok(())
    })
    .await
    .unwrap();
    apply(tenant, good).await;
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let after = uids(tenant).await.unwrap();
    let replaced: Vec<_> = before.keys().filter(|pod| before[*pod] != after[*pod]).collect();
    assert_eq!(replaced, [&first], "only one pod was touched");
    let status = tenant.clusters().get(ORDERS).await.unwrap().status.unwrap();
    assert_eq!(status.primary.as_deref(), Some(primary));
}

fn rollout(cluster: &MySQLCluster) -> Option<&RolloutStatus> {
    cluster.status.as_ref()?.rollout.as_ref()
}

/// The pod of the shard that leads.
async fn leader(tenant: &Tenant) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let lease = leases.get(&names::shard_lease(NAMESPACE)).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty());
    holder.context("nobody leads")
}

/// The mysqld of the replica that was not replaced yet ends meanwhile.
async fn comes_back_with_the_keys_of_its_own_template(stage: &Stage, tenant: &Tenant, others: [&str; 2]) {
    let pods = tenant.instances(ORDERS).await.unwrap();
    let (name, pod) = pods.iter().find(|(name, _)| !others.contains(&name.as_str())).unwrap();
    let host = names::instance_host(NAMESPACE, ORDERS, name);
    let ask = async || {
        let query = "SELECT @@max_connections, VARIABLE_VALUE FROM performance_schema.global_status \
                     WHERE VARIABLE_NAME = 'Uptime'";
        let row = tenant.sql(ORDERS, name, &host, UserRole::Reader, query).await?;
        let fields: Vec<&str> = row.split('\t').collect();
        anyhow::Ok((fields[0].to_owned(), fields[1].parse::<u64>()?))
    };
    let (_, before) = ask().await.unwrap();
    stage.signal(pod, "mysqld", Signal::SIGKILL).unwrap();
    let connections = wait::until(format!("{name} to be back"), LONG, OFTEN, || async {
        let (connections, uptime) = ask().await?;
        ensure!(uptime < before, "its mysqld has not ended");
        Ok(connections)
    });
    assert_eq!(connections.await.unwrap(), "123");
}

/// The first replica waits until the deadline, whoever leads, and goes back; no other pod is touched.
async fn a_key_that_mysqld_refuses_is_taken_back_also_by_another_leader(
    stage: &Stage,
    tenant: &Tenant,
    primary: &str,
) {
    let before = uids(tenant).await.unwrap();
    let first = before.keys().rev().find(|pod| *pod != primary).unwrap().clone();
    apply(
        tenant,
        json!({"mysqld": {"max_connections": "123", "no_such_variable": "1"}, "progressDeadline": "30s"}),
    )
    .await;
    wait::until(format!("{first} to be waited for"), LONG, OFTEN, || async {
        let cluster = tenant.clusters().get(ORDERS).await?;
        let waits = rollout(&cluster).and_then(|rollout| rollout.waits_for.clone());
        let waits = waits.with_context(|| format!("nobody is: {:?}", rollout(&cluster)))?;
        ensure!(waits.instance == first, "{waits:?}");
        Ok(())
    })
    .await
    .unwrap();
    comes_back_with_the_keys_of_its_own_template(stage, tenant, [&first, primary]).await;
    let led = leader(tenant).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    pods.delete(&led, &DeleteParams::default().grace_period(0)).await.unwrap();

    let cluster = tenant.wait_for(ORDERS, ConditionType::RolledBack, "True", LONG).await.unwrap();
    assert_ne!(leader(tenant).await.unwrap(), led);
    let given_up = rollout(&cluster).unwrap().given_up.clone().unwrap();
    assert_eq!(
        (&given_up.instance, given_up.fields.as_slice()),
        (&first, &["spec.mysqld.no_such_variable".to_owned()][..])
    );
    assert!(given_up.reason.contains("no_such_variable"), "{given_up:?}");
    wait::until("all pods to be back", LONG, OFTEN, || async {
        let cluster = tenant.clusters().get(ORDERS).await?;
        let now = rollout(&cluster);
        ensure!(now.is_some_and(|now| now.state == RolloutState::RolledBack), "{now:?}");
        Ok(())
    })
    .await
    .unwrap();
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    assert_eq!(cluster.status.as_ref().unwrap().primary.as_deref(), Some(primary));
    let after = uids(tenant).await.unwrap();
    let replaced: Vec<_> = before.keys().filter(|pod| before[*pod] != after[*pod]).collect();
    assert_eq!(replaced, [&first], "only one pod was touched");
    has_max_connections(tenant, "123").await;
    let shown = tenant.status("table").await.unwrap();
    assert!(shown.contains("RolledBack") && shown.contains("no_such_variable"), "{shown}");
}

async fn a_corrected_spec_goes_on_by_itself(tenant: &Tenant) {
    let before = uids(tenant).await.unwrap();
    apply(tenant, json!({"mysqld": {"max_connections": "124"}, "progressDeadline": "30s"})).await;
    order_of_replacement(tenant, &before).await;
    let cluster = tenant.wait_for(ORDERS, ConditionType::RolledBack, "False", LONG).await.unwrap();
    let given_up = rollout(&cluster).and_then(|rollout| rollout.given_up.clone());
    assert_eq!(given_up, None);
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    has_max_connections(tenant, "124").await;
}
