//! Looks at mysqld all the time and publishes the facts of the instance.
//!
//! Facts go out once a second also while mysqld does not answer: a look waits for it, the facts do not.

use std::{sync::Arc, time::Duration};

use fleet_proto::agent::v1::{
    CloneFacts, CloneState, InstanceFacts, ProcessState, ReplicationFacts, ThreadState,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    facts::{self, Look, Published},
    instance::Instance,
    orders::ENOUGH_STARTS,
    sql::{Session, SqlError},
    supervisor::{FailedStarts, ProcessStatus},
    volume::{self, Replacement, Volume},
};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// The same for a while after an order: somebody waits for its effect, which may come some steps later.
const LOOK_SOON: Duration = Duration::from_millis(25);
/// For how long that is so.
const SOON: Duration = Duration::from_secs(1);
/// Facts are published at least this often.
const PUBLISH: Duration = Duration::from_secs(1);
/// A source must never give up on its ackers, which it does after rpl_semi_sync_source_timeout, at most 49 days.
/// It is killed before.
const LONGEST_WAIT: Duration = Duration::from_hours(45 * 24);

/// The observer of one instance.
#[derive(Debug)]
pub struct Observer {
    volume: Arc<Volume>,
    instance: Arc<Instance>,
    eye: Eye,
    publisher: Publisher,
    waiting_since: Option<Instant>,
    unguarded: bool,
}

/// What looks at mysqld.
#[derive(Debug)]
struct Eye {
    instance: Arc<Instance>,
    session: Option<(u64, Session)>,
}

/// What makes facts of it.
#[derive(Debug)]
struct Publisher {
    config: Arc<Config>,
    volume: Arc<Volume>,
    instance: Arc<Instance>,
    facts: watch::Sender<Published>,
    fixed: InstanceFacts,
    clone: Option<CloneFacts>,
    published: Option<Instant>,
    /// When mysqld answered last.
    answered: Option<Instant>,
    connecting: Connecting,
}

/// Since when the receiver has been connecting, and to which host.
#[derive(Debug, Default)]
struct Connecting(Option<(String, Instant)>);

impl Connecting {
    /// Takes up what the receiver does now, and says in the facts for how long it has been connecting.
    fn note(&mut self, replication: Option<&mut ReplicationFacts>, now: Instant) {
        let connects =
            |replication: &&mut ReplicationFacts| replication.receiver() == ThreadState::Connecting;
        let Some(replication) = replication.filter(connects) else {
            self.0 = None;
            return;
        };
        let begun = self.0.take().filter(|(host, _)| *host == replication.source_host);
        let (host, since) = begun.unwrap_or_else(|| (replication.source_host.clone(), now));
        replication.connecting_for = now.duration_since(since).try_into().ok();
        self.0 = Some((host, since));
    }
}

/// The term that was followed when a look began, or why it can't be read.
type TermBefore = Result<u64, String>;

impl Observer {
    /// An observer and its facts.
    pub fn new(
        config: Arc<Config>,
        volume: Arc<Volume>,
        instance: Arc<Instance>,
    ) -> (Self, watch::Receiver<Published>) {
        let fixed = InstanceFacts {
            pod: config.pod.clone(),
            incarnation: uuid::Uuid::new_v4().to_string(),
            boot_id: volume::boot_id(),
            volume_id: volume.id(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            process_state: ProcessState::Starting.into(),
            ..InstanceFacts::default()
        };
        let (facts, receiver) = watch::channel(Published { facts: fixed.clone(), at: Instant::now() });
        let publisher = Publisher {
            config,
            volume: Arc::clone(&volume),
            instance: Arc::clone(&instance),
            facts,
            fixed,
            clone: None,
            published: None,
            answered: None,
            connecting: Connecting::default(),
        };
        let eye = Eye { instance: Arc::clone(&instance), session: None };
        let observer = Self { volume, instance, eye, publisher, waiting_since: None, unguarded: false };
        (observer, receiver)
    }

    /// Runs until the end of the agent.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut process = self.instance.process.status();
        let mut ordered: Option<Instant> = None;
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep_until(next) => {}
                () = self.instance.look.notified() => ordered = Some(Instant::now()),
                changed = process.changed() => if changed.is_err() { return },
            }
            let status = process.borrow_and_update().clone();
            // Before the look, for the shard takes a receiver that is stopped in a term for one that no order of a
            // lower term will start. A term that was persisted during the look may be younger than what the look
            // saw: an order of the term before it may have stopped the receiver only to start it again.
            let term = self.volume.term().map_err(|error| error.to_string());
            let look = self.look(&status, &term).await;
            let at = Instant::now();
            if let Some(look) = &look {
                self.guard(look).await;
                self.settle_clone(look).await;
            }
            // The look may have moved it on, and what a mysqld said that has ended since must not be shown as its
            // successor's.
            let now = process.borrow_and_update().clone();
            let look = look.filter(|_| now.login.is_some() && now.generation == status.generation);
            self.publisher.publish(&now, &term, look, at);
            let soon = ordered.is_some_and(|at| at.elapsed() < SOON);
            next = Instant::now() + if soon { LOOK_SOON } else { LOOK };
        }
    }

    /// Looks at mysqld, and goes on publishing while it makes the look wait.
    async fn look(&mut self, status: &ProcessStatus, term: &TermBefore) -> Option<Look> {
        // Facts that hold what mysqld said are not replaced before it had a second to say it anew.
        let patience = Instant::now() + PUBLISH;
        let looking = self.eye.look(status);
        tokio::pin!(looking);
        let look = loop {
            let due = self.publisher.due();
            let due = if self.publisher.holds_answer() { due.max(patience) } else { due };
            tokio::select! {
                biased;
                look = &mut looking => break look,
                () = sleep_until(due) => self.publisher.publish(&self.instance.now(), term, None, Instant::now()),
            }
        };
        if look.is_some() {
            self.publisher.answered = Some(Instant::now());
        }
        look
    }

    /// Kills an open mysqld that is about to acknowledge, or does acknowledge, what no acker holds.
    async fn guard(&mut self, look: &Look) {
        let open = self.instance.may_be_open();
        let unguarded = open && look.semi_sync_enabled && !look.server.semi_sync_source;
        let waiting = self.waiting_since.filter(|_| look.commits_wait);
        self.waiting_since = look.commits_wait.then(|| waiting.unwrap_or_else(Instant::now));
        let waited = waiting.is_some_and(|since| since.elapsed() >= LONGEST_WAIT);
        // Twice, since the two values are read one after the other.
        if (unguarded && self.unguarded) || waited {
            tracing::error!("mysqld stopped or will soon stop waiting for acknowledgements, and is killed");
            self.instance.process.kill().await;
        }
        self.unguarded = unguarded;
    }

    /// Finds out how a copy ended, also one that an earlier run of the agent began.
    async fn settle_clone(&self, look: &Look) {
        if self.instance.cloning() {
            return;
        }
        let settled = match self.volume.replacement() {
            Ok(Some(Replacement::Cloning)) => match look.clone.as_ref().map(CloneFacts::state) {
                // Not begun, so nothing was dropped.
                None | Some(CloneState::Completed) => self.volume.keep_replacement(None),
                // mysqld goes on saying "In Progress" of a copy that it was killed in.
                Some(CloneState::Running | CloneState::Failed | CloneState::Unspecified) => {
                    if self.instance.clone_override().is_none() {
                        let interrupted = look.clone.clone().map(|clone| CloneFacts {
                            state: CloneState::Failed.into(),
                            error: format!("the copy was interrupted: {}", clone.error),
                            ..clone
                        });
                        self.instance.set_clone_override(interrupted);
                    }
                    let kept = self.volume.keep_replacement(Some(Replacement::Discard));
                    self.instance.process.kill().await;
                    kept
                }
            },
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = settled {
            tracing::error!("{error}");
        }
    }
}

impl Eye {
    async fn look(&mut self, status: &ProcessStatus) -> Option<Look> {
        let login = status.login.as_ref()?;
        match self.ask(status.generation, login).await {
            Ok(look) => {
                self.instance.process.answers(status.generation, None);
                Some(look)
            }
            Err(error) => {
                self.session = None;
                self.instance.process.answers(status.generation, Some(&error.to_string()));
                None
            }
        }
    }

    async fn ask(&mut self, generation: u64, login: &crate::sql::Login) -> Result<Look, SqlError> {
        let mut session = match self.session.take() {
            Some((of, session)) if of == generation => session,
            _ => Session::open(login).await?,
        };
        let look = facts::look(&mut session).await?;
        self.session = Some((generation, session));
        Ok(look)
    }
}

impl Publisher {
    /// When facts are to be published though nothing has changed.
    fn due(&self) -> Instant {
        self.published.map_or_else(Instant::now, |at| at + PUBLISH)
    }

    /// Whether the published facts have what mysqld says.
    fn holds_answer(&self) -> bool {
        self.facts.borrow().facts.server.is_some()
    }

    fn publish(&mut self, status: &ProcessStatus, term: &TermBefore, mut look: Option<Look>, at: Instant) {
        let (term, damage) = match term {
            Ok(term) => (*term, None),
            Err(problem) => (0, Some(problem.clone())),
        };
        let silent_for = self
            .answered
            .filter(|_| look.is_none() && status.login.is_some() && status.answered)
            .map(|at| at.elapsed());
        let replaced = !matches!(self.volume.replacement(), Ok(None)) && !self.instance.cloning();
        let (disk_total_bytes, disk_free_bytes) = volume::disk_space(self.config.paths.volume());
        if let Some(look) = &mut look {
            self.connecting.note(look.server.replication.as_mut(), at);
            // Of data that were made anew it knows no copy.
            self.clone.clone_from(&look.clone);
            self.fixed.mysqld_version.clone_from(&look.version);
        }
        let message = if status.message.is_empty() { &status.warning } else { &status.message };
        let facts = InstanceFacts {
            observed_at: Some(std::time::SystemTime::now().into()),
            process_state: if damage.is_some() { ProcessState::Failed } else { told(status) }.into(),
            process_message: damage.clone().unwrap_or_else(|| message.clone()),
            mysqld_exits: status.exits,
            volume_id: self.volume.id(),
            term,
            disk_total_bytes,
            disk_free_bytes,
            // Data of which nobody knows whether they are whole are not shown as the instance's.
            server: look.filter(|_| damage.is_none() && !replaced).map(|look| look.server),
            clone: copy_facts(
                self.instance.clone_override(),
                self.clone.as_ref(),
                replaced,
                &status.failed_starts,
            ),
            silent_for: silent_for.and_then(|silent| silent.try_into().ok()),
            isolated_for: self.instance.isolated_for().and_then(|isolated| isolated.try_into().ok()),
            tls: self.instance.agent_tls(),
            mysqld_tls: self.instance.mysqld_tls(status.generation).filter(|_| status.login.is_some()),
            ..self.fixed.clone()
        };
        let due = self.due() <= Instant::now();
        let sent = self.facts.send_if_modified(|published| {
            let news = due || without_clock(&published.facts) != without_clock(&facts);
            if news {
                *published = Published { facts, at };
            }
            news
        });
        if sent {
            self.published = Some(Instant::now());
        }
    }
}

/// The last copy: the agent knows that it runs, mysqld how far it is, and the process whether it goes on.
///
/// Data that are `replaced` belong to no copy that runs, and nobody knows whether they are whole until a mysqld
/// answers on them.
fn copy_facts(
    own: Option<CloneFacts>,
    seen: Option<&CloneFacts>,
    replaced: bool,
    failed: &FailedStarts,
) -> Option<CloneFacts> {
    let Some(own) = own else {
        let lost = replaced && failed.count >= ENOUGH_STARTS;
        return if lost {
            let error = format!("mysqld does not start again: {}", failed.reason);
            Some(CloneFacts {
                state: CloneState::Failed.into(),
                error,
                bytes_per_second: 0,
                ..seen.cloned().unwrap_or_default()
            })
        } else {
            seen.cloned()
        };
    };
    let progress = seen.filter(|clone| clone.state() == CloneState::Running);
    let runs = own.state() == CloneState::Running;
    let error = if runs { failed.reason.clone() } else { own.error.clone() };
    Some(CloneFacts {
        bytes_estimated: progress.map_or(0, |clone| clone.bytes_estimated),
        bytes_copied: progress.map_or(0, |clone| clone.bytes_copied),
        bytes_per_second: progress.filter(|_| runs).map_or(0, |clone| clone.bytes_per_second),
        error,
        ..own
    })
}

/// The state that others are told: a mysqld that has answered and does not just now is not one that starts.
fn told(status: &ProcessStatus) -> ProcessState {
    let runs = match status.state {
        ProcessState::Starting if status.answered => ProcessState::Running,
        state => state,
    };
    if runs == ProcessState::Running && status.leaving { ProcessState::Leaving } else { runs }
}

/// Facts without what changes all the time. That a silence or an isolation begins or ends is news.
fn without_clock(facts: &InstanceFacts) -> InstanceFacts {
    let begun = |duration: Option<prost_types::Duration>| duration.map(|_| prost_types::Duration::default());
    let mut facts = InstanceFacts {
        observed_at: None,
        disk_free_bytes: 0,
        silent_for: begun(facts.silent_for),
        isolated_for: begun(facts.isolated_for),
        ..facts.clone()
    };
    if let Some(replication) = facts.server.as_mut().and_then(|server| server.replication.as_mut()) {
        replication.connecting_for = begun(replication.connecting_for);
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(state: CloneState, error: &str) -> CloneFacts {
        CloneFacts {
            state: state.into(),
            donor_host: "donor".to_owned(),
            bytes_estimated: 9,
            bytes_copied: 4,
            bytes_per_second: 2,
            error: error.to_owned(),
        }
    }

    fn failed(count: u32) -> FailedStarts {
        FailedStarts { count, reason: if count > 0 { "unknown variable".to_owned() } else { String::new() } }
    }

    #[test]
    fn running_copy_says_why_its_mysqld_does_not_start() {
        let own = CloneFacts { bytes_copied: 0, ..copy(CloneState::Running, "") };
        let seen = copy(CloneState::Running, "");
        let goes_on = copy_facts(Some(own.clone()), Some(&seen), false, &failed(0)).unwrap();
        assert_eq!((goes_on.bytes_copied, goes_on.bytes_per_second, goes_on.error.as_str()), (4, 2, ""));
        let waits = copy_facts(Some(own), Some(&seen), false, &failed(1)).unwrap();
        assert_eq!((waits.state(), waits.error.as_str()), (CloneState::Running, "unknown variable"));
    }

    #[test]
    fn copy_whose_mysqld_never_starts_has_failed_until_it_does() {
        let seen = copy(CloneState::Running, "");
        let facts = |count| copy_facts(None, Some(&seen), true, &failed(count)).unwrap();
        assert_eq!(facts(ENOUGH_STARTS - 1), seen);
        assert_eq!(
            (facts(ENOUGH_STARTS).state(), facts(ENOUGH_STARTS).bytes_per_second),
            (CloneState::Failed, 0)
        );
        assert!(facts(ENOUGH_STARTS).error.contains("unknown variable"));
        // So also after the agent has started anew.
        let unseen = copy_facts(None, None, true, &failed(ENOUGH_STARTS)).unwrap();
        assert_eq!(unseen.state(), CloneState::Failed);
        // Data of no copy have nothing to do with one.
        assert_eq!(copy_facts(None, None, false, &failed(ENOUGH_STARTS)), None);
    }

    #[test]
    fn receiver_connects_for_as_long_as_it_has_not_got_in_to_the_same_source() {
        let replication = |host: &str, receiver: ThreadState| ReplicationFacts {
            source_host: host.to_owned(),
            receiver: receiver.into(),
            ..ReplicationFacts::default()
        };
        let begun = Instant::now();
        let mut connecting = Connecting::default();
        let mut told = |after: u64, host: &str, receiver: ThreadState| {
            let mut facts = replication(host, receiver);
            connecting.note(Some(&mut facts), begun + Duration::from_secs(after));
            facts.connecting_for.map(|duration| duration.seconds)
        };
        assert_eq!(told(0, "a", ThreadState::Connecting), Some(0));
        assert_eq!(told(7, "a", ThreadState::Connecting), Some(7));
        assert_eq!(told(8, "b", ThreadState::Connecting), Some(0));
        assert_eq!(told(9, "b", ThreadState::Running), None);
        assert_eq!(told(11, "b", ThreadState::Connecting), Some(0));
        assert_eq!(told(13, "b", ThreadState::Connecting), Some(2));
        assert_eq!(told(14, "b", ThreadState::Stopped), None);
    }

    #[test]
    fn failed_copy_keeps_its_reason() {
        let own = copy(CloneState::Failed, "Connect failed");
        assert_eq!(copy_facts(Some(own), None, true, &failed(1)).unwrap().error, "Connect failed");
    }
}
