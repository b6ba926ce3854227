//! A cluster at work: it replicates, its users are bounded, strangers are refused, roles change.

use fleet_proto::agent::v1::{CloseRequest, InstanceFacts, ThreadState, WatchInstanceRequest};
use fleet_runtime::tls::Role;
use mysql_async::prelude::Queryable;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    cluster::{closed, cluster, count, lets_nobody_in, table},
    harness::{Instance, NAMESPACE, World, rows, until},
};

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
    lets_nobody_in(primary).await;
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
    let mut reader = first.client("reader").await.unwrap();
    primary.close(2).await.unwrap();
    primary.wait("closed", closed).await;
    assert!(writer.ping().await.is_err(), "a client of a closed primary would stay with it for ever");
    lets_nobody_in(primary).await;
    first.close(2).await.unwrap();
    second.close(2).await.unwrap();
    reader.ping().await.unwrap();
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
        replica.client("reader").await.unwrap();
    }
    let old = primary.open(1, 1).await.unwrap_err();
    assert_eq!(old.code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_lets_no_client_in_gives_away_what_it_holds() {
    let world = World::new(23100);
    let [first, second] = [world.start(0), world.start(1)];
    for instance in [&first, &second] {
        instance.wait_running().await;
        lets_nobody_in(instance).await;
    }
    first.open(1, 0).await.unwrap();
    let mut writer = table(&first).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    first.close(2).await.unwrap();
    first.wait("closed", closed).await;
    second.follow(2, &first).await.unwrap();
    until("the row is there", || count(&second), |found| found == "1").await;
    lets_nobody_in(&first).await;
    second.client("reader").await.unwrap();
}
