//! What MySQL does by itself, and why the agent does what it does. Where one of these fails on another version of
//! MySQL, the rule that follows from it has to be thought over before that version is run.

use std::time::Duration;

use mysql_async::{Conn, prelude::Queryable};
use nix::sys::signal::Signal;
use tokio::{net::UdpSocket, task::JoinHandle, time::timeout};

use crate::{
    cluster::WAITS,
    harness::{World, until},
    server::{Server, Supervisor},
};

const COUNT: &str = "SELECT COUNT(*) FROM app.t";
const INSERTS: &str = "SELECT COUNT(*) FROM performance_schema.processlist \
    WHERE info LIKE 'INSERT INTO app.t%' AND id <> CONNECTION_ID()";
/// The error of RESTART and CLONE on a mysqld that nobody would start again.
const NO_SUPERVISOR: u16 = 3707;
/// How long something that must not happen is waited for.
const NEVER: Duration = Duration::from_secs(3);

/// Commits that wait for their acknowledgement, each in a session of its own.
async fn waiting_commits(source: &Server, number: u32) -> Vec<JoinHandle<Result<(), mysql_async::Error>>> {
    let mut commits = Vec::new();
    for row in 0..number {
        let mut session = source.session().await;
        let insert = format!("INSERT INTO app.t VALUES ({row})");
        commits.push(tokio::spawn(async move { session.query_drop(insert).await }));
    }
    source.wait(INSERTS, &number.to_string()).await;
    source.wait(WAITS, "1").await;
    commits
}

/// Waits until a commit waits for its acknowledgement, in a session that is there already.
async fn waits(observer: &mut Conn) {
    let search = async {
        while observer.query_first::<bool, _>(WAITS).await.unwrap() != Some(true) {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), search).await.expect("a commit waits for its acknowledgement");
}

/// How many of the clients were told that their commit succeeded.
async fn answered(commits: Vec<JoinHandle<Result<(), mysql_async::Error>>>) -> usize {
    let mut succeeded = 0;
    for commit in commits {
        succeeded += usize::from(commit.await.unwrap().is_ok());
    }
    succeeded
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_log_recovery_loses_acknowledged_rows_and_without_it_they_are_kept() {
    const APPLIER_IS_IDLE: &str = "SELECT COUNT(*) > 0 FROM performance_schema.processlist \
        WHERE state LIKE 'Replica has read all relay log%'";
    let world = World::new(22000);
    let source = Server::start_source(&world, 0, 2).await;
    let [off, on] = ["--relay-log-recovery=OFF", "--relay-log-recovery=ON"];
    let [keeps, loses] = [
        Server::start_acker(&world, 1, &source, &[off]).await,
        Server::start_acker(&world, 2, &source, &[on]).await,
    ];
    for acker in [&keeps, &loses] {
        acker
            .wait(
                "SELECT VARIABLE_VALUE FROM performance_schema.global_status \
            WHERE VARIABLE_NAME = 'Rpl_semi_sync_replica_status'",
                "ON",
            )
            .await;
        acker.run(&["STOP REPLICA SQL_THREAD"]).await;
    }
    source.run(&["INSERT INTO app.t VALUES (1)", "INSERT INTO app.t VALUES (2), (3)"]).await;
    for server in [source, keeps, loses] {
        server.crash().await;
    }

    let keeps = Server::start(&world, 1, &[off]);
    keeps.run(&["START REPLICA SQL_THREAD"]).await;
    keeps.wait(COUNT, "3").await;
    let loses = Server::start(&world, 2, &[on]);
    loses.run(&["START REPLICA SQL_THREAD"]).await;
    loses.wait(APPLIER_IS_IDLE, "1").await;
    assert_eq!(loses.value(COUNT).await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_whose_creation_waits_for_its_acknowledgement_lets_no_replica_in() {
    const RECEIVER: &str = "SELECT CONCAT(SERVICE_STATE, ' ', LAST_ERROR_NUMBER) \
        FROM performance_schema.replication_connection_status";
    let world = World::new(22100);
    let source = Server::start_source(&world, 0, 1).await;
    source.run(&["SET SESSION sql_log_bin = 0", "DROP USER repl@'%'"]).await;
    // Opened before, since nobody can log in meanwhile.
    let [mut creator, mut observer] = [source.session().await, source.session().await];
    let creation =
        tokio::spawn(async move { creator.query_drop("CREATE USER repl@'%' IDENTIFIED BY 'secret'").await });
    waits(&mut observer).await;
    let replica = Server::start(&world, 1, &[]);
    replica.follow(&source).await;
    let refused = timeout(NEVER, until("it gets in", || replica.value(RECEIVER), |state| state == "ON 0"));
    assert!(refused.await.is_err(), "the user can't log in before its creation is acknowledged");
    assert!(!creation.is_finished());

    // Nothing but the wait was in the way.
    observer.query_drop("SET GLOBAL rpl_semi_sync_source_enabled = OFF").await.unwrap();
    creation.await.unwrap().unwrap();
    source.run(&["GRANT REPLICATION SLAVE ON *.* TO repl@'%'"]).await;
    replica.wait(RECEIVER, "ON 0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn source_without_ackers_is_not_closed_politely_and_crash_recovery_commits_its_tail() {
    let world = World::new(22200);
    let source = Server::start_source(&world, 0, 1).await;
    let commits = waiting_commits(&source, 2).await;
    let mut closer = source.session().await;
    let closing = timeout(NEVER, closer.query_drop("SET GLOBAL super_read_only = ON"));
    assert!(closing.await.is_err(), "super_read_only waits for the commits");

    let waiting: Vec<u64> = source
        .session()
        .await
        .query(
            "SELECT id FROM performance_schema.processlist WHERE info LIKE 'INSERT INTO app.t%' \
            AND id <> CONNECTION_ID()",
        )
        .await
        .unwrap();
    for id in &waiting {
        source.run(&[&format!("KILL {id}")]).await;
    }
    assert_eq!(answered(commits).await, 0, "their clients are dropped");
    let over = timeout(NEVER, until("none waits", || source.value(WAITS), |found| found == "0"));
    assert!(over.await.is_err(), "the transactions go on waiting without their sessions");
    assert_eq!(source.value(COUNT).await, "0");

    source.crash().await;
    let source = Server::start(&world, 0, &[]);
    source.wait(COUNT, "2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_end_of_a_source_answers_ok_to_unacknowledged_commits_and_sigkill_to_none() {
    const COMMITS: u32 = 20;
    let world = World::new(22300);
    for (ordinal, signal, told) in [(0, Signal::SIGTERM, COMMITS as usize), (1, Signal::SIGKILL, 0)] {
        let source = Server::start_source(&world, ordinal, 1).await;
        let commits = waiting_commits(&source, COMMITS).await;
        source.signal(signal);
        assert_eq!(answered(commits).await, told, "{signal}");
        source.ended().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn semi_sync_switched_off_answers_ok_to_unacknowledged_commits_and_the_wait_counter_is_no_number_of_them()
 {
    const COMMITS: u32 = 20;
    let world = World::new(22400);
    let source = Server::start_source(&world, 0, 1).await;
    let commits = waiting_commits(&source, COMMITS).await;
    let counted = source
        .value(
            "SELECT VARIABLE_VALUE FROM performance_schema.global_status \
        WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_wait_sessions'",
        )
        .await;
    assert!(counted.parse::<u32>().unwrap() < COMMITS, "{counted}");
    source.run(&["SET GLOBAL rpl_semi_sync_source_enabled = OFF"]).await;
    assert_eq!(answered(commits).await, COMMITS as usize);
    source.run(&["INSERT INTO app.t VALUES (1000)"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_and_clone_count_on_a_supervisor_and_end_with_code_16_where_one_is_named() {
    let world = World::new(22500);
    let donor = Server::start_source(&world, 0, 1).await;
    let clone = format!("CLONE INSTANCE FROM repl@'127.0.0.1':{} IDENTIFIED BY 'secret'", donor.port);
    let allow = format!("SET GLOBAL clone_valid_donor_list = '127.0.0.1:{}'", donor.port);
    for (ordinal, statement) in [(1, "RESTART"), (2, clone.as_str())] {
        let alone = Server::start_with(&world, ordinal, Supervisor::Unnamed, &[]);
        let mut session = alone.session().await;
        session.query_drop(&allow).await.unwrap();
        match session.query_drop(statement).await.unwrap_err() {
            mysql_async::Error::Server(error) => assert_eq!(error.code, NO_SUPERVISOR, "{error}"),
            other => panic!("{statement}: {other}"),
        }
        alone.crash().await;

        let supervised = Server::start(&world, ordinal + 2, &[]);
        let mut session = supervised.session().await;
        session.query_drop(&allow).await.unwrap();
        // RESTART is answered, CLONE is cut off.
        let _ = session.query_drop(statement).await;
        assert_eq!(supervised.ended().await.code(), Some(16), "{statement}");
    }
    let cloned = Server::start(&world, 4, &[]);
    assert_eq!(cloned.value(COUNT).await, "0", "it has the donor's table");
}

/// A name server for the root file system, which answers when it is told to.
struct Names {
    socket: UdpSocket,
    file: std::path::PathBuf,
}

impl Names {
    async fn start(world: &World) -> Self {
        let socket = UdpSocket::bind("127.9.9.9:53").await.unwrap();
        let file = world.rootfs().join("etc/resolv.conf");
        std::fs::write(&file, "nameserver 127.9.9.9\noptions timeout:30 attempts:1\n").unwrap();
        Self { socket, file }
    }

    /// The next question, which is answered with "no such name".
    async fn refuse(&self) -> String {
        let mut buffer = [0; 512];
        let (length, asker) = self.socket.recv_from(&mut buffer).await.unwrap();
        let question = buffer.get(..length).unwrap();
        // The same with the flags of an answer that says so (RFC 1035, 4.1.1).
        let answer = [question.get(..2).unwrap(), &[0x81, 0x83], question.get(4..).unwrap()].concat();
        self.socket.send_to(&answer, asker).await.unwrap();
        String::from_utf8_lossy(question).into_owned()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Connects from an address without a name, and reads the first byte of the greeting.
async fn greeting(port: u16) -> u8 {
    use tokio::io::AsyncReadExt as _;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.77:0".parse().unwrap()).unwrap();
    let mut stream = socket.connect(([127, 0, 0, 1], port).into()).await.unwrap();
    stream.read_u8().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_connection_waits_for_reverse_dns_unless_names_are_not_resolved() {
    let world = World::new(22600);
    let names = Names::start(&world).await;
    let [resolves, does_not] = [
        Server::start(&world, 0, &["--skip-name-resolve=OFF"]),
        Server::start(&world, 1, &["--skip-name-resolve=ON"]),
    ];
    for server in [&resolves, &does_not] {
        drop::<Conn>(server.session().await);
    }
    timeout(Duration::from_secs(20), greeting(does_not.port)).await.expect("no name server is waited for");

    let greeted = tokio::spawn(greeting(resolves.port));
    // Until the answer comes, which is 30 s at most, the client is not even greeted.
    let mut buffer = [0; 512];
    let peeked = names.socket.peek_from(&mut buffer);
    timeout(Duration::from_secs(20), peeked).await.expect("a name is asked for").unwrap();
    assert!(!greeted.is_finished());
    let question = names.refuse().await;
    assert!(question.contains("in-addr"), "{question:?}");
    timeout(Duration::from_secs(20), greeted).await.expect("greeted after the answer").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn account_statement_that_waits_for_its_acknowledgement_lets_nobody_log_in_not_even_ackers() {
    const RECEIVER: &str = "SELECT SERVICE_STATE FROM performance_schema.replication_connection_status";
    let world = World::new(22700);
    let source = Server::start_source(&world, 0, 1).await;
    let [mut admin, mut observer] = [source.session().await, source.session().await];
    let creation =
        tokio::spawn(async move { admin.query_drop("CREATE USER app@'%' IDENTIFIED BY 'x'").await });
    waits(&mut observer).await;
    let login = timeout(NEVER, source.session());
    assert!(login.await.is_err(), "a login waits for the account statement");
    let acker = Server::start(&world, 1, &[]);
    // Its own account exists, and it is up to date.
    acker.follow(&source).await;
    let connected = timeout(NEVER, until("it gets in", || acker.value(RECEIVER), |state| state == "ON"));
    assert!(connected.await.is_err(), "the acknowledgement that is waited for can't come");
    assert!(!creation.is_finished());
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_of_a_closed_instance_change_by_replication_and_by_its_init_file_alone() {
    const OPTION_PREVENTS_STATEMENT: u16 = 1290;
    let world = World::new(22800);
    let source = Server::start_source(&world, 0, 1).await;
    let acker = Server::start_acker(&world, 1, &source, &["--super-read-only=OFF"]).await;
    let make = "CREATE USER app@'%' IDENTIFIED BY 'old'";
    for server in [&source, &acker] {
        server.run(&["SET SESSION sql_log_bin = 0", make]).await;
    }
    acker.run(&["SET GLOBAL super_read_only = ON"]).await;

    let change = "ALTER USER app@'%' IDENTIFIED BY 'new' RETAIN CURRENT PASSWORD";
    let mut session = acker.session().await;
    session.query_drop("SET SESSION sql_log_bin = 0").await.unwrap();
    match session.query_drop(change).await.unwrap_err() {
        mysql_async::Error::Server(error) => assert_eq!(error.code, OPTION_PREVENTS_STATEMENT, "{error}"),
        other => panic!("{other}"),
    }
    let accepts = async |password: &str| acker.accepts("app", password).await;
    assert_eq!([accepts("old").await, accepts("new").await], [true, false]);

    source.run(&[change]).await;
    until("the new password is taken", || accepts("new"), |accepted| *accepted).await;
    assert!(accepts("old").await, "both are, until the old one is discarded");
    source.run(&["ALTER USER app@'%' DISCARD OLD PASSWORD"]).await;
    until("the old password is refused", || accepts("old"), |accepted| !accepted).await;
    assert!(accepts("new").await);

    // As the agent does it at each start.
    acker.crash().await;
    let init = world.folder("server-1").join("init.sql");
    std::fs::write(&init, "SET SESSION sql_log_bin = 0;\nALTER USER app@'%' IDENTIFIED BY 'newest';\n")
        .unwrap();
    let init = format!("--init-file={}", world.inside(&init).display());
    let acker = Server::start(&world, 1, &["--super-read-only=ON", &init]);
    drop::<Conn>(acker.session().await);
    assert!(acker.accepts("app", "newest").await && !acker.accepts("app", "new").await);
}
