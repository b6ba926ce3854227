//! Commits that wait for acknowledgements which can't come, while their primary is ended in some way.
//!
//! mysqld answers such commits with OK when it is shut down politely, though nobody but itself has them. So
//! whatever ends a primary, a client may be told OK only of what a surviving instance holds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fleet_api::names::{self, UserRole};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams};
use kube::{Api, ResourceExt};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use nix::sys::signal::Signal;

use super::arena::{Arena, CLUSTER, Roles};
use super::fault::Fault;
use super::inject::{Caused, deleted, end_container, stopped};
use crate::{wait, workload};

/// The table of these commits.
pub const TABLE: &str = "workload.waiting";
/// How many wait.
pub const COMMITS: u32 = 20;
/// How long their clients wait for an answer after the end of the primary has begun.
const ANSWER: Duration = Duration::from_secs(45);
const SOON: Duration = Duration::from_secs(20);
const OFTEN: Duration = Duration::from_millis(20);

/// How the primary is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its pod is deleted, with the grace period.
    Delete,
    /// Its pod is deleted without one.
    DeleteByForce,
    /// Its pod is evicted.
    Evict,
    /// containerd stops its container.
    StopContainer,
    /// The cluster is to have one instance.
    ScaleIn,
    /// Its agent gets SIGTERM.
    StopAgent,
}

/// Loses both ackers, has commits wait, ends the primary, and hears what the clients are told. The ackers stay
/// lost as long as the fault lasts.
pub async fn commits(arena: &Arena, roles: &Roles, ending: Ending) -> Result<Caused> {
    let address = roles.primary.status.as_ref().and_then(|status| status.pod_ip.clone());
    let address = address.context("the primary has no address")?;
    let writer = workload::options(&arena.tenant, CLUSTER, &address, UserRole::Writer).await?;
    let first = next(&writer).await?;
    let mut clients = Vec::new();
    for id in first..first + COMMITS {
        clients.push((id, Conn::new(writer.clone()).await.context("could not connect to the primary")?));
    }
    let mut fault = Fault::over();
    for replica in &roles.replicas {
        fault.includes(stopped(arena, replica, &["mysql-agent"])?);
    }
    // A process that is stopped would still find in its socket what was sent to it.
    for replica in &roles.replicas {
        arena.stage.signal(replica, "mysqld", Signal::SIGKILL)?;
    }
    let answers = join_all(clients.into_iter().map(|(id, client)| insert(id, client)));
    let ended = async {
        all_wait(arena, &roles.primary.name_any()).await?;
        end(arena, &roles.primary, ending).await
    };
    let (answers, how) = tokio::join!(answers, ended);
    let how = how?;
    let promised: Vec<u32> = answers.into_iter().flatten().collect();
    let note = format!("{COMMITS} commits waited, {how}, {} were answered with OK", promised.len());
    Ok(Caused { fault, note: Some(note), promised })
}

/// Makes the table where it is missing; returns the next free key.
async fn next(writer: &Opts) -> Result<u32> {
    let mut client = Conn::new(writer.clone()).await.context("could not connect to the primary")?;
    client.query_drop(format!("CREATE TABLE IF NOT EXISTS {TABLE} (id INT PRIMARY KEY)")).await?;
    let highest: Option<u32> = client.query_first(format!("SELECT IFNULL(MAX(id), 0) FROM {TABLE}")).await?;
    Ok(highest.unwrap_or_default() + 1)
}

/// Inserts a row; returns its key if the answer was OK.
async fn insert(id: u32, mut client: Conn) -> Option<u32> {
    let insert = client.query_drop(format!("INSERT INTO {TABLE} VALUES ({id})"));
    match tokio::time::timeout(ANSWER, insert).await {
        Ok(Ok(())) => Some(id),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Waits until all the commits are under way and none can end.
async fn all_wait(arena: &Arena, primary: &str) -> Result<()> {
    let host = names::instance_host(&arena.tenant.namespace, CLUSTER, primary);
    // One session of a group commit waits for the acknowledgement, the others for that one. It may be of any client.
    let query = format!(
        "SELECT SUM(INFO LIKE 'INSERT INTO {TABLE}%' AND (STATE LIKE '%semi-sync%' \
         OR STATE = 'waiting for handler commit')), SUM(STATE LIKE '%semi-sync%') > 0 \
         FROM information_schema.processlist"
    );
    let wanted = format!("{COMMITS}\t1");
    wait::until("the commits to wait", SOON, OFTEN, || async {
        let found = arena.tenant.sql(CLUSTER, primary, &host, UserRole::Admin, &query).await?;
        ensure!(found == wanted, "of {COMMITS} commits are under way and wait: {found}");
        Ok(())
    })
    .await
}

/// Ends the primary; returns what was done, or why it was refused.
async fn end(arena: &Arena, primary: &Pod, ending: Ending) -> Result<String> {
    let name = primary.name_any();
    let pods: Api<Pod> = Api::namespaced(arena.tenant.client.clone(), &arena.tenant.namespace);
    match ending {
        Ending::Delete => deleted(arena, primary, &DeleteParams::default()).await.map(drop)?,
        Ending::DeleteByForce => {
            deleted(arena, primary, &DeleteParams::default().grace_period(0)).await.map(drop)?;
        }
        Ending::Evict => match pods.evict(&name, &EvictParams::default()).await {
            // Its PodDisruptionBudget holds it while the others are gone.
            Err(kube::Error::Api(error)) if error.code == 429 => {
                return Ok(format!("the eviction was refused ({})", error.message));
            }
            evicted => drop(evicted?),
        },
        Ending::StopContainer => end_container(arena, primary, "SIGTERM").await?,
        Ending::StopAgent => arena.stage.signal(primary, "mysql-agent", Signal::SIGTERM)?,
        // The step ends with the spec as it was.
        Ending::ScaleIn => arena.wanted(1).await?,
    }
    Ok(format!("then {ending:?}"))
}
