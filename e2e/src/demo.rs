//! The demonstration: a Kubernetes cluster, a tenant's shard, a MySQL cluster, a row written and read.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{ConditionType, MySQLCluster};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
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
            let fleet = fleet::fleet(profile, progress).await?;
            let pushed = progress.run("push our image", push::push(&fleet.image, registry)).await?;
            let images = Images {
                fleet: pushed,
                mysql: mysql_image.clone(),
                version: version.clone(),
                pull_policy: "IfNotPresent",
            };
            (Access::Context(context.clone()), fleet, images)
        }
    };
    let plugin = fleet.program("kubectl-fleet");
    let deploy = Tenant::deploy(access.clone(), plugin.clone(), NAMESPACE, images);
    let tenant = progress.run(format!("deploy the shard of {NAMESPACE}"), deploy).await?;
    mark(&tenant).await?;

    let begun = Instant::now();
    tenant.apply(ORDERS, &tenant.spec(json!({}))).await?;
    let healthy = tenant.wait_for(ORDERS, ConditionType::Healthy, "True", Duration::from_mins(5));
    progress.run(format!("MySQLCluster {ORDERS}: 3 instances, Healthy"), healthy).await?;
    progress.say(format!("from apply to Healthy: {:.1} s", begun.elapsed().as_secs_f64()));

    progress.run("write and read a row through the Services", row(&tenant)).await?;
    println!("{}", tenant.status("table").await?.trim_end());
    let [flag, value] = access.arguments();
    println!("\nAsk again:  {} status -n {NAMESPACE} {flag} {value}", plugin.display());
    if let Access::File(file) = &access {
        println!("kubectl:    export KUBECONFIG={}; kubectl -n {NAMESPACE} get myc", file.display());
    }
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

async fn mark(tenant: &Tenant) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(tenant.client.clone());
    let patch = json!({"metadata": {"labels": {MARK: "true"}}});
    namespaces
        .patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map(drop)
        .with_context(|| format!("could not mark the namespace {NAMESPACE}"))
}

/// Removes all that [`run`] made: the local cluster, or in a cluster that exists the namespace.
pub async fn down(place: &Place, progress: &Progress) -> Result<()> {
    let Place::Existing { context, .. } = place else {
        return cluster::down::down(CLUSTER, false, progress).await;
    };
    let client = Access::Context(context.clone()).client().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let Some(namespace) = namespaces.get_opt(NAMESPACE).await? else { return Ok(()) };
    if !namespace.metadata.labels.unwrap_or_default().contains_key(MARK) {
        bail!(
            "the namespace {NAMESPACE} was not made by the demonstration (it lacks the label {MARK}): not deleted"
        );
    }
    let gone = async {
        // The MySQLCluster first: its shard lets go of it, and is in the same namespace.
        let clusters: Api<MySQLCluster> = Api::namespaced(client, NAMESPACE);
        clusters.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        wait::until(
            "the MySQL clusters to be gone",
            Duration::from_mins(3),
            Duration::from_millis(500),
            || async {
                let left = clusters.list(&ListParams::default()).await?.items.len();
                if left > 0 {
                    bail!("{left} are left");
                }
                Ok(())
            },
        )
        .await?;
        namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
        wait::until(
            "the namespace to be gone",
            Duration::from_mins(3),
            Duration::from_millis(500),
            || async {
                match namespaces.get_opt(NAMESPACE).await? {
                    None => Ok(()),
                    Some(_) => bail!("it is being deleted"),
                }
            },
        )
        .await
    };
    progress.run(format!("delete the namespace {NAMESPACE}"), gone).await
}
