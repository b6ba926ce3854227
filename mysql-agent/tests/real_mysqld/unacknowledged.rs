//! Commits without their acknowledgement: no client is told that they succeeded, and nothing of them is lost silently.

use std::time::Duration;

use fleet_proto::agent::v1::{
    CloneFacts, CloneState, InstanceFacts, OpenRequest, ProcessState, ThreadState, WatchInstanceRequest,
};
use mysql_async::prelude::Queryable;
use nix::sys::signal::Signal;
use tokio::time::timeout;
use tonic::Code;

use crate::{
    cluster::{WAITS, closed, cluster, count, pair, table},
    harness::{Instance, World, until},
};

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
