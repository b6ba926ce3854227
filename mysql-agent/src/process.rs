//! Child processes: start, signals, and the orphans that PID 1 inherits.

use std::{
    collections::HashSet,
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::{
    sys::{
        signal::{Signal, kill, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::Pid,
};
use tokio::{process::Command, signal::unix::SignalKind, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::mysqld_log;

/// Where mysqld lies in the images known to us, beside PATH.
const PLACES: [&str; 5] =
    ["/usr/sbin", "/usr/bin", "/usr/local/mysql/bin", "/usr/libexec", "/opt/bitnami/mysql/bin"];

/// Children that tokio waits for; the reaper leaves them alone.
static CHILDREN: Mutex<Option<HashSet<i32>>> = Mutex::new(None);

fn children() -> MutexGuard<'static, Option<HashSet<i32>>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Searches mysqld in PATH and the usual places.
pub fn find_mysqld() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(PLACES.iter().map(PathBuf::from))
        .map(|dir| dir.join("mysqld"))
        .find(|file| file.is_file())
}

/// A running mysqld. Dropping it does not end it.
#[derive(Debug)]
pub struct Mysqld {
    child: tokio::process::Child,
    pid: Pid,
    logs: [JoinHandle<Option<String>>; 2],
}

/// How a mysqld ended.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    last_error: Option<String>,
}

impl Mysqld {
    /// Starts mysqld in a process group of its own, with its output going to the agent's log.
    ///
    /// MYSQLD_PARENT_PID tells mysqld that a supervisor will start it again after CLONE and RESTART, which it
    /// ends for; without it they fail (error 3707).
    pub fn spawn<S: AsRef<std::ffi::OsStr>>(executable: &Path, arguments: &[S]) -> io::Result<Self> {
        let mut command = Command::new(executable);
        command
            .args(arguments)
            .env("MYSQLD_PARENT_PID", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // Held over the start: the reaper must not take a child that ends before it is known.
        let mut known = children();
        let mut child = command.spawn()?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .ok_or_else(|| io::Error::other("the process ended as it started"))?;
        known.get_or_insert_default().insert(pid);
        drop(known);
        let logs = [tokio::spawn(forward(child.stdout.take())), tokio::spawn(forward(child.stderr.take()))];
        Ok(Self { child, pid: Pid::from_raw(pid), logs })
    }

    /// Waits until mysqld has ended. Cancel safe.
    pub async fn wait(&mut self) -> io::Result<Ended> {
        let status = self.child.wait().await?;
        children().get_or_insert_default().remove(&self.pid.as_raw());
        let mut last_error = None;
        for log in &mut self.logs {
            last_error = log.await.ok().flatten().or(last_error);
        }
        Ok(Ended { status, last_error })
    }

    /// Asks mysqld to end. Only for one that is closed: an open source answers commits that wait for their
    /// acknowledgement with OK as it ends.
    pub fn terminate(&self) {
        // An error means that it has ended.
        let _ = kill(self.pid, Signal::SIGTERM);
    }

    /// Ends mysqld and whatever it started, at once.
    pub fn kill(&self) {
        // An error means that it has ended.
        let _ = killpg(self.pid, Signal::SIGKILL);
    }
}

async fn forward(stream: Option<impl tokio::io::AsyncRead + Unpin>) -> Option<String> {
    mysqld_log::forward(stream?).await
}

impl Ended {
    /// Whether mysqld asks to be started again at once, as after CLONE and RESTART.
    pub fn wants_restart(&self) -> bool {
        self.status.code() == Some(16)
    }

    /// Whether it ended well.
    pub fn success(&self) -> bool {
        self.status.success()
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "mysqld ended with exit code {code}")?,
            (None, Some(signal)) => {
                let name = Signal::try_from(signal).map_or("unknown signal", Signal::as_str);
                write!(f, "mysqld was ended by {name}")?;
                if signal == Signal::SIGKILL as i32 {
                    write!(f, " (out of memory, unless it was ordered)")?;
                }
            }
            (None, None) => write!(f, "mysqld ended")?,
        }
        match &self.last_error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

/// As PID 1, waits for the orphans that other processes leave behind, which would stay zombies for ever.
/// Otherwise there are none, and it only waits for the end.
pub async fn reap_orphans(shutdown: CancellationToken) -> io::Result<()> {
    if std::process::id() != 1 {
        shutdown.cancelled().await;
        return Ok(());
    }
    let mut signals = tokio::signal::unix::signal(SignalKind::child())?;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            _ = signals.recv() => reap(),
        }
    }
}

fn reap() {
    let known = children();
    loop {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let Ok(status) = waitid(Id::All, flags) else {
            return;
        };
        let Some(pid) = status.pid() else { return };
        // tokio takes it; orphans behind it are taken at the signal that follows its end.
        if matches!(status, WaitStatus::StillAlive)
            || known.as_ref().is_some_and(|set| set.contains(&pid.as_raw()))
        {
            return;
        }
        if waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
            return;
        }
    }
}
