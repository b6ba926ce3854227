//! Empty transactions by the names of those that another instance keeps.

use mysql_async::prelude::Queryable;

use crate::{
    cluster::{cluster, count, table},
    harness::{World, until},
};

#[tokio::test(flavor = "multi_thread")]
async fn primary_commits_empty_transactions_by_the_names_that_it_lacks() {
    let world = World::new(23500);
    let instances = cluster(&world).await;
    let [primary, first, second] = &instances;
    let mut writer = table(primary).await;
    writer.query_drop("INSERT INTO app.t VALUES (1)").await.unwrap();
    until("the row is there", || count(first), |found| found == "1").await;
    let mut admin = first.client("admin").await.unwrap();
    admin.query_drop("FLUSH TABLES").await.unwrap();
    admin.query_drop("FLUSH TABLES").await.unwrap();
    let uuid = first.value("SELECT @@server_uuid").await;
    let [one, two] = [1, 2].map(|number| format!("{uuid}:{number}"));

    let refused = primary.adopt(1, &["AUTOMATIC"]).await.unwrap_err();
    assert!(refused.message().contains("names no transaction"), "{refused}");
    let refused = first.adopt(1, &[&one]).await.unwrap_err();
    assert!(refused.message().contains("not open for term 1"), "{refused}");

    primary.adopt(1, &[&one]).await.unwrap();
    primary.adopt(1, &[&one, &two]).await.unwrap();
    for instance in &instances {
        let both = format!("SELECT GTID_SUBSET('{uuid}:1-2', @@gtid_executed)");
        until("both are there", || instance.value(&both), |found| found == "1").await;
    }
    writer.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    until("replication goes on", || count(first), |found| found == "2").await;
    until("replication goes on", || count(second), |found| found == "2").await;

    let refused = primary.adopt(0, &[&one]).await.unwrap_err();
    assert!(refused.message().contains("term 0"), "{refused}");
    let refused = primary.adopt(2, &[&one]).await.unwrap_err();
    assert!(refused.message().contains("not open for term 2"), "{refused}");
}
