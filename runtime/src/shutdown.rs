//! Ending: signals, and the tasks without which the process has no sense.

use std::{fmt, future::Future, process, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// The first value, unless the shutdown comes before, or nobody sends one any more. Cancel safe.
pub async fn first<T: Clone>(
    mut values: watch::Receiver<Option<T>>,
    shutdown: &CancellationToken,
) -> Option<T> {
    shutdown.run_until_cancelled(values.wait_for(Option::is_some)).await?.ok()?.clone()
}

/// Returns a token that SIGTERM or SIGINT cancels. A second signal ends the process at once, with the
/// exit code that shells give for a signal (143, 130).
///
/// Signals are caught from the call on. Must be called within a tokio runtime.
pub fn on_signal() -> Result<CancellationToken, std::io::Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    tokio::spawn(async move {
        loop {
            let (name, code) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", 143),
                _ = interrupt.recv() => ("SIGINT", 130),
            };
            if token.is_cancelled() {
                tracing::warn!(signal = name, "second signal: ending at once");
                process::exit(code);
            }
            tracing::info!(signal = name, "ending");
            token.cancel();
        }
    });
    Ok(shutdown)
}

/// An essential task has ended before the shutdown, has failed, or did not end with the shutdown.
#[derive(Debug, thiserror::Error)]
#[error("{task}: {cause}")]
pub struct TaskEnded {
    /// Name of the task.
    pub task: &'static str,
    /// What happened to it.
    pub cause: TaskEnd,
}

/// What happened to an essential task.
#[derive(Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// It returned although nobody asked the process to end.
    Returned,
    /// It returned an error, or panicked.
    Failed(String),
    /// It did not end within the grace period of the shutdown.
    Stuck(Duration),
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned => f.write_str("ended by itself"),
            Self::Failed(error) => f.write_str(error),
            Self::Stuck(grace) => write!(f, "did not end within {} s of the shutdown", grace.as_secs_f64()),
        }
    }
}

/// Owns the tasks without which the process has no sense: the first that dies ends all of them.
#[derive(Debug)]
pub struct Supervisor {
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), String>>,
    names: Vec<(Id, &'static str)>,
}

impl Supervisor {
    /// A supervisor without tasks, which cancels `shutdown` when the first of them dies.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self { shutdown, tasks: JoinSet::new(), names: Vec::new() }
    }

    /// Starts a task that must run until the shutdown. Must be called within a tokio runtime.
    pub fn essential<F, E>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let handle = self.tasks.spawn(async move { task.await.map_err(|error| format!("{error:#}")) });
        self.names.push((handle.id(), name));
    }

    /// Waits until all tasks have ended, and aborts what still runs `grace` after the shutdown.
    ///
    /// The error is the first thing that went wrong. Dropping the future aborts all tasks.
    pub async fn run(mut self, grace: Duration) -> Result<(), TaskEnded> {
        let mut first = None;
        let deadline = {
            let shutdown = self.shutdown.clone();
            async move {
                shutdown.cancelled().await;
                tokio::time::sleep(grace).await;
            }
        };
        tokio::pin!(deadline);
        loop {
            let ended = tokio::select! {
                ended = self.tasks.join_next_with_id() => ended,
                () = &mut deadline => {
                    let stuck = self.names.first().map(|(_, task)| TaskEnded { task, cause: TaskEnd::Stuck(grace) });
                    self.tasks.shutdown().await;
                    return first.or(stuck).map_or(Ok(()), Err);
                }
            };
            let Some(ended) = ended else {
                return first.map_or(Ok(()), Err);
            };
            let (id, cause) = match ended {
                Ok((id, Ok(()))) => (id, (!self.shutdown.is_cancelled()).then_some(TaskEnd::Returned)),
                Ok((id, Err(error))) => (id, Some(TaskEnd::Failed(error))),
                Err(error) => (error.id(), Some(TaskEnd::Failed(panic_message(error)))),
            };
            let Some(index) = self.names.iter().position(|(known, _)| *known == id) else {
                continue;
            };
            let (_, task) = self.names.swap_remove(index);
            if let Some(cause) = cause {
                tracing::error!(task, %cause, "essential task has ended");
                first.get_or_insert(TaskEnded { task, cause });
                self.shutdown.cancel();
            }
        }
    }
}

fn panic_message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => format!("panicked: {}", crate::error::panic_text(&*panic)),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn the_first_task_that_dies_ends_the_others_and_is_named() {
        let shutdown = CancellationToken::new();
        let mut supervisor = Supervisor::new(shutdown.clone());
        let token = shutdown.clone();
        supervisor.essential("server", async move {
            token.cancelled().await;
            Ok::<(), String>(())
        });
        supervisor.essential("lease", async { Err("lost the Lease") });
        let ended = supervisor.run(GRACE).await.unwrap_err();
        assert_eq!(ended.to_string(), "lease: lost the Lease");
        assert!(shutdown.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_returns_early_is_an_error() {
        let mut supervisor = Supervisor::new(CancellationToken::new());
        supervisor.essential("watch", async { Ok::<(), String>(()) });
        assert_eq!(supervisor.run(GRACE).await.unwrap_err().to_string(), "watch: ended by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_told() {
        let mut supervisor = Supervisor::new(CancellationToken::new());
        supervisor
            .essential("watch", async { if true { panic!("lost {}", 1) } else { Ok::<(), String>(()) } });
        assert_eq!(supervisor.run(GRACE).await.unwrap_err().to_string(), "watch: panicked: lost 1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_shutdown_is_aborted_and_named() {
        let shutdown = CancellationToken::new();
        let mut supervisor = Supervisor::new(shutdown.clone());
        supervisor.essential("stuck", pending::<Result<(), String>>());
        shutdown.cancel();
        let ended = supervisor.run(GRACE).await.unwrap_err();
        assert_eq!(ended.to_string(), "stuck: did not end within 3 s of the shutdown");
    }

    #[tokio::test]
    async fn an_orderly_end_is_no_error() {
        let shutdown = CancellationToken::new();
        let mut supervisor = Supervisor::new(shutdown.clone());
        supervisor.essential("server", {
            let shutdown = shutdown.clone();
            async move {
                shutdown.cancelled().await;
                Ok::<(), String>(())
            }
        });
        shutdown.cancel();
        supervisor.run(GRACE).await.unwrap();
    }
}
