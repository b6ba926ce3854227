//! The agent with a real mysqld 9.7, driven over gRPC as a shard does.
//!
//! Needs root (for chroot) and FLEET_MYSQLD_ROOTFS, a folder with a MySQL root file system. FLEET_AGENT_BINARY
//! names another agent than the one cargo built, such as the static one.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod harness;
mod leaving;

use std::{collections::HashSet, time::Duration};

use fleet_proto::agent::v1::{
    CloneFacts, CloneState, CloseRequest, InstanceFacts, OpenRequest, ProcessState, ThreadState,
    WatchInstanceRequest,
};
use fleet_runtime::tls::Role;
use mysql_async::{Conn, prelude::Queryable};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::timeout;
use tonic::Code;

use harness::{Instance, MY_CNF, NAMESPACE, Valve, World, rows, until};

/// Whether a commit waits for its acknowledgement.
const WAITS: &str = "SELECT VARIABLE_VALUE > 0 FROM performance_schema.global_status \
    WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_wait_sessions'";

/// Three instances, the first open for term 1 with one required acknowledgement.
async fn cluster(world: &World) -> [Instance; 3] {
    let instances = [world.start(0), world.start(1), world.start(2)];
    for instance in &instances {
        let facts = instance.wait_running().await;
        let server = facts.server.unwrap();
        assert!(server.super_read_only, "every mysqld boots closed");
        assert_eq!(server.gtid_executed, "", "making users must not leave transactions");
    }
    let [primary, replicas @ ..] = &instances;
    for replica in replicas {
        replica.follow(1, primary).await.unwrap();
    }
    for replica in replicas {
        replica
            .wait("acknowledging", |facts| facts.server.as_ref().is_some_and(|s| s.semi_sync_replica))
            .await;
    }
    primary.open(1, 1).await.unwrap();
    instances
}

async fn table(primary: &Instance) -> Conn {
    let mut writer = primary.client("writer").await.unwrap();
    writer.query_drop("CREATE SCHEMA app").await.unwrap();
    writer.query_drop("CREATE TABLE app.t (a INT PRIMARY KEY)").await.unwrap();
    writer
}

fn closed(facts: &InstanceFacts) -> bool {
    facts.server.as_ref().is_some_and(|server| server.super_read_only)
}

async fn count(instance: &Instance) -> String {
    instance.value("SELECT COUNT(*) FROM app.t").await
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_replicates_survives_a_crash_and_serves_only_the_shard() {
    let world = World::new(21000);
    let instances = cluster(&world).await;
    let [primary, first, second] = &instances;

    let mut writer = table(primary).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    for replica in [first, second] {
        until("the row is there", || count(replica), |found| found == "1").await;
        let mut reader = replica.client("reader").await.unwrap();
        assert_eq!(rows(&mut reader, "SELECT a FROM app.t").await.len(), 1);
        let facts = replica.wait("in sync", |facts| {
            let replication = facts.server.as_ref().and_then(|server| server.replication.as_ref());
            replication.is_some_and(|r| r.lag.is_some_and(|lag| (lag.seconds, lag.nanos) == (0, 0)))
        });
        let facts = facts.await;
        let replication = facts.server.unwrap().replication.unwrap();
        assert_eq!(replication.receiver(), ThreadState::Running);
        assert_eq!(replication.applier(), ThreadState::Running);
    }
    let open = |facts: &InstanceFacts| facts.server.as_ref().is_some_and(|server| !server.read_only);
    let server = primary.wait("open", open).await.server.unwrap();
    assert!(!server.super_read_only && server.semi_sync_source);
    assert_eq!((server.recorded_term, server.semi_sync_required_acks, server.semi_sync_clients), (1, 1, 2));
    assert_eq!(primary.probe("/readyz").await, 200);
    assert_eq!(primary.probe("/metrics").await, 200);

    durability_settings_hold(primary).await;
    users_are_bounded(primary, first).await;
    strangers_and_old_terms_are_refused(&world, primary).await;

    // Orders that hold are answered without disturbing anything.
    let before = first
        .value("SELECT COUNT_RECEIVED_HEARTBEATS >= 0 FROM performance_schema.replication_connection_status")
        .await;
    first.follow(1, primary).await.unwrap();
    primary.open(1, 1).await.unwrap();
    assert_eq!(before, "1");

    // A crash of the primary's mysqld: closed again, and opened again by the same order.
    primary.signal_mysqld(Signal::SIGKILL);
    let facts = primary.wait("restarted", |facts| facts.mysqld_exits == 1 && facts.server.is_some()).await;
    assert!(facts.server.unwrap().super_read_only);
    primary.open(1, 1).await.unwrap();
    let mut writer = primary.client("writer").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    until("the row is there", || count(second), |found| found == "2").await;

    role_change_keeps_what_was_received(&instances).await;
}

async fn durability_settings_hold(instance: &Instance) {
    for (name, value) in [
        ("relay_log_recovery", "0"),
        ("sync_relay_log", "1"),
        ("sync_binlog", "1"),
        ("innodb_flush_log_at_trx_commit", "1"),
        ("replica_preserve_commit_order", "1"),
        ("skip_name_resolve", "1"),
        ("rpl_semi_sync_source_wait_point", "AFTER_SYNC"),
        ("rpl_semi_sync_source_wait_no_replica", "1"),
        ("rpl_semi_sync_source_timeout", "4294967295"),
        ("require_secure_transport", "1"),
        ("max_connections", "77"),
    ] {
        assert_eq!(instance.value(&format!("SELECT @@GLOBAL.{name}")).await, value, "{name}");
    }
}

async fn users_are_bounded(primary: &Instance, replica: &Instance) {
    let mut writer = primary.client("writer").await.unwrap();
    for forbidden in [
        "CREATE TABLE mysql.x (a INT)",
        "SELECT * FROM mysql.user",
        "DELETE FROM mysql_fleet.term",
        "SET GLOBAL super_read_only = OFF",
        "SET SESSION sql_log_bin = 0",
    ] {
        assert!(writer.query_drop(forbidden).await.is_err(), "{forbidden}");
    }
    let mut admin = replica.client("admin").await.unwrap();
    for forbidden in [
        "SET GLOBAL super_read_only = OFF",
        "SET GLOBAL read_only = OFF",
        "SET SESSION sql_log_bin = 0",
        "SET GLOBAL rpl_semi_sync_source_enabled = OFF",
        "RESET BINARY LOGS AND GTIDS",
        "STOP REPLICA",
        "SHUTDOWN",
        "ALTER USER 'fleet_system'@'localhost' IDENTIFIED BY 'x'",
        "UPDATE mysql.user SET Super_priv = 'Y'",
    ] {
        assert!(admin.query_drop(forbidden).await.is_err(), "{forbidden}");
    }
    let mut admin = primary.client("admin").await.unwrap();
    admin.query_drop("CREATE USER app@'%' IDENTIFIED BY 'x'").await.unwrap();
    admin.query_drop("GRANT SELECT, INSERT ON app.* TO app@'%'").await.unwrap();
    admin.query_drop("DROP USER app@'%'").await.unwrap();
    let root = primary.value("SELECT COUNT(*) FROM mysql.user WHERE user = 'root'").await;
    assert_eq!(root, "0");
}

async fn strangers_and_old_terms_are_refused(world: &World, primary: &Instance) {
    for (role, namespace) in [(Role::Client, NAMESPACE), (Role::Agent, NAMESPACE), (Role::Shard, "tenant-b")]
    {
        let mut stranger = world.stranger(primary, role, namespace).await;
        let watch = stranger.watch_instance(WatchInstanceRequest {}).await.unwrap_err();
        let order = stranger.close(CloseRequest { term: 99 }).await.unwrap_err();
        assert_eq!([watch.code(), order.code()], [Code::PermissionDenied; 2]);
    }
    assert_eq!(primary.facts().await.term, 1);
    assert_eq!(primary.close(0).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(primary.value("SELECT @@GLOBAL.super_read_only").await, "0");
}

fn open_in(term: u64) -> impl Fn(&InstanceFacts) -> bool {
    move |facts| facts.server.as_ref().is_some_and(|server| !server.read_only && server.recorded_term == term)
}

/// The first replica takes over; what both had received but not applied is still applied, though the one is
/// opened and the source of the other changes.
async fn role_change_keeps_what_was_received([primary, first, second]: &[Instance; 3]) {
    for replica in [first, second] {
        replica.system().await.query_drop("STOP REPLICA SQL_THREAD").await.unwrap();
    }
    let mut writer = primary.client("writer").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (3)").await.unwrap();
    for replica in [first, second] {
        until("it is received", || replica.value(
            "SELECT GTID_SUBTRACT(RECEIVED_TRANSACTION_SET, @@GLOBAL.gtid_executed) <> '' FROM performance_schema.replication_connection_status",
        ), |found| found == "1").await;
    }
    primary.close(2).await.unwrap();
    primary.wait("closed", closed).await;
    first.close(2).await.unwrap();
    second.close(2).await.unwrap();
    first.wait("of the new term", |facts| facts.term == 2).await;

    second.follow(2, first).await.unwrap();
    primary.wait_running().await;
    primary.follow(2, first).await.unwrap();
    // Its own applier is stopped: the order starts it, and waits for it.
    first.open(2, 1).await.unwrap();
    assert_eq!(count(first).await, "3");
    let by = first.wait("open", open_in(2)).await.server.unwrap();
    assert_eq!(by.recorded_by, by.server_uuid);
    let mut writer = first.client("writer").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (4)").await.unwrap();
    for replica in [primary, second] {
        until("both rows are there", || count(replica), |found| found == "4").await;
    }
    let old = primary.open(1, 1).await.unwrap_err();
    assert_eq!(old.code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_commits_are_never_answered_with_ok() {
    let world = World::new(21100);
    let mut instances = cluster(&world).await;
    let mut writer = table(&instances[0]).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    let [primary, first, second] = &instances;
    for replica in [first, second] {
        until("the row is there", || count(replica), |found| found == "1").await;
        replica.signal_mysqld(Signal::SIGSTOP);
    }

    let waiting = tokio::spawn(async move { writer.query_drop("INSERT INTO app.t VALUES (2)").await });
    until("it waits", || primary.value(WAITS), |found| found == "1").await;
    assert_eq!(count(primary).await, "1", "a commit without acknowledgement is invisible");

    // A hung acker is closed too: it is killed.
    first.wait("noticed", |facts| facts.server.is_none()).await;
    first.close(2).await.unwrap();
    let facts = first.wait("closed", |facts| closed(facts) && facts.term == 2).await;
    assert_eq!(facts.mysqld_exits, 0);

    // SIGTERM to the agent kills an open mysqld whose commits wait.
    instances[0].signal_agent(Signal::SIGTERM);
    assert!(waiting.await.unwrap().is_err(), "its client must not be told that the commit succeeded");
    assert!(instances[0].child.wait().unwrap().success());

    // The unacknowledged tail is there after the restart, for the shard to compare.
    let primary = world.start(0);
    let facts = primary.wait_running().await;
    assert!(facts.server.unwrap().super_read_only);
    assert_eq!(count(&primary).await, "2");

    // An opening that nobody acknowledges is not open to clients, and a later order ends it.
    assert_eq!(primary.follow(3, &instances[2]).await.map_err(|status| status.code()), Ok(()));
    primary.close(3).await.unwrap();
    let mut agent = primary.agent().await;
    let mut request = tonic::Request::new(OpenRequest { term: 3, required_acks: 1 });
    request.set_timeout(Duration::from_secs(2));
    assert!(agent.open(request).await.is_err());
    let half =
        |facts: &InstanceFacts| facts.server.as_ref().is_some_and(|s| s.read_only && !s.super_read_only);
    primary.wait("half open", half).await;
    primary.close(4).await.unwrap();
    primary.wait("closed", closed).await;
}

/// A source, open for term 1 with one required acknowledgement, and its only acker.
async fn pair(source: &Instance, acker: &Instance) {
    for instance in [source, acker] {
        instance.wait_running().await;
    }
    acker.follow(1, source).await.unwrap();
    acker.wait("acknowledging", |facts| facts.server.as_ref().is_some_and(|s| s.semi_sync_replica)).await;
    source.open(1, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_source_answers_no_waiting_commit_and_its_tail_is_archived_before_it_is_rebuilt() {
    let world = World::new(21500);
    let [old, new] = [world.start(0), world.start(1)];
    pair(&old, &new).await;
    let mut writer = old.client("writer").await.unwrap();
    writer.query_drop("CREATE SCHEMA app").await.unwrap();
    writer.query_drop("CREATE TABLE app.t (a VARCHAR(40) PRIMARY KEY)").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES ('acknowledged')").await.unwrap();
    new.close(1).await.unwrap();

    let mut waiting = Vec::new();
    for number in 0..5 {
        let mut writer = old.client("writer").await.unwrap();
        let insert = format!("INSERT INTO app.t VALUES ('unacknowledged {number}')");
        waiting.push(tokio::spawn(async move { writer.query_drop(insert).await }));
    }
    let commits = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'INSERT INTO app.t%'";
    until("all wait", || old.value(commits), |found| found == "5").await;
    let before = old.mysqld();
    old.fence(2).await.unwrap();
    assert!(old.mysqld() != before, "it returns when the process has ended");
    for client in waiting {
        assert!(client.await.unwrap().is_err(), "no client may be told that its commit succeeded");
    }
    let facts = old.wait_running().await;
    assert_eq!((facts.term, facts.mysqld_exits), (2, 0));
    let server = facts.server.unwrap();
    assert!(server.super_read_only && server.replication.is_none());
    assert_eq!(count(&old).await, "6", "the unacknowledged tail is committed by crash recovery");

    let booted = old.mysqld();
    old.fence(2).await.unwrap();
    assert_eq!(old.mysqld(), booted, "asked again, it does not kill again");
    let refused = [old.open(1, 1).await, old.fence(1).await].map(|answer| answer.unwrap_err().code());
    assert_eq!(refused, [Code::FailedPrecondition; 2]);

    stopped_mysqld_is_silent_and_fenced(&new).await;

    new.open(3, 0).await.unwrap();
    let of_new = new.value("SELECT @@GLOBAL.gtid_executed").await;
    let all = old.value("SELECT @@GLOBAL.gtid_executed").await;
    let tail = old.value(&format!("SELECT GTID_SUBTRACT('{all}', '{of_new}')")).await;
    assert!(!tail.is_empty());
    let refused = old.start_clone_keeping(3, new.endpoint(), &all, "nonsense").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let archive = old.dir.join("volume/fleet/archive");
    assert!(!archive.exists());
    old.start_clone_keeping(3, new.endpoint(), &all, &tail).await.unwrap();
    old.wait("rebuilt", |facts| {
        let state = facts.clone.as_ref().map(CloneFacts::state);
        assert_ne!(state, Some(CloneState::Failed), "{facts:?}");
        state == Some(CloneState::Completed) && facts.server.is_some()
    })
    .await;
    assert_eq!(count(&old).await, "1");

    let kept: Vec<_> = std::fs::read_dir(&archive).unwrap().flatten().collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let uuid = server.server_uuid;
    assert!(kept[0].file_name().to_str().unwrap().ends_with(&uuid), "{kept:?}");
    let files = std::fs::read_dir(kept[0].path()).unwrap().flatten();
    let (logs, notes): (Vec<_>, Vec<_>) = files.partition(|file| file.file_name() != "gtids");
    assert!(std::fs::read_to_string(notes[0].path()).unwrap().contains(&tail));
    let bytes = logs.iter().flat_map(|log| std::fs::read(log.path()).unwrap()).collect::<Vec<_>>();
    for number in 0..5 {
        let row = format!("unacknowledged {number}");
        assert!(bytes.windows(row.len()).any(|found| found == row.as_bytes()), "{row} is in {logs:?}");
    }
}

/// Facts go on while mysqld is stopped, and say for how long it has been silent.
async fn stopped_mysqld_is_silent_and_fenced(instance: &Instance) {
    let before = instance.mysqld();
    instance.signal_mysqld(Signal::SIGSTOP);
    let silent = |facts: &InstanceFacts| facts.silent_for.is_some_and(|silent| silent.seconds >= 2);
    let facts = instance.wait("silent", silent).await;
    assert!(facts.server.is_none());
    assert_eq!(facts.process_state(), ProcessState::Running);
    let mut stream =
        instance.agent().await.watch_instance(WatchInstanceRequest {}).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    for _ in 0..4 {
        let next = timeout(Duration::from_millis(1900), stream.message()).await;
        assert!(silent(&next.expect("facts come each second").unwrap().unwrap().facts.unwrap()));
    }
    instance.fence(3).await.unwrap();
    assert!(instance.mysqld() != before);
    let facts = instance.wait_running().await;
    assert_eq!((facts.term, facts.silent_for), (3, None));
    let server = facts.server.unwrap();
    assert!(server.super_read_only && server.replication.unwrap().receiver() != ThreadState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_source_is_killed_by_its_own_agent_and_a_watched_one_is_not() {
    let world = World::new(21600);
    let [source, acker] = [world.start_cut_off(0), world.start(1)];
    let watching = source.agent().await.watch_instance(WatchInstanceRequest {}).await.unwrap().into_inner();
    pair(&source, &acker).await;
    let before = source.mysqld();
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert_eq!(source.mysqld(), before, "a shard watches it");
    drop(watching);
    let mysqld = || async { source.mysqld() };
    until("another mysqld runs", mysqld, |now| now.is_some() && *now != before).await;
    let facts = source.wait_running().await;
    assert_eq!(facts.mysqld_exits, 0);
    assert!(facts.server.unwrap().super_read_only);
}

#[tokio::test(flavor = "multi_thread")]
async fn fresh_instance_is_cloned_and_an_interrupted_copy_is_thrown_away() {
    let world = World::new(21200);
    let instances = cluster(&world).await;
    let [primary, donor, _] = &instances;
    let mut writer = table(primary).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    until("the row is there", || count(donor), |found| found == "1").await;

    let mut fresh = world.start(3);
    let mut ids = vec![fresh.wait_running().await.volume_id];
    fresh.start_clone(1, donor, "").await.unwrap();
    let facts = fresh
        .wait("cloned", |facts| {
            let state = facts.clone.as_ref().map(CloneFacts::state);
            assert_ne!(state, Some(CloneState::Failed), "{facts:?}");
            state == Some(CloneState::Completed) && facts.server.is_some()
        })
        .await;
    ids.push(facts.volume_id);
    let clone = facts.clone.unwrap();
    assert_eq!(clone.donor_host, "localhost");
    assert!(clone.bytes_copied > 0 && clone.bytes_copied == clone.bytes_estimated);
    assert_eq!(facts.mysqld_exits, 0, "the end that CLONE asks for is no crash");
    assert_eq!(count(&fresh).await, "1");
    fresh.follow(1, primary).await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    until("the row is there", || count(&fresh), |found| found == "2").await;

    // It holds transactions now, and they are not given up.
    let refused = fresh.start_clone(1, donor, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(":1-"), "{refused}");
    let open = primary.start_clone(1, donor, "").await.unwrap_err();
    assert!(open.message().contains("open"), "{open}");

    // A donor that can't be reached: the copy fails, says why, and the instance is empty and usable after.
    let expendable = fresh.value("SELECT @@GLOBAL.gtid_executed").await;
    let gone = World::start(&world, 4);
    gone.wait_running().await;
    let endpoint = gone.endpoint();
    drop(gone);
    fresh.start_clone_from(1, endpoint, &expendable).await.unwrap();
    let made_anew = |facts: &InstanceFacts| {
        let failed = facts.clone.as_ref().is_some_and(|clone| clone.state() == CloneState::Failed);
        failed && facts.server.as_ref().is_some_and(|server| server.gtid_executed.is_empty())
    };
    let facts = fresh.wait("failed and made anew", made_anew).await;
    ids.push(facts.volume_id);
    let error = facts.clone.unwrap().error;
    assert!(error.contains("Connect failed"), "{error}");
    fresh.follow(1, primary).await.unwrap();
    until("all rows are there", || count(&fresh), |found| found == "2").await;

    // It is copied anew though it holds data, which CLONE itself can't replace on a closed instance.
    let expendable = fresh.value("SELECT @@GLOBAL.gtid_executed").await;
    fresh.start_clone(1, donor, &expendable).await.unwrap();
    let completed = |facts: &InstanceFacts| {
        let state = facts.clone.as_ref().map(CloneFacts::state);
        state == Some(CloneState::Completed) && facts.server.is_some()
    };
    ids.push(fresh.wait("cloned anew", completed).await.volume_id);
    assert_eq!(count(&fresh).await, "2");

    // A copy that is interrupted: the data are neither shown nor used. Its donor is heard no more in the midst of
    // the files, which are several times as large.
    let expendable = fresh.value("SELECT @@GLOBAL.gtid_executed").await;
    let valve = Valve::to(donor, 8 << 20).await;
    fresh.start_clone_from(1, valve.endpoint(), &expendable).await.unwrap();
    valve.shut().await;
    let copying =
        |facts: &InstanceFacts| facts.clone.as_ref().is_some_and(|c| c.state() == CloneState::Running);
    fresh.wait("copying", copying).await;
    fresh.signal_mysqld(Signal::SIGKILL);
    drop(valve);
    ids.push(fresh.wait("failed and made anew", made_anew).await.volume_id);
    fresh.follow(1, primary).await.unwrap();
    until("all rows are there", || count(&fresh), |found| found == "2").await;
    ids.push(copy_without_a_mysqld_says_why_and_ends_well_after(&fresh, donor).await);

    // A clean end of a closed instance: mysqld is not killed, and the data are whole.
    fresh.signal_agent(Signal::SIGTERM);
    assert!(fresh.child.wait().unwrap().success());
    let again = world.start(3);
    let facts = again.wait_running().await;
    assert!(!facts.server.unwrap().gtid_executed.is_empty());

    // An instance is another one each time that its data were given up, and at no other time.
    assert_eq!(ids.last(), Some(&facts.volume_id));
    let different: HashSet<&String> = ids.iter().collect();
    assert_eq!(different.len(), ids.len(), "{ids:?}");
}

/// A copy that needs a mysqld which does not start with the user's options. Returns the volume's identity after all.
async fn copy_without_a_mysqld_says_why_and_ends_well_after(fresh: &Instance, donor: &Instance) -> String {
    let config = fresh.dir.join("config/my.cnf");
    let expendable = fresh.value("SELECT @@GLOBAL.gtid_executed").await;
    std::fs::write(&config, "[mysqld]\nno_such_variable = 1\n").unwrap();
    fresh.start_clone(1, donor, &expendable).await.unwrap();
    let says = |facts: &InstanceFacts| {
        let clone = facts.clone.as_ref().filter(|clone| clone.state() == CloneState::Failed);
        clone.is_some_and(|clone| clone.error.contains("no_such_variable"))
    };
    let facts = fresh.wait("failed", says).await;
    assert!(facts.server.is_none(), "{facts:?}");
    std::fs::write(&config, MY_CNF).unwrap();
    let facts = fresh.wait("made anew", |facts| facts.server.is_some()).await;
    assert_eq!(facts.server.unwrap().gtid_executed, "");

    fresh.start_clone(1, donor, "").await.unwrap();
    let completed = |facts: &InstanceFacts| {
        let state = facts.clone.as_ref().map(CloneFacts::state);
        state == Some(CloneState::Completed) && closed(facts)
    };
    let facts = fresh.wait("cloned", completed).await;
    assert_eq!(count(fresh).await, "2");
    facts.volume_id
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_wait_for_ackers_nobody_wants_any_more_are_in_the_data_after() {
    let world = World::new(21500);
    let [primary, first, second] = cluster(&world).await;
    let mut writer = table(&primary).await;
    for replica in [&first, &second] {
        until("the table is there", || count(replica), |found| found == "0").await;
    }
    drop((first, second));
    let waiting = tokio::spawn(async move { writer.query_drop("INSERT INTO app.t VALUES (1)").await });
    until("it waits", || primary.value(WAITS), |found| found == "1").await;

    let status = primary.open(2, 0).await.unwrap_err();
    assert!(status.message().contains("can be opened then"), "{status}");
    assert!(waiting.await.unwrap().is_err(), "its client must not be told that the commit succeeded");
    primary.wait("closed", closed).await;
    primary.open(2, 0).await.unwrap();
    assert_eq!(count(&primary).await, "1");
    let mut writer = primary.client("writer").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    assert_eq!(primary.facts().await.mysqld_exits, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_take_all_connections_do_not_keep_the_agent_out() {
    let world = World::new(21600);
    let [primary, second] = [world.start(0), world.start(1)];
    for instance in [&primary, &second] {
        instance.wait_running().await;
    }
    primary.open(1, 0).await.unwrap();
    let mysqld = primary.mysqld();
    let mut clients = Vec::new();
    let refused = loop {
        match primary.client("writer").await {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("Too many connections"), "{refused}");
    // The one that is kept for accounts like the agent's is taken too.
    let mut system = until("the last connection", || primary.try_system(), Result::is_ok).await.unwrap();

    // The agent's own connection is ended as often as it is one that counts, and clients take its place.
    let agents = "SELECT id, host = 'localhost' FROM performance_schema.processlist \
        WHERE user = 'fleet_system' AND id <> CONNECTION_ID()";
    let outside = async {
        loop {
            let found: Vec<(u64, bool)> = system.query(agents).await.unwrap();
            if !found.is_empty() && found.iter().all(|(_, counts)| !counts) {
                return;
            }
            for (id, _) in found.iter().filter(|(_, counts)| *counts) {
                // It may have ended by itself.
                let _ = system.query_drop(format!("KILL {id}")).await;
            }
            clients.extend(primary.client("writer").await.ok());
        }
    };
    timeout(Duration::from_mins(1), outside).await.expect("the agent uses the administrative interface");
    // As the agent does with renewed certificates.
    for channel in ["mysql_main", "mysql_admin"] {
        system.query_drop(format!("ALTER INSTANCE RELOAD TLS FOR CHANNEL {channel}")).await.unwrap();
    }
    primary.wait("seen open", |facts| facts.server.as_ref().is_some_and(|s| !s.super_read_only)).await;
    primary.close(2).await.unwrap();
    primary.wait("closed", closed).await;
    primary.follow(2, &second).await.unwrap();
    primary.open(3, 0).await.unwrap();
    assert_eq!(primary.mysqld(), mysqld, "an order that can't get in kills mysqld");
    for client in &mut clients {
        client.ping().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_session_defaults_do_not_reach_the_agents_statements() {
    let world = World::new(21700);
    let instance = world.start(0);
    instance.wait_running().await;
    // With transaction_read_only, which is reserved, the clone plugin can't even make its tables.
    let hostile = "[mysqld]\ninnodb_buffer_pool_size = 64M\nautocommit = OFF\ncompletion_type = RELEASE\n\
        transaction_isolation = SERIALIZABLE\ninnodb_lock_wait_timeout = 1\n\
        lock_wait_timeout = 1\nmax_execution_time = 1\nmax_join_size = 1\n\
        sql_mode = ANSI,NO_BACKSLASH_ESCAPES\n";
    std::fs::write(instance.dir.join("config/my.cnf"), hostile).unwrap();
    instance.signal_mysqld(Signal::SIGKILL);
    instance.wait("restarted", |facts| facts.mysqld_exits == 1 && facts.server.is_some()).await;
    instance.open(1, 0).await.unwrap();
    let recorded =
        |facts: &InstanceFacts| facts.server.as_ref().is_some_and(|server| server.recorded_term == 1);
    instance.wait("open, with its term", recorded).await;
    instance.close(2).await.unwrap();
    instance.wait("closed", closed).await;
    instance.open(2, 0).await.unwrap();
    // What was only in a transaction would be gone.
    instance.signal_mysqld(Signal::SIGKILL);
    let recorded = |facts: &InstanceFacts| {
        facts.mysqld_exits == 2 && facts.server.as_ref().is_some_and(|server| server.recorded_term == 2)
    };
    instance.wait("restarted with its term", recorded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_pid_1_it_restarts_mysqld_and_reaps_orphans() {
    let world = World::new(21400);
    let mut instance = world.start_as_pid_1(0);
    instance.wait_running().await;
    instance.signal_mysqld(Signal::SIGKILL);
    instance.wait("restarted", |facts| facts.mysqld_exits == 1 && facts.server.is_some()).await;

    // RESTART ends mysqld with exit code 16 and counts on its supervisor.
    let before = instance.mysqld();
    assert!(instance.system().await.query_drop("RESTART").await.is_ok());
    until("another mysqld runs", || async { instance.mysqld() }, |now| now.is_some() && *now != before).await;
    assert_eq!(instance.wait_running().await.mysqld_exits, 1);

    // An orphan becomes the agent's child and must not stay a zombie.
    let agent = instance.agent_process();
    let orphan = std::process::Command::new("nsenter")
        .args([
            "--pid",
            "--target",
            &agent.to_string(),
            "sh",
            "-c",
            "sleep 3600 >/dev/null 2>&1 & echo orphaned",
        ])
        .output()
        .unwrap();
    assert!(orphan.status.success(), "{orphan:?}");
    let children = || async {
        let threads = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten();
        threads
            .map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default())
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>())
            .filter(|pid| Some(Pid::from_raw(*pid)) != instance.mysqld())
            .map(Pid::from_raw)
            .collect::<Vec<Pid>>()
    };
    let found = until("the orphan is a child", children, |children| !children.is_empty()).await;
    kill(found[0], Signal::SIGKILL).unwrap();
    until("the orphan is gone", children, Vec::is_empty).await;
    assert!(instance.mysqld().is_some());

    instance.signal_agent(Signal::SIGTERM);
    assert!(instance.child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_reported_and_recovers_by_itself() {
    let world = World::new(21300);
    let mut instance = world.start(0);
    instance.wait_running().await;
    let config = instance.dir.join("config/my.cnf");
    std::fs::write(&config, "[mysqld]\nno_such_variable = 1\n").unwrap();
    instance.signal_mysqld(Signal::SIGKILL);
    let facts = instance.wait("reported", |facts| facts.process_message.contains("no_such_variable")).await;
    assert!(facts.server.is_none());
    assert_eq!([instance.probe("/livez").await, instance.probe("/readyz").await], [200, 503]);
    std::fs::write(&config, "[mysqld]\n").unwrap();
    let facts = instance.wait_running().await;
    assert!(facts.mysqld_exits >= 2);

    // A term that can't be read is never taken for 0.
    instance.signal_agent(Signal::SIGTERM);
    assert!(instance.child.wait().unwrap().success());
    let term = instance.dir.join("volume/fleet/term");
    std::fs::write(&term, "garbage").unwrap();
    let instance = world.start(0);
    let facts = instance.wait("failed", |facts| facts.process_state() == ProcessState::Failed).await;
    assert!(facts.process_message.contains("fleet/term"), "{}", facts.process_message);
    assert_eq!(instance.close(5).await.unwrap_err().code(), Code::FailedPrecondition);
    std::fs::remove_file(&term).unwrap();
    instance.wait_running().await;
}
