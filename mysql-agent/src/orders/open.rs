//! Open: the writable primary of a term.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    LookAfter, OrderError, Orders, Running,
    close::{close_or_kill, refuse_writes},
    follow::{APPLIER_POLL, Channel, stop_applier},
};
use crate::{
    facts,
    sql::{Session, SqlError, number, text, truth},
};

const STATEMENT: Duration = Duration::from_secs(5);
/// A commit may wait for its acknowledgement as long as it takes; a later order ends the wait.
const UNTIL_ACKNOWLEDGED: Duration = Duration::from_hours(10 * 365 * 24);
/// Time that received transactions have to be applied before the opening is refused, to be asked for again: an
/// order must not take its turn for long.
const UNTIL_APPLIED: Duration = Duration::from_secs(5);
/// Highest value of rpl_semi_sync_source_wait_for_replica_count.
const MOST_ACKS: u32 = 65_535;

const SERVER: &str = "SELECT @@GLOBAL.super_read_only AS closed, @@GLOBAL.read_only AS read_only, \
    @@GLOBAL.rpl_semi_sync_source_enabled AS enabled, \
    @@GLOBAL.rpl_semi_sync_source_wait_for_replica_count AS acks, \
    (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'mysql_fleet' AND table_name = 'term') AS known";

/// How far an opening is: `None` while it waits.
type Outcome = Option<Result<(), String>>;

/// A mysqld that takes the agent's writes, and clients' once the term's first transaction is acknowledged.
#[derive(Debug)]
pub(super) struct Opening {
    term: u64,
    acks: u32,
    generation: u64,
    outcome: watch::Receiver<Outcome>,
    task: JoinHandle<()>,
}

impl Opening {
    /// Ends the wait. Nothing more is sent to mysqld once this returns.
    pub(super) async fn abandon(self) {
        self.task.abort();
        // An error says that it was ended, which is what is wanted.
        let _ = self.task.await;
    }

    fn waits_for(&self, term: u64, acks: u32, generation: u64) -> bool {
        (self.term, self.acks, self.generation) == (term, acks, generation) && self.outcome.borrow().is_none()
    }
}

impl Orders {
    /// Opens the instance; returns once the term's first transaction is acknowledged and clients can write.
    ///
    /// Cancelling it, as a caller's deadline does, leaves the opening going: asking again joins it.
    pub async fn open(self: Arc<Self>, term: u64, acks: u32) -> Result<(), OrderError> {
        if acks > MOST_ACKS {
            return Err(OrderError::Invalid {
                field: "required_acks",
                problem: format!("is {acks}, above MySQL's limit of {MOST_ACKS}"),
            });
        }
        let this = Arc::clone(&self);
        let Some(mut outcome) =
            super::to_the_end(async move { this.begin_opening(term, acks).await }).await?
        else {
            return Ok(());
        };
        let ended = outcome.wait_for(Option::is_some).await.map_err(|_| OrderError::Superseded)?;
        match &*ended {
            Some(Err(problem)) => Err(OrderError::TermNotRecorded(problem.clone())),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Up to the point from which acknowledgements are waited for; `None` when the order already holds.
    async fn begin_opening(
        self: Arc<Self>,
        term: u64,
        acks: u32,
    ) -> Result<Option<watch::Receiver<Outcome>>, OrderError> {
        let mut state = self.admit(term).await?;
        let _look = LookAfter(&self.instance);
        let Running { mut session, generation } = self.running().await?;
        if let Some(opening) =
            state.opening.as_ref().filter(|opening| opening.waits_for(term, acks, generation))
        {
            return Ok(Some(opening.outcome.clone()));
        }
        state.abandon_opening().await;
        leave_source(&mut session).await?;
        let server = session.row(STATEMENT, SERVER).await?.ok_or(SqlError::NotRunning)?;
        let (closed, enabled) = (truth(&server, "closed"), truth(&server, "enabled"));
        let guarded = enabled == (acks > 0) && (acks == 0 || number(&server, "acks") == Some(acks.into()));
        let writable = !closed && !truth(&server, "read_only") && self.instance.may_be_open();
        if writable && guarded && facts::recorded(&mut session).await?.term == term {
            return Ok(None);
        }
        tracing::info!(term, acks, "opens");
        if enabled && acks == 0 && !closed {
            // Switching semi-synchronous replication off answers every waiting commit with OK.
            let closed = refuse_writes(&mut session).await;
            if let Err(error) = closed {
                // Nobody is left to acknowledge them, and nobody else decides on them where no acknowledgement is
                // required. After the restart they are committed; their clients learn nothing.
                tracing::warn!("killing mysqld, since commits wait for an acknowledgement: {error}");
                self.instance.process.kill().await;
                return Err(OrderError::CommitsWaited(error));
            }
        }
        guard_commits(&mut session, acks).await?;
        self.instance.opening(generation, acks);
        session.run(STATEMENT, "SET GLOBAL super_read_only = OFF").await?;
        let known = text(&server, "known") != "0";
        let (sender, outcome) = watch::channel(None);
        let task = tokio::spawn(Arc::clone(&self).finish_opening(term, generation, known, session, sender));
        state.opening = Some(Opening { term, acks, generation, outcome: outcome.clone(), task });
        Ok(Some(outcome))
    }

    /// Records the term and lets clients write. read_only stays on until the record is acknowledged, so the
    /// record is the term's first transaction; the agent's user may write meanwhile.
    async fn finish_opening(
        self: Arc<Self>,
        term: u64,
        generation: u64,
        known: bool,
        mut session: Session,
        outcome: watch::Sender<Outcome>,
    ) {
        let recorded = record_term(&mut session, term, known).await;
        // Whoever holds the lock may be ending this task: it is ended while it waits here, or is through
        // before the other order begins.
        let _turn = self.state.lock().await;
        let _look = LookAfter(&self.instance);
        let result = match recorded {
            Ok(()) => session.run(STATEMENT, "SET GLOBAL offline_mode = OFF, GLOBAL read_only = OFF").await,
            Err(error) => Err(error),
        };
        if result.is_err() && self.instance.now().generation == generation && self.instance.may_be_open() {
            // Half open it would look open to those who can't see read_only.
            close_or_kill(&self.instance).await;
        }
        match &result {
            Ok(()) => tracing::info!(term, "is open"),
            Err(error) => tracing::warn!(term, "could not record the term: {error}"),
        }
        // Nobody may be asking any more.
        let _ = outcome.send(Some(result.map_err(|error| error.to_string())));
    }
}

/// Stops being a replica. Refused while something received is not applied: the relay logs go with it.
async fn leave_source(session: &mut Session) -> Result<(), OrderError> {
    let channel = Channel::read(session).await?;
    if !channel.configured() {
        return Ok(());
    }
    if !channel.receiver_stopped() {
        session.run(STATEMENT, "STOP REPLICA IO_THREAD").await?;
    }
    apply_received(session).await?;
    stop_applier(session).await?;
    session.run(STATEMENT, "RESET REPLICA ALL").await?;
    session.run(STATEMENT, "SET GLOBAL rpl_semi_sync_replica_enabled = OFF").await?;
    Ok(())
}

/// Waits until what was received is applied. The receiver is stopped, so this has an end.
async fn apply_received(session: &mut Session) -> Result<(), OrderError> {
    let deadline = Instant::now() + UNTIL_APPLIED;
    let mut started = false;
    loop {
        let channel = Channel::read(session).await?;
        if channel.unapplied().is_empty() {
            return Ok(());
        }
        // An applier that stopped though it was started has an error, which is in the refusal.
        if Instant::now() >= deadline || (started && !channel.applier_runs()) {
            return Err(channel.unapplied_error());
        }
        if !channel.applier_runs() {
            session.run(STATEMENT, "START REPLICA SQL_THREAD").await?;
        }
        started = true;
        sleep(APPLIER_POLL).await;
    }
}

/// Makes commits wait for acknowledgements, before any commit is possible.
async fn guard_commits(session: &mut Session, acks: u32) -> Result<(), SqlError> {
    let count = acks.max(1);
    session
        .run(STATEMENT, &format!("SET GLOBAL rpl_semi_sync_source_wait_for_replica_count = {count}"))
        .await?;
    let enabled = if acks > 0 { "ON" } else { "OFF" };
    session.run(STATEMENT, &format!("SET GLOBAL rpl_semi_sync_source_enabled = {enabled}")).await
}

/// Writes the term, and so proves that its ackers acknowledge.
async fn record_term(session: &mut Session, term: u64, known: bool) -> Result<(), SqlError> {
    // An earlier attempt may hold the row while it waits for its acknowledgement.
    session.run(STATEMENT, "SET SESSION innodb_lock_wait_timeout = 1073741824").await?;
    if !known {
        session.run(UNTIL_ACKNOWLEDGED, "CREATE SCHEMA IF NOT EXISTS mysql_fleet").await?;
        let table = "CREATE TABLE IF NOT EXISTS mysql_fleet.term (term BIGINT UNSIGNED NOT NULL PRIMARY KEY, \
            server_uuid CHAR(36) CHARACTER SET ascii NOT NULL, at TIMESTAMP(6) NOT NULL) ENGINE = InnoDB";
        session.run(UNTIL_ACKNOWLEDGED, table).await?;
    }
    let row = format!(
        "INSERT INTO mysql_fleet.term (term, server_uuid, at) VALUES ({term}, @@server_uuid, NOW(6)) AS new \
         ON DUPLICATE KEY UPDATE server_uuid = new.server_uuid, at = new.at"
    );
    session.run(UNTIL_ACKNOWLEDGED, &row).await
}
