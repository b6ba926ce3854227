//! A view, indexed by instance, and what can be read off a single instance.

use std::collections::BTreeMap;

use crate::observe::{
    CloneProgress, CloneState, ClusterView, InstanceFacts, InstanceId, InstanceView, Observed, PodState,
    ProcessState, ReplicationFacts, ServerFacts, TermRecord, ThreadState,
};
use crate::quorum::Quorum;
use crate::term::Term;

static NEVER_SEEN: Observed<InstanceFacts> = Observed::Unknown { for_ms: 0 };

/// A view of a cluster with a valid number of instances.
pub(super) struct Survey<'a> {
    pub(super) view: &'a ClusterView,
    /// The quorum that the wanted number of instances has.
    pub(super) wanted: Quorum,
    members: BTreeMap<InstanceId, Member<'a>>,
    /// The instances of which nothing but a volume is there, and none is wanted: only a bootstrap asks them.
    spare: BTreeMap<InstanceId, Member<'a>>,
}

impl<'a> Survey<'a> {
    pub(super) fn new(view: &'a ClusterView, wanted: Quorum) -> Self {
        let absent =
            (0..view.replicas).map(|ordinal| (InstanceId(ordinal), Member::never_seen(InstanceId(ordinal))));
        let seen = view.instances.iter().map(|instance| (instance.id, Member::from(instance)));
        let (spare, members) =
            absent.chain(seen).collect::<BTreeMap<_, _>>().into_iter().partition(|(id, member)| {
                id.0 >= view.replicas && member.pod == PodState::Absent && member.known().is_none()
            });
        Self { view, wanted, members, spare }
    }

    pub(super) fn record(&self) -> &'a TermRecord {
        &self.view.record
    }

    pub(super) fn term(&self) -> Term {
        self.view.record.term
    }

    /// Whether a person has chosen to give up what the instance holds and its primary does not.
    pub(super) fn is_to_be_rebuilt(&self, id: InstanceId) -> bool {
        self.view.rebuild.is_some_and(|chosen| chosen.instance == id)
    }

    pub(super) fn is_wanted(&self, id: InstanceId) -> bool {
        id.0 < self.view.replicas
    }

    /// Whether the primary was seen to take writes in its reign. Its own facts can't tell: a volume that was
    /// replaced by an empty one looks like one that was never opened.
    pub(super) fn reign_was_opened(&self) -> bool {
        let since = self.record().primary_since;
        !since.is_none() && self.view.opened >= since
    }

    /// Those that are wanted or have a pod, by ordinal.
    pub(super) fn members(&self) -> impl Iterator<Item = Member<'a>> {
        self.members.values().copied()
    }

    /// Those with nothing but a volume too, by ordinal.
    pub(super) fn everybody(&self) -> impl Iterator<Item = Member<'a>> {
        let mut everybody: Vec<_> = self.members().chain(self.spare.values().copied()).collect();
        everybody.sort_by_key(|member| member.id);
        everybody.into_iter()
    }

    pub(super) fn others(&self, than: InstanceId) -> impl Iterator<Item = Member<'a>> {
        self.members().filter(move |member| member.id != than)
    }

    pub(super) fn member(&self, id: InstanceId) -> Member<'a> {
        self.members.get(&id).copied().unwrap_or_else(|| Member::never_seen(id))
    }

    /// The highest term that any instance knows of.
    pub(super) fn highest_term(&self) -> Term {
        self.members().map(Member::highest_term).max().unwrap_or_default()
    }

    /// How many instances have to have a pod if none that has one may go.
    pub(super) fn pods_there_are(&self) -> u32 {
        pods_of(self.members().filter(|member| member.pod != PodState::Absent))
    }

    /// How many instances have to have a pod for every volume to be heard.
    pub(super) fn pods_of_volumes(&self) -> u32 {
        pods_of(self.everybody().filter(|member| member.has_volume))
    }
}

fn pods_of<'a>(members: impl Iterator<Item = Member<'a>>) -> u32 {
    members.map(|member| member.id.0.saturating_add(1)).max().unwrap_or_default()
}

/// One instance.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) id: InstanceId,
    pub(super) pod: PodState,
    pub(super) has_volume: bool,
    pub(super) outdated: bool,
    pub(super) abandoned: bool,
    facts: &'a Observed<InstanceFacts>,
}

impl<'a> From<&'a InstanceView> for Member<'a> {
    fn from(view: &'a InstanceView) -> Self {
        let InstanceView { id, pod, has_volume, outdated, abandoned, facts } = view;
        let (outdated, abandoned) = (*outdated, *abandoned && *outdated);
        Self { id: *id, pod: *pod, has_volume: *has_volume, outdated, abandoned, facts }
    }
}

impl<'a> Member<'a> {
    fn never_seen(id: InstanceId) -> Self {
        Self {
            id,
            pod: PodState::Absent,
            has_volume: false,
            outdated: false,
            abandoned: false,
            facts: &NEVER_SEEN,
        }
    }

    pub(super) fn known(self) -> Option<&'a InstanceFacts> {
        self.facts.known()
    }

    /// For how long it could not be asked.
    pub(super) fn unknown_for_ms(self) -> Option<u64> {
        match self.facts {
            Observed::Known(_) => None,
            Observed::Unknown { for_ms } => Some(*for_ms),
        }
    }

    /// Whether it can't be asked and may well be fine: then it keeps its traffic.
    pub(super) fn may_be_fine(self) -> bool {
        let silent = self.known().is_none() || self.misses_a_look();
        silent && matches!(self.pod, PodState::Running | PodState::Terminating)
    }

    /// Whether its mysqld runs and does not answer its agent just now: a slow disk is enough for that, so it
    /// is no evidence by itself that the instance is lost.
    pub(super) fn misses_a_look(self) -> bool {
        self.known().is_some_and(|facts| {
            let runs = matches!(facts.process, ProcessState::Running | ProcessState::Leaving);
            runs && facts.server.is_none() && self.copying().is_none()
        })
    }

    /// For how long neither it nor its mysqld could be asked, if it can't be and may well run.
    pub(super) fn silent_for_ms(self) -> Option<u64> {
        match self.known() {
            None => self.unknown_for_ms(),
            Some(facts) => self.misses_a_look().then(|| facts.silent_for_ms.unwrap_or_default()),
        }
    }

    pub(super) fn server(self) -> Option<&'a ServerFacts> {
        self.known().and_then(|facts| facts.server.as_ref())
    }

    /// What its mysqld says, if an order can be carried out now.
    pub(super) fn ready(self) -> Option<&'a ServerFacts> {
        let facts = self.known().filter(|facts| facts.process == ProcessState::Running)?;
        facts.server.as_ref().filter(|_| self.pod != PodState::Terminating && self.copying().is_none())
    }

    /// What its mysqld says, if it can be closed now: also an instance that leaves takes that order.
    pub(super) fn closable(self) -> Option<&'a ServerFacts> {
        let facts = self.known()?;
        let runs = matches!(facts.process, ProcessState::Running | ProcessState::Leaving);
        facts.server.as_ref().filter(|_| runs && self.copying().is_none())
    }

    /// Whether it is about to end, on the order of somebody else: its pod is being deleted, or its agent was
    /// told to end.
    pub(super) fn leaves(self) -> bool {
        let told =
            |facts: &InstanceFacts| matches!(facts.process, ProcessState::Leaving | ProcessState::Stopping);
        self.pod == PodState::Terminating || self.known().is_some_and(told)
    }

    pub(super) fn is_open(self) -> bool {
        self.server().is_some_and(|server| !server.super_read_only)
    }

    pub(super) fn copying(self) -> Option<&'a CloneProgress> {
        self.known()?.clone.as_ref().filter(|clone| clone.state == CloneState::Running)
    }

    pub(super) fn highest_term(self) -> Term {
        let persisted = self.known().map(|facts| facts.persisted_term).unwrap_or_default();
        persisted.max(self.server().map(|server| server.recorded_term).unwrap_or_default())
    }

    /// Its replication, if that is from `source`.
    pub(super) fn replication_from(self, source: InstanceId) -> Option<&'a ReplicationFacts> {
        self.server()?.replication.as_ref().filter(|replication| replication.source == Some(source))
    }

    /// Whether its replication from `source` has stopped by an error.
    pub(super) fn fails_to_follow(self, source: InstanceId) -> bool {
        self.replication_from(source).is_some_and(|replication| {
            replication.receiver == ThreadState::Failed || replication.applier == ThreadState::Failed
        })
    }

    /// Whether it can receive from `source`, now or as soon as that can be reached.
    pub(super) fn may_receive_from(self, source: InstanceId) -> bool {
        self.replication_from(source).is_some_and(|replication| {
            matches!(replication.receiver, ThreadState::Running | ThreadState::Connecting)
        })
    }

    /// Whether its agent is ending and has closed it, so that nothing opens it before it has ended.
    pub(super) fn stops_closed(self) -> bool {
        let stops = self.known().is_some_and(|facts| facts.process == ProcessState::Stopping);
        stops && self.server().is_some_and(|server| server.super_read_only)
    }

    /// Whether it holds received transactions and does not apply them.
    pub(super) fn leaves_unapplied(self) -> bool {
        self.ready().is_some_and(|server| {
            let applies = |replication: &ReplicationFacts| replication.applier == ThreadState::Running;
            !server.executed.contains(&server.held()) && !server.replication.as_ref().is_some_and(applies)
        })
    }

    /// Whether it receives from `source` now.
    pub(super) fn receives_from(self, source: InstanceId) -> bool {
        self.replication_from(source).is_some_and(|replication| replication.receiver == ThreadState::Running)
    }

    /// Whether it acknowledges the transactions of `source` now, counted or not.
    pub(super) fn acknowledges(self, source: InstanceId) -> bool {
        self.receives_from(source) && self.server().is_some_and(|server| server.semi_sync_replica)
    }

    /// Why no order can be carried out now, said of it.
    pub(super) fn why_not_ready(self) -> String {
        match self.copying() {
            Some(_) => "copies the data of another instance".to_owned(),
            None if self.server().is_some() && self.pod == PodState::Terminating => {
                "has a pod that is being deleted".to_owned()
            }
            None => self.why_silent(),
        }
    }

    /// Why it does not answer, said of it: `instance 1 …`. No figure that differs from look to look is in a
    /// message: a status that never says the same twice would be written, and looked at, without end.
    pub(super) fn why_silent(self) -> String {
        let Some(facts) = self.known() else {
            return match self.pod {
                PodState::Absent => "has no pod".to_owned(),
                PodState::Pending => "has a pod that has not been started".to_owned(),
                PodState::Running => "runs, and its agent does not answer".to_owned(),
                PodState::Terminating => {
                    "has a pod that is being deleted, and its agent does not answer".to_owned()
                }
            };
        };
        match &facts.process {
            ProcessState::Initializing => "makes its data directory".to_owned(),
            ProcessState::Starting => "starts mysqld".to_owned(),
            ProcessState::Running => "runs a mysqld that does not answer".to_owned(),
            ProcessState::Exited => "starts mysqld again, which has ended".to_owned(),
            ProcessState::Failed(reason) => format!("can't run mysqld: {reason}"),
            ProcessState::Leaving | ProcessState::Stopping => "is being stopped".to_owned(),
        }
    }
}
