//! A toy world: instances that carry out orders, replicate, fail and come back, and a shard that decides from
//! facts that may be old, perhaps beside one that led before it and goes on.
//!
//! It ends with a panic where something is wrong. What the design promises is named in the message: `I1` to `I5`.

mod nodes;
mod shards;

use std::collections::BTreeSet;

use fleet_topology::*;

use self::nodes::{Node, Template};
use self::shards::{Shard, Status};
use crate::views::id;

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The shard hears from an instance.
    Hear(u32),
    /// The shard stops hearing from an instance.
    Miss(u32),
    /// The shard decides and gives the orders whose instance's bit is set.
    Act(u8),
    /// The shard reads what is recorded.
    Read,
    /// The shard that led before decides from what it has read and heard, and gives those orders.
    OldActs(u8),
    /// A replica receives what its source has.
    Receive(u32),
    /// A replica receives what its source has, and its acknowledgement is on its way.
    ReceiveSlowly(u32),
    /// The acknowledgements that are on their way to an instance arrive.
    Acknowledge(u32),
    /// A replica applies what it has received.
    Apply(u32),
    /// A copy ends.
    EndCopy(u32),
    /// mysqld ends.
    Crash(u32),
    /// The pod is to end, and its agent goes on for a while.
    Leave(u32),
    /// mysqld starts, closed.
    Start(u32),
    /// An instance stands still, with its agent.
    Pause(u32),
    /// It goes on where it was, and carries out the last order that was given to it meanwhile.
    Resume(u32),
    /// Somebody changes a replica.
    Stray(u32),
    /// A client writes to every instance that takes writes.
    Write,
    /// What clients write where it can't be acknowledged changes accounts.
    Lock,
    /// The network between an instance and all of other parts is cut.
    Cut(u32, u8),
    /// A person wants that instance to be the primary.
    Want(u32),
    /// A person wants another primary.
    WantAnother,
    /// A person wants that instance to take over at the price of data.
    Force(u32),
    /// The shard dies within its next decision: before the record is written, or right after.
    Die(Point),
    /// Another shard replica takes over: it knows what is recorded and has heard nobody.
    Takeover,
    /// The same, and the one before has not noticed.
    Usurp,
}

/// Where a shard dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Point {
    /// It has written down what becomes of the wish, and not the record.
    BeforeRecord,
    /// It has written the record and given the orders, and has not taken the wish off.
    BeforeAnswer,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    nodes: Vec<Node>,
    /// The nodes on which what waits is a statement about accounts, which lets nobody log in.
    locked: BTreeSet<usize>,
    status: Status,
    /// The shard that leads.
    shard: Shard,
    /// The one that led before it, and goes on.
    old: Option<Shard>,
    replicas: u32,
    /// Where writes and reads go.
    traffic: (Option<InstanceId>, Vec<InstanceId>),
    dies: Option<Point>,
    /// How the wanted template does.
    trial: Trial,
    /// Whether mysqld does not start with the wanted template.
    is_bad: bool,
    /// How many handovers were begun for the wish.
    begun: u32,
    /// How many volumes there have been.
    volumes: u32,
    /// Whether an acker has lost what it acknowledged.
    volumes_lost: bool,
    /// Whether somebody has changed a replica.
    strayed: bool,
    /// Every transaction that was acknowledged to a client.
    acknowledged: GtidSet,
    /// What was acknowledged, and left out of the cluster by a forced takeover.
    left_behind: GtidSet,
    /// The transactions that recorded a term.
    rows: Vec<(GtidSet, Term)>,
    /// What was decided last; nothing if the status had changed since it was read.
    pub(crate) last: Option<Decision>,
}

impl World {
    /// Instances without data.
    pub(crate) fn new(replicas: u32) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            locked: BTreeSet::new(),
            status: Status::NEW,
            shard: Shard::default(),
            old: None,
            replicas: 0,
            traffic: (None, Vec::new()),
            dies: None,
            trial: Trial::default(),
            is_bad: false,
            begun: 0,
            volumes: 0,
            volumes_lost: false,
            strayed: false,
            acknowledged: GtidSet::new(),
            left_behind: GtidSet::new(),
            rows: Vec::new(),
            last: None,
        };
        world.resize(replicas);
        world
    }

    /// Another number of instances is wanted. New ones get a pod at once.
    pub(crate) fn resize(&mut self, replicas: u32) {
        self.replicas = replicas;
        while self.nodes.len() < replicas as usize {
            let new = self.volumes;
            self.volumes += 1;
            self.nodes.push(Node::new(new));
            self.shard.heard.push(Observed::Unknown { for_ms: 0 });
            if let Some(old) = &mut self.old {
                old.heard.push(Observed::Unknown { for_ms: 0 });
            }
        }
    }

    /// The instance has data of a cluster that was there before.
    pub(crate) fn retain(&mut self, instance: u32, data: &GtidSet, purged: &GtidSet, term: Term) {
        self.acknowledged = self.acknowledged.union(data);
        let node = &mut self.nodes[instance as usize];
        (node.server.executed, node.server.purged) = (data.clone(), purged.clone());
        (node.persisted, node.server.recorded_term) = (term, term);
        node.server.recorded_by = Some(node.server.server_uuid);
    }

    /// The cluster is deleted and made again over its volumes, with another number of instances.
    pub(crate) fn make_again(&mut self, replicas: u32) {
        self.forget();
        self.resize(replicas);
        for ordinal in 0..self.nodes.len() {
            self.crash(ordinal);
            self.nodes[ordinal].pod =
                if ordinal < replicas as usize { PodState::Running } else { PodState::Absent };
        }
    }

    /// The record is lost, and whoever had read it has ended.
    pub(crate) fn forget(&mut self) {
        let Status { wanted_primary, force, rebuild, .. } = self.status;
        self.status = Status { wanted_primary, force, rebuild, ..Status::NEW };
        self.shard.heard.fill(Observed::Unknown { for_ms: 0 });
        (self.shard.read, self.old) = (None, None);
    }

    /// The instance comes back with an empty volume.
    pub(crate) fn lose_volume(&mut self, instance: u32) {
        let node = &mut self.nodes[instance as usize];
        node.volume = self.volumes;
        node.persisted = Term::NONE;
        node.server = crate::views::idle_server(self.volumes);
        self.volumes += 1;
        self.volumes_lost = true;
    }

    pub(crate) fn held(&self, instance: u32) -> GtidSet {
        self.nodes[instance as usize].server.held()
    }

    /// The primary drops its old logs.
    pub(crate) fn purge(&mut self) {
        let primary = self.primary();
        let server = &mut self.nodes[primary].server;
        server.purged = server.executed.clone();
    }

    /// Another template is wanted.
    pub(crate) fn roll_out(&mut self) {
        for node in &mut self.nodes {
            node.template = Template::Before;
        }
    }

    /// Another template is wanted that mysqld does not start with.
    pub(crate) fn roll_out_a_bad_one(&mut self) {
        self.roll_out();
        self.is_bad = true;
        self.trial = Trial { fallback: Fallback::There, deadline_ms: 5000, ..Trial::default() };
    }

    /// Whether mysqld does not start with the wanted template.
    pub(crate) fn is_bad(&self) -> bool {
        self.is_bad
    }

    /// What is remembered of the wanted template; where it is given up, the one before is the wanted one.
    pub(super) fn follow_trial(&mut self, progress: &Progress) {
        let before = self.trial.waiting.filter(|before| progress.waits_for == Some(before.instance));
        let waited_ms = before.map_or(0, |before| before.for_ms) + if progress.runs { 1000 } else { 0 };
        self.trial.waiting = progress.waits_for.map(|instance| Waiting { instance, for_ms: waited_ms });
        self.trial.proved.clone_from(&progress.proved);
        assert!(progress.verdict != Verdict::Works || !self.is_bad, "a template works that does not");
        if progress.verdict == Verdict::GivenUp {
            assert!(self.is_bad, "a template was given up that works");
            (self.is_bad, self.trial) = (false, Trial::default());
            for node in &mut self.nodes {
                node.template = match node.template {
                    Template::Wanted | Template::Before => Template::Wanted,
                    Template::Bad | Template::GivenUp => Template::GivenUp,
                };
            }
        }
    }

    fn is_rolled_out(&self) -> bool {
        self.nodes.iter().take(self.replicas as usize).all(|node| node.template == Template::Wanted)
    }

    fn primary(&self) -> usize {
        self.status.record.primary.unwrap().0 as usize
    }

    pub(crate) fn pods(&self) -> usize {
        self.nodes.iter().filter(|node| node.pod == PodState::Running).count()
    }

    pub(crate) fn happen(&mut self, event: Event) {
        let there = |instance: u32| (instance as usize) < self.nodes.len();
        match event {
            Event::Hear(instance) if there(instance) => {
                self.shard.heard[instance as usize] = self.facts(instance as usize);
            }
            Event::Miss(instance) if there(instance) => {
                self.shard.heard[instance as usize] = Observed::Unknown { for_ms: 5000 };
            }
            Event::Receive(instance) if there(instance) => {
                if let Some(source) = self.receive(instance as usize) {
                    self.acknowledge(source);
                }
            }
            Event::ReceiveSlowly(instance) if there(instance) => {
                self.receive(instance as usize);
            }
            Event::Acknowledge(instance) if there(instance) => self.acknowledge(instance as usize),
            Event::Apply(instance) if there(instance) => self.apply(instance as usize),
            Event::EndCopy(instance) if there(instance) => self.end_copy(instance as usize),
            Event::Crash(instance) if there(instance) => self.crash(instance as usize),
            Event::Leave(instance) if there(instance) => {
                self.nodes[instance as usize].leaving = self.works(instance as usize);
            }
            Event::Start(instance) if there(instance) => {
                let node = &mut self.nodes[instance as usize];
                node.up = matches!(node.template, Template::Wanted | Template::Before);
            }
            Event::Pause(instance) if there(instance) => self.nodes[instance as usize].paused = true,
            Event::Resume(instance) if there(instance) => self.resume(instance as usize),
            Event::Stray(instance) if there(instance) => self.stray(instance as usize),
            Event::Cut(instance, part) if there(instance) => self.nodes[instance as usize].part = part,
            Event::Act(mask) => self.act(mask),
            Event::Read => self.shard.read = None,
            Event::OldActs(mask) => self.old_acts(mask),
            Event::Write => self.write(),
            Event::Lock => {
                let waits = |node: &usize| !self.nodes[*node].waiting.is_empty();
                self.locked = (0..self.nodes.len()).filter(waits).collect();
            }
            Event::Want(instance) => self.wish(Wish::To(id(instance))),
            Event::WantAnother => self.wish(Wish::Any),
            Event::Force(instance) => self.force(id(instance)),
            Event::Die(point) => self.dies = Some(point),
            Event::Takeover => drop(self.take_over()),
            Event::Usurp => self.old = Some(self.take_over()),
            _ => {}
        }
        self.check_writers();
        self.check_quorum();
    }

    /// Of the instances that take writes, one at most gets them acknowledged.
    fn check_writers(&self) {
        let writers = (0..self.nodes.len()).filter(|node| self.can_commit(*node));
        let writers: Vec<_> = writers.collect();
        assert!(writers.len() <= 1, "I1: {writers:?} get commits acknowledged at one instant");
    }

    /// Whatever happens, any `R` ackers of a proved term hold all that was acknowledged, between them.
    fn check_quorum(&self) {
        let quorum = self.status.record.quorum;
        let proved = self.rows.iter().any(|(_, term)| *term >= self.status.record.quorum_since);
        if !proved || self.volumes_lost || quorum.required_acks() == 0 {
            return;
        }
        let ackers: Vec<_> = (0..self.nodes.len())
            .filter(|node| self.status.record.counts_acks_of(id(u32::try_from(*node).unwrap())))
            .map(|node| self.nodes[node].server.held())
            .collect();
        for revoked in 0..1_u32 << ackers.len() {
            if revoked.count_ones() == quorum.revocations_needed() {
                let revoked = ackers.iter().enumerate().filter(|(acker, _)| revoked & (1 << acker) != 0);
                let held = revoked.fold(GtidSet::new(), |all, (_, held)| all.union(held));
                assert!(
                    held.contains(&self.acknowledged),
                    "I2: {} is not proved by {held}",
                    self.acknowledged
                );
            }
        }
    }

    /// Everything that can go on does, and the shard hears all of it: for a number of rounds, or until the
    /// cluster has settled.
    pub(crate) fn settle(&mut self, rounds: usize) -> bool {
        self.end_faults();
        (0..rounds).any(|round| {
            self.go_on(round);
            self.decides_settled()
        })
    }

    /// The network is whole, who stood still goes on, and one shard leads, which reads what is recorded.
    pub(crate) fn end_faults(&mut self) {
        for node in 0..self.nodes.len() {
            self.nodes[node].part = 0;
            self.resume(node);
        }
        (self.dies, self.old, self.shard.read) = (None, None, None);
    }

    /// What goes on by itself does, and the shard hears all of it.
    pub(crate) fn go_on(&mut self, round: usize) {
        for ordinal in 0..self.nodes.len() {
            let node = &self.nodes[ordinal];
            // Its patience ends as well.
            if node.leaving && (node.server.super_read_only || round > 5) {
                self.crash(ordinal);
            }
        }
        for instance in 0..u32::try_from(self.nodes.len()).unwrap() {
            for event in [Event::Start, Event::EndCopy, Event::Receive, Event::Apply, Event::Hear] {
                self.happen(event(instance));
            }
        }
    }

    /// The shard decides, and its orders are carried out. Whether nothing is left to be done.
    pub(crate) fn decides_settled(&mut self) -> bool {
        self.happen(Event::Act(u8::MAX));
        self.give_up_what_was_left_behind();
        let last = self.last.as_ref().unwrap();
        let Status { wanted_primary, force, rebuild, .. } = &self.status;
        let asked = wanted_primary.is_some() || force.is_some() || rebuild.is_some();
        let done = last.pods == self.replicas && !asked && self.is_rolled_out();
        let settled = last.state == State::Healthy && last.replace.is_none() && done;
        if settled {
            self.check_settled();
        }
        settled
    }

    /// As a person does once everybody is back.
    fn give_up_what_was_left_behind(&mut self) {
        let last = self.last.as_ref().unwrap();
        let errant = last.instances.iter().filter(|verdict| matches!(verdict.standing, Standing::Errant(_)));
        // Nobody waits for one that acknowledges nothing.
        let errant = errant.min_by_key(|verdict| self.acknowledges(verdict.id.0 as usize));
        let there_is = self.strayed || self.status.record.forced.is_some();
        if let Some(verdict) = errant.filter(|_| there_is && self.status.rebuild.is_none()) {
            self.rebuild(verdict.id);
        }
    }

    /// The newest forced takeover.
    pub(crate) fn forced(&self) -> Option<Forced> {
        self.status.record.forced.clone()
    }

    fn check_settled(&self) {
        let primary = &self.nodes[self.primary()].server;
        assert!(primary.executed.contains(&self.acknowledged), "I2: an acknowledged transaction is lost");
        assert!(!primary.super_read_only);
        assert_eq!(self.status.record.quorum, Quorum::for_replicas(self.replicas).unwrap());
        assert_eq!(primary.effective_acks(), self.status.record.quorum.required_acks());
        assert_eq!(self.traffic.0, self.status.record.primary, "I4: writes go elsewhere");
    }
}
