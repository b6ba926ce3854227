//! Runs mysqld: prepares, starts, waits, starts again.
//!
//! A container's restart by kubelet costs 12 to 300 s of back-off from its second time on, so mysqld is
//! started again here, at once at first.

use std::{fs, future::Future, os::unix::fs::OpenOptionsExt, path::PathBuf, sync::Arc, time::Duration};

use fleet_proto::agent::v1::ProcessState;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};

use crate::{
    cgroup,
    config::Config,
    datadir::{self, DatadirError, Found},
    memory::Sizes,
    mycnf::{self, MyCnfError, UserOptions},
    process::{self, Ended, Mysqld},
    sql::{AdminInterface, Login},
    users,
    volume::{Replacement, Volume},
};

/// Time between attempts while mysqld can't be run at all.
const FAILED_RETRY: Duration = Duration::from_secs(10);
/// Longest time between starts of a mysqld that keeps ending.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A mysqld that ran this long has proved itself: the next end starts the back-off anew.
const PROVED: Duration = Duration::from_mins(1);

/// What stands in the way of starting mysqld.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// There is none.
    #[error("no mysqld in the image: searched PATH and the usual places; use an image of MySQL 8.4 or 9.7")]
    NoMysqld,
    /// Another file system error.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// mysqld did not start.
    #[error("cannot start {path}: {source}")]
    Start {
        /// The executable.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The data directory.
    #[error(transparent)]
    Datadir(#[from] DatadirError),
    /// The user's options.
    #[error(transparent)]
    MyCnf(#[from] MyCnfError),
    /// The agent's state.
    #[error(transparent)]
    Volume(#[from] crate::volume::VolumeError),
}

/// Starts of mysqld in a row after which it had not answered once when it ended, or that could not be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedStarts {
    /// How many.
    pub count: u32,
    /// Why the last of them failed.
    pub reason: String,
}

impl FailedStarts {
    fn add(&mut self, reason: &str) {
        self.count = self.count.saturating_add(1);
        reason.clone_into(&mut self.reason);
    }
}

/// What is known of the process.
#[derive(Clone, Debug)]
pub struct ProcessStatus {
    /// Its state.
    pub state: ProcessState,
    /// Whether the agent was told to end and goes on until another instance is the primary.
    pub leaving: bool,
    /// Why, where that needs words.
    pub message: String,
    /// What is wrong though mysqld runs, such as a role's credentials that can't be used.
    pub warning: String,
    /// Ends without an order.
    pub exits: u64,
    /// Counts the starts; 0 before the first.
    pub generation: u64,
    /// Whether this start of mysqld has ever answered.
    pub answered: bool,
    /// The starts since it last answered.
    pub failed_starts: FailedStarts,
    /// How the agent logs in, while a mysqld runs.
    pub login: Option<Login>,
}

enum Command {
    Kill { ended: oneshot::Sender<()> },
    Stop { patience: Duration, ended: oneshot::Sender<()> },
}

/// Orders to the supervisor. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    status: Arc<watch::Sender<ProcessStatus>>,
}

impl Handle {
    /// State of the process.
    pub fn status(&self) -> watch::Receiver<ProcessStatus> {
        self.status.subscribe()
    }

    /// Kills mysqld and returns once it has ended. It is started again, closed. Cancel safe: it is killed
    /// nevertheless.
    pub async fn kill(&self) {
        let (ended, wait) = oneshot::channel();
        self.order(Command::Kill { ended }, wait).await;
    }

    /// Ends mysqld for good: by SIGTERM, and by SIGKILL after `patience`; at once where that is zero.
    pub async fn stop(&self, patience: Duration) {
        let (ended, wait) = oneshot::channel();
        self.order(Command::Stop { patience, ended }, wait).await;
    }

    async fn order(&self, command: Command, wait: oneshot::Receiver<()>) {
        // Either fails only when the supervisor has ended, and mysqld before it.
        if self.commands.send(command).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Notes that the mysqld of a generation answers, or that it does not.
    pub fn answers(&self, generation: u64, problem: Option<&str>) {
        self.status.send_if_modified(|status| {
            let (from, to) = match problem {
                None => (ProcessState::Starting, ProcessState::Running),
                Some(_) => (ProcessState::Running, ProcessState::Starting),
            };
            let changes = status.generation == generation && status.state == from;
            if changes {
                status.state = to;
                status.answered = true;
                status.failed_starts = FailedStarts::default();
                problem.unwrap_or_default().clone_into(&mut status.message);
            }
            changes
        });
    }

    /// Notes that the agent was told to end and goes on for a while.
    pub fn leaving(&self) {
        self.status.send_modify(|status| status.leaving = true);
    }

    /// Notes that the agent is ending.
    pub fn stopping(&self) {
        self.status.send_modify(|status| {
            status.state = ProcessState::Stopping;
            "the agent was told to end".clone_into(&mut status.message);
        });
    }
}

/// Owner of the mysqld process.
#[derive(Debug)]
pub struct Supervisor {
    config: Arc<Config>,
    volume: Arc<Volume>,
    commands: mpsc::Receiver<Command>,
    status: Arc<watch::Sender<ProcessStatus>>,
}

/// What ends one wait.
enum Next {
    Again,
    Over,
}

/// A supervisor and the handle to it.
pub fn new(config: Arc<Config>, volume: Arc<Volume>) -> (Supervisor, Handle) {
    let (sender, commands) = mpsc::channel(8);
    let status = Arc::new(watch::Sender::new(ProcessStatus {
        state: ProcessState::Starting,
        leaving: false,
        message: String::new(),
        warning: String::new(),
        exits: 0,
        generation: 0,
        answered: false,
        failed_starts: FailedStarts::default(),
        login: None,
    }));
    let handle = Handle { commands: sender, status: Arc::clone(&status) };
    (Supervisor { config, volume, commands, status }, handle)
}

impl Supervisor {
    /// Runs until [`Handle::stop`]; mysqld has ended when this returns.
    pub async fn run(mut self) {
        let mut failures = 0;
        loop {
            let preparation = Preparation {
                config: Arc::clone(&self.config),
                volume: Arc::clone(&self.volume),
                status: Arc::clone(&self.status),
            };
            let (child, started) = match self.until_stopped(preparation.run()).await {
                None => return,
                Some(Ok(child)) => (child, Instant::now()),
                Some(Err(error)) => {
                    tracing::error!("{error}");
                    self.status.send_modify(|status| status.failed_starts.add(&error.to_string()));
                    show(&self.status, ProcessState::Failed, &error.to_string());
                    match self.pause(FAILED_RETRY).await {
                        Next::Again => continue,
                        Next::Over => return,
                    }
                }
            };
            let Watched { ended, ordered, over } = self.watch(child).await;
            if over {
                return;
            }
            let message = ended.as_ref().map_or_else(|| "mysqld ended".to_owned(), ToString::to_string);
            if ordered || ended.as_ref().is_some_and(Ended::wants_restart) {
                tracing::info!("{message}, as ordered; starting it again");
                show(&self.status, ProcessState::Exited, &message);
                continue;
            }
            failures = if started.elapsed() >= PROVED { 0 } else { failures };
            let delay = backoff(failures);
            failures += 1;
            tracing::warn!(?delay, "{message}; starting it again");
            self.status.send_modify(|status| {
                status.exits += 1;
                if !status.answered {
                    status.failed_starts.add(&message);
                }
            });
            show(&self.status, ProcessState::Exited, &message);
            if matches!(self.pause(delay).await, Next::Over) {
                return;
            }
        }
    }

    /// Drives work without a mysqld, which a stop cancels: `None` then.
    async fn until_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return Some(output),
                command = self.commands.recv() => match command {
                    // Nothing runs yet, and what will run is closed. The one who ordered may have gone.
                    Some(Command::Kill { ended }) => {
                        let _ = ended.send(());
                    }
                    Some(Command::Stop { ended, .. }) => {
                        let _ = ended.send(());
                        return None;
                    }
                    None => return None,
                },
            }
        }
    }

    /// Waits for the end of mysqld, following orders.
    async fn watch(&mut self, mut child: Mysqld) -> Watched {
        let mut waiters = Vec::new();
        let mut over = false;
        let mut deadline: Option<Instant> = None;
        let ended = loop {
            tokio::select! {
                ended = child.wait() => break ended.ok(),
                () = async { match deadline { Some(at) => tokio::time::sleep_until(at).await, None => std::future::pending().await } } => {
                    tracing::warn!("mysqld did not end in time and is killed");
                    child.kill();
                    deadline = None;
                }
                command = self.commands.recv() => match command {
                    Some(Command::Kill { ended }) => { child.kill(); waiters.push(ended) }
                    Some(Command::Stop { patience, ended }) => {
                        over = true;
                        waiters.push(ended);
                        if patience.is_zero() { child.kill() } else { child.terminate(); deadline = Some(Instant::now() + patience) }
                    }
                    None => { over = true; child.kill() }
                },
            }
        };
        self.status.send_modify(|status| status.login = None);
        let ordered = !waiters.is_empty();
        for waiter in waiters {
            // The one who ordered may have gone.
            let _ = waiter.send(());
        }
        Watched { ended, ordered, over }
    }

    /// Waits between two starts.
    async fn pause(&mut self, delay: Duration) -> Next {
        match self.until_stopped(sleep(delay)).await {
            Some(()) => Next::Again,
            None => Next::Over,
        }
    }
}

/// Shows a state, but for an agent that is ending: that stays to be seen.
fn show(status: &watch::Sender<ProcessStatus>, state: ProcessState, message: &str) {
    status.send_if_modified(|status| {
        let changes = status.state != ProcessState::Stopping;
        if changes {
            status.state = state;
            message.clone_into(&mut status.message);
        }
        changes
    });
}

struct Watched {
    ended: Option<Ended>,
    ordered: bool,
    over: bool,
}

fn backoff(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => Duration::from_secs(1 << (n - 1).min(5)).min(LONGEST_BACKOFF),
    }
}

/// Everything that comes before the start of mysqld.
struct Preparation {
    config: Arc<Config>,
    volume: Arc<Volume>,
    status: Arc<watch::Sender<ProcessStatus>>,
}

impl Preparation {
    async fn run(self) -> Result<Mysqld, PrepareError> {
        // A volume whose term is unreadable must not even serve reads of unknown age.
        self.volume.term()?;
        let config = &*self.config;
        let executable = config
            .mysqld
            .clone()
            .filter(|file| file.is_file())
            .or_else(|| if config.mysqld.is_none() { process::find_mysqld() } else { None })
            .ok_or(PrepareError::NoMysqld)?;
        let user = UserOptions::read(&config.paths.user_my_cnf())?;
        let data = config.paths.data();
        let discard = self.volume.replacement()? == Some(Replacement::Discard);
        if discard || datadir::look(&data)? == Found::Nothing {
            // Data that were lost otherwise than by an order are lost too.
            self.volume.renew_id()?;
        }
        if discard {
            tracing::warn!(
                "the copy of another instance's data did not end well; removing what is left of it"
            );
            datadir::discard(&data).await?;
        }
        if datadir::look(&data)? == Found::Nothing {
            show(&self.status, ProcessState::Initializing, "making the data directory");
            tracing::info!("making the data directory {}", data.display());
            datadir::initialize(&executable, &data, &user.at_initialization()).await?;
        }
        if discard {
            self.volume.keep_replacement(None)?;
        }
        let sizes = Sizes::for_limit(cgroup::memory_limit(std::path::Path::new("/")));
        write(&config.paths.my_cnf(), &mycnf::render(config, &sizes, &user))?;
        let admin = AdminInterface {
            port: config.mysql_admin_port,
            host: config.report_host.clone(),
            ca: config.paths.tls.join("ca.crt"),
        };
        let login = Login::random(config.paths.socket(), admin);
        let (roles, problems) = self.roles();
        write(&config.paths.init_file(), &users::init_file(login.password(), &roles))?;
        // A socket left by a killed mysqld would answer "connection refused" until the new one is made. Its lock names
        // that mysqld's process, and after a restart of the container the number may be that of one of our threads:
        // mysqld would never start again. Whether another one uses the data, InnoDB's own locks on its files tell.
        for left in [config.paths.socket(), config.paths.socket_lock()] {
            let _ = fs::remove_file(left);
        }
        let my_cnf = format!("--defaults-file={}", config.paths.my_cnf().display());
        let child = Mysqld::spawn(&executable, &[my_cnf])
            .map_err(|source| PrepareError::Start { path: executable, source })?;
        self.status.send_modify(|status| {
            status.generation += 1;
            status.answered = false;
            status.login = Some(login);
            status.warning = problems.join("; ");
        });
        show(&self.status, ProcessState::Starting, "");
        Ok(child)
    }

    /// Usable credentials, and what is wrong with the others.
    fn roles(&self) -> (Vec<(users::Role, users::Credentials)>, Vec<String>) {
        let mut usable: Vec<(users::Role, users::Credentials)> = Vec::new();
        let mut problems = Vec::new();
        for role in users::Role::ALL {
            match users::read(&self.config.paths.users, role) {
                Ok(credentials) if usable.iter().any(|(_, other)| other.username == credentials.username) => {
                    problems.push(format!(
                        "role {} has the user name of another role and is left out",
                        role.name()
                    ));
                }
                Ok(credentials) => usable.push((role, credentials)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        for problem in &problems {
            tracing::warn!("{problem}");
        }
        (usable, problems)
    }
}

/// Writes a file that only this user can read: passwords are in one.
fn write(path: &std::path::Path, text: &str) -> Result<(), PrepareError> {
    let attempt = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        std::io::Write::write_all(&mut file, text.as_bytes())
    };
    attempt().map_err(|source| PrepareError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::RunArgs;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    /// An instance's volume, and its preparation with another executable in place of mysqld.
    struct Prepared {
        dir: tempfile::TempDir,
        volume: Arc<Volume>,
        config: Arc<Config>,
    }

    impl Prepared {
        fn new(mysqld: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let mut line: Vec<String> =
                ["run", "--namespace=a", "--pod-name=b-0", "--cluster=b", "--server-id-base=1"]
                    .map(str::to_owned)
                    .to_vec();
            line.push(format!("--mysqld={mysqld}"));
            for name in ["data", "run", "tmp", "config", "tls", "users"] {
                fs::create_dir(dir.path().join(name)).unwrap();
                line.push(format!("--{name}-dir={}", dir.path().join(name).display()));
            }
            let config = Arc::new(Config::new(&Cli::parse_from(line).run).unwrap());
            let volume = Arc::new(Volume::open(&config.paths.state()).unwrap());
            Self { dir, volume, config }
        }

        fn with_data(self) -> Self {
            fs::create_dir(self.config.paths.data()).unwrap();
            fs::write(self.config.paths.data().join("mysql.ibd"), "").unwrap();
            self
        }

        async fn run(&self) -> Result<Mysqld, PrepareError> {
            let (supervisor, _) = new(Arc::clone(&self.config), Arc::clone(&self.volume));
            let (config, volume) = (Arc::clone(&self.config), Arc::clone(&self.volume));
            Preparation { config, volume, status: supervisor.status }.run().await
        }

        /// The identity that a crash at this point leaves.
        fn kept_id(&self) -> String {
            Volume::open(&self.config.paths.state()).unwrap().id()
        }
    }

    #[tokio::test]
    async fn volume_with_its_data_stays_the_same() {
        let prepared = Prepared::new("/bin/true").with_data();
        let id = prepared.volume.id();
        prepared.run().await.unwrap().wait().await.unwrap();
        assert_eq!((prepared.volume.id(), prepared.kept_id()), (id.clone(), id));
    }

    #[tokio::test]
    async fn identity_changes_before_expendable_data_are_touched() {
        let prepared = Prepared::new("/bin/false").with_data();
        let id = prepared.volume.id();
        prepared.volume.keep_replacement(Some(Replacement::Discard)).unwrap();
        // In the way of the removal.
        let doomed = prepared.dir.path().join("data/data.discarded");
        fs::write(&doomed, "").unwrap();
        assert!(matches!(prepared.run().await, Err(PrepareError::Datadir(DatadirError::Io { .. }))));
        assert!(prepared.config.paths.data().join("mysql.ibd").exists());
        assert_ne!(prepared.kept_id(), id);
        assert_eq!(prepared.kept_id(), prepared.volume.id());
    }

    #[tokio::test]
    async fn identity_changes_before_a_lost_data_directory_is_made_anew() {
        let prepared = Prepared::new("/bin/false");
        prepared.volume.keep_term(3).unwrap();
        let id = prepared.volume.id();
        assert!(matches!(prepared.run().await, Err(PrepareError::Datadir(DatadirError::Initialize { .. }))));
        assert_ne!(prepared.kept_id(), id);
        assert_eq!(Volume::open(&prepared.config.paths.state()).unwrap().term().unwrap(), 3);
    }

    #[test]
    fn first_end_is_answered_at_once_and_a_crash_loop_slows_down() {
        let seconds: Vec<u64> = (0..9).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
