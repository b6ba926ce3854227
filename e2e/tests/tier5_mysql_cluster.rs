//! A tenant's MySQL cluster on a real Kubernetes: it serves, keeps what it promises, and repairs itself.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{bail, ensure};
use e2e::scenario::{Stage, Stopped};
use e2e::tenant::Tenant;
use e2e::{kubernetes, wait};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, MySQLCluster};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const NAMESPACE: &str = "tenant-m";
const ORDERS: &str = "orders";
const LONG: Duration = Duration::from_mins(3);
const SOON: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(100);

/// The tenant with a Healthy cluster of three instances, made or found.
async fn healthy() -> (Stage, Tenant, MySQLCluster) {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    let spec = tenant.spec(json!({"mysqld": {"max_connections": "77"}}));
    tenant.apply(ORDERS, &spec).await.unwrap();
    let cluster = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    (stage, tenant, cluster)
}

fn primary_of(cluster: &MySQLCluster) -> String {
    cluster.status.as_ref().unwrap().primary.clone().unwrap()
}

/// A table with one row, `id`, in the database `shop`.
fn writing(table: &str, id: u32) -> String {
    format!(
        "CREATE DATABASE IF NOT EXISTS shop; CREATE TABLE IF NOT EXISTS shop.{table} (id INT PRIMARY KEY); \
         REPLACE INTO shop.{table} VALUES ({id})"
    )
}

#[tokio::test]
async fn a_row_written_through_the_primary_is_read_everywhere() {
    let (_stage, tenant, cluster) = healthy().await;
    let primary = primary_of(&cluster);
    let service = names::primary_service(ORDERS);
    tenant.sql(ORDERS, &primary, &service, UserRole::Admin, &writing("everywhere", 1)).await.unwrap();
    let pods = tenant.instances(ORDERS).await.unwrap();
    assert_eq!(pods.len(), 3);
    let mut hosts: Vec<String> =
        pods.keys().map(|pod| names::instance_host(NAMESPACE, ORDERS, pod)).collect();
    hosts.extend([service, names::replicas_service(ORDERS)]);
    for host in hosts {
        let read = || async {
            let rows = tenant
                .sql(ORDERS, &primary, &host, UserRole::Reader, "SELECT id FROM shop.everywhere")
                .await?;
            ensure!(rows == "1", "it has {rows:?}");
            Ok(())
        };
        wait::until(format!("the row at {host}"), SOON, OFTEN, read).await.unwrap();
    }
    let replica = pods.keys().find(|pod| **pod != primary).unwrap();
    let host = names::instance_host(NAMESPACE, ORDERS, replica);
    let refused =
        tenant.sql(ORDERS, &primary, &host, UserRole::Writer, &writing("everywhere", 2)).await.unwrap_err();
    assert!(format!("{refused:#}").contains("1290"), "a replica took a write: {refused:#}");
}

#[tokio::test]
async fn people_see_the_state_in_a_table_and_over_grpc() {
    let (_stage, tenant, cluster) = healthy().await;
    let path = format!("/apis/mysqlfleet.io/v1/namespaces/{NAMESPACE}/mysqlclusters");
    let rows = kubernetes::table(&tenant.client, &path).await.unwrap();
    assert_eq!(rows[0][..5], ["Name", "Primary", "Ready", "Version", "Phase"]);
    let version = cluster.spec.version.clone();
    assert_eq!(rows[1][..5], [ORDERS, &primary_of(&cluster), "3/3", &version, "Healthy"]);
    for condition in &cluster.status.as_ref().unwrap().conditions {
        assert_eq!(condition.observed_generation, cluster.metadata.generation, "{:?}", condition.type_);
        assert!(!condition.reason.is_empty() && !condition.message.is_empty(), "{:?}", condition.type_);
    }
    let table = tenant.status("table").await.unwrap();
    assert!(table.contains("orders") && table.contains("Healthy"), "{table}");
    let json: Value = serde_json::from_str(&tenant.status("json").await.unwrap()).unwrap();
    assert!(json.to_string().contains("orders-2"), "{json}");
}

#[tokio::test]
async fn every_instance_has_the_settings_that_safety_rests_on() {
    let (_stage, tenant, cluster) = healthy().await;
    let primary = primary_of(&cluster);
    for pod in tenant.instances(ORDERS).await.unwrap().keys() {
        let host = names::instance_host(NAMESPACE, ORDERS, pod);
        let rows = tenant.sql(ORDERS, pod, &host, UserRole::Reader, "SHOW GLOBAL VARIABLES").await.unwrap();
        let variables: BTreeMap<&str, &str> = rows.lines().filter_map(|line| line.split_once('\t')).collect();
        let opened = if *pod == primary { "OFF" } else { "ON" };
        let source = if *pod == primary { "ON" } else { "OFF" };
        for (name, wanted) in [
            ("relay_log_recovery", "OFF"),
            ("sync_relay_log", "1"),
            ("replica_preserve_commit_order", "ON"),
            ("skip_name_resolve", "ON"),
            ("skip_replica_start", "ON"),
            ("gtid_mode", "ON"),
            ("enforce_gtid_consistency", "ON"),
            ("sync_binlog", "1"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("rpl_semi_sync_source_wait_point", "AFTER_SYNC"),
            ("rpl_semi_sync_source_wait_no_replica", "ON"),
            ("rpl_semi_sync_source_wait_for_replica_count", "1"),
            ("rpl_semi_sync_source_enabled", source),
            ("super_read_only", opened),
            ("read_only", opened),
            ("max_connections", "77"),
        ] {
            assert_eq!(variables.get(name), Some(&wanted), "{name} of {pod}");
        }
        let timeout: u64 = variables["rpl_semi_sync_source_timeout"].parse().unwrap();
        assert!(timeout >= 4_294_967_295, "semi-sync of {pod} gives up after {timeout} ms");
    }
}

#[tokio::test]
async fn a_commit_waits_unseen_while_both_ackers_are_paused() {
    let (stage, tenant, cluster) = healthy().await;
    let primary = primary_of(&cluster);
    let host = names::instance_host(NAMESPACE, ORDERS, &primary);
    tenant.sql(ORDERS, &primary, &host, UserRole::Admin, &writing("paused", 1)).await.unwrap();
    let pods = tenant.instances(ORDERS).await.unwrap();
    let ackers: Vec<_> = pods.values().filter(|pod| pod.name_any() != primary).collect();
    let stopped = Stopped::new(&stage, &ackers, &["mysql-agent", "mysqld"]).unwrap();
    let write = tenant.sql(ORDERS, &primary, &host, UserRole::Writer, "REPLACE INTO shop.paused VALUES (2)");
    tokio::pin!(write);
    let early = tokio::time::timeout(Duration::from_secs(4), &mut write).await;
    let seen =
        tenant.sql(ORDERS, &primary, &host, UserRole::Reader, "SELECT COUNT(*) FROM shop.paused").await;
    drop(stopped);
    assert!(early.is_err(), "the commit was acknowledged: {early:?}");
    assert_eq!(seen.unwrap(), "1", "a commit that nobody acknowledged was visible");
    tokio::time::timeout(LONG, write).await.expect("the commit waits still").unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
}

/// The name of the ConfigMap with the my.cnf that pods are made with.
async fn config_map(tenant: &Tenant) -> String {
    let sets: Api<StatefulSet> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let template = sets.get(ORDERS).await.unwrap().spec.template.spec.unwrap();
    template.volumes.unwrap().into_iter().find_map(|volume| Some(volume.config_map?.name)).unwrap()
}

/// Every object that belongs to the cluster: its kind and name.
async fn children(tenant: &Tenant) -> Vec<(ApiResource, String)> {
    let core = |kind: &str, plural: &str| resource("", "v1", kind, plural);
    let mut children = vec![
        (core("Service", "services"), names::instances_service(ORDERS)),
        (core("Service", "services"), names::primary_service(ORDERS)),
        (core("Service", "services"), names::replicas_service(ORDERS)),
        (core("ConfigMap", "configmaps"), config_map(tenant).await),
        (core("Secret", "secrets"), names::tls_secret(ORDERS)),
        (
            resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
            names::primary_service(ORDERS),
        ),
        (
            resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
            names::replicas_service(ORDERS),
        ),
        (resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"), ORDERS.to_owned()),
        (resource("apps", "v1", "StatefulSet", "statefulsets"), ORDERS.to_owned()),
    ];
    children.extend(UserRole::ALL.map(|role| (core("Secret", "secrets"), names::user_secret(ORDERS, role))));
    children
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: if group.is_empty() { version.into() } else { format!("{group}/{version}") },
        kind: kind.into(),
        plural: plural.into(),
    }
}

#[tokio::test]
async fn a_deleted_child_is_made_again() {
    let (_stage, tenant, _) = healthy().await;
    let pods = tenant.instances(ORDERS).await.unwrap();
    for (kind, name) in children(&tenant).await {
        let api: Api<DynamicObject> = Api::namespaced_with(tenant.client.clone(), NAMESPACE, &kind);
        let before = api.get(&name).await.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.kind));
        api.delete(&name, &DeleteParams::orphan()).await.unwrap();
        let what = format!("{} {name} to be made again", kind.kind);
        wait::until(what, SOON, OFTEN, || async {
            let now = api.get(&name).await?;
            ensure!(now.metadata.uid != before.metadata.uid, "it is still the deleted one");
            Ok(())
        })
        .await
        .unwrap();
    }
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let uids = |pods: &BTreeMap<String, k8s_openapi::api::core::v1::Pod>| -> Vec<_> {
        pods.values().map(|pod| pod.metadata.uid.clone()).collect()
    };
    assert_eq!(uids(&pods), uids(&tenant.instances(ORDERS).await.unwrap()), "pods were replaced");
}

#[tokio::test]
async fn an_edited_child_is_reverted() {
    let (_stage, tenant, _) = healthy().await;
    for (kind, name) in children(&tenant).await {
        let edit = match kind.kind.as_str() {
            "Service" => {
                json!({"spec": {"ports": [{"name": "mysql", "port": 3306, "protocol": "TCP", "targetPort": 1}]}})
            }
            // Its data are immutable.
            "ConfigMap" => json!({"metadata": {"labels": {"app.kubernetes.io/name": "other"}}}),
            "Secret" if name == names::tls_secret(ORDERS) => json!({"data": {"tls.crt": "bm9uc2Vuc2U="}}),
            "Secret" => json!({"data": {"username": "bm9uc2Vuc2U="}}),
            "EndpointSlice" => json!({"endpoints": []}),
            "PodDisruptionBudget" => json!({"spec": {"maxUnavailable": 3}}),
            "StatefulSet" => json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}),
            other => panic!("no edit for {other}"),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(tenant.client.clone(), NAMESPACE, &kind);
        let edited_part = |object: &DynamicObject| {
            let value = serde_json::to_value(object).unwrap();
            leaves(&edit).into_iter().map(|path| value.pointer(&path).cloned()).collect::<Vec<_>>()
        };
        let before = edited_part(&api.get(&name).await.unwrap());
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
        wait::until(format!("{} {name} to be as it was", kind.kind), SOON, OFTEN, || async {
            let now = edited_part(&api.get(&name).await?);
            // A TLS certificate is issued anew, so it is enough that the nonsense is gone.
            let new_certificate = name == names::tls_secret(ORDERS) && now[0] != Some(json!("bm9uc2Vuc2U="));
            if now != before && !new_certificate {
                bail!("it has {now:?}");
            }
            Ok(())
        })
        .await
        .unwrap();
    }
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
}

/// JSON pointers to the fields of a patch; a list counts as one field.
fn leaves(value: &Value) -> Vec<String> {
    let Value::Object(fields) = value else { return vec![String::new()] };
    fields
        .iter()
        .flat_map(|(key, field)| {
            leaves(field).into_iter().map(move |rest| format!("/{}{rest}", key.replace('/', "~1")))
        })
        .collect()
}
