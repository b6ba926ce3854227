//! Waiting for conditions, each with a deadline.

use std::fmt::Display;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

/// Asks `probe` every `interval` until it returns a value; fails after `limit` with the last reason it gave.
///
/// A probe that itself hangs is cut off at the deadline too.
pub async fn until<T, F, Fut>(
    what: impl Display,
    limit: Duration,
    interval: Duration,
    mut probe: F,
) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + limit;
    let mut reason = String::from("it did not answer");
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => reason = format!("{error:#}"),
            Err(_) => {}
        }
        if Instant::now() + interval >= deadline {
            bail!("waited {} s for {what}: {reason}", limit.as_secs());
        }
        tokio::time::sleep(interval).await;
    }
}

/// Asks `probe` every 20 ms until it finds something; fails after `limit`.
pub async fn found<T>(what: &str, limit: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let found = tokio::time::timeout(limit, async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    found.await.map_err(|_| anyhow!("not within {limit:?}: {what}"))
}

/// The last lines of a log, headed by its path: what a failed step shows.
#[must_use]
pub fn tail(log: &Path, lines: usize) -> String {
    let Ok(bytes) = std::fs::read(log) else {
        return format!("(there is no log at {})", log.display());
    };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let last = all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n  ");
    format!("the last lines of {}:\n  {last}", log.display())
}
