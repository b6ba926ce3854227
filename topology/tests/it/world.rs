//! A toy world: instances that carry out orders, replicate, fail and come back, and a shard that decides from
//! facts that may be old.

use std::collections::BTreeSet;

use fleet_topology::decide::UNREACHED_AFTER_MS;
use fleet_topology::*;

use crate::views::{id, idle_server};

/// A mysqld with its agent and its volume.
#[derive(Debug, Clone)]
struct Node {
    pod: PodState,
    volume: u32,
    persisted: Term,
    up: bool,
    /// Whether its agent was told to end and goes on until it has handed over.
    leaving: bool,
    /// Whether its pod is of the template before.
    outdated: bool,
    server: ServerFacts,
    /// Committed, and waiting for acknowledgements.
    waiting: GtidSet,
    copying_from: Option<u32>,
    /// Which part of a divided network it is in; the shard is in part 0.
    part: u8,
}

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The shard hears from an instance.
    Hear(u32),
    /// The shard stops hearing from an instance.
    Miss(u32),
    /// The shard decides and gives the orders whose instance's bit is set.
    Act(u8),
    /// A replica receives what its source has.
    Receive(u32),
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
}

/// Where a shard dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// It has written down what becomes of the wish, and not the record.
    BeforeRecord,
    /// It has written the record and given the orders, and has not taken the wish off.
    BeforeAnswer,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    nodes: Vec<Node>,
    heard: Vec<Observed<InstanceFacts>>,
    /// The nodes on which what waits is a statement about accounts, which lets nobody log in.
    locked: BTreeSet<usize>,
    record: TermRecord,
    opened: Term,
    ackers: Vec<AckerIdentity>,
    catching_up: Vec<CatchingUp>,
    replicas: u32,
    pub(crate) wanted_primary: Option<Wish>,
    force: Option<Force>,
    rebuild: Option<Rebuild>,
    dies: Option<Point>,
    /// How many handovers were begun for the wish.
    begun: u32,
    /// How many volumes there have been.
    volumes: u32,
    /// Whether an acker has lost what it acknowledged.
    volumes_lost: bool,
    /// Every transaction that was acknowledged to a client.
    acknowledged: GtidSet,
    /// What was acknowledged, and left out of the cluster by a forced takeover.
    left_behind: GtidSet,
    /// The transactions that recorded a term.
    rows: Vec<(GtidSet, Term)>,
    pub(crate) last: Option<Decision>,
}

impl World {
    /// Instances without data.
    pub(crate) fn new(replicas: u32) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            heard: Vec::new(),
            locked: BTreeSet::new(),
            record: TermRecord::NONE,
            opened: Term::NONE,
            ackers: Vec::new(),
            catching_up: Vec::new(),
            replicas: 0,
            wanted_primary: None,
            force: None,
            rebuild: None,
            dies: None,
            begun: 0,
            volumes: 0,
            volumes_lost: false,
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
            self.nodes.push(Node {
                pod: PodState::Running,
                volume: new,
                persisted: Term::NONE,
                up: true,
                leaving: false,
                outdated: false,
                server: idle_server(new),
                waiting: GtidSet::new(),
                copying_from: None,
                part: 0,
            });
            self.heard.push(Observed::Unknown { for_ms: 0 });
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

    /// The record is lost.
    pub(crate) fn forget(&mut self) {
        (self.record, self.opened) = (TermRecord::NONE, Term::NONE);
        self.ackers.clear();
        self.heard.fill(Observed::Unknown { for_ms: 0 });
    }

    /// The instance comes back with an empty volume.
    pub(crate) fn lose_volume(&mut self, instance: u32) {
        let node = &mut self.nodes[instance as usize];
        node.volume = self.volumes;
        node.persisted = Term::NONE;
        node.server = idle_server(self.volumes);
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
            node.outdated = true;
        }
    }

    fn is_rolled_out(&self) -> bool {
        self.nodes.iter().take(self.replicas as usize).all(|node| !node.outdated)
    }

    /// The pod that the shard names ends, and one of the wanted template takes its place.
    fn replace(&mut self, instance: InstanceId) {
        let others = (0..self.nodes.len()).filter(|node| *node != instance.0 as usize);
        let primary = self.primary();
        let needed = self.record.quorum.required_acks() as usize;
        let acknowledge = others
            .filter(|node| {
                self.heard[*node]
                    .known()
                    .is_some_and(|facts| facts.server.as_ref().is_some_and(|server| server.semi_sync_replica))
            })
            .count();
        assert!(acknowledge >= needed, "too few ackers are left while {instance} is replaced");
        assert!(needed == 0 || instance.0 as usize != primary, "the primary was replaced");
        assert!(self.nodes[instance.0 as usize].outdated, "{instance} is replaced and is up to date");
        self.crash(instance.0 as usize);
        self.nodes[instance.0 as usize].outdated = false;
        self.heard[instance.0 as usize] = Observed::Unknown { for_ms: 0 };
    }

    fn primary(&self) -> usize {
        self.record.primary.unwrap().0 as usize
    }

    pub(crate) fn pods(&self) -> usize {
        self.nodes.iter().filter(|node| node.pod == PodState::Running).count()
    }

    pub(crate) fn happen(&mut self, event: Event) {
        let there = |instance: u32| (instance as usize) < self.nodes.len();
        match event {
            Event::Hear(instance) if there(instance) => {
                self.heard[instance as usize] = self.facts(instance as usize);
            }
            Event::Miss(instance) if there(instance) => {
                self.heard[instance as usize] = Observed::Unknown { for_ms: 5000 };
            }
            Event::Receive(instance) if there(instance) => self.receive(instance as usize),
            Event::Apply(instance) if there(instance) => self.apply(instance as usize),
            Event::EndCopy(instance) if there(instance) => self.end_copy(instance as usize),
            Event::Crash(instance) if there(instance) => self.crash(instance as usize),
            Event::Leave(instance) if there(instance) => {
                self.nodes[instance as usize].leaving = self.works(instance as usize);
            }
            Event::Start(instance) if there(instance) => self.nodes[instance as usize].up = true,
            Event::Cut(instance, part) if there(instance) => self.nodes[instance as usize].part = part,
            Event::Act(mask) => self.act(mask),
            Event::Write => self.write(),
            Event::Lock => {
                let waits = |node: &usize| !self.nodes[*node].waiting.is_empty();
                self.locked = (0..self.nodes.len()).filter(waits).collect();
            }
            Event::Want(instance) => self.wish(Wish::To(id(instance))),
            Event::WantAnother => self.wish(Wish::Any),
            Event::Force(instance) => self.force = Some(Force { instance: id(instance), begun: None }),
            Event::Die(point) => self.dies = Some(point),
            Event::Takeover => {
                self.catching_up.clear();
                let known = self.heard.iter_mut();
                known.for_each(|heard| *heard = Observed::Unknown { for_ms: 0 });
            }
            _ => {}
        }
        self.check_quorum();
    }

    /// Whatever happens, any `R` ackers of a proved term hold all that was acknowledged, between them.
    fn check_quorum(&self) {
        let quorum = self.record.quorum;
        let proved = self.rows.iter().any(|(_, term)| *term >= self.record.quorum_since);
        if !proved || self.volumes_lost || quorum.required_acks() == 0 {
            return;
        }
        let ackers: Vec<_> = (0..self.nodes.len())
            .filter(|node| self.record.counts_acks_of(id(u32::try_from(*node).unwrap())))
            .map(|node| self.nodes[node].server.held())
            .collect();
        for revoked in 0..1_u32 << ackers.len() {
            if revoked.count_ones() == quorum.revocations_needed() {
                let revoked = ackers.iter().enumerate().filter(|(acker, _)| revoked & (1 << acker) != 0);
                let held = revoked.fold(GtidSet::new(), |all, (_, held)| all.union(held));
                assert!(held.contains(&self.acknowledged), "{} is not proved by {held}", self.acknowledged);
            }
        }
    }

    /// Everything that can go on does, and the shard hears all of it: for a number of rounds, or until the
    /// cluster has settled.
    pub(crate) fn settle(&mut self, rounds: usize) -> bool {
        for node in &mut self.nodes {
            node.part = 0;
        }
        self.dies = None;
        for round in 0..rounds {
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
            self.happen(Event::Act(u8::MAX));
            self.give_up_what_was_left_behind();
            let last = self.last.as_ref().unwrap();
            let asked = self.wanted_primary.is_some() || self.force.is_some() || self.rebuild.is_some();
            let done = last.pods == self.replicas && !asked && self.is_rolled_out();
            if last.state == State::Healthy && last.replace.is_none() && done {
                self.check_settled();
                return true;
            }
        }
        false
    }

    /// As a person does once everybody is back.
    fn give_up_what_was_left_behind(&mut self) {
        let last = self.last.as_ref().unwrap();
        let errant = last.instances.iter().find(|verdict| matches!(verdict.standing, Standing::Errant(_)));
        let errant = errant.filter(|_| self.record.forced.is_some() && self.rebuild.is_none());
        if let Some(verdict) = errant {
            self.rebuild = Some(Rebuild { instance: verdict.id, begun: false });
        }
    }

    /// The newest forced takeover.
    pub(crate) fn forced(&self) -> Option<Forced> {
        self.record.forced.clone()
    }

    fn check_settled(&self) {
        let primary = &self.nodes[self.primary()].server;
        assert!(primary.executed.contains(&self.acknowledged), "an acknowledged transaction is lost");
        assert!(!primary.super_read_only);
        assert_eq!(self.record.quorum, Quorum::for_replicas(self.replicas).unwrap());
        assert_eq!(primary.effective_acks(), self.record.quorum.required_acks());
    }

    fn facts(&self, instance: usize) -> Observed<InstanceFacts> {
        let node = &self.nodes[instance];
        if node.pod != PodState::Running || node.part != 0 {
            return Observed::Unknown { for_ms: 5000 };
        }
        let mut server = node.server.clone();
        if let Some(replication) = &mut server.replication
            && replication.receiver == ThreadState::Running
            && !self.gets_in(instance, replication.source.unwrap().0 as usize)
        {
            replication.receiver = ThreadState::Connecting;
            replication.connecting_for_ms = Some(UNREACHED_AFTER_MS);
        }
        server.semi_sync_clients = u32::try_from(self.acknowledging(instance)).unwrap();
        Observed::Known(InstanceFacts {
            boot_id: "boot".to_owned(),
            volume_id: node.volume.to_string(),
            process: match (node.up, node.leaving) {
                (true, false) => ProcessState::Running,
                (true, true) => ProcessState::Leaving,
                (false, _) => ProcessState::Exited,
            },
            silent_for_ms: None,
            persisted_term: node.persisted,
            server: Some(server).filter(|_| node.up),
            clone: node
                .copying_from
                .map(|donor| CloneProgress { state: CloneState::Running, donor: Some(id(donor)) }),
        })
    }

    fn works(&self, instance: usize) -> bool {
        self.nodes[instance].up && self.nodes[instance].pod == PodState::Running
    }

    fn reaches(&self, instance: usize, other: usize) -> bool {
        self.works(instance) && self.works(other) && self.nodes[instance].part == self.nodes[other].part
    }

    /// Whether an instance gets what a source has. Of a locked one nobody does: had anybody been logged in before,
    /// the statement would have been acknowledged.
    fn gets_in(&self, instance: usize, source: usize) -> bool {
        self.reaches(instance, source) && !self.locked.contains(&source)
    }

    fn follows(&self, instance: usize, source: usize) -> bool {
        let replication = self.nodes[instance].server.replication.as_ref();
        replication
            .is_some_and(|r| r.receiver == ThreadState::Running && r.source.unwrap().0 as usize == source)
            && self.gets_in(instance, source)
    }

    fn acknowledging(&self, source: usize) -> usize {
        (0..self.nodes.len())
            .filter(|node| self.follows(*node, source) && self.nodes[*node].server.semi_sync_replica)
            .count()
    }

    fn receive(&mut self, instance: usize) {
        let Some(source) = self.nodes[instance].server.replication.as_ref().and_then(|r| r.source) else {
            return;
        };
        let source = source.0 as usize;
        if !self.gets_in(instance, source) {
            return;
        }
        let waiting = self.nodes[source].waiting.clone();
        let from = self.nodes[source].server.clone();
        let server = &mut self.nodes[instance].server;
        let held = server.held();
        let Some(replication) = &mut server.replication else {
            return;
        };
        if replication.receiver == ThreadState::Running {
            if held.contains(&from.purged) {
                replication.retrieved = replication.retrieved.union(&from.executed).union(&waiting);
            } else {
                replication.receiver = ThreadState::Failed;
            }
        }
        self.acknowledge(source);
    }

    /// Answers the commits that enough ackers hold by now.
    fn acknowledge(&mut self, source: usize) {
        let needed = self.nodes[source].server.effective_acks() as usize;
        let holders = (0..self.nodes.len())
            .filter(|node| self.follows(*node, source) && self.nodes[*node].server.semi_sync_replica)
            .map(|node| self.nodes[node].server.held());
        let waiting = self.nodes[source].waiting.clone();
        if !waiting.is_empty() && holders.filter(|held| held.contains(&waiting)).count() >= needed {
            let old = self.nodes[source].persisted;
            let left_behind = self.record.forced.as_ref().is_some_and(|forced| old < forced.since);
            let told = if left_behind { &mut self.left_behind } else { &mut self.acknowledged };
            *told = told.union(&waiting);
            self.let_through(source);
        }
    }

    /// Makes waiting commits visible.
    fn let_through(&mut self, source: usize) {
        self.locked.remove(&source);
        let node = &mut self.nodes[source];
        let waiting = std::mem::take(&mut node.waiting);
        node.server.executed = node.server.executed.union(&waiting);
        let rows = self.rows.iter().filter(|(row, _)| waiting.contains(row));
        if let Some(term) = rows.map(|(_, term)| *term).max().filter(|term| *term > node.server.recorded_term)
        {
            node.server.recorded_term = term;
            node.server.recorded_by = Some(node.server.server_uuid);
        }
    }

    fn apply(&mut self, instance: usize) {
        if !self.works(instance) {
            return;
        }
        let server = &mut self.nodes[instance].server;
        if server.replication.as_ref().is_some_and(|r| r.applier == ThreadState::Running) {
            server.executed = server.held();
            let rows = self.rows.iter().filter(|(row, _)| server.executed.contains(row));
            if let Some((row, term)) = rows.max_by_key(|(_, term)| *term)
                && *term > server.recorded_term
            {
                server.recorded_term = *term;
                server.recorded_by = Some(writer(row));
            }
        }
    }

    fn end_copy(&mut self, instance: usize) {
        let Some(donor) = self.nodes[instance].copying_from.take() else {
            return;
        };
        let donor = self.nodes[donor as usize].server.clone();
        let server = &mut self.nodes[instance].server;
        (server.purged, server.executed) = (donor.executed.clone(), donor.executed);
        (server.recorded_term, server.replication) = (donor.recorded_term, None);
        server.recorded_by = donor.recorded_by;
    }

    fn crash(&mut self, instance: usize) {
        // Crash recovery commits what waited.
        self.let_through(instance);
        let node = &mut self.nodes[instance];
        (node.up, node.leaving, node.copying_from) = (false, false, None);
        let server = &mut node.server;
        server.super_read_only = true;
        (server.semi_sync_source, server.semi_sync_replica) = (false, false);
        if let Some(replication) = &mut server.replication {
            (replication.receiver, replication.applier) = (ThreadState::Stopped, ThreadState::Stopped);
        }
    }

    /// Acknowledged at once where enough ackers receive it, and waiting otherwise.
    fn write(&mut self) {
        let mut commits = 0;
        for source in 0..self.nodes.len() {
            let server = &self.nodes[source].server;
            if server.super_read_only || !self.works(source) {
                continue;
            }
            let needed = server.effective_acks() as usize;
            // Its first transaction is acknowledged before clients can write.
            let opened = server.recorded_term == self.nodes[source].persisted || needed > 0;
            if !opened || !self.nodes[source].waiting.is_empty() {
                continue;
            }
            self.commit(source, needed);
            commits += usize::from(self.nodes[source].waiting.is_empty());
        }
        assert!(commits <= 1, "two instances had commits acknowledged at one instant");
    }

    /// The next transaction of a source, received by just as many ackers as have to.
    fn commit(&mut self, source: usize, needed: usize) -> GtidSet {
        let server = &self.nodes[source].server;
        let own = server.executed.union(&self.nodes[source].waiting).of_source(server.server_uuid);
        let new: GtidSet = format!("{}:{}", server.server_uuid, own.count() + 1).parse().unwrap();
        self.nodes[source].waiting = self.nodes[source].waiting.union(&new);
        // The same number may be given twice, by an instance that was rebuilt.
        self.left_behind = self.left_behind.subtract(&new);
        let ackers = (0..self.nodes.len())
            .filter(|node| self.follows(*node, source) && self.nodes[*node].server.semi_sync_replica);
        for acker in ackers.take(needed).collect::<Vec<_>>() {
            self.receive(acker);
        }
        self.acknowledge(source);
        new
    }

    fn act(&mut self, mask: u8) {
        let instances = (0..).map(id).zip(self.nodes.iter().zip(&self.heard));
        let view = ClusterView {
            replicas: self.replicas,
            offline: false,
            paused: false,
            wanted_primary: self.wanted_primary,
            rebuild: self.rebuild,
            force: self.force,
            durability: Durability::Strict,
            record: self.record.clone(),
            opened: self.opened,
            ackers: self.ackers.clone(),
            catching_up: self.catching_up.clone(),
            instances: instances
                .map(|(id, (node, heard))| InstanceView {
                    id,
                    pod: node.pod,
                    has_volume: true,
                    outdated: node.outdated,
                    facts: match node.pod {
                        PodState::Absent => Observed::Unknown { for_ms: 0 },
                        _ => heard.clone(),
                    },
                })
                .collect(),
        };
        let decision = decide(&view);
        let dies = self.dies.take();
        self.follow_wish(&decision, dies);
        self.follow_choices(&decision);
        if dies == Some(Point::BeforeRecord) {
            return self.happen(Event::Takeover);
        }
        if let Some(record) = decision.record.clone() {
            assert!(record.term > self.record.term, "a term fell");
            if record.forced != self.record.forced {
                let lost = self.acknowledged.subtract(record.promotion_point.as_ref().unwrap());
                self.acknowledged = self.acknowledged.subtract(&lost);
                self.left_behind = self.left_behind.union(&lost);
            } else if record.promotion_point.is_some()
                && record.primary != self.record.primary
                && !self.volumes_lost
            {
                let promoted = self.nodes[record.primary.unwrap().0 as usize].server.held();
                assert!(promoted.contains(&self.acknowledged), "an acknowledged transaction is not promoted");
            }
            self.record = record;
        }
        self.ackers.clone_from(&decision.ackers);
        self.catching_up.clone_from(&decision.catching_up);
        assert!(decision.opened >= self.opened, "an opened reign was forgotten");
        self.opened = decision.opened;
        for ordinal in 0..self.nodes.len() {
            let pod = if ordinal < decision.pods as usize { PodState::Running } else { PodState::Absent };
            if self.nodes[ordinal].pod != pod {
                self.nodes[ordinal].pod = pod;
                self.crash(ordinal);
            }
        }
        for order in &decision.orders {
            let heard = self.heard[order.instance.0 as usize].known();
            let leaves = heard.is_some_and(|facts| facts.process == ProcessState::Leaving);
            let ends = matches!(order.action, Action::Close | Action::Fence);
            assert!(ends || !leaves, "an instance that leaves would begin something: {order}");
            if mask & (1 << order.instance.0) != 0 {
                self.carry_out(order);
            }
        }
        let over = matches!(decision.wish, Some(Fulfilment::Done(_) | Fulfilment::Refused(_)));
        if over && dies.is_none() {
            self.wanted_primary = None;
        }
        if matches!(decision.forcing, Some(Forcing::Done(_) | Forcing::Refused(_))) && dies.is_none() {
            self.force = None;
        }
        if matches!(decision.rebuilding, Some(Rebuilding::Done | Rebuilding::Refused(_))) && dies.is_none() {
            self.rebuild = None;
        }
        if let Some(instance) = decision.replace {
            self.replace(instance);
        }
        self.last = Some(decision);
        if dies.is_some() {
            self.happen(Event::Takeover);
        }
    }

    /// What the shard writes down of the other requests before it writes the record or gives the orders.
    fn follow_choices(&mut self, decision: &Decision) {
        if let (Some(Forcing::UnderWay { begun }), Some(force)) = (&decision.forcing, &mut self.force) {
            assert!(force.begun.is_none_or(|before| before >= *begun), "a takeover was begun twice");
            force.begun = Some(*begun);
        }
        if let (Some(Rebuilding::UnderWay), Some(rebuild)) = (&decision.rebuilding, &mut self.rebuild) {
            rebuild.begun = true;
        }
    }

    fn wish(&mut self, wish: Wish) {
        (self.wanted_primary, self.begun) = (Some(wish), 0);
    }

    /// What the shard writes down of a wish before it writes the record.
    fn follow_wish(&mut self, decision: &Decision, dies: Option<Point>) {
        match (&decision.wish, &decision.record) {
            (Some(Fulfilment::UnderWay { to, term }), Some(record)) => {
                self.wanted_primary = Some(Wish::Begun { to: *to, term: *term });
                if record.stage == (Stage::Handover { to: *to }) && dies != Some(Point::BeforeRecord) {
                    self.begun += 1;
                    assert_eq!(self.begun, 1, "a handover was begun twice for one wish");
                }
            }
            (Some(Fulfilment::Done(primary)), _) => {
                assert!(
                    !self.nodes[primary.0 as usize].server.super_read_only || self.heard_is_old(*primary)
                );
            }
            _ => {}
        }
    }

    /// Whether an instance is not what the shard has heard of it.
    fn heard_is_old(&self, instance: InstanceId) -> bool {
        self.heard[instance.0 as usize] != self.facts(instance.0 as usize)
    }

    pub(crate) fn carry_out(&mut self, order: &Order) {
        let instance = order.instance.0 as usize;
        let works = self.works(instance) && self.nodes[instance].part == 0;
        let node = &mut self.nodes[instance];
        if order.term < node.persisted || node.copying_from.is_some() || !works {
            return;
        }
        node.persisted = order.term;
        match &order.action {
            Action::Close if node.server.super_read_only => {
                if let Some(replication) = &mut node.server.replication {
                    (replication.receiver, replication.applier) =
                        (ThreadState::Stopped, ThreadState::Running);
                }
            }
            Action::Close if node.waiting.is_empty() => {
                (node.server.super_read_only, node.server.semi_sync_source) = (true, false);
            }
            // Where commits wait it is killed.
            Action::Close | Action::Fence => self.crash(instance),
            Action::Follow { source, acknowledge } => {
                let server = &mut node.server;
                let retrieved = match &server.replication {
                    Some(replication) if replication.source == Some(*source) => replication.retrieved.clone(),
                    // What was received is applied first, or the order refused.
                    _ => server.held(),
                };
                (server.super_read_only, server.semi_sync_source) = (true, false);
                server.semi_sync_replica = *acknowledge;
                server.replication = Some(ReplicationFacts {
                    source: Some(*source),
                    receiver: ThreadState::Running,
                    receiver_error: String::new(),
                    applier: ThreadState::Running,
                    applier_error: String::new(),
                    retrieved,
                    lag_ms: None,
                    connecting_for_ms: None,
                });
            }
            Action::Clone { donor, expendable, archive } => {
                if expendable.contains(&node.server.held()) {
                    let donor_has = self.nodes[donor.0 as usize].server.executed.clone();
                    let kept = self.nodes[instance].server.held().subtract(archive);
                    let acknowledged = self.acknowledged.union(&self.left_behind);
                    let given_up = self.rebuild.is_some_and(|chosen| chosen.instance == order.instance);
                    let lost = archive.intersect(&acknowledged);
                    assert!(lost.is_empty() || given_up, "acknowledged and archived: {lost}");
                    let logged = &self.nodes[instance].server.executed;
                    assert!(logged.contains(&lost), "given up and in no binary log: {lost}");
                    assert!(donor_has.contains(&kept), "a copy would lose data");
                    self.nodes[instance].server.semi_sync_replica = false;
                    self.nodes[instance].server.replication = None;
                    self.nodes[instance].copying_from = Some(donor.0);
                }
            }
            Action::Open { required_acks } => self.open(instance, order.term, *required_acks),
        }
    }

    fn open(&mut self, instance: usize, term: Term, required_acks: u32) {
        for (other, node) in self.nodes.iter().enumerate() {
            let commits = self.acknowledging(other) >= node.server.effective_acks() as usize;
            assert!(other == instance || node.server.super_read_only || !commits, "two instances can commit");
        }
        let server = &mut self.nodes[instance].server;
        server.executed = server.held();
        server.replication = None;
        (server.semi_sync_source, server.required_acks) = (required_acks > 0, required_acks.max(1));
        server.super_read_only = false;
        let needed = required_acks as usize;
        if self.acknowledging(instance) >= needed && self.nodes[instance].server.recorded_term < term {
            let own = self.nodes[instance].server.server_uuid;
            let row = self.commit(instance, needed);
            self.rows.push((row, term));
            let node = &mut self.nodes[instance];
            if node.waiting.is_empty() {
                (node.server.recorded_term, node.server.recorded_by) = (term, Some(own));
            }
        }
    }
}

/// The server that a transaction is of.
fn writer(row: &GtidSet) -> ServerUuid {
    row.to_string().split(':').next().unwrap().parse().unwrap()
}
