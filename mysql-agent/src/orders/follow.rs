//! Follow: a read-only replica of a source.

use std::{sync::Arc, time::Duration};

use mysql_async::Row;
use tokio::time::{Instant, sleep};

use super::{
    Address, LookAfter, OrderError, Orders,
    close::{close_or_kill, refuse_writes},
};
use crate::{
    sql::{Session, SqlError, number, text, truth},
    users::{Credentials, quoted},
};
use fleet_proto::agent::v1::Endpoint;

const STATEMENT: Duration = Duration::from_secs(5);
pub(super) const APPLIER_POLL: Duration = Duration::from_millis(25);
/// "Unknown thread id".
const NO_SUCH_THREAD: u16 = 1094;

const CHANNEL: &str = "SELECT c.HOST AS host, c.PORT AS port, c.USER AS user, c.AUTO_POSITION AS auto_position, \
    c.SSL_ALLOWED AS tls, c.SSL_CA_FILE AS ca, c.SSL_VERIFY_SERVER_CERTIFICATE AS verify, \
    (SELECT m.User_password FROM mysql.slave_master_info m WHERE m.Channel_name = '') AS secret, \
    s.SERVICE_STATE AS receiver, a.SERVICE_STATE AS applier, \
    GTID_SUBTRACT(s.RECEIVED_TRANSACTION_SET, @@GLOBAL.gtid_executed) AS unapplied, \
    COALESCE((SELECT MAX(w.LAST_ERROR_MESSAGE) FROM performance_schema.replication_applier_status_by_worker w \
        WHERE w.CHANNEL_NAME = '' AND w.LAST_ERROR_NUMBER <> 0), \
      (SELECT MAX(o.LAST_ERROR_MESSAGE) FROM performance_schema.replication_applier_status_by_coordinator o \
        WHERE o.CHANNEL_NAME = '' AND o.LAST_ERROR_NUMBER <> 0), '') AS applier_error, \
    @@GLOBAL.super_read_only AS closed, @@GLOBAL.offline_mode AS offline, @@GLOBAL.rpl_semi_sync_source_enabled AS source_enabled, \
    @@GLOBAL.rpl_semi_sync_replica_enabled AS acknowledges \
    FROM (SELECT 1) AS one \
    LEFT JOIN performance_schema.replication_connection_configuration c ON c.CHANNEL_NAME = '' \
    LEFT JOIN performance_schema.replication_connection_status s ON s.CHANNEL_NAME = '' \
    LEFT JOIN performance_schema.replication_applier_status a ON a.CHANNEL_NAME = ''";

/// The replication channel as it is; an instance that never followed has none.
#[derive(Debug)]
pub(super) struct Channel(Row);

impl Channel {
    pub(super) async fn read(session: &mut Session) -> Result<Self, SqlError> {
        session.row(STATEMENT, CHANNEL).await?.map(Self).ok_or(SqlError::NotRunning)
    }

    pub(super) fn configured(&self) -> bool {
        !text(&self.0, "host").is_empty()
    }
    pub(super) fn receiver_stopped(&self) -> bool {
        !matches!(text(&self.0, "receiver").as_str(), "ON" | "CONNECTING")
    }
    pub(super) fn applier_runs(&self) -> bool {
        text(&self.0, "applier") == "ON"
    }
    /// Received transactions that are not applied.
    pub(super) fn unapplied(&self) -> String {
        text(&self.0, "unapplied").split_whitespace().collect()
    }
    pub(super) fn unapplied_error(&self) -> OrderError {
        OrderError::Unapplied { missing: self.unapplied(), error: text(&self.0, "applier_error") }
    }
    fn auto_position(&self) -> bool {
        truth(&self.0, "auto_position")
    }
    fn closed(&self) -> bool {
        truth(&self.0, "closed")
    }
    fn offline(&self) -> bool {
        truth(&self.0, "offline")
    }
    fn acknowledges(&self) -> bool {
        truth(&self.0, "acknowledges")
    }
    fn source_enabled(&self) -> bool {
        truth(&self.0, "source_enabled")
    }
    fn points_to(&self, source: &Address, user: &Credentials, ca: &str) -> bool {
        text(&self.0, "host") == source.host
            && number(&self.0, "port") == Some(source.port.into())
            && text(&self.0, "user") == user.username
            // A changed password is no reason to disturb a receiver that got in with the old one.
            && (text(&self.0, "receiver") == "ON" || text(&self.0, "secret") == user.password)
            && self.auto_position()
            && truth(&self.0, "tls")
            && truth(&self.0, "verify")
            && text(&self.0, "ca") == ca
    }
}

impl Orders {
    /// Makes the instance a replica. Threads that already do what is asked for go on undisturbed.
    pub async fn follow(
        self: Arc<Self>,
        term: u64,
        source: Option<Endpoint>,
        acknowledge: bool,
    ) -> Result<(), OrderError> {
        let source = Address::check(source, "source")?;
        let mut state = self.admit(term).await?;
        let _look = LookAfter(&self.instance);
        state.abandon_opening().await;
        if self.instance.may_be_open() {
            close_or_kill(&self.instance).await;
        }
        let user = self.replication_user()?;
        let mut session = self.running().await?.session;
        let channel = Channel::read(&mut session).await?;
        if !channel.closed() {
            // Opened by someone else than the agent.
            refuse_writes(&mut session).await?;
        }
        if channel.source_enabled() {
            session.run(STATEMENT, "SET GLOBAL rpl_semi_sync_source_enabled = OFF").await?;
        }
        let ca = self.config.paths.tls.join("ca.crt").display().to_string();
        let points = channel.points_to(&source, &user, &ca);
        let flag = channel.acknowledges() == acknowledge;
        if points && flag && !channel.receiver_stopped() && channel.applier_runs() && !channel.offline() {
            return Ok(());
        }
        tracing::info!(term, source = source.host, acknowledge, "follows");
        if !flag {
            let flag = if acknowledge { "ON" } else { "OFF" };
            session.run(STATEMENT, &format!("SET GLOBAL rpl_semi_sync_replica_enabled = {flag}")).await?;
        }
        // The receiver takes the source and the flag as it starts.
        if !(channel.receiver_stopped() || points && flag) {
            session.run(STATEMENT, "STOP REPLICA IO_THREAD").await?;
        }
        if !points {
            // Read anew: until its receiver stopped it went on receiving and acknowledging.
            let channel = Channel::read(&mut session).await?;
            point(&mut session, &channel, &source, &user, &ca).await?;
        }
        session.run(STATEMENT, "START REPLICA").await?;
        if channel.offline() {
            session.run(STATEMENT, "SET GLOBAL offline_mode = OFF").await?;
        }
        Ok(())
    }
}

/// Changes the source without losing what was received: CHANGE REPLICATION SOURCE deletes the relay logs
/// unless a thread runs, and this instance may be one of those whose acknowledgement made a commit.
async fn point(
    session: &mut Session,
    channel: &Channel,
    source: &Address,
    user: &Credentials,
    ca: &str,
) -> Result<(), OrderError> {
    let mut change = format!(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = {}, SOURCE_PORT = {}, SOURCE_SSL = 1, SOURCE_SSL_CA = {}, \
         SOURCE_SSL_VERIFY_SERVER_CERT = 1, GET_SOURCE_PUBLIC_KEY = 0, SOURCE_CONNECT_RETRY = 1, \
         SOURCE_RETRY_COUNT = {}, SOURCE_HEARTBEAT_PERIOD = 0.5, SOURCE_USER = {}, SOURCE_PASSWORD = {}",
        quoted(&source.host),
        source.port,
        quoted(ca),
        u32::MAX,
        quoted(&user.username),
        quoted(&user.password),
    );
    // An applier that runs goes on. To stop it could take a minute ([`stop_applier`]), and what it has applied of a
    // transaction whose rest does not come is rolled back as soon as the next receiver begins.
    let goes_on = channel.applier_runs() && channel.auto_position();
    if channel.configured() && (goes_on || !channel.unapplied().is_empty()) {
        if !channel.applier_runs() {
            session.run(STATEMENT, "START REPLICA SQL_THREAD").await?;
        }
        let now = Channel::read(session).await?;
        if !now.applier_runs() && !now.unapplied().is_empty() {
            return Err(now.unapplied_error());
        }
    } else {
        stop_replica(session).await?;
        // Can't be given while the applier runs; where it does, an earlier order has set it.
        change.push_str(", SOURCE_AUTO_POSITION = 1");
    }
    session.run(STATEMENT, &change).await?;
    Ok(())
}

/// A worker that has begun to apply a transaction, where all that was received is applied.
const UNFINISHED: &str = "SELECT MAX(t.PROCESSLIST_ID) AS worker \
    FROM performance_schema.replication_applier_status_by_worker w \
    JOIN performance_schema.threads t ON t.THREAD_ID = w.THREAD_ID \
    JOIN performance_schema.replication_connection_status s ON s.CHANNEL_NAME = w.CHANNEL_NAME \
    WHERE w.CHANNEL_NAME = '' AND w.APPLYING_TRANSACTION <> '' \
      AND GTID_SUBTRACT(s.RECEIVED_TRANSACTION_SET, @@GLOBAL.gtid_executed) = ''";

/// Stops the receiver and the applier.
pub(super) async fn stop_replica(session: &mut Session) -> Result<(), SqlError> {
    session.run(STATEMENT, "STOP REPLICA IO_THREAD").await?;
    stop_applier(session).await
}

/// Stops the applier of a receiver that is stopped.
///
/// A source that ended while it sent a transaction leaves its beginning in the relay log. STOP REPLICA lets the applier
/// wait a minute for the rest (SLAVE_WAIT_GROUP_DONE in MySQL's sources), though nothing more can come. So the worker that
/// has it is ended, which rolls it back: it is no transaction that was received. The worker ends the applier with it; one
/// that was told to stop before that waits for its minute.
pub(super) async fn stop_applier(session: &mut Session) -> Result<(), SqlError> {
    let row = session.row(STATEMENT, UNFINISHED).await?;
    if let Some(worker) = row.and_then(|row| number(&row, "worker")) {
        tracing::info!("ends an applier in the middle of a transaction whose rest was not received");
        match session.run(STATEMENT, &format!("KILL {worker}")).await {
            // It has ended meanwhile.
            Err(error) if error.code() == Some(NO_SUCH_THREAD) => {}
            ended => ended?,
        }
        let deadline = Instant::now() + STATEMENT;
        while Channel::read(session).await?.applier_runs() && Instant::now() < deadline {
            sleep(APPLIER_POLL).await;
        }
    }
    session.run(STATEMENT, "STOP REPLICA").await
}
