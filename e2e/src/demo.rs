//! The demonstration: a Kubernetes cluster, a tenant's shard, a MySQL cluster, a row written and read.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, MySQLCluster};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::cluster;
use crate::cluster::load;
use crate::images::fleet::{self, Fleet, Profile};
use crate::images::{mysql, push};
use crate::progress::Progress;
use crate::tenant::{Access, Images, Tenant};
use crate::tools::Tools;
use crate::wait;

/// The name of the local cluster.
pub const CLUSTER: &str = "demo";
/// The tenant's namespace.
pub const NAMESPACE: &str = "tenant-a";
/// The name of the MySQL cluster.
pub const ORDERS: &str = "orders";
/// Marks a namespace of someone's cluster as made by the demonstration.
const MARK: &str = "mysqlfleet.io/demo";

/// Where the demonstration runs.
#[derive(Debug, Clone)]
pub enum Place {
    /// In a local cluster, brought up for it.
    Local,
    /// In a cluster that exists.
    Existing {
        /// The context in the user's kubeconfig.
        context: String,
        /// Where our image is pushed to and pulled from.
        registry: String,
        /// MySQL's image, with `{version}` as its tag.
        mysql_image: String,
        /// The version of MySQL.
        version: String,
    },
}

/// Runs the demonstration. Running it again completes or repeats it.
pub async fn run(place: &Place, profile: Profile, progress: &Progress) -> Result<()> {
    let (access, fleet, images) = match place {
        Place::Local => local(profile, progress).await?,
        Place::Existing { context, registry, mysql_image, version } => {
            let access = Access::Context(context.clone());
            let client = access.client().await?;
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let found = namespaces.get_opt(NAMESPACE).await.with_context(|| unusable(context))?;
            let ours = is_ours(found.as_ref()).with_context(|| unusable(context))?;
            push::check(registry)?;
            let fleet = fleet::fleet(profile, progress).await?;
            let pushed = progress.run("push our image", push::push(&fleet.image, registry)).await?;
            if !ours {
                claim(&client).await.with_context(|| unusable(context))?;
            }
            let images = Images {
                fleet: pushed,
                mysql: mysql_image.clone(),
                version: version.clone(),
                pull_policy: "IfNotPresent",
            };
            (access, fleet, images)
        }
    };
    let plugin = fleet.program("kubectl-fleet");
    let deploy = Tenant::deploy(access.clone(), plugin.clone(), NAMESPACE, images.clone());
    let tenant = progress.run(format!("deploy the shard of {NAMESPACE}"), deploy).await?;

    let begun = Instant::now();
    let is_new = tenant.apply(ORDERS, &tenant.spec(json!({}))).await?.status.is_none();
    let healthy = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", Duration::from_mins(5));
    progress.run(format!("MySQLCluster {ORDERS}: 3 instances, Healthy"), healthy).await?;
    if is_new {
        progress.say(format!("from apply to Healthy: {:.1} s", begun.elapsed().as_secs_f64()));
    }

    progress.run("write and read a row through the Services", row(&tenant)).await?;
    println!("{}", tenant.status("table").await?.trim_end());
    let [flag, value] = access.arguments();
    let plugin = plugin.display();
    println!("\nAsk again:       {plugin} status -n {NAMESPACE} {flag} {value}");
    println!("kubectl:         kubectl {flag} {value} -n {NAMESPACE} get myc");
    println!(
        "Another tenant:  {plugin} {} | kubectl {flag} {value} apply -f -",
        images.rendering("tenant-b").join(" ")
    );
    Ok(())
}

async fn local(profile: Profile, progress: &Progress) -> Result<(Access, Fleet, Images)> {
    let clusters = cluster::up::up(&[CLUSTER.to_owned()], None, progress).await?;
    let cluster = clusters.first().context("the cluster did not come up")?;
    let mysql = mysql::mysql(progress).await?;
    let fleet = fleet::fleet(profile, progress).await?;
    let tools = Tools::of(&["containerd"], progress).await?;
    for image in [&mysql.image, &fleet.image] {
        let loading = load::load(cluster, &image.archive, &tools);
        progress.run(format!("load {}", image.reference), loading).await?;
    }
    let images = Images {
        fleet: fleet.image.reference.clone(),
        mysql: "localhost/mysql:{version}".into(),
        version: mysql.version,
        pull_policy: "Never",
    };
    Ok((Access::File(cluster.kubeconfig()), fleet, images))
}

/// Writes through the primary's Service; reads at each instance and through the replicas' Service.
async fn row(tenant: &Tenant) -> Result<()> {
    let first = names::pod(ORDERS, 0);
    let primary = names::primary_service(ORDERS);
    let marker = format!("{:x}", std::process::id());
    let write = format!(
        "CREATE DATABASE IF NOT EXISTS demo; \
         CREATE TABLE IF NOT EXISTS demo.rows (id BIGINT AUTO_INCREMENT PRIMARY KEY, marker VARCHAR(64)); \
         INSERT INTO demo.rows (marker) VALUES ('{marker}')"
    );
    tenant.sql(ORDERS, &first, &primary, UserRole::Admin, &write).await?;
    let read = format!("SELECT COUNT(*) FROM demo.rows WHERE marker = '{marker}'");
    let mut hosts: Vec<String> = tenant
        .instances(ORDERS)
        .await?
        .keys()
        .map(|pod| names::instance_host(NAMESPACE, ORDERS, pod))
        .collect();
    hosts.extend([primary, names::replicas_service(ORDERS)]);
    for host in &hosts {
        let what = format!("the row to be at {host}");
        wait::until(what, Duration::from_secs(20), Duration::from_millis(200), || async {
            let count = tenant.sql(ORDERS, &first, host, UserRole::Reader, &read).await?;
            if count == "0" {
                bail!("it is not there");
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn unusable(context: &str) -> String {
    format!("can't use the cluster of the context \"{context}\"")
}

/// Whether the namespace is there; fails if it is somebody else's, as [`down`] deletes it.
fn is_ours(found: Option<&Namespace>) -> Result<bool> {
    let Some(namespace) = found else { return Ok(false) };
    check_mark(namespace)?;
    ensure!(
        namespace.metadata.deletion_timestamp.is_none(),
        "its namespace {NAMESPACE} is being deleted: try again when it is gone"
    );
    Ok(true)
}

fn check_mark(namespace: &Namespace) -> Result<()> {
    ensure!(
        namespace.labels().contains_key(MARK),
        "its namespace {NAMESPACE} was not made by the demonstration (it lacks the label {MARK}), and is left alone"
    );
    Ok(())
}

/// Makes the namespace, with the mark that lets [`down`] delete it.
async fn claim(client: &Client) -> Result<()> {
    let new = Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.to_owned()),
            labels: Some([(MARK.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    Api::all(client.clone()).create(&PostParams::default(), &new).await?;
    Ok(())
}

/// Removes all that [`run`] made: the local cluster, or in the cluster of a context the namespace. The
/// CustomResourceDefinitions stay there, as other namespaces may use them.
pub async fn down(context: Option<&str>, progress: &Progress) -> Result<()> {
    let Some(context) = context else {
        return cluster::down::down(CLUSTER, false, progress).await;
    };
    let client = Access::Context(context.to_owned()).client().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = namespaces.get_opt(NAMESPACE).await.with_context(|| unusable(context))?;
    let Some(namespace) = found else {
        progress.say(format!("there is no namespace {NAMESPACE}: nothing to remove"));
        return Ok(());
    };
    check_mark(&namespace).with_context(|| unusable(context))?;
    progress.run(format!("delete the namespace {NAMESPACE}"), remove(client)).await
}

async fn remove(client: Client) -> Result<()> {
    // The MySQLCluster first: its shard lets go of it, and is in the same namespace.
    let clusters: Api<MySQLCluster> = Api::namespaced(client.clone(), NAMESPACE);
    let namespaces: Api<Namespace> = Api::all(client);
    let (limit, interval) = (Duration::from_mins(3), Duration::from_millis(500));
    clusters.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    wait::until("the MySQL clusters to be gone", limit, interval, || async {
        let left = clusters.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    wait::until("the namespace to be gone", limit, interval, || async {
        ensure!(namespaces.get_opt(NAMESPACE).await?.is_none(), "it is being deleted");
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_of_somebody_else_is_neither_used_nor_deleted() {
        let namespace = |metadata: serde_json::Value| -> Namespace {
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let others = namespace(json!({"name": NAMESPACE, "labels": {"team": "a"}}));
        assert!(is_ours(Some(&others)).unwrap_err().to_string().contains(MARK));
        assert!(check_mark(&others).is_err());

        assert!(!is_ours(None).unwrap());
        let ours = namespace(json!({"name": NAMESPACE, "labels": {MARK: "true"}}));
        assert!(is_ours(Some(&ours)).unwrap());

        let leaving =
            namespace(json!({"labels": {MARK: "true"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert!(is_ours(Some(&leaving)).unwrap_err().to_string().contains("being deleted"));
        check_mark(&leaving).unwrap();
    }
}
