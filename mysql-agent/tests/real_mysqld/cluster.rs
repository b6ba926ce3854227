//! Clusters as most tests need them, and what is asked of them often.

use fleet_proto::agent::v1::InstanceFacts;
use mysql_async::{Conn, prelude::Queryable};

use crate::harness::{Instance, World};

/// Whether a commit waits for its acknowledgement.
pub const WAITS: &str = "SELECT VARIABLE_VALUE > 0 FROM performance_schema.global_status \
    WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_wait_sessions'";

/// Three instances, the first open for term 1 with one required acknowledgement.
pub async fn cluster(world: &World) -> [Instance; 3] {
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

/// A source, open for term 1 with one required acknowledgement, and its only acker.
pub async fn pair(source: &Instance, acker: &Instance) {
    for instance in [source, acker] {
        instance.wait_running().await;
    }
    acker.follow(1, source).await.unwrap();
    acker.wait("acknowledging", |facts| facts.server.as_ref().is_some_and(|s| s.semi_sync_replica)).await;
    source.open(1, 1).await.unwrap();
}

pub async fn table(primary: &Instance) -> Conn {
    let mut writer = primary.client("writer").await.unwrap();
    writer.query_drop("CREATE SCHEMA app").await.unwrap();
    writer.query_drop("CREATE TABLE app.t (a INT PRIMARY KEY)").await.unwrap();
    writer
}

pub fn closed(facts: &InstanceFacts) -> bool {
    facts.server.as_ref().is_some_and(|server| server.super_read_only)
}

pub async fn count(instance: &Instance) -> String {
    instance.value("SELECT COUNT(*) FROM app.t").await
}

/// Nobody but an admin gets in: who comes by the Service of the primary has to look for the next one.
pub async fn lets_nobody_in(instance: &Instance) {
    for role in ["writer", "reader"] {
        let refused = instance.client(role).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("offline mode"), "{role}: {refused}");
    }
    instance.client("admin").await.unwrap();
}
