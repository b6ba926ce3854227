//! Long-running processes of a cluster: started in a session of their own, found again, killed.
//!
//! There are no pid files: their numbers are reused. Each process carries its cluster, node and name in its
//! environment, where it can be read back from /proc, together with a digest of what it was started with. So
//! a second run finds what the first one started, even if that was killed half-way, and starts again only
//! what is gone or was configured otherwise.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

use super::network;
use crate::wait;

const OWNER: &str = "MYSQL_FLEET_DAEMON";
const DIGEST: &str = "MYSQL_FLEET_DIGEST";

/// The programs that a process is one after the other before it becomes the daemon.
const BEFORE: [&str; 3] = ["setsid", "bash", "nsenter"];

/// Becomes the command that it is given, with the standard files alone. Bash, since other shells close no file
/// above 9.
const CLOSE_INHERITED: &str = "for file in /proc/self/fd/*; do number=${file##*/}; \
                               if ((number > 2)); then eval \"exec $number>&-\"; fi; done; exec \"$0\" \"$@\"";

/// In how many looks in a row a process has to be missed to have ended: for a moment of each exec (setsid,
/// nsenter, the program) it has no environment to be found by.
const MISSED: u32 = 3;

/// How often a process is started that ended with an excuse.
const ATTEMPTS: u32 = 5;

/// A process to run and all that decides how it runs.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// `cluster/node/name`, unique on this machine.
    pub id: String,
    /// The network namespace to run in; none is that of the caller.
    pub namespace: Option<String>,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Further environment.
    pub environment: Vec<(String, String)>,
    /// Configuration files: a change in one of them is a reason to start the process again.
    pub files: Vec<PathBuf>,
    /// Where its output goes.
    pub log: PathBuf,
}

impl Daemon {
    /// Starts the process unless it runs as configured. Returns whether it was started now.
    pub async fn ensure(&self) -> Result<bool> {
        let digest = self.digest()?;
        let (current, stale): (Vec<i32>, Vec<i32>) =
            self.processes().into_iter().partition(|pid| variable(*pid, DIGEST).as_deref() == Some(&digest));
        if !current.is_empty() && stale.is_empty() {
            return Ok(false);
        }
        // A process that is ending still holds its ports and locks.
        kill_all(&self.id, || self.processes()).await?;
        self.start(&digest)?;
        Ok(true)
    }

    /// Whether the process runs.
    pub fn is_running(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Kills the process and waits until it is gone.
    pub async fn kill(&self) -> Result<()> {
        kill_all(&self.id, || self.processes()).await
    }

    /// Starts the process unless it runs, without waiting for anything.
    pub fn start_again(&self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        self.start(&self.digest()?)
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let processes = self.processes();
        if processes.is_empty() {
            bail!("{} does not run", self.id);
        }
        for pid in processes {
            kill(Pid::from_raw(pid), signal).with_context(|| format!("could not signal {}", self.id))?;
        }
        Ok(())
    }

    /// Waits until `probe` succeeds; fails at once, with the end of its log, when the process ends.
    pub async fn ready<T, F, Fut>(&self, limit: Duration, mut probe: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let watch = async {
            let mut missed = 0;
            while missed < MISSED {
                tokio::time::sleep(Duration::from_millis(200)).await;
                missed = if self.is_running() { 0 } else { missed + 1 };
            }
        };
        let work =
            wait::until(format!("{} to be ready", self.id), limit, Duration::from_millis(100), &mut probe);
        let result = tokio::select! {
            result = work => result,
            () = watch => Err(anyhow::anyhow!("{} ended", self.id)),
        };
        result.with_context(|| wait::tail(&self.log, 20))
    }

    /// The same for a process that another of its kind may end at its start: while the end of its log has
    /// `excuse`, it is started again, a few times.
    pub async fn ready_despite<T, F, Fut>(&self, excuse: &str, limit: Duration, mut probe: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        for _attempt in 1..ATTEMPTS {
            match self.ready(limit, &mut probe).await {
                Err(_) if !self.is_running() && wait::tail(&self.log, 20).contains(excuse) => {
                    self.start_again()?;
                }
                outcome => return outcome,
            }
        }
        self.ready(limit, probe).await
    }

    /// Starts the process as a child that ends with the handle: for tests that own it.
    pub fn spawn_owned(&self) -> Result<tokio::process::Child> {
        let mut command = tokio::process::Command::from(self.command(&self.digest()?)?);
        command
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start {}", self.program.display()))
    }

    fn start(&self, digest: &str) -> Result<()> {
        let mut command = self.command(digest)?;
        command.spawn().with_context(|| format!("could not start {}", self.program.display()))?;
        Ok(())
    }

    fn command(&self, digest: &str) -> Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("could not write {}", self.log.display()))?;
        // setsid: an interrupt from the terminal is for us, not for the cluster. Neither program forks here,
        // so the process keeps the number and becomes the daemon itself.
        let mut command = Command::new("setsid");
        // A file that the caller was given may carry somebody's lock, which the daemon would hold for as long as
        // it lives.
        command.args(["bash", "-c", CLOSE_INHERITED]);
        if let Some(namespace) = &self.namespace {
            command.arg("nsenter").arg(format!("--net={}", network::namespace_file(namespace).display()));
        }
        command
            .arg(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .env(OWNER, &self.id)
            .env(DIGEST, digest)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    fn digest(&self) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(format!("{}{:?}{:?}", self.program.display(), self.arguments, self.environment));
        for file in &self.files {
            hash.update(fs::read(file).with_context(|| format!("could not read {}", file.display()))?);
        }
        Ok(hex::encode(hash.finalize()))
    }

    /// The processes that carry this daemon's name and run its program: its children carry the name too.
    pub fn processes(&self) -> Vec<i32> {
        let program = self.program.file_name().unwrap_or_default();
        pids()
            .filter(|pid| variable(*pid, OWNER).as_deref() == Some(&self.id))
            .filter(|pid| {
                let executable = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
                let name = executable.file_name().unwrap_or_default().to_string_lossy();
                let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
                // Between its start and its last exec it is still one of these.
                *name == *program.to_string_lossy() || BEFORE.contains(&name)
            })
            .collect()
    }
}

/// The processes that a cluster's daemons are or have started, and all in its network namespaces.
pub fn of_cluster(cluster: &str) -> Vec<i32> {
    let prefix = format!("{cluster}/");
    let namespaces: Vec<u64> = network::namespaces(cluster)
        .iter()
        .filter_map(|name| fs::metadata(network::namespace_file(name)).ok())
        .map(|metadata| metadata.ino())
        .collect();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    pids()
        .filter(|pid| *pid != own)
        .filter(|pid| {
            variable(*pid, OWNER).is_some_and(|id| id.starts_with(&prefix))
                || fs::metadata(format!("/proc/{pid}/ns/net"))
                    .is_ok_and(|net| namespaces.contains(&net.ino()))
        })
        .collect()
}

/// Kills all processes that `list` finds, again and again until it finds none.
pub async fn kill_all(what: &str, list: impl Fn() -> Vec<i32>) -> Result<()> {
    let kill_round = || async {
        let left = list();
        for pid in &left {
            // It may have ended since; the next round tells.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if left.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("the processes {left:?} are still there")) }
    };
    wait::until(format!("{what} to end"), Duration::from_secs(20), Duration::from_millis(20), kill_round)
        .await
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A variable of a process's environment. None for zombies and processes that are gone.
fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let entry = std::str::from_utf8(entry).ok()?;
        entry.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    fn daemon(folder: &Path, name: &str, program: &str, arguments: Vec<String>) -> Daemon {
        Daemon {
            id: format!("t-unit/0/{name}"),
            namespace: None,
            program: crate::command::find(program).unwrap(),
            arguments,
            environment: vec![],
            files: vec![],
            log: folder.join("log"),
        }
    }

    fn scripted(folder: &Path, name: &str, script: &str) -> Daemon {
        let started = folder.join("started").display().to_string();
        daemon(folder, name, "bash", vec!["-c".into(), script.into(), started])
    }

    #[tokio::test]
    async fn a_daemon_that_ends_with_an_excuse_is_started_again_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let second_works = "if [[ -e $0 ]]; then : > $0.twice; while :; do sleep 0.1; done; fi; \
                            echo port taken; : > $0";
        let daemon = scripted(folder.path(), "second", second_works);
        daemon.ensure().await.unwrap();
        let works = || async {
            ensure!(folder.path().join("started.twice").exists(), "it does not work yet");
            Ok(())
        };
        daemon.ready_despite("port taken", Duration::from_secs(20), works).await.unwrap();
        daemon.kill().await.unwrap();

        let broken = scripted(folder.path(), "broken", "echo started >> $0; echo no such file");
        for (excuse, starts) in [("port taken", 1), ("no such file", ATTEMPTS)] {
            let _ = fs::remove_file(folder.path().join("started"));
            let _ = fs::remove_file(&broken.log);
            broken.ensure().await.unwrap();
            let never = || async { bail!("it never works") };
            let ended = broken.ready_despite::<(), _, _>(excuse, Duration::from_secs(20), never).await;
            assert!(format!("{:#}", ended.unwrap_err()).contains("no such file"));
            let told = fs::read_to_string(folder.path().join("started")).unwrap();
            assert_eq!(told.lines().count(), usize::try_from(starts).unwrap(), "{excuse}");
        }
    }

    #[tokio::test]
    async fn a_daemon_does_not_keep_the_lock_that_its_starter_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        let file = File::create(&lock).unwrap();
        // As flock(1) passes it on: without the flag that closes it at an exec.
        let inherited = nix::unistd::dup(&file).unwrap();
        let daemon = daemon(folder.path(), "sleep", "sleep", vec!["60".into()]);
        let child = daemon.spawn_owned().unwrap();
        let process = format!("/proc/{}", child.id().unwrap());
        wait::until("the daemon to run", Duration::from_secs(10), Duration::from_millis(5), || async {
            let name = fs::read_to_string(format!("{process}/comm"))?;
            if name.trim() == "sleep" { Ok(()) } else { bail!("it is still {name}") }
        })
        .await
        .unwrap();
        let open = fs::read_dir(format!("{process}/fd")).unwrap();
        let files: Vec<PathBuf> = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
        assert!(!files.is_empty());
        assert!(!files.contains(&lock), "{files:?}");
        drop(inherited);
    }
}
