//! Close: read-only, receiving nothing.

use std::{sync::Arc, time::Duration};

use super::{LookAfter, OrderError, Orders, follow::Channel};
use crate::{
    instance::Instance,
    sql::{Session, SqlError},
};

/// Time that running commits have to end before mysqld is killed.
const POLITE: Duration = Duration::from_secs(3);
const STATEMENT: Duration = Duration::from_secs(5);

impl Orders {
    /// Makes the instance read-only and stops its receiver; what was received goes on being applied.
    pub async fn close(self: Arc<Self>, term: u64) -> Result<(), OrderError> {
        let mut state = self.admit(term).await?;
        let _look = LookAfter(&self.instance);
        state.abandon_opening().await;
        tracing::info!(term, "closes");
        if self.instance.may_be_open() {
            close_or_kill(&self.instance).await;
        }
        // A mysqld that never answered boots closed, without replication. One that no longer answers is killed
        // below: its receiver may go on.
        let status = self.instance.now();
        let Some(login) = status.login.filter(|_| status.answered && !self.instance.cloning()) else {
            return Ok(());
        };
        let stop = async {
            let mut session = Session::open(&login).await?;
            session.run(STATEMENT, "STOP REPLICA IO_THREAD").await?;
            let channel = Channel::read(&mut session).await?;
            if channel.configured() && !channel.applier_runs() && !channel.unapplied().is_empty() {
                // After a restart nothing else would go on with it, and another instance may need it.
                session.run(STATEMENT, "START REPLICA SQL_THREAD").await?;
            }
            Ok::<(), SqlError>(())
        };
        if let Err(error) = stop.await {
            // Killing a closed mysqld loses nothing, and a receiver that goes on would acknowledge for an old term.
            tracing::warn!("killing mysqld, since its receiver could not be stopped: {error}");
            self.instance.process.kill().await;
        }
        Ok(())
    }
}

/// Closes an open mysqld. Where commits wait for an acknowledgement it can't be closed politely and is killed:
/// it boots closed.
pub(crate) async fn close_or_kill(instance: &Instance) {
    match close_politely(instance).await {
        Ok(()) => instance.closed(),
        Err(error) => {
            tracing::warn!("killing mysqld, since it could not be closed in time: {error}");
            instance.process.kill().await;
        }
    }
}

/// Lets nobody write. When this returns well, no commit runs.
///
/// Taking super_read_only takes read_only first, where that is off, and waits for the commits that run; meanwhile
/// `@@super_read_only` says ON already. Whoever looked then would take what was executed by then for all that the
/// instance will ever have acknowledged, and a next primary without the rest would be given its place. So read_only is
/// taken by itself: for that one, and for super_read_only after it, the variable says OFF until no commit runs.
pub(super) async fn refuse_writes(session: &mut Session) -> Result<(), SqlError> {
    session.run(POLITE, "SET GLOBAL read_only = ON").await?;
    session.run(POLITE, "SET GLOBAL super_read_only = ON").await
}

/// When this returns well, mysqld is read-only, no commit runs, and no client is left but those of admins.
pub(crate) async fn close_politely(instance: &Instance) -> Result<(), SqlError> {
    let login = instance.login().ok_or(SqlError::NotRunning)?;
    let mut session = Session::open(&login).await?;
    refuse_writes(&mut session).await?;
    // A replica with it on would wait for acknowledgements of what it applies. Clients are ended, so that they look for
    // the next primary instead of reading here what gets old.
    session.run(STATEMENT, "SET GLOBAL rpl_semi_sync_source_enabled = OFF, GLOBAL offline_mode = ON").await
}
