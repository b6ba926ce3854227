//! Copies of another instance, whole and interrupted.

use std::collections::HashSet;

use fleet_proto::agent::v1::{CloneFacts, CloneState, InstanceFacts};
use mysql_async::prelude::Queryable;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    cluster::{closed, cluster, count, table},
    harness::{Instance, MY_CNF, Valve, World, until},
};

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
    assert_eq!(clone.bytes_per_second, 0, "a copy that has ended gets nothing more");
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
