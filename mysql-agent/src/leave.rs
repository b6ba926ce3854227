//! What comes before the end of an agent whose instance is the primary: another one takes its place.
//!
//! The agent says that it leaves (`PROCESS_STATE_LEAVING`) and goes on as before, so that the shard can close mysqld and
//! the next primary gets its last transactions. It waits for that while a shard watches, and not for ever: the pod is
//! killed when its time is over, and mysqld has to be ended properly before that. It is never closed here: an open mysqld
//! that nobody takes over from is ended as any other ([`stop`](crate::stop)).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    instance::Instance,
    isolation::Watchers,
    sql::{Session, SqlError, text},
};

/// Parts of the agent's time that the two waits may take at most. What is left is mysqld's own.
const UNTIL_CLOSED: u32 = 3;
const UNTIL_FETCHED: u32 = 5;
/// For how long nobody may watch: a shard whose connection broke is back within a second.
const UNWATCHED: Duration = Duration::from_millis(1500);
const POLL: Duration = Duration::from_millis(50);
const STATEMENT: Duration = Duration::from_secs(1);

/// Receivers that are connected. A receiver that was stopped is missed by its source at the next heartbeat, within 0.5 s.
const RECEIVERS: &str =
    "SELECT COUNT(*) AS receivers FROM information_schema.processlist WHERE COMMAND LIKE 'Binlog Dump%'";

/// Waits until the instance is not the primary any more and nobody receives from it, if a shard is there to see to that.
/// Takes at most half of `patience`, more or less.
pub async fn hand_over(instance: &Instance, watchers: &Watchers, patience: Duration) {
    if !watchers.any() {
        return;
    }
    if instance.required_acks().is_some_and(|acks| acks > 0) {
        tracing::info!("is the primary, and goes on until another instance takes its place");
        instance.process.leaving();
        instance.look.notify_one();
        if !closed(instance, watchers, patience / UNTIL_CLOSED).await {
            tracing::warn!("no other instance took its place in time");
            return;
        }
    }
    fetched(instance, patience / UNTIL_FETCHED).await;
}

/// Waits until an order has closed mysqld; says whether one has.
async fn closed(instance: &Instance, watchers: &Watchers, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let mut watched = Instant::now();
    while instance.may_be_open() {
        let now = Instant::now();
        if watchers.any() {
            watched = now;
        }
        if now >= deadline || now.duration_since(watched) >= UNWATCHED {
            return false;
        }
        sleep(POLL).await;
    }
    true
}

/// Waits until nobody receives from a closed mysqld: the next primary has what it needs when it stops to, and the others
/// follow that one.
async fn fetched(instance: &Instance, limit: Duration) {
    let deadline = Instant::now() + limit;
    let mut session = None;
    while Instant::now() < deadline {
        match receivers(instance, &mut session).await {
            Ok(0) => return,
            Ok(_) => sleep(POLL).await,
            Err(error) => {
                tracing::warn!("it is not known who receives from mysqld: {error}");
                return;
            }
        }
    }
    tracing::warn!("somebody still receives from mysqld, which ends");
}

async fn receivers(instance: &Instance, session: &mut Option<Session>) -> Result<u64, SqlError> {
    let mut open = match session.take() {
        Some(open) => open,
        None => Session::open(&instance.login().ok_or(SqlError::NotRunning)?).await?,
    };
    let row = open.row(STATEMENT, RECEIVERS).await?.ok_or(SqlError::NotRunning)?;
    *session = Some(open);
    // Nothing else than a number can come; where it did, nobody would be waited for.
    Ok(text(&row, "receivers").parse().unwrap_or_default())
}
