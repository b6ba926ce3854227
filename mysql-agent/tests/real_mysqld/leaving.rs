//! An agent that is told to end.

use std::time::{Duration, Instant};

use fleet_proto::agent::v1::{ProcessState, WatchInstanceRequest, WatchInstanceResponse};
use mysql_async::prelude::Queryable;
use nix::sys::signal::Signal;
use tonic::Streaming;

use crate::cluster::{WAITS, closed, cluster, count, table};
use crate::harness::{Instance, World, until};

/// Watches as a shard does, until it is dropped.
async fn shard(instance: &Instance) -> Streaming<WatchInstanceResponse> {
    instance.agent().await.watch_instance(WatchInstanceRequest {}).await.unwrap().into_inner()
}

async fn told_to_end(instance: &Instance) {
    instance.signal_agent(Signal::SIGTERM);
    instance.wait("leaving", |facts| facts.process_state() == ProcessState::Leaving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn primary_that_is_told_to_end_serves_until_another_one_has_all_of_it() {
    let world = World::new(21800);
    let mut instances = cluster(&world).await;
    let mut writer = table(&instances[0]).await;
    let [primary, first, second] = &instances;
    let watch = shard(primary).await;
    told_to_end(primary).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    until("the row is there", || count(second), |found| found == "1").await;

    // One that comes late gets its last transactions from it though it is closed.
    second.system().await.query_drop("STOP REPLICA IO_THREAD").await.unwrap();
    writer.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    primary.close(2).await.unwrap();
    primary.wait("closed", closed).await;
    assert!(writer.query_drop("INSERT INTO app.t VALUES (3)").await.is_err());
    second.follow(2, primary).await.unwrap();
    until("the row is there", || count(second), |found| found == "2").await;

    // The other two go on without it, and it ends by itself, before it has waited as long as it may.
    let since = Instant::now();
    second.close(3).await.unwrap();
    first.follow(3, second).await.unwrap();
    primary.wait("stopping", |facts| facts.process_state() == ProcessState::Stopping).await;
    assert!(since.elapsed() < Duration::from_secs(4), "it ends after {:?}", since.elapsed());
    assert!(instances[0].child.wait().unwrap().success());
    drop(watch);
}

#[tokio::test(flavor = "multi_thread")]
async fn primary_that_nobody_takes_over_from_tells_no_client_what_no_acker_holds() {
    let world = World::new(21900);
    let mut instances = cluster(&world).await;
    let mut writer = table(&instances[0]).await;
    let [primary, first, second] = &instances;
    let watch = shard(primary).await;
    for replica in [first, second] {
        replica.signal_mysqld(Signal::SIGSTOP);
    }
    let waiting = tokio::spawn(async move { writer.query_drop("INSERT INTO app.t VALUES (1)").await });
    until("it waits", || primary.value(WAITS), |found| found == "1").await;
    told_to_end(primary).await;
    assert!(waiting.await.unwrap().is_err(), "its client must not be told that the commit succeeded");
    assert!(instances[0].child.wait().unwrap().success());
    drop(watch);
}

#[tokio::test(flavor = "multi_thread")]
async fn primary_does_not_look_closed_while_a_commit_runs() {
    let world = World::new(22000);
    let instances = cluster(&world).await;
    let mut writer = table(&instances[0]).await;
    let [primary, first, second] = &instances;
    for replica in [first, second] {
        replica.signal_mysqld(Signal::SIGSTOP);
    }
    let waiting = tokio::spawn(async move { writer.query_drop("INSERT INTO app.t VALUES (1)").await });
    until("it waits", || primary.value(WAITS), |found| found == "1").await;
    let mut watch = shard(primary).await;
    let looks = async {
        let mut open = 0;
        loop {
            let facts = watch.message().await.unwrap().unwrap().facts.unwrap();
            if facts.process_state() != ProcessState::Running {
                return open;
            }
            // What it holds now is not yet all that it will have committed.
            assert!(facts.server.is_none() || !closed(&facts), "it looks closed: {facts:?}");
            open += usize::from(facts.server.is_some());
        }
    };
    let (closing, open) = tokio::join!(primary.close(2), looks);
    closing.unwrap();
    assert!(open > 1, "it was looked at {open} times");
    assert!(waiting.await.unwrap().is_err());
}
