//! The agent's own sessions beside clients and options that would get into their way.

use std::time::Duration;

use fleet_proto::agent::v1::InstanceFacts;
use mysql_async::prelude::Queryable;
use nix::sys::signal::Signal;
use tokio::time::timeout;

use crate::{
    cluster::closed,
    harness::{World, until},
};

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
    for client in &mut clients {
        assert!(client.ping().await.is_err(), "clients would stay with a closed primary for ever");
    }
    primary.follow(2, &second).await.unwrap();
    primary.open(3, 0).await.unwrap();
    assert_eq!(primary.mysqld(), mysqld, "an order that can't get in kills mysqld");
    primary.client("writer").await.unwrap();
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
