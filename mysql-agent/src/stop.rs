//! The end of the agent, and of mysqld before it.
//!
//! mysqld answers OK to every commit that waits for its acknowledgement when it is ended by SIGTERM, though no
//! replica has it. So it gets SIGTERM only once it is closed and no commit runs; where it can't be closed in
//! time, SIGKILL: its clients then know that they don't know.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::{
    instance::Instance,
    orders::{Orders, close_politely},
};

/// Time for an order that is being followed to end: the bound of its slowest statement.
const ORDER: Duration = Duration::from_secs(6);

/// Ends mysqld within `patience`.
pub async fn stop(instance: &Instance, orders: &Orders, patience: Duration) {
    let deadline = Instant::now() + patience;
    instance.process.stopping();
    let retired = timeout(ORDER.min(patience), orders.retire()).await.is_ok();
    let closed = !instance.may_be_open() || (retired && close(instance).await);
    let left = deadline.saturating_duration_since(Instant::now());
    let gently = closed && retired;
    tracing::info!(gently, "ends mysqld");
    instance.process.stop(if gently { left } else { Duration::ZERO }).await;
}

async fn close(instance: &Instance) -> bool {
    match close_politely(instance).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!("an open mysqld is killed, since it could not be closed in time: {error}");
            false
        }
    }
}
