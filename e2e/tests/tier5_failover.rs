//! A primary is lost under load: another one takes over, and no acknowledged write is lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::scenario::{Stage, Stopped};
use e2e::tenant::Tenant;
use e2e::wait;
use e2e::workload::{Clients, Verdict, Workload, outage, reaches};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, InstanceRole, MySQLCluster, Phase, RequestKind, RequestOutcome};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::json;

const NAMESPACE: &str = "tenant-f";
const ORDERS: &str = "orders";
const LONG: Duration = Duration::from_mins(3);
const SOON: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(50);
const CLIENTS: u32 = 8;

/// The tenant with a Healthy cluster of three instances, made or found.
async fn healthy() -> (Stage, Tenant, MySQLCluster) {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    tenant.apply(ORDERS, &tenant.spec(json!({}))).await.unwrap();
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    (stage, tenant, cluster)
}

fn primary_of(cluster: &MySQLCluster) -> String {
    cluster.status.as_ref().unwrap().primary.clone().unwrap()
}

async fn pod(tenant: &Tenant, name: &str) -> Pod {
    tenant.instances(ORDERS).await.unwrap().remove(name).unwrap()
}

/// Does something to the primary while clients write, and judges what they were told once all is well again.
async fn loses_nothing(what: &str, fault: impl AsyncFnOnce(&Stage, &Tenant, &str) -> Result<()>) {
    let (stage, tenant, before) = healthy().await;
    let primary = primary_of(&before);
    let workload =
        Workload::start_with(&stage.cluster, &tenant, ORDERS, &Clients::paced(CLIENTS)).await.unwrap();
    reaches(&tenant, ORDERS, &primary, SOON).await.unwrap();
    let since = Instant::now();
    fault(&stage, &tenant, &primary).await.unwrap();
    let after = tenant.another_primary(ORDERS, &primary, LONG).await.unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    reaches(&tenant, ORDERS, &primary_of(&after), SOON).await.unwrap();
    let until = Instant::now();
    let writes = workload.stop().await.unwrap();
    for pod in tenant.instances(ORDERS).await.unwrap().keys() {
        let verdict = Verdict::once_applied(&writes, &tenant, ORDERS, pod, SOON).await.unwrap();
        assert!(verdict.is_clean(), "{pod}: {verdict}");
        if *pod == primary_of(&after) {
            let (acknowledged, unknown) = (verdict.acknowledged, verdict.unknown);
            let gap = outage(&writes, since, until).as_secs_f64();
            println!(
                "{what}: no acknowledged write for {gap:.2} s; {acknowledged} acknowledged, {unknown} unknown, none lost"
            );
        }
    }
}

#[tokio::test]
async fn mysqld_of_the_primary_is_killed() {
    loses_nothing("SIGKILL of mysqld", async |stage: &Stage, tenant: &Tenant, primary: &str| {
        stage.signal(&pod(tenant, primary).await, "mysqld", Signal::SIGKILL)
    })
    .await;
}

#[tokio::test]
async fn the_pod_of_the_primary_is_deleted_by_force() {
    loses_nothing("forced deletion of the pod", async |_: &Stage, tenant: &Tenant, primary: &str| {
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
        pods.delete(primary, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn the_pod_of_the_primary_is_deleted() {
    loses_nothing("deletion of the pod", async |_: &Stage, tenant: &Tenant, primary: &str| {
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
        pods.delete(primary, &DeleteParams::default()).await?;
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn mysqld_of_the_primary_hangs() {
    loses_nothing("SIGSTOP of mysqld", async |stage: &Stage, tenant: &Tenant, primary: &str| {
        stage.signal(&pod(tenant, primary).await, "mysqld", Signal::SIGSTOP)
    })
    .await;
}

#[tokio::test]
async fn agent_and_mysqld_of_the_primary_hang() {
    loses_nothing("SIGSTOP of agent and mysqld", async |stage: &Stage, tenant: &Tenant, primary: &str| {
        let hanging = pod(tenant, primary).await;
        stage.signal(&hanging, "mysql-agent", Signal::SIGSTOP)?;
        stage.signal(&hanging, "mysqld", Signal::SIGSTOP)?;
        tenant.another_primary(ORDERS, primary, LONG).await?;
        // It wakes up as the primary that it was.
        stage.signal(&hanging, "mysqld", Signal::SIGCONT)?;
        stage.signal(&hanging, "mysql-agent", Signal::SIGCONT)
    })
    .await;
}

#[tokio::test]
async fn the_shard_dies_with_the_primary() {
    let fault = async |stage: &Stage, tenant: &Tenant, primary: &str| {
        let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
        let of_shard = ListParams::default().labels("app.kubernetes.io/component=controller");
        let shards = pods.list(&of_shard).await?.items;
        ensure!(shards.len() == 2, "{} pods of the shard were found", shards.len());
        let victim = pod(tenant, primary).await;
        // Nobody starts it again before another one has taken over.
        let agent = Stopped::new(stage, &[&victim], &["mysql-agent"])?;
        stage.signal(&victim, "mysqld", Signal::SIGKILL)?;
        for shard in &shards {
            stage.signal(shard, "shard-manager", Signal::SIGKILL)?;
        }
        tenant.another_primary(ORDERS, primary, LONG).await?;
        drop(agent);
        Ok(())
    };
    loses_nothing("SIGKILL of mysqld and of the shard", fault).await;
}

/// Logins wait for a statement about accounts that waits for its acknowledgement, those of the ackers too.
#[tokio::test]
async fn a_statement_about_accounts_locks_all_ackers_out() {
    let fault = async |stage: &Stage, tenant: &Tenant, primary: &str| {
        let pods = tenant.instances(ORDERS).await?;
        let ackers: Vec<&Pod> = pods.values().filter(|pod| pod.name_any() != primary).collect();
        let stopped = Stopped::new(stage, &ackers, &["mysql-agent"])?;
        for acker in &ackers {
            stage.signal(acker, "mysqld", Signal::SIGKILL)?;
        }
        let host = names::instance_host(NAMESPACE, ORDERS, primary);
        let statement = "CREATE USER locks IDENTIFIED BY RANDOM PASSWORD";
        let created = tenant.sql(ORDERS, primary, &host, UserRole::Admin, statement);
        let locked = wait::until("logins to wait", SOON, OFTEN, || async {
            let login = tenant.sql(ORDERS, primary, &host, UserRole::Reader, "SELECT 1");
            ensure!(tokio::time::timeout(Duration::from_secs(5), login).await.is_err(), "they get in");
            Ok(())
        });
        tokio::select! {
            locked = locked => locked?,
            created = created => panic!("the statement was answered: {created:?}"),
        }
        drop(stopped);
        Ok(())
    };
    loses_nothing("ackers that are locked out", fault).await;
}

#[tokio::test]
async fn an_old_primary_with_an_unacknowledged_tail_is_archived_and_rebuilt() {
    let (stage, tenant, before) = healthy().await;
    let primary = primary_of(&before);
    let host = names::instance_host(NAMESPACE, ORDERS, &primary);
    let make = "CREATE DATABASE IF NOT EXISTS shop; CREATE TABLE IF NOT EXISTS shop.tail (id INT PRIMARY KEY); \
                DELETE FROM shop.tail";
    tenant.sql(ORDERS, &primary, &host, UserRole::Admin, make).await.unwrap();
    let pods = tenant.instances(ORDERS).await.unwrap();
    let ackers: Vec<&Pod> = pods.values().filter(|pod| pod.name_any() != primary).collect();
    // A process that is stopped would still find in its socket what was sent to it.
    let stopped = Stopped::new(&stage, &ackers, &["mysql-agent"]).unwrap();
    for acker in &ackers {
        stage.signal(acker, "mysqld", Signal::SIGKILL).unwrap();
    }
    let write = tenant.sql(ORDERS, &primary, &host, UserRole::Writer, "INSERT INTO shop.tail VALUES (1)");
    tokio::pin!(write);
    // The statement waits for an acknowledgement that can't come.
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE INFO LIKE 'INSERT INTO shop.tail%' \
                 AND STATE LIKE '%semi-sync%'";
    let begun = wait::until("the commit to wait", SOON, OFTEN, || async {
        let found = tenant.sql(ORDERS, &primary, &host, UserRole::Admin, waits).await?;
        ensure!(found == "1", "{found} commits wait");
        Ok(())
    });
    tokio::select! {
        begun = begun => begun.unwrap(),
        answered = &mut write => panic!("the commit was answered: {answered:?}"),
    }
    // Nobody starts it again before another one has taken over.
    let old = Stopped::new(&stage, &[&pods[&primary]], &["mysql-agent"]).unwrap();
    stage.signal(&pods[&primary], "mysqld", Signal::SIGKILL).unwrap();
    drop(stopped);
    assert!(write.await.is_err(), "a commit that nobody acknowledged was answered with OK");
    let after = tenant.another_primary(ORDERS, &primary, LONG).await.unwrap();
    drop(old);
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let new = primary_of(&after);
    for pod in pods.keys() {
        let host = names::instance_host(NAMESPACE, ORDERS, pod);
        let rows = tenant.sql(ORDERS, &new, &host, UserRole::Reader, "SELECT COUNT(*) FROM shop.tail").await;
        assert_eq!(rows.unwrap(), "0", "{pod}");
    }
}

#[tokio::test]
async fn the_primary_and_one_acker_are_lost_at_once() {
    let (_stage, tenant, before) = healthy().await;
    let primary = primary_of(&before);
    let host = names::instance_host(NAMESPACE, ORDERS, &primary);
    let make = "CREATE DATABASE IF NOT EXISTS shop; CREATE TABLE IF NOT EXISTS shop.two (id INT PRIMARY KEY); \
                REPLACE INTO shop.two VALUES (1)";
    tenant.sql(ORDERS, &primary, &host, UserRole::Admin, make).await.unwrap();
    let acker = (0..3).map(|ordinal| names::pod(ORDERS, ordinal)).find(|pod| *pod != primary).unwrap();
    // Nowhere to run: the pods can't come back until the node takes pods again.
    let node = kube::Api::<k8s_openapi::api::core::v1::Node>::all(tenant.client.clone());
    let name = node.list(&ListParams::default()).await.unwrap().items[0].name_any();
    node.cordon(&name).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    for victim in [&primary, &acker] {
        pods.delete(victim, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    let blocked = tenant.wait_for(ORDERS, ConditionType::FailoverBlocked, "True", SOON).await;
    node.uncordon(&name).await.unwrap();
    let blocked = blocked.unwrap().status.unwrap();
    let told = blocked.conditions.iter().find(|found| found.type_ == ConditionType::FailoverBlocked).unwrap();
    assert!(told.message.contains(&acker), "{}", told.message);
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let host = names::instance_host(NAMESPACE, ORDERS, &primary_of(&cluster));
    let rows = tenant.sql(ORDERS, &acker, &host, UserRole::Reader, "SELECT COUNT(*) FROM shop.two").await;
    assert_eq!(rows.unwrap(), "1");
}

/// The chosen instance lacks a row that a client was told of. It is left out of the cluster, and not thrown away.
#[tokio::test]
async fn a_blocked_failover_is_forced_and_what_is_left_behind_is_kept_until_a_person_gives_it_up() {
    let (stage, tenant, before) = healthy().await;
    let primary = primary_of(&before);
    let others: Vec<String> =
        (0..3).map(|ordinal| names::pod(ORDERS, ordinal)).filter(|pod| *pod != primary).collect();
    let [acker, chosen] = others.as_slice() else { unreachable!("a cluster of three has two replicas") };
    let make = "CREATE DATABASE IF NOT EXISTS shop; CREATE TABLE IF NOT EXISTS shop.forced (id INT PRIMARY KEY); \
                DELETE FROM shop.forced; INSERT INTO shop.forced VALUES (1)";
    query(&tenant, &primary, UserRole::Admin, make).await.unwrap();
    has_rows(&tenant, chosen, "1").await;
    // A copy may change it.
    let uuid = query(&tenant, &primary, UserRole::Reader, "SELECT @@server_uuid").await.unwrap();
    let pods = tenant.instances(ORDERS).await.unwrap();
    // Nobody starts it again before the others are gone.
    let asleep = Stopped::new(&stage, &[&pods[chosen]], &["mysql-agent"]).unwrap();
    stage.signal(&pods[chosen], "mysqld", Signal::SIGKILL).unwrap();
    query(&tenant, &primary, UserRole::Writer, "INSERT INTO shop.forced VALUES (2)").await.unwrap();

    // Nowhere to run: the pods can't come back until the node takes pods again.
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(tenant.client.clone());
    let node = nodes.list(&ListParams::default()).await.unwrap().items[0].name_any();
    nodes.cordon(&node).await.unwrap();
    let forced = is_forced(&stage, &tenant, [&primary, acker], chosen, asleep).await;
    nodes.uncordon(&node).await.unwrap();
    forced.unwrap();

    // Both are back with the row, and nobody follows the chosen one before a person says so.
    for left in [&primary, acker] {
        is_left_alone(&tenant, left).await;
        let refused = query(&tenant, left, UserRole::Reader, "SELECT 1").await.unwrap_err();
        assert!(format!("{refused:#}").contains("offline mode"), "{left}: {refused:#}");
    }
    has_rows(&tenant, &primary, "1,2").await;
    assert!(tenant.clusters().get(ORDERS).await.unwrap().status.unwrap().phase != Some(Phase::Healthy));
    let told = rebuild(&stage, &tenant, acker).await.unwrap();
    assert!(told.contains("has a copy in place of its data"), "{told}");
    tenant.wait_for(ORDERS, ConditionType::Available, "True", LONG).await.unwrap();
    is_told_of(&tenant, &before, chosen).await;

    // The cluster takes writes, and the old primary still has what it had.
    query(&tenant, chosen, UserRole::Writer, "INSERT INTO shop.forced VALUES (3)").await.unwrap();
    is_left_alone(&tenant, &primary).await;
    has_rows(&tenant, &primary, "1,2").await;
    rebuild(&stage, &tenant, &primary).await.unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    for pod in pods.keys() {
        has_rows(&tenant, pod, "1,3").await;
    }
    for rebuilt in [&primary, acker] {
        let kept = ["sh", "-c", "cat /var/lib/mysql/fleet/archive/*/gtids"];
        let kept = e2e::kubernetes::exec(&tenant.client, NAMESPACE, rebuilt, "mysqld", &kept).await.unwrap();
        assert!(kept.contains(&uuid), "{rebuilt} has kept {kept}");
    }
}

/// There is a new answer, and an event, that say that the chosen instance is the primary.
async fn is_told_of(tenant: &Tenant, before: &MySQLCluster, chosen: &str) {
    let answer = |cluster: &MySQLCluster| {
        let mut answers = cluster.status.iter().flat_map(|status| &status.answered_requests);
        answers.find(|answer| answer.kind == RequestKind::ForcePrimary).cloned()
    };
    let told = wait::until("the answer to the choice", SOON, OFTEN, || async {
        let told = answer(&tenant.clusters().get(ORDERS).await?)
            .filter(|told| Some(told) != answer(before).as_ref());
        told.context("there is none")
    });
    let told = told.await.unwrap();
    assert_eq!((told.outcome, told.asked.as_str()), (RequestOutcome::Done, chosen));
    wait::until("the event that tells of it", SOON, OFTEN, || async {
        let events: Api<Event> = Api::namespaced(tenant.client.clone(), NAMESPACE);
        let warnings = ListParams::default().fields("reason=ForcePrimaryDone,type=Warning");
        let found: Vec<_> =
            events.list(&warnings).await?.items.into_iter().filter_map(|event| event.message).collect();
        // Where one was told of lately, another one only counts in its series.
        ensure!(found.iter().any(|note| note.contains(&told.asked)), "{found:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Loses the instances for good, and has the chosen one take their place.
async fn is_forced(
    stage: &Stage,
    tenant: &Tenant,
    lost: [&String; 2],
    chosen: &str,
    asleep: Stopped<'_>,
) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    for victim in lost {
        pods.delete(victim, &DeleteParams::default().grace_period(0)).await?;
    }
    drop(asleep);
    tenant.wait_for(ORDERS, ConditionType::FailoverBlocked, "True", SOON).await?;
    wait::until(format!("{chosen} to answer"), SOON, OFTEN, || async {
        let status = tenant.clusters().get(ORDERS).await?.status.unwrap_or_default();
        let said =
            status.instances.iter().find(|instance| instance.name == chosen).context("it is unknown")?;
        // A takeover may have been begun before both were gone.
        let answers = ["waits for", "receives nothing more from"];
        let message = said.message.as_deref().unwrap_or_default();
        ensure!(answers.iter().any(|answer| message.contains(answer)), "{said:?}");
        Ok(())
    })
    .await?;
    let untouched = tenant.clusters().get(ORDERS).await?.status.unwrap_or_default();
    let force = async |more: &[&str]| {
        let arguments = ["force-primary", ORDERS, chosen, "--timeout", "15s"];
        plugin(stage, tenant, &[&arguments, more].concat()).await
    };
    let accept = "--accept-data-loss";
    for (more, part) in [
        (&[][..], "--accept-data-loss is missing"),
        (&[accept], "give --confirm orders"),
        (&[accept, "--confirm", "invoices"], "--confirm is \"invoices\""),
    ] {
        let refusal = format!("{:#}", force(more).await.expect_err("it was forced"));
        ensure!(refusal.contains(part) && refusal.contains("exit status: 2"), "{refusal}");
    }
    let status = tenant.clusters().get(ORDERS).await?.status.unwrap_or_default();
    ensure!((status.term, &status.primary) == (untouched.term, &untouched.primary), "{status:?}");
    // Of three instances one is there: it takes over, and nobody acknowledges.
    let waits = format!("{:#}", force(&[accept, "--confirm", ORDERS]).await.expect_err("it is open"));
    ensure!(waits.contains("no answer within") && waits.contains("1 ackers have to follow it"), "{waits}");
    let status = tenant.clusters().get(ORDERS).await?.status.unwrap_or_default();
    let since = status.forced.as_ref().map(|forced| forced.term);
    ensure!(since == Some(status.primary_since) && status.primary.as_deref() == Some(chosen), "{status:?}");
    Ok(())
}

async fn is_left_alone(tenant: &Tenant, pod: &str) {
    wait::until(format!("{pod} to be left alone"), LONG, OFTEN, || async {
        let status = tenant.clusters().get(ORDERS).await?.status.unwrap_or_default();
        let said = status.instances.iter().find(|instance| instance.name == pod).context("it is unknown")?;
        let message = said.message.clone().unwrap_or_default();
        ensure!(said.role == InstanceRole::Errant, "{:?}: {message}", said.role);
        ensure!(message.contains("may have been acknowledged"), "{message}");
        Ok(())
    })
    .await
    .unwrap();
}

async fn has_rows(tenant: &Tenant, pod: &str, rows: &str) {
    wait::until(format!("{pod} to have the rows {rows}"), SOON, OFTEN, || async {
        let select = "SELECT GROUP_CONCAT(id ORDER BY id) FROM shop.forced";
        // The only one who gets in to an instance that is left alone.
        let found = query(tenant, pod, UserRole::Admin, select).await?;
        ensure!(found == rows, "it has {found}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Runs SQL at an instance, from within it.
async fn query(tenant: &Tenant, pod: &str, role: UserRole, statement: &str) -> Result<String> {
    tenant.sql(ORDERS, pod, &names::instance_host(NAMESPACE, ORDERS, pod), role, statement).await
}

/// What `FLUSH TABLES` writes to the binary log is a transaction, also on a replica that takes no writes.
#[tokio::test]
async fn an_errant_instance_is_left_alone_until_a_person_has_it_rebuilt() {
    let (stage, tenant, before) = healthy().await;
    let primary = primary_of(&before);
    let errant = (0..3).map(|ordinal| names::pod(ORDERS, ordinal)).find(|pod| *pod != primary).unwrap();
    let host = names::instance_host(NAMESPACE, ORDERS, &errant);
    let uuid =
        tenant.sql(ORDERS, &errant, &host, UserRole::Admin, "SELECT @@server_uuid; FLUSH TABLES").await;
    let uuid = uuid.unwrap();
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "False", SOON).await.unwrap();
    let status = cluster.status.unwrap();
    let said = status.instances.iter().find(|instance| instance.name == errant).unwrap();
    let message = said.message.clone().unwrap_or_default();
    assert!(message.contains(&uuid) && message.contains("left alone"), "{message}");

    let refusal = rebuild(&stage, &tenant, &primary).await.unwrap_err().to_string();
    assert!(refusal.contains("is the primary"), "{refusal}");
    let told = rebuild(&stage, &tenant, &errant).await.unwrap();
    assert!(told.contains("has a copy in place of its data"), "{told}");
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let held = tenant.sql(ORDERS, &errant, &host, UserRole::Reader, "SELECT @@gtid_executed").await.unwrap();
    let source = names::instance_host(NAMESPACE, ORDERS, &primary);
    let more = format!("SELECT GTID_SUBTRACT('{}', @@gtid_executed)", held.replace("\\n", ""));
    let more = tenant.sql(ORDERS, &primary, &source, UserRole::Reader, &more).await.unwrap();
    assert_eq!(more, "", "{errant} holds what {primary} does not");
    let kept = ["sh", "-c", "cat /var/lib/mysql/fleet/archive/*/gtids"];
    let kept = e2e::kubernetes::exec(&tenant.client, NAMESPACE, &errant, "mysqld", &kept).await.unwrap();
    assert!(kept.contains(&uuid), "{kept}");
}

/// What changes no data need not be given up, and is kept by its name alone.
#[tokio::test]
async fn an_errant_instance_is_released_with_what_a_person_names() {
    let (stage, tenant, before) = healthy().await;
    let primary = primary_of(&before);
    let errant = (0..3).map(|ordinal| names::pod(ORDERS, ordinal)).find(|pod| *pod != primary).unwrap();
    let before = "SELECT @@gtid_executed";
    let before = query(&tenant, &errant, UserRole::Admin, before).await.unwrap().replace("\\n", "");
    query(&tenant, &errant, UserRole::Admin, "FLUSH TABLES; FLUSH TABLES").await.unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "False", SOON).await.unwrap();
    let more = format!("SELECT GTID_SUBTRACT(@@gtid_executed, CONCAT('{before},', @@server_uuid, ':1'))");
    let last = query(&tenant, &errant, UserRole::Admin, &more).await.unwrap();
    let all = format!("SELECT GTID_SUBTRACT(@@gtid_executed, '{before}')");
    let all = query(&tenant, &errant, UserRole::Admin, &all).await.unwrap();

    let refusal = release(&stage, &tenant, &errant, &last).await.unwrap_err().to_string();
    assert!(refusal.contains("also holds transactions that are not named"), "{refusal}");
    let told = release(&stage, &tenant, &errant, &all).await.unwrap();
    assert!(told.contains("is in sync, and the cluster counts"), "{told}");
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    for pod in (0..3).map(|ordinal| names::pod(ORDERS, ordinal)) {
        let holds = format!("SELECT GTID_SUBSET('{all}', @@gtid_executed)");
        assert_eq!(query(&tenant, &pod, UserRole::Reader, &holds).await.unwrap(), "1", "{pod}");
    }
}

async fn release(stage: &Stage, tenant: &Tenant, pod: &str, gtids: &str) -> Result<String> {
    plugin(stage, tenant, &["instance", "release", ORDERS, pod, "--gtids", gtids, "--timeout", "120s"]).await
}

async fn rebuild(stage: &Stage, tenant: &Tenant, pod: &str) -> Result<String> {
    plugin(stage, tenant, &["instance", "rebuild", ORDERS, pod, "--timeout", "120s"]).await
}

/// What the plugin prints, or why it fails.
async fn plugin(stage: &Stage, tenant: &Tenant, arguments: &[&str]) -> Result<String> {
    let mut plugin = e2e::command::command(stage.programs.program("kubectl-fleet"));
    plugin.args(arguments).args(["--namespace", &tenant.namespace]);
    plugin.arg("--kubeconfig").arg(stage.cluster.kubeconfig());
    e2e::command::finish(&mut plugin).await
}
