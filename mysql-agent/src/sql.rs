//! Sessions with the agent's own mysqld, over its socket, each statement with a deadline.

use std::{path::PathBuf, time::Duration};

use mysql_async::{Conn, Opts, OptsBuilder, Row, prelude::Queryable};
use tokio::time::timeout;

use crate::users::SYSTEM_USER;

/// Time for a connection over the socket.
const CONNECT: Duration = Duration::from_secs(2);

/// How the agent logs in to one start of mysqld.
#[derive(Clone)]
pub struct Login {
    socket: PathBuf,
    password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Login {
    /// A new random password.
    pub fn random(socket: PathBuf) -> Self {
        let password = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        Self { socket, password }
    }

    /// The password.
    pub fn password(&self) -> &str {
        &self.password
    }

    fn options(&self) -> Opts {
        OptsBuilder::default()
            .socket(Some(self.socket.to_string_lossy()))
            .user(Some(SYSTEM_USER))
            .pass(Some(&self.password))
            // Known values spare a query at each connection.
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(28_800))
            .into()
    }
}

/// A statement that failed.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// No mysqld runs.
    #[error("mysqld does not run")]
    NotRunning,
    /// It did not answer in time. Whether the statement took effect is unknown.
    #[error("{statement} did not return within {} s", limit.as_secs_f32())]
    Deadline {
        /// The statement, without values.
        statement: String,
        /// The time it had.
        limit: Duration,
    },
    /// mysqld or the connection refused.
    #[error("{statement} failed: {source}")]
    Failed {
        /// The statement, without values.
        statement: String,
        /// Why not.
        source: mysql_async::Error,
    },
}

impl SqlError {
    /// MySQL's error number, where mysqld answered with one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Failed { source: mysql_async::Error::Server(error), .. } => Some(error.code),
            _ => None,
        }
    }
}

/// One connection. A statement that misses its deadline ends the connection, since its answer could be taken
/// for that of the next one.
#[derive(Debug)]
pub struct Session {
    conn: Option<Conn>,
}

impl Session {
    /// Connects.
    pub async fn open(login: &Login) -> Result<Self, SqlError> {
        let what = "the connection over the socket";
        match timeout(CONNECT, Conn::new(login.options())).await {
            Ok(Ok(conn)) => Ok(Self { conn: Some(conn) }),
            Ok(Err(source)) => Err(SqlError::Failed { statement: what.to_owned(), source }),
            Err(_) => Err(SqlError::Deadline { statement: what.to_owned(), limit: CONNECT }),
        }
    }

    /// Runs a statement and returns its rows.
    pub async fn rows(&mut self, limit: Duration, sql: &str) -> Result<Vec<Row>, SqlError> {
        let mut conn = self.conn.take().ok_or(SqlError::NotRunning)?;
        match timeout(limit, conn.query::<Row, _>(sql)).await {
            Ok(Ok(rows)) => {
                self.conn = Some(conn);
                Ok(rows)
            }
            Ok(Err(source)) => {
                if matches!(source, mysql_async::Error::Server(_)) {
                    self.conn = Some(conn);
                }
                Err(SqlError::Failed { statement: shown(sql), source })
            }
            Err(_) => Err(SqlError::Deadline { statement: shown(sql), limit }),
        }
    }

    /// Runs a statement and returns its first row.
    pub async fn row(&mut self, limit: Duration, sql: &str) -> Result<Option<Row>, SqlError> {
        Ok(self.rows(limit, sql).await?.into_iter().next())
    }

    /// Runs a statement that has no rows.
    pub async fn run(&mut self, limit: Duration, sql: &str) -> Result<(), SqlError> {
        self.rows(limit, sql).await.map(drop)
    }
}

/// A statement as errors show it: passwords stay out.
fn shown(sql: &str) -> String {
    let end = ["SOURCE_PASSWORD", "IDENTIFIED"].iter().find_map(|word| sql.find(word)).unwrap_or(sql.len());
    let text: String = sql.get(..end).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() > 100 { text.chars().take(100).chain("...".chars()).collect() } else { text }
}

/// A column as text, empty where it is NULL or absent.
pub fn text(row: &Row, column: &str) -> String {
    row.get_opt::<Option<String>, _>(column).and_then(Result::ok).flatten().unwrap_or_default()
}

/// A column as number, `None` where it is NULL, absent or none.
pub fn number(row: &Row, column: &str) -> Option<u64> {
    text(row, column).parse().ok()
}

/// A column as truth value.
pub fn truth(row: &Row, column: &str) -> bool {
    matches!(text(row, column).as_str(), "1" | "ON" | "YES")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_stay_out_of_errors() {
        assert_eq!(
            shown("CHANGE x TO SOURCE_USER = 'r', SOURCE_PASSWORD = 'p'"),
            "CHANGE x TO SOURCE_USER = 'r',"
        );
        assert_eq!(shown("CLONE INSTANCE FROM 'r'@'h':1 IDENTIFIED BY 'p'"), "CLONE INSTANCE FROM 'r'@'h':1");
        assert_eq!(shown(&"é ".repeat(90)).chars().count(), 103);
    }

    #[test]
    fn logins_differ() {
        let login = || Login::random(PathBuf::new());
        assert_ne!(login().password(), login().password());
        assert!(!format!("{:?}", login()).contains(login().password()));
    }
}
