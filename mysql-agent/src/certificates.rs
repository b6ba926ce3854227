//! Renewed certificates: mysqld loads what the agent serves, and the shard is told what both have loaded.
//!
//! The shard exchanges the tenant's authority by what it is told here, so nothing is said of mysqld that it has not been
//! seen to load: the files are the agent's own before and after `ALTER INSTANCE RELOAD TLS`, in this start of mysqld.
//! What reads the files at each connection (receivers, CLONE) has what mysqld has loaded, or younger.

use std::{path::PathBuf, sync::Arc, time::Duration};

use fleet_proto::agent::v1::{ProcessState, TlsFacts};
use fleet_runtime::tls::{Material, ReloadingIdentity, Trust};
use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    instance::Instance,
    sql::{Login, Session, SqlError},
};

/// Limit of one statement.
const STATEMENT: Duration = Duration::from_secs(5);
/// Time until a reload that failed is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Lets mysqld take renewed certificates, without a connection being lost.
pub async fn follow(
    identity: ReloadingIdentity,
    directory: PathBuf,
    instance: Arc<Instance>,
    shutdown: CancellationToken,
) {
    let mut changed = identity.changed();
    let mut process = instance.process.status();
    let mut loaded: Option<(u64, Material)> = None;
    let mut complaint = String::new();
    loop {
        let material = identity.material();
        let facts = facts(&material);
        instance.agent_loaded(facts.clone());
        let status = process.borrow_and_update().clone();
        let wanted = (status.generation, material);
        let mut due = false;
        if let Some(login) = status.login.filter(|_| status.state == ProcessState::Running)
            && loaded.as_ref() != Some(&wanted)
        {
            due = true;
            match reload(&login, &directory, &wanted.1).await {
                Ok(true) => {
                    tracing::info!("mysqld has loaded the certificates");
                    instance.mysqld_loaded(wanted.0, facts);
                    loaded = Some(wanted);
                    due = false;
                    complaint.clear();
                }
                // The files change just now.
                Ok(false) => {}
                Err(error) => {
                    let text = error.to_string();
                    if text != complaint {
                        tracing::error!("mysqld keeps its old certificates: {text}; trying again");
                        complaint = text;
                    }
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            Ok(()) = changed.changed() => {}
            Ok(()) = process.changed() => {}
            () = sleep(RETRY), if due => {}
        }
    }
}

/// Has mysqld load the files; false where they are not `material`, or were exchanged meanwhile.
async fn reload(login: &Login, directory: &std::path::Path, material: &Material) -> Result<bool, SqlError> {
    let there = || Material::read_dir(directory).is_ok_and(|found| found == *material);
    if !there() {
        return Ok(false);
    }
    let mut session = Session::open(login).await?;
    for channel in ["mysql_main", "mysql_admin"] {
        let reload = format!("ALTER INSTANCE RELOAD TLS FOR CHANNEL {channel}");
        session.run(STATEMENT, &reload).await?;
    }
    Ok(there())
}

/// What the shard is told. What can't be read trusts nobody: it was not loaded either.
fn facts(material: &Material) -> TlsFacts {
    material.trust(Timestamp::now()).map_or_else(
        |_| TlsFacts::default(),
        |Trust { authorities, issuer }| TlsFacts {
            authorities: authorities.into_iter().map(Into::into).collect(),
            issuer: issuer.map(Into::into).unwrap_or_default(),
        },
    )
}
