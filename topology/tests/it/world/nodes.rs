//! Instances: a mysqld with its agent and its volume, and what passes between them.

use std::collections::BTreeMap;

use fleet_topology::decide::UNREACHED_AFTER_MS;
use fleet_topology::*;

use super::World;
use super::shards::Status;
use crate::views::{id, idle_server};

/// What a pod was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Template {
    /// What is wanted.
    Wanted,
    /// What was wanted before, and works.
    Before,
    /// What is wanted, and mysqld does not start with it.
    Bad,
    /// The same, once it was given up.
    GivenUp,
}

impl Template {
    pub(super) fn is_outdated(self) -> bool {
        matches!(self, Self::Before | Self::GivenUp)
    }
}

/// A mysqld with its agent and its volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) pod: PodState,
    pub(super) volume: u32,
    pub(super) persisted: Term,
    pub(super) up: bool,
    /// Whether it stands still.
    pub(super) paused: bool,
    /// The last order that was given to it while it stood still.
    pending: Option<Order>,
    /// Whether its agent was told to end and goes on until it has handed over.
    pub(super) leaving: bool,
    /// What its pod was made from.
    pub(super) template: Template,
    pub(super) server: ServerFacts,
    /// Committed, and waiting for acknowledgements.
    pub(super) waiting: GtidSet,
    /// Which of that each acker has said to have received. It counts also if the acker is gone meanwhile.
    acked: BTreeMap<usize, GtidSet>,
    pub(super) copying_from: Option<u32>,
    /// Which part of a divided network it is in; the shard is in part 0.
    pub(super) part: u8,
}

impl Node {
    /// Without data, on a volume of that number.
    pub(super) fn new(volume: u32) -> Self {
        Self {
            pod: PodState::Running,
            volume,
            persisted: Term::NONE,
            up: true,
            paused: false,
            pending: None,
            leaving: false,
            template: Template::Wanted,
            server: idle_server(volume),
            waiting: GtidSet::new(),
            acked: BTreeMap::new(),
            copying_from: None,
            part: 0,
        }
    }
}

impl World {
    pub(super) fn facts(&self, instance: usize) -> Observed<InstanceFacts> {
        let node = &self.nodes[instance];
        if node.pod != PodState::Running || node.part != 0 || node.paused {
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

    pub(super) fn works(&self, instance: usize) -> bool {
        let node = &self.nodes[instance];
        node.up && !node.paused && node.pod == PodState::Running
    }

    pub(super) fn reaches(&self, instance: usize, other: usize) -> bool {
        self.works(instance) && self.works(other) && self.nodes[instance].part == self.nodes[other].part
    }

    /// Whether an instance gets what a source has. Of a locked one nobody does: had anybody been logged in before,
    /// the statement would have been acknowledged.
    pub(super) fn gets_in(&self, instance: usize, source: usize) -> bool {
        self.reaches(instance, source) && !self.locked.contains(&source)
    }

    pub(super) fn follows(&self, instance: usize, source: usize) -> bool {
        let replication = self.nodes[instance].server.replication.as_ref();
        replication
            .is_some_and(|r| r.receiver == ThreadState::Running && r.source.unwrap().0 as usize == source)
            && self.gets_in(instance, source)
    }

    /// Whether commits of its source may have been answered for what it has received.
    pub(super) fn acknowledges(&self, instance: usize) -> bool {
        let server = &self.nodes[instance].server;
        let receives = |r: &ReplicationFacts| r.receiver == ThreadState::Running;
        server.semi_sync_replica && server.replication.as_ref().is_some_and(receives)
    }

    pub(super) fn acknowledging(&self, source: usize) -> usize {
        (0..self.nodes.len())
            .filter(|node| self.follows(*node, source) && self.nodes[*node].server.semi_sync_replica)
            .count()
    }

    /// An instance receives what its source has, and says so. Returns the source.
    pub(super) fn receive(&mut self, instance: usize) -> Option<usize> {
        let replication = self.nodes[instance].server.replication.as_ref()?;
        let source = replication.source?.0 as usize;
        if !self.gets_in(instance, source) {
            return None;
        }
        let waiting = self.nodes[source].waiting.clone();
        let from = self.nodes[source].server.clone();
        let server = &mut self.nodes[instance].server;
        let held = server.held();
        let replication = server.replication.as_mut()?;
        if replication.receiver == ThreadState::Running {
            if held.contains(&from.purged) {
                replication.retrieved = replication.retrieved.union(&from.executed).union(&waiting);
            } else {
                replication.receiver = ThreadState::Failed;
            }
        }
        if self.follows(instance, source) && self.nodes[instance].server.semi_sync_replica {
            let received = self.nodes[instance].server.held().intersect(&waiting);
            self.nodes[source].acked.insert(instance, received);
        }
        Some(source)
    }

    /// Answers the commits that enough ackers have said to have received.
    pub(super) fn acknowledge(&mut self, source: usize) {
        let node = &self.nodes[source];
        let needed = node.server.effective_acks() as usize;
        let acked = node.acked.values().filter(|acked| acked.contains(&node.waiting)).count();
        if node.waiting.is_empty() || acked < needed || !self.works(source) {
            return;
        }
        let waiting = node.waiting.clone();
        let record = &self.status.record;
        let left_behind = record.forced.as_ref().is_some_and(|forced| node.persisted < forced.since);
        let promoted = record
            .promotion_point
            .as_ref()
            .filter(|_| record.primary.is_some_and(|primary| primary.0 as usize != source));
        if let Some(promoted) = promoted.filter(|_| !left_behind && !self.volumes_lost) {
            assert!(
                promoted.contains(&waiting),
                "I2: {waiting} was acknowledged after another primary took over without it"
            );
        }
        let told = if left_behind { &mut self.left_behind } else { &mut self.acknowledged };
        *told = told.union(&waiting);
        self.let_through(source);
    }

    /// Whether a client that writes to an instance now gets an answer.
    pub(super) fn can_commit(&self, instance: usize) -> bool {
        let server = &self.nodes[instance].server;
        let needed = server.effective_acks() as usize;
        // Its first transaction is acknowledged before clients can write.
        let opened = server.recorded_term == self.nodes[instance].persisted || needed > 0;
        let writable = self.works(instance) && !server.super_read_only && opened;
        writable && self.acknowledging(instance) >= needed
    }

    /// An instance goes on where it stood still.
    pub(super) fn resume(&mut self, instance: usize) {
        self.nodes[instance].paused = false;
        if let Some(order) = self.nodes[instance].pending.take() {
            self.carry_out(&order);
        }
    }

    /// A transaction that no primary made, on an instance that follows one.
    pub(super) fn stray(&mut self, instance: usize) {
        let server = &self.nodes[instance].server;
        let is_forced = self.status.force.is_some() || self.is_to_open_by_force(instance);
        if self.works(instance) && server.super_read_only && server.replication.is_some() && !is_forced {
            let new = self.next_of(instance);
            let server = &mut self.nodes[instance].server;
            server.executed = server.executed.union(&new);
            self.strayed = true;
        }
    }

    fn is_to_open_by_force(&self, instance: usize) -> bool {
        let Status { record, opened, .. } = &self.status;
        record.is_forced() && self.primary() == instance && *opened < record.primary_since
    }

    /// The next transaction of a server.
    fn next_of(&self, instance: usize) -> GtidSet {
        let Node { server, waiting, .. } = &self.nodes[instance];
        let own = server.held().union(waiting).of_source(server.server_uuid);
        format!("{}:{}", server.server_uuid, own.count() + 1).parse().unwrap()
    }

    /// Makes waiting commits visible.
    pub(super) fn let_through(&mut self, source: usize) {
        self.locked.remove(&source);
        let node = &mut self.nodes[source];
        node.acked.clear();
        let waiting = std::mem::take(&mut node.waiting);
        node.server.executed = node.server.executed.union(&waiting);
        let rows = self.rows.iter().filter(|(row, _)| waiting.contains(row));
        if let Some(term) = rows.map(|(_, term)| *term).max().filter(|term| *term > node.server.recorded_term)
        {
            node.server.recorded_term = term;
            node.server.recorded_by = Some(node.server.server_uuid);
        }
    }

    pub(super) fn apply(&mut self, instance: usize) {
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

    pub(super) fn end_copy(&mut self, instance: usize) {
        if self.nodes[instance].paused {
            return;
        }
        let Some(donor) = self.nodes[instance].copying_from.take() else {
            return;
        };
        let donor = self.nodes[donor as usize].server.clone();
        let server = &mut self.nodes[instance].server;
        (server.purged, server.executed) = (donor.executed.clone(), donor.executed);
        (server.recorded_term, server.replication) = (donor.recorded_term, None);
        server.recorded_by = donor.recorded_by;
    }

    pub(super) fn crash(&mut self, instance: usize) {
        // Crash recovery commits what waited.
        self.let_through(instance);
        let node = &mut self.nodes[instance];
        (node.up, node.leaving, node.copying_from) = (false, false, None);
        (node.paused, node.pending) = (false, None);
        let server = &mut node.server;
        server.super_read_only = true;
        (server.semi_sync_source, server.semi_sync_replica) = (false, false);
        if let Some(replication) = &mut server.replication {
            (replication.receiver, replication.applier) = (ThreadState::Stopped, ThreadState::Stopped);
        }
    }

    /// Acknowledged at once where enough ackers receive it, and waiting otherwise.
    pub(super) fn write(&mut self) {
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
        assert!(commits <= 1, "I1: two instances had commits acknowledged at one instant");
    }

    /// The next transaction of a source, received by just as many ackers as have to.
    pub(super) fn commit(&mut self, source: usize, needed: usize) -> GtidSet {
        let new = self.next_of(source);
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

    pub(crate) fn carry_out(&mut self, order: &Order) {
        let instance = order.instance.0 as usize;
        if self.nodes[instance].paused && self.nodes[instance].part == 0 {
            self.nodes[instance].pending = Some(order.clone());
            return;
        }
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
                    let given_up =
                        self.status.rebuild.is_some_and(|chosen| chosen.instance == order.instance);
                    let lost = archive.intersect(&acknowledged);
                    assert!(lost.is_empty() || given_up, "I2: acknowledged and archived: {lost}");
                    let logged = &self.nodes[instance].server.executed;
                    assert!(logged.contains(&lost), "I5: given up and in no binary log: {lost}");
                    assert!(donor_has.contains(&kept), "I5: a copy would lose data");
                    self.nodes[instance].server.semi_sync_replica = false;
                    self.nodes[instance].server.replication = None;
                    self.nodes[instance].copying_from = Some(donor.0);
                }
            }
            Action::Adopt { .. } => unreachable!("nobody has asked for a release: {order}"),
            Action::Open { required_acks } => self.open(instance, order.term, *required_acks),
        }
    }

    pub(super) fn open(&mut self, instance: usize, term: Term, required_acks: u32) {
        for (other, node) in self.nodes.iter().enumerate() {
            let commits = self.acknowledging(other) >= node.server.effective_acks() as usize;
            assert!(
                other == instance || node.server.super_read_only || !commits,
                "I1: two instances can commit"
            );
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
