//! What is known of a cluster, and what is not.
//!
//! The types mirror the facts that agents stream (`proto/mysqlfleet/agent/v1/agent.proto`), reduced to what a
//! decision reads: hosts are resolved to instances, texts to sets. What can't be known stays
//! [`Observed::Unknown`]: it is never replaced by what was true before.

use std::fmt;

use crate::gtid::{GtidSet, ServerUuid};
use crate::quorum::Quorum;
use crate::term::Term;

/// Something observed, or the lack of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Observed<T> {
    /// Observed lately enough to be acted on.
    Known(T),
    /// Not observed, or too long ago to count.
    Unknown {
        /// For how long it has been unknown, in milliseconds of the observer's monotonic clock. A restarted
        /// observer begins at 0: not having asked yet is no evidence of anything.
        for_ms: u64,
    },
}

impl<T> Observed<T> {
    /// What is known, if it is.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown { .. } => None,
        }
    }
}

/// An instance of a cluster: the ordinal of its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u32);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {}", self.0)
    }
}

/// What is promised about acknowledged commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Relay logs are synced to disk before they are acknowledged: an acker is faithful as long as its volume
    /// is the same.
    Strict,
    /// Relay logs are left to the page cache: an acker is faithful as long as its kernel runs, too.
    Relaxed,
}

/// What a term is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Its primary takes writes, or is to be opened for that.
    #[default]
    Reign,
    /// Its primary was lost in the term before: the ackers are revoked, so that it can't commit any more
    /// wherever it is, and then another instance becomes the primary.
    Fencing,
    /// Its primary is closed, so that another instance can become the primary with exactly what it holds.
    Handover {
        /// Which one.
        to: InstanceId,
    },
}

/// The record of the current term: the one thing that is written by compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TermRecord {
    /// The term.
    pub term: Term,
    /// The primary of the term, absent before the first one.
    pub primary: Option<InstanceId>,
    /// The first of the terms in which this primary has been primary without a break. A new term that only
    /// changes the quorum keeps it, and so the primary keeps its traffic while it moves from one to the other.
    pub primary_since: Term,
    /// The quorum in force.
    pub quorum: Quorum,
    /// The first of the terms in which this quorum has been that of this primary without a break. Once the
    /// first transaction of such a term is acknowledged, nothing can be acknowledged by less.
    pub quorum_since: Term,
    /// What the term is for.
    pub stage: Stage,
    /// What the primary held when it took over from another one, which is all that had ever been acknowledged,
    /// unless it was [forced](Self::is_forced). Absent for a primary that was chosen when the cluster had none.
    pub promotion_point: Option<GtidSet>,
    /// Whether the primary took over from one that was closed for it, rather than lost.
    pub planned: bool,
    /// The newest takeover that a person forced, of this primary or of one before it. It is never forgotten: an
    /// instance that was away may come back at any time with what was acknowledged before.
    pub forced: Option<Forced>,
}

/// A takeover that a person forced, though nobody could prove that the new primary held all that had been
/// acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Forced {
    /// The first of the terms of the primary that took over.
    pub since: Term,
    /// What it held then. Whatever an instance holds beyond that and has not got from it, or from one of its
    /// successors, may have been acknowledged.
    pub point: GtidSet,
}

impl TermRecord {
    /// The record of a cluster that never had a primary.
    pub const NONE: Self = Self {
        term: Term::NONE,
        primary: None,
        primary_since: Term::NONE,
        quorum: Quorum::ALONE,
        quorum_since: Term::NONE,
        stage: Stage::Reign,
        promotion_point: None,
        planned: false,
        forced: None,
    };

    /// The next term, of the same primary and quorum.
    #[must_use]
    pub fn next(&self, stage: Stage) -> Self {
        Self { term: self.term.next(), stage, ..self.clone() }
    }

    /// The next term, in which another instance has become the primary with what it `held` then.
    #[must_use]
    pub fn taken_over(&self, by: InstanceId, held: GtidSet, how: Takeover) -> Self {
        let term = self.term.next();
        let forced = match how {
            Takeover::Planned | Takeover::Proved => self.forced.clone(),
            Takeover::Forced => Some(Forced { since: term, point: held.clone() }),
        };
        Self {
            term,
            primary: Some(by),
            primary_since: term,
            quorum: self.quorum,
            quorum_since: term,
            stage: Stage::Reign,
            promotion_point: Some(held),
            planned: how == Takeover::Planned,
            forced,
        }
    }

    /// Whether a person had the primary take over, though nobody could prove that it held all that had been
    /// acknowledged.
    pub fn is_forced(&self) -> bool {
        self.forced.as_ref().is_some_and(|forced| forced.since == self.primary_since)
    }

    /// Whether the instance is one whose acknowledgements count in this term: the ackers of a primary are the
    /// other instances of the lowest `N + 1` ordinals.
    pub fn counts_acks_of(&self, instance: InstanceId) -> bool {
        self.quorum.required_acks() > 0
            && instance.0 <= self.quorum.ackers()
            && self.primary.is_some_and(|primary| primary != instance)
    }
}

/// Why an instance may take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Takeover {
    /// The primary was closed, and it has executed exactly what that one has.
    Planned,
    /// The primary was lost, and it holds all that was acknowledged.
    Proved,
    /// The primary was lost, and a person has chosen it though nobody knows what else was acknowledged.
    Forced,
}

/// Which instance was last in sync, or was the primary: what has to be the same for it to be faithful, which
/// means to still hold all that it has acknowledged or committed.
///
/// Data volumes lose nothing that was synced, and a volume whose data are given up gets a new identity. So
/// what was remembered once holds for later terms, too.
///
/// Comes out of one decision and goes into the next ones. Where it is lost, the acker counts as not faithful
/// until it is in sync with its source again, so losing it costs availability and never data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AckerIdentity {
    /// The acker.
    pub instance: InstanceId,
    /// Identity of its data volume.
    pub volume_id: String,
    /// Boot id of its kernel.
    pub boot_id: String,
    /// Transactions that it held and no primary ever did, found while there was a primary to compare with.
    pub errant: GtidSet,
}

impl AckerIdentity {
    /// Whether the instance still holds what it held then.
    pub fn still_holds(&self, facts: &InstanceFacts, durability: Durability) -> bool {
        self.volume_id == facts.volume_id
            && (durability == Durability::Strict || self.boot_id == facts.boot_id)
    }
}

/// An acker whose volume is not the one it was last in sync with, on its way to being relied on: once it holds
/// what its primary had executed when it was first seen, it holds all that it can have acknowledged before.
///
/// Comes out of one decision and goes into the next ones. Losing it only makes the way longer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CatchingUp {
    /// The acker, as it is now.
    pub acker: AckerIdentity,
    /// The term in which it was first seen so.
    pub term: Term,
    /// What the primary had executed then.
    pub goal: GtidSet,
}

/// What a person asks for: another primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Any instance but the present primary.
    Any,
    /// That instance.
    To(InstanceId),
    /// That instance, and a handover to it was begun for this ([`Fulfilment::UnderWay`](crate::Fulfilment)).
    Begun {
        /// Which one.
        to: InstanceId,
        /// The term of the handover. A record of this term or a later one is what has become of it.
        term: Term,
    },
}

/// A person's choice to give up what an instance holds and its primary does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rebuild {
    /// Which instance.
    pub instance: InstanceId,
    /// Whether its data may have been given up for this already
    /// ([`Rebuilding::UnderWay`](crate::Rebuilding)).
    pub begun: bool,
}

/// A person's choice to keep what an instance holds and its primary does not: it counts as the cluster's from then on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Release {
    /// Which instance.
    pub instance: InstanceId,
    /// Those transactions. None is kept that is not named.
    pub transactions: GtidSet,
}

/// A person's choice of the next primary where nobody can prove what was acknowledged: what only others hold may be
/// lost by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Force {
    /// Which instance.
    pub instance: InstanceId,
    /// The term in which the instances that answer are revoked for this, once that was begun
    /// ([`Forcing::UnderWay`](crate::Forcing)). A record of a later term is what has become of it.
    pub begun: Option<Term>,
}

/// Everything a decision about one cluster is made from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterView {
    /// Wanted number of instances: 1, 3 or 5. The wanted instances are the lowest ordinals.
    pub replicas: u32,
    /// Whether the cluster is to be stopped.
    pub offline: bool,
    /// Whether roles are to be left alone.
    pub paused: bool,
    /// The primary that a person asks for, if any does.
    pub wanted_primary: Option<Wish>,
    /// The instance that a person wants rebuilt, if any does.
    pub rebuild: Option<Rebuild>,
    /// The instance that a person wants released, if any does.
    pub release: Option<Release>,
    /// The instance that a person wants to take over at the price of data, if any does.
    pub force: Option<Force>,
    /// What is promised about acknowledged commits.
    pub durability: Durability,
    /// The record of the current term, as last read.
    pub record: TermRecord,
    /// The newest reign whose primary was seen to take writes, by the first term of the reign
    /// ([`Decision::opened`](crate::Decision::opened)).
    pub opened: Term,
    /// Ackers remembered from the last decision ([`Decision::ackers`](crate::Decision::ackers)).
    pub ackers: Vec<AckerIdentity>,
    /// Ackers on their way there ([`Decision::catching_up`](crate::Decision::catching_up)).
    pub catching_up: Vec<CatchingUp>,
    /// How the template that is wanted has done so far.
    pub trial: Trial,
    /// The instances: at least every wanted one and every one that has a pod or a volume. A wanted one that is
    /// missing here counts as absent and unknown.
    pub instances: Vec<InstanceView>,
}

/// How the template that is wanted has done so far, and whether there is another one to go back to.
///
/// Comes out of one decision and goes into the next ones. Losing it makes the trial begin anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Trial {
    /// The template that all instances were in sync with last, where that is another one.
    pub fallback: Fallback,
    /// The instances that were in sync with the wanted one ([`Progress::proved`](crate::Progress::proved)).
    pub proved: Vec<InstanceId>,
    /// The instance that is waited for ([`Progress::waits_for`](crate::Progress::waits_for)).
    pub waiting: Option<Waiting>,
    /// For how long an instance is waited for, in milliseconds.
    pub deadline_ms: u64,
}

/// A template to go back to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// None is known, or it is the wanted one.
    #[default]
    None,
    /// There is one, whose mysqld may not be able to read what that of the wanted one has written.
    Barred,
    /// There is one.
    There,
}

/// An instance whose pod is of the wanted template and that has not been in sync with it yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Which one.
    pub instance: InstanceId,
    /// For how long it has been waited for, in milliseconds of monotonic clocks: whoever goes on where another
    /// one ended adds to what that one has counted.
    pub for_ms: u64,
}

/// What is known of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceView {
    /// Which instance.
    pub id: InstanceId,
    /// State of its pod.
    pub pod: PodState,
    /// Whether it has a volume that may hold data.
    pub has_volume: bool,
    /// Whether its pod was made from another template than the one that is wanted now. It works all the same.
    pub outdated: bool,
    /// Whether its pod was made from a template that is neither the wanted one nor the last that all instances
    /// were in sync with: one that was given up, or replaced by another one before it had proved itself.
    pub abandoned: bool,
    /// What its agent says.
    pub facts: Observed<InstanceFacts>,
}

/// State of the pod of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodState {
    /// There is none.
    Absent,
    /// Not started yet.
    Pending,
    /// Its containers have been started.
    Running,
    /// Being deleted.
    Terminating,
}

/// What the agent of an instance knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceFacts {
    /// The kernel's boot id.
    pub boot_id: String,
    /// Identity of the data volume.
    pub volume_id: String,
    /// State of mysqld.
    pub process: ProcessState,
    /// For how long a mysqld that runs has not answered its agent, in milliseconds of the agent's monotonic
    /// clock. Absent while it answers or does not run.
    pub silent_for_ms: Option<u64>,
    /// Highest term that was persisted on the volume before mysqld was asked: no order of a lower term has
    /// been followed since.
    pub persisted_term: Term,
    /// What mysqld says, absent while it does not answer.
    pub server: Option<ServerFacts>,
    /// The last or current copy of another instance's data.
    pub clone: Option<CloneProgress>,
}

/// State of the mysqld of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProcessState {
    /// The data directory is being made.
    Initializing,
    /// Runs and does not answer yet.
    Starting,
    /// Runs and has answered. While it does not answer just now, nothing is known of the server.
    Running,
    /// Has ended and will be started again.
    Exited,
    /// Can't be run, for the reason given.
    Failed(String),
    /// Runs, and its agent was told to end: it goes on until another instance is the primary, for a while.
    /// Until then it takes the order to close, and none that would have to be undone.
    Leaving,
    /// The agent is ending.
    Stopping,
}

/// What a mysqld that answers says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerFacts {
    /// `@@server_uuid`.
    pub server_uuid: ServerUuid,
    /// `@@gtid_executed`.
    pub executed: GtidSet,
    /// `@@gtid_purged`.
    pub purged: GtidSet,
    /// `@@super_read_only`. While it is off somebody may write, whatever `@@read_only` says.
    pub super_read_only: bool,
    /// Replication from a source, absent where none is configured.
    pub replication: Option<ReplicationFacts>,
    /// Whether commits wait for acknowledgements.
    pub semi_sync_source: bool,
    /// `@@rpl_semi_sync_source_wait_for_replica_count`, which counts only while `semi_sync_source` is on.
    pub required_acks: u32,
    /// Connected replicas that acknowledge.
    pub semi_sync_clients: u32,
    /// Whether it acknowledges what it receives.
    pub semi_sync_replica: bool,
    /// Highest term in `mysql_fleet.term`.
    pub recorded_term: Term,
    /// The primary of that term, absent where there is no term.
    pub recorded_by: Option<ServerUuid>,
}

impl ServerFacts {
    /// The acknowledgements that a commit waits for.
    pub const fn effective_acks(&self) -> u32 {
        if self.semi_sync_source { self.required_acks } else { 0 }
    }

    /// Every transaction that the instance holds: executed, or received and not executed yet.
    pub fn held(&self) -> GtidSet {
        match &self.replication {
            Some(replication) => self.executed.union(&replication.retrieved),
            None => self.executed.clone(),
        }
    }
}

/// State of the replication channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicationFacts {
    /// The source, absent where its host is no instance of the cluster.
    pub source: Option<InstanceId>,
    /// State of the receiver thread.
    pub receiver: ThreadState,
    /// Last error of the receiver, empty if none.
    pub receiver_error: String,
    /// State of the applier threads.
    pub applier: ThreadState,
    /// Last error of the applier, empty if none.
    pub applier_error: String,
    /// Transactions received.
    pub retrieved: GtidSet,
    /// How far the applier is behind the source, in milliseconds, absent while unknown.
    pub lag_ms: Option<u64>,
    /// For how long the receiver has been connecting without getting in once, in milliseconds of its agent's
    /// monotonic clock. Absent while it does anything else.
    pub connecting_for_ms: Option<u64>,
}

impl ReplicationFacts {
    /// Whether both threads run.
    pub fn runs(&self) -> bool {
        self.receiver == ThreadState::Running && self.applier == ThreadState::Running
    }
}

/// State of a replication thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadState {
    /// Not configured, or stopped on order.
    Stopped,
    /// Connecting to the source.
    Connecting,
    /// Running.
    Running,
    /// Stopped by an error.
    Failed,
}

/// A copy of another instance's data. How far it is moves at each look and decides nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CloneProgress {
    /// State of the copy.
    pub state: CloneState,
    /// The donor, absent where its host is no instance of the cluster.
    pub donor: Option<InstanceId>,
}

/// State of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CloneState {
    /// Running.
    Running,
    /// Ended well.
    Completed,
    /// Ended by the error given.
    Failed(String),
}
