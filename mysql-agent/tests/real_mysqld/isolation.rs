//! A source that nobody watches any more.

use std::time::Duration;

use fleet_proto::agent::v1::WatchInstanceRequest;

use crate::{
    cluster::pair,
    harness::{World, until},
};

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
