//! What mysqld says of itself: a few cheap queries, each with a deadline.

use std::time::Duration;

use fleet_proto::agent::v1::{
    CloneFacts, CloneState, InstanceFacts, ReplicationFacts, ServerFacts, ThreadState,
};
use mysql_async::Row;
use tokio::time::Instant;

use crate::sql::{Session, SqlError, number, text, truth};

/// Time each query has. Facts that take longer are worth nothing.
pub const DEADLINE: Duration = Duration::from_secs(1);

/// "Unknown database" and "Table doesn't exist".
const ABSENT: [u16; 2] = [1049, 1146];

const STATE: &str = "SELECT @@server_uuid AS server_uuid, @@server_id AS server_id, VERSION() AS version, \
    @@GLOBAL.read_only AS read_only, @@GLOBAL.super_read_only AS super_read_only, \
    @@GLOBAL.rpl_semi_sync_source_enabled AS semi_sync_enabled, \
    @@GLOBAL.rpl_semi_sync_source_wait_for_replica_count AS required_acks, \
    (SELECT s.SERVICE_STATE FROM performance_schema.replication_connection_status s WHERE s.CHANNEL_NAME = '') \
      AS receiver";

const EXECUTED: &str = "SELECT @@GLOBAL.gtid_executed AS gtid_executed, @@GLOBAL.gtid_purged AS gtid_purged";

const SEMI_SYNC: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_source_status', \
    'Rpl_semi_sync_source_clients', 'Rpl_semi_sync_source_wait_sessions', 'Rpl_semi_sync_replica_status')";

// The lag is the age of the oldest transaction that is being applied, or else, where some are received but
// none is begun, of the newest received one: by the clocks of two machines, so for display only.
const REPLICATION: &str = "SELECT c.HOST AS source_host, c.PORT AS source_port, s.SOURCE_UUID AS source_uuid, \
    s.LAST_ERROR_NUMBER AS receiver_errno, s.LAST_ERROR_MESSAGE AS receiver_error, \
    s.RECEIVED_TRANSACTION_SET AS retrieved, a.SERVICE_STATE AS applier, \
    COALESCE((SELECT MAX(w.LAST_ERROR_MESSAGE) FROM performance_schema.replication_applier_status_by_worker w \
        WHERE w.CHANNEL_NAME = '' AND w.LAST_ERROR_NUMBER <> 0), \
      (SELECT MAX(o.LAST_ERROR_MESSAGE) FROM performance_schema.replication_applier_status_by_coordinator o \
        WHERE o.CHANNEL_NAME = '' AND o.LAST_ERROR_NUMBER <> 0), '') AS applier_error, \
    GTID_SUBSET(s.RECEIVED_TRANSACTION_SET, @@GLOBAL.gtid_executed) AS applied, \
    TIMESTAMPDIFF(MICROSECOND, COALESCE((SELECT MIN(w.APPLYING_TRANSACTION_ORIGINAL_COMMIT_TIMESTAMP) \
        FROM performance_schema.replication_applier_status_by_worker w \
        WHERE w.CHANNEL_NAME = '' AND w.APPLYING_TRANSACTION <> ''), \
      NULLIF(s.LAST_QUEUED_TRANSACTION_ORIGINAL_COMMIT_TIMESTAMP, 0)), NOW(6)) AS lag_us \
    FROM performance_schema.replication_connection_configuration c \
    JOIN performance_schema.replication_connection_status s USING (CHANNEL_NAME) \
    JOIN performance_schema.replication_applier_status a USING (CHANNEL_NAME) WHERE CHANNEL_NAME = ''";

const CLONE: &str = "SELECT STATE AS state, SOURCE AS source, ERROR_NO AS errno, ERROR_MESSAGE AS error, \
    (SELECT SUM(ESTIMATE) FROM performance_schema.clone_progress) AS estimated, \
    (SELECT SUM(DATA) FROM performance_schema.clone_progress) AS copied, \
    (SELECT SUM(DATA_SPEED) FROM performance_schema.clone_progress WHERE STATE = 'In Progress') AS speed \
    FROM performance_schema.clone_status";

/// Facts, and how old they are. The clock in the facts is the wall's, which is for display only.
#[derive(Clone, Debug)]
pub struct Published {
    /// The facts.
    pub facts: InstanceFacts,
    /// When the look ended that they are of.
    pub at: Instant,
}

impl Published {
    /// Whether the facts are not older than that.
    pub fn within(&self, age: Duration) -> bool {
        self.at.elapsed() <= age
    }
}

/// What one look at mysqld gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Facts of the server.
    pub server: ServerFacts,
    /// Version of mysqld.
    pub version: String,
    /// The last copy of another instance's data.
    pub clone: Option<CloneFacts>,
    /// Whether semi-synchronous replication is switched on as a source.
    pub semi_sync_enabled: bool,
    /// Whether commits wait for an acknowledgement.
    pub commits_wait: bool,
}

/// Asks mysqld everything.
///
/// First whether it takes writes and whether its receiver runs, then what it has received, last what it has
/// executed: of an instance that is closed, or whose receiver is stopped, the sets are then all that it will ever
/// have. The other way round, a transaction that came in between and was acknowledged would be missing.
pub async fn look(session: &mut Session) -> Result<Look, SqlError> {
    let row = session.row(DEADLINE, STATE).await?.ok_or(SqlError::NotRunning)?;
    let status = session.rows(DEADLINE, SEMI_SYNC).await?;
    let status = |name: &str| {
        status
            .iter()
            .find(|row| text(row, "Variable_name").eq_ignore_ascii_case(name))
            .map(|row| text(row, "Value"))
            .unwrap_or_default()
    };
    let receiver = text(&row, "receiver");
    let replication = session.row(DEADLINE, REPLICATION).await?.and_then(|row| replication(&row, &receiver));
    let clone = session.row(DEADLINE, CLONE).await?.and_then(|row| clone(&row));
    let recorded = recorded(session).await?;
    let sets = session.row(DEADLINE, EXECUTED).await?.ok_or(SqlError::NotRunning)?;
    let server = ServerFacts {
        server_uuid: text(&row, "server_uuid"),
        server_id: small(&row, "server_id"),
        gtid_executed: set(&sets, "gtid_executed"),
        gtid_purged: set(&sets, "gtid_purged"),
        read_only: truth(&row, "read_only"),
        super_read_only: truth(&row, "super_read_only"),
        replication,
        semi_sync_source: status("Rpl_semi_sync_source_status") == "ON",
        semi_sync_required_acks: small(&row, "required_acks"),
        semi_sync_clients: status("Rpl_semi_sync_source_clients").parse().unwrap_or(0),
        semi_sync_replica: status("Rpl_semi_sync_replica_status") == "ON",
        recorded_term: recorded.term,
        recorded_by: recorded.by,
    };
    Ok(Look {
        server,
        version: text(&row, "version").split('-').next().unwrap_or_default().to_owned(),
        clone,
        semi_sync_enabled: truth(&row, "semi_sync_enabled"),
        commits_wait: status("Rpl_semi_sync_source_wait_sessions").parse().unwrap_or(0) > 0_u64,
    })
}

/// The row of the highest term in `mysql_fleet.term`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The term, 0 where there is none.
    pub term: u64,
    /// server_uuid of the instance that recorded it.
    pub by: String,
}

/// Reads it.
pub async fn recorded(session: &mut Session) -> Result<Recorded, SqlError> {
    const HIGHEST: &str = "SELECT term, server_uuid FROM mysql_fleet.term ORDER BY term DESC LIMIT 1";
    match session.row(DEADLINE, HIGHEST).await {
        Ok(row) => Ok(row.map_or_else(Recorded::default, |row| Recorded {
            term: number(&row, "term").unwrap_or(0),
            by: text(&row, "server_uuid"),
        })),
        Err(error) if error.code().is_some_and(|code| ABSENT.contains(&code)) => Ok(Recorded::default()),
        Err(error) => Err(error),
    }
}

fn replication(row: &Row, receiver: &str) -> Option<ReplicationFacts> {
    let source_host = text(row, "source_host");
    if source_host.is_empty() {
        return None;
    }
    let receiver_error = without_attempts(&text(row, "receiver_error"));
    let applier_error = text(row, "applier_error");
    let receiver = match receiver {
        "ON" => ThreadState::Running,
        "CONNECTING" => ThreadState::Connecting,
        _ if number(row, "receiver_errno").is_some_and(|code| code != 0) => ThreadState::Failed,
        _ => ThreadState::Stopped,
    };
    let applier = match text(row, "applier").as_str() {
        "ON" => ThreadState::Running,
        _ if applier_error.is_empty() => ThreadState::Stopped,
        _ => ThreadState::Failed,
    };
    let microseconds = match (truth(row, "applied"), receiver) {
        (true, ThreadState::Running) => Some(0),
        (true, _) => None,
        // Negative where the source's clock is ahead.
        (false, _) => text(row, "lag_us").parse::<i64>().ok().map(|lag| lag.max(0)),
    };
    Some(ReplicationFacts {
        source_host,
        source_uuid: text(row, "source_uuid"),
        receiver: receiver.into(),
        receiver_error,
        applier: applier.into(),
        applier_error,
        gtid_retrieved: set(row, "retrieved"),
        lag: microseconds.map(|lag| prost_types::Duration {
            seconds: lag / 1_000_000,
            nanos: i32::try_from(lag % 1_000_000 * 1000).unwrap_or(0),
        }),
        connecting_for: None,
    })
}

fn clone(row: &Row) -> Option<CloneFacts> {
    let state = match text(row, "state").as_str() {
        "In Progress" => CloneState::Running,
        "Completed" => CloneState::Completed,
        "Failed" => CloneState::Failed,
        _ => return None,
    };
    let source = text(row, "source");
    Some(CloneFacts {
        state: state.into(),
        donor_host: source.rsplit_once(':').map_or(source.as_str(), |(host, _)| host).to_owned(),
        bytes_estimated: number(row, "estimated").unwrap_or(0),
        bytes_copied: number(row, "copied").unwrap_or(0),
        bytes_per_second: number(row, "speed").filter(|_| state == CloneState::Running).unwrap_or(0),
        error: text(row, "error"),
    })
}

/// A GTID set on one line.
fn set(row: &Row, column: &str) -> String {
    text(row, column).split_whitespace().collect()
}

fn small(row: &Row, column: &str) -> u32 {
    number(row, column).and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
}

/// A receiver's error without the number of its attempt: facts that differ at each attempt would be news each
/// time.
fn without_attempts(error: &str) -> String {
    const BEGIN: &str = "This was attempt ";
    const END: &str = "between attempts. ";
    let Some((before, rest)) = error.split_once(BEGIN) else { return error.to_owned() };
    rest.split_once(END).map_or_else(|| error.to_owned(), |(_, after)| format!("{before}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_attempt_is_no_news() {
        let error = "Error connecting to source 'u@h:3306'. This was attempt 7/4294967295, with a delay of 1 seconds \
                     between attempts. Message: refused";
        assert_eq!(without_attempts(error), "Error connecting to source 'u@h:3306'. Message: refused");
        assert_eq!(without_attempts("Message: refused"), "Message: refused");
    }
}
