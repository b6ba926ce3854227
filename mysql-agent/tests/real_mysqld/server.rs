//! A mysqld by itself, without an agent: for what MySQL does whoever runs it.

use std::{
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use mysql_async::{Conn, OptsBuilder, SslOpts, prelude::Queryable};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::harness::{World, until};

/// Options of every server: those of the agent that the facts are about, and a small one.
const OPTIONS: [&str; 19] = [
    "--no-defaults",
    "--innodb-buffer-pool-size=32M",
    "--loose-innodb-numa-interleave=OFF",
    "--secure-file-priv=NULL",
    "--loose-mysqlx=OFF",
    "--bind-address=127.0.0.1",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--log-bin=binlog",
    "--relay-log=relay",
    "--sync-relay-log=1",
    "--skip-replica-start=ON",
    "--persisted-globals-load=OFF",
    "--plugin-load-add=semisync_source.so",
    "--plugin-load-add=semisync_replica.so",
    "--plugin-load-add=mysql_clone.so",
    "--rpl-semi-sync-source-timeout=4294967295",
    "--rpl-semi-sync-source-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-source-wait-no-replica=ON",
];

/// The error of a login with a wrong password.
const ACCESS_DENIED: u16 = 1045;

/// Whether mysqld is told of a supervisor that starts it again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Supervisor {
    /// The environment names this process as one.
    Named,
    /// It does not.
    Unnamed,
}

/// One mysqld, whose `root` has no password at the socket.
pub struct Server {
    pub port: u16,
    child: Child,
    dir: PathBuf,
}

impl Server {
    /// Starts on the data it left, or fresh. `more` options come after the usual ones.
    pub fn start(world: &World, ordinal: u16, more: &[&str]) -> Self {
        Self::start_with(world, ordinal, Supervisor::Named, more)
    }

    /// The same, with the choice of its environment.
    pub fn start_with(world: &World, ordinal: u16, supervisor: Supervisor, more: &[&str]) -> Self {
        let dir = world.folder(&format!("server-{ordinal}"));
        world.initialized(&dir.join("data"));
        let port = world.mysql_port(ordinal);
        let inside = world.inside(&dir).display().to_string();
        let mut command: Command = world.as_nobody();
        command.arg("mysqld").args(OPTIONS).args(more);
        command.args([format!("--datadir={inside}/data"), format!("--socket={inside}/sock")]);
        command.args([format!("--log-error={inside}/log"), format!("--pid-file={inside}/pid")]);
        command.args([format!("--port={port}"), format!("--server-id={}", ordinal + 1)]);
        command.arg(format!("--tmpdir={inside}"));
        match supervisor {
            Supervisor::Named => command.env("MYSQLD_PARENT_PID", std::process::id().to_string()),
            Supervisor::Unnamed => command.env_remove("MYSQLD_PARENT_PID"),
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self { port, child, dir }
    }

    /// A source with semi-synchronous replication on and one required acknowledgement, or more; with a user that
    /// replicas log in with and a table `app.t`, all made outside the binary log, and nothing in it.
    pub async fn start_source(world: &World, ordinal: u16, acks: u32) -> Self {
        let source = Self::start(world, ordinal, &[]);
        source.make_table().await;
        source
            .run(&[
                "SET SESSION sql_log_bin = 0",
                "CREATE USER repl@'%' IDENTIFIED BY 'secret'",
                "GRANT REPLICATION SLAVE, BACKUP_ADMIN ON *.* TO repl@'%'",
                &format!("SET GLOBAL rpl_semi_sync_source_wait_for_replica_count = {acks}"),
                "SET GLOBAL rpl_semi_sync_source_enabled = ON",
            ])
            .await;
        source
    }

    /// An acker of a source that holds the same table.
    pub async fn start_acker(world: &World, ordinal: u16, source: &Self, more: &[&str]) -> Self {
        let acker = Self::start(world, ordinal, more);
        acker.make_table().await;
        acker.follow(source).await;
        acker
    }

    async fn make_table(&self) {
        let table = "CREATE TABLE app.t (a INT PRIMARY KEY)";
        self.run(&["SET SESSION sql_log_bin = 0", "CREATE SCHEMA app", table]).await;
    }

    /// Makes it a replica that acknowledges.
    pub async fn follow(&self, source: &Self) {
        let change = format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {}, SOURCE_SSL = 1, \
             SOURCE_USER = 'repl', SOURCE_PASSWORD = 'secret', SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1",
            source.port
        );
        self.run(&["SET GLOBAL rpl_semi_sync_replica_enabled = ON", &change, "START REPLICA"]).await;
    }

    /// Statements of one session as root; the first waits for mysqld to take connections.
    pub async fn run(&self, statements: &[&str]) {
        let mut session = self.session().await;
        for statement in statements {
            session.query_drop(*statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
    }

    /// A session as root.
    pub async fn session(&self) -> Conn {
        let options = || {
            let socket = self.dir.join("sock").display().to_string();
            OptsBuilder::default().socket(Some(socket)).user(Some("root"))
        };
        until("mysqld takes connections", || Conn::new(options()), Result::is_ok).await.unwrap()
    }

    /// Whether it lets a user in with this password, over TLS.
    pub async fn accepts(&self, user: &str, password: &str) -> bool {
        let tls = SslOpts::default().with_danger_accept_invalid_certs(true);
        let options = OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.port)
            .user(Some(user))
            .pass(Some(password))
            .ssl_opts(tls)
            .prefer_socket(false);
        match Conn::new(options).await {
            Ok(_) => true,
            Err(mysql_async::Error::Server(error)) if error.code == ACCESS_DENIED => false,
            Err(error) => panic!("neither let in nor refused: {error}"),
        }
    }

    /// One value; empty for NULL.
    pub async fn value(&self, sql: &str) -> String {
        let value = self.session().await.query_first::<Option<String>, _>(sql).await.unwrap();
        value.flatten().unwrap_or_default()
    }

    /// Waits until a query gives this value.
    pub async fn wait(&self, sql: &str, expected: &str) {
        until(sql, || self.value(sql), |found| found == expected).await;
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> ExitStatus {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        let end = async {
            loop {
                ticks.tick().await;
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
            }
        };
        tokio::time::timeout(Duration::from_mins(1), end).await.expect("mysqld ends")
    }

    /// Ends it as a crash of its node would.
    pub async fn crash(self) {
        self.signal(Signal::SIGKILL);
        self.ended().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}
