//! Sessions with the agent's own mysqld, each statement with a deadline.
//!
//! They are over its socket. Where clients have taken all of its connections, they are over the administrative
//! interface, whose connections are not counted: on 127.0.0.1 alone, with TLS, since the interface is TCP and every
//! TCP connection needs it (manual of 8.4 and 9.7, "Administrative Connection Management").

use std::{path::PathBuf, time::Duration};

use mysql_async::{Conn, Opts, OptsBuilder, Row, SslOpts, prelude::Queryable};
use tokio::time::timeout;

use crate::users::SYSTEM_USER;

/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// The defaults of MySQL for what a user's my.cnf may have changed for every session: the agent's statements must
/// neither stay uncommitted nor wait, be refused or be cut short by it.
const SETTINGS: &str = "SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', transaction_read_only = 0, \
    transaction_isolation = 'REPEATABLE-READ', innodb_lock_wait_timeout = 50, lock_wait_timeout = 31536000, \
    max_execution_time = 0, sql_big_selects = 1, wait_timeout = 28800, sql_mode = ''";

/// "Too many connections", "already has more than 'max_user_connections' active connections" and "has exceeded the
/// 'max_user_connections' resource".
const NO_ROOM: [u16; 3] = [1040, 1203, 1226];

/// mysqld's administrative interface.
#[derive(Clone, Debug, Default)]
pub struct AdminInterface {
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// A name in mysqld's certificate.
    pub host: String,
    /// The authority that issued the certificate.
    pub ca: PathBuf,
}

/// How the agent logs in to one start of mysqld.
#[derive(Clone)]
pub struct Login {
    socket: PathBuf,
    admin: AdminInterface,
    password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Login {
    /// A new random password.
    pub fn random(socket: PathBuf, admin: AdminInterface) -> Self {
        let password = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        Self { socket, admin, password }
    }

    /// The password.
    pub fn password(&self) -> &str {
        &self.password
    }

    fn over_socket(&self) -> Opts {
        self.options().socket(Some(self.socket.to_string_lossy())).into()
    }

    fn over_admin_interface(&self) -> Opts {
        let tls = SslOpts::default()
            .with_root_certs(vec![self.admin.ca.clone().into()])
            .with_disable_built_in_roots(true)
            // The certificate is for the names that others reach it by.
            .with_danger_tls_hostname_override(Some(self.admin.host.clone()));
        self.options()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.admin.port)
            .prefer_socket(false)
            .ssl_opts(tls)
            .into()
    }

    fn options(&self) -> OptsBuilder {
        OptsBuilder::default()
            .user(Some(SYSTEM_USER))
            .pass(Some(&self.password))
            .init(vec![SETTINGS])
            // Known values spare a query at each connection.
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(28_800))
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
    /// Connects, also where clients have taken all connections.
    pub async fn open(login: &Login) -> Result<Self, SqlError> {
        match Self::connect(login.over_socket(), "the connection over the socket").await {
            Err(error) if error.code().is_some_and(|code| NO_ROOM.contains(&code)) => {
                let what = "the connection over the administrative interface";
                Self::connect(login.over_admin_interface(), what).await
            }
            other => other,
        }
    }

    async fn connect(options: Opts, what: &str) -> Result<Self, SqlError> {
        match timeout(CONNECT, Conn::new(options)).await {
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
        let login = || Login::random(PathBuf::new(), AdminInterface::default());
        assert_ne!(login().password(), login().password());
        assert!(!format!("{:?}", login()).contains(login().password()));
    }
}
