//! Ending a task at an interrupt so that what it has begun is undone.

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// Runs a task, or drops it at SIGINT or SIGTERM.
pub(crate) async fn unless_interrupted<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    let mut terminate = signal(SignalKind::terminate()).context("could not listen for SIGTERM")?;
    tokio::select! {
        result = task => result,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; what was under way has been undone"),
        _ = terminate.recv() => bail!("terminated; what was under way has been undone"),
    }
}
