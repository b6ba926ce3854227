//! A cluster in which nothing happens costs the API server nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::scenario::Stage;
use e2e::wait;
use fleet_api::v1::ConditionType;
use serde_json::json;

const NAMESPACE: &str = "tenant-rest";
const ORDERS: &str = "orders";
const LONG: Duration = Duration::from_mins(3);
const OFTEN: Duration = Duration::from_millis(100);
/// Longer than the shard's resync.
const QUIET: Duration = Duration::from_secs(12);
/// How long nothing may be written.
const REST: Duration = Duration::from_mins(5);

#[tokio::test]
async fn a_cluster_at_rest_causes_no_writes_and_hardly_any_reads() {
    let stage = Stage::set().await.unwrap();
    let tenant = stage.tenant(NAMESPACE).await.unwrap();
    tenant.apply(ORDERS, &tenant.spec(json!({}))).await.unwrap();
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
    let mut last_write = (0, Instant::now());
    let quiet = || {
        std::future::ready(stage.audited(NAMESPACE, last_write.0).and_then(|audited| {
            if !audited.writes.is_empty() {
                last_write = (audited.end, Instant::now());
            }
            ensure!(last_write.1.elapsed() > QUIET, "the last writes: {:?}", audited.writes);
            Ok(audited.end)
        }))
    };
    let begin = wait::until("the cluster to come to rest", LONG, OFTEN, quiet).await.unwrap();
    tokio::time::sleep(REST).await;
    let audited = stage.audited(NAMESPACE, begin).unwrap();
    assert!(audited.writes.is_empty(), "{:?}", audited.writes);
    let reads: usize = audited.reads.values().sum();
    // The watches of both pods of the shard are renewed now and then, so silence would be no proof.
    assert!(reads > 0, "the audit log has no reads at all");
    assert!(reads < usize::try_from(REST.as_secs()).unwrap(), "{:?}", audited.reads);
    tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
}
