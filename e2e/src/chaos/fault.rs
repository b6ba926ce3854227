//! A fault that lasts, and its end.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::daemon::Daemon;

/// How a part of a fault ends. Each may be done again, and none waits: a run that is dropped does them, too.
#[derive(Debug)]
pub enum Undo {
    /// Stopped processes go on. One that is gone needs nothing.
    Continue(Vec<i32>),
    /// A program is run.
    Run(Vec<String>),
    /// A file is removed.
    Remove(PathBuf),
    /// A daemon is started unless it runs.
    Start(Box<Daemon>),
}

impl Undo {
    /// Does it.
    pub fn run(&self) -> Result<()> {
        match self {
            Self::Continue(pids) => {
                for pid in pids {
                    match kill(Pid::from_raw(*pid), Signal::SIGCONT) {
                        Ok(()) | Err(Errno::ESRCH) => {}
                        Err(error) => bail!("could not let the process {pid} go on: {error}"),
                    }
                }
                Ok(())
            }
            Self::Run(arguments) => run(arguments),
            Self::Remove(file) => match fs::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("could not remove {}", file.display()))
                }
                _ => Ok(()),
            },
            Self::Start(daemon) => daemon.start_again(),
        }
    }
}

/// Runs a program to its end.
fn run(arguments: &[String]) -> Result<()> {
    let shown = arguments.join(" ");
    let (program, rest) = arguments.split_first().context("there is nothing to run")?;
    let output = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` ended with {}: {}", output.status, said.trim());
    }
    Ok(())
}

/// A fault that has been caused. It ends when it is healed, or dropped.
#[derive(Debug, Default)]
pub struct Fault {
    undo: Vec<Undo>,
}

impl Fault {
    /// A fault that is over already.
    pub fn over() -> Self {
        Self::default()
    }

    /// Notes how to end a part of it. Call it before that part is caused, so that nothing is left of one that
    /// was caused in part.
    pub fn undo_by(&mut self, undo: Undo) {
        self.undo.push(undo);
    }

    /// Makes another fault a part of this one.
    pub fn includes(&mut self, mut other: Self) {
        self.undo.append(&mut other.undo);
    }

    /// Ends the fault, the last part first. All is tried, whatever fails.
    pub fn heal(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let failed: Vec<String> = self
            .undo
            .drain(..)
            .rev()
            .filter_map(|undo| undo.run().err())
            .map(|error| format!("{error:#}"))
            .collect();
        if failed.is_empty() { Ok(()) } else { bail!("a fault could not be ended: {}", failed.join("; ")) }
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_fault_is_undone_whatever_fails_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["first", "second"].map(|name| folder.path().join(name));
        let mut fault = Fault::over();
        for file in &files {
            fs::write(file, "").unwrap();
            fault.undo_by(Undo::Remove(file.clone()));
            fault.undo_by(Undo::Run(vec!["false".into()]));
        }
        drop(fault);
        assert!(files.iter().all(|file| !file.exists()));
        // A process that is gone, a file that is gone: nothing to do.
        let mut fault = Fault::over();
        fault.undo_by(Undo::Remove(files[0].clone()));
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        fault.undo_by(Undo::Continue(vec![i32::try_from(child.id()).unwrap()]));
        fault.heal().unwrap();
    }
}
