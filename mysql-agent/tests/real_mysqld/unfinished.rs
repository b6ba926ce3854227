//! A replica whose source ended in the middle of a transaction.

use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
};

use mysql_async::prelude::Queryable;

use crate::{
    cluster::{cluster, count, table},
    harness::{Instance, Valve, World, until},
};

/// Lets the thread that gives the appliers their work wait for its processor, as a machine that has much to do would, and
/// does so for the rest of a second.
async fn hinder_coordinator(replica: &Instance) -> Child {
    let thread = "SELECT t.THREAD_OS_ID FROM performance_schema.replication_applier_status_by_coordinator c \
        JOIN performance_schema.threads t ON t.THREAD_ID = c.THREAD_ID";
    let thread = replica.value(thread).await;
    let pinned = Command::new("taskset").args(["--cpu-list", "--pid", "0", &thread]).output().unwrap();
    assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    let busy =
        ["1", "taskset", "--cpu-list", "0", "chrt", "--fifo", "1", "sh", "-c", "echo; while :; do :; done"];
    let mut busy = Command::new("timeout").args(busy).stdout(Stdio::piped()).spawn().unwrap();
    busy.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let state = async || fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
    until("the thread waits for its processor", state, |stat| stat.contains(") R ")).await;
    busy
}

/// Lets a replica have the beginning of a transaction and nothing after it, and the transaction be acknowledged by others.
async fn left_in_the_middle(primary: &Instance, replica: &Instance, term: u64, first: u32) -> Valve {
    let valve = Valve::to(primary, 1 << 20).await;
    replica.follow_at(term, valve.endpoint()).await.unwrap();
    let follows =
        |facts: &fleet_proto::agent::v1::InstanceFacts| {
            facts.server.as_ref().and_then(|server| server.replication.as_ref()).is_some_and(|replication| {
                replication.receiver() == fleet_proto::agent::v1::ThreadState::Running
            })
        };
    replica.wait("following", follows).await;
    let mut writer = primary.client("writer").await.unwrap();
    writer.query_drop("START TRANSACTION").await.unwrap();
    for row in first..first + 64 {
        writer.query_drop(format!("INSERT INTO app.large VALUES ({row}, REPEAT('x', 65536))")).await.unwrap();
    }
    writer.query_drop("COMMIT").await.unwrap();
    valve.shut().await;
    let begun = "SELECT COUNT(*) FROM performance_schema.replication_applier_status_by_worker \
        WHERE APPLYING_TRANSACTION <> ''";
    until("a worker has begun the transaction", || replica.value(begun), |found| found == "1").await;
    valve
}

/// STOP REPLICA waits a minute for the rest of a transaction that was begun: no order has that time.
#[tokio::test(flavor = "multi_thread")]
async fn replica_in_the_middle_of_a_transaction_follows_another_source_and_takes_over_at_once() {
    let world = World::new(22900);
    let instances = cluster(&world).await;
    let [primary, first, second] = &instances;
    let mut writer = table(primary).await;
    writer.query_drop("CREATE TABLE app.large (a INT PRIMARY KEY, b LONGTEXT)").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    until("the row is there", || count(first), |found| found == "1").await;

    let valve = left_in_the_middle(primary, first, 1, 0).await;
    first.follow(1, primary).await.unwrap();
    let large = || first.value("SELECT COUNT(*) FROM app.large");
    until("the transaction is there", large, |found| found == "64").await;
    drop(valve);

    let valve = left_in_the_middle(primary, first, 1, 64).await;
    second.close(2).await.unwrap();
    first.close(2).await.unwrap();
    let mut busy = hinder_coordinator(first).await;
    first.open(2, 0).await.unwrap();
    assert_eq!(large().await, "64", "what was begun is rolled back");
    busy.wait().unwrap();
    drop(valve);
}
