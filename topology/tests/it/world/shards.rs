//! Shards: what is recorded, what one of them has read and heard, and what it does about that.

use fleet_topology::*;

use super::nodes::Template;
use super::{Event, Point, World};
use crate::views::id;

/// What is recorded in the object of the cluster. Every write is refused if it has changed since it was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Status {
    pub(super) record: TermRecord,
    pub(super) opened: Term,
    pub(super) ackers: Vec<AckerIdentity>,
    pub(super) wanted_primary: Option<Wish>,
    pub(super) force: Option<Force>,
    pub(super) rebuild: Option<Rebuild>,
}

impl Status {
    /// Of a cluster that never had a primary.
    pub(super) const NEW: Self = Self {
        record: TermRecord::NONE,
        opened: Term::NONE,
        ackers: Vec::new(),
        wanted_primary: None,
        force: None,
        rebuild: None,
    };
}

/// What a shard knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Shard {
    pub(super) heard: Vec<Observed<InstanceFacts>>,
    catching_up: Vec<CatchingUp>,
    /// What it has read, if that is not what is recorded.
    pub(super) read: Option<Status>,
}

impl World {
    /// Another shard leads, which has heard nobody. Returns the one before.
    pub(super) fn take_over(&mut self) -> Shard {
        let heard = vec![Observed::Unknown { for_ms: 0 }; self.nodes.len()];
        std::mem::replace(&mut self.shard, Shard { heard, ..Shard::default() })
    }

    pub(super) fn wish(&mut self, wish: Wish) {
        self.begun = 0;
        self.write_status(|status| status.wanted_primary = Some(wish));
    }

    pub(super) fn force(&mut self, instance: InstanceId) {
        self.write_status(|status| status.force = Some(Force { instance, begun: None }));
    }

    pub(super) fn rebuild(&mut self, instance: InstanceId) {
        self.write_status(|status| status.rebuild = Some(Rebuild { instance, begun: false }));
    }

    /// Changes what is recorded, which the shard that led before has then not read.
    fn write_status(&mut self, change: impl FnOnce(&mut Status)) {
        let before = self.status.clone();
        change(&mut self.status);
        if let Some(old) = &mut self.old
            && self.status != before
        {
            old.read.get_or_insert(before);
        }
    }

    /// The shard that led before decides. It gets no further than to its orders: whatever else it writes, the gate of
    /// the Lease has closed.
    pub(super) fn old_acts(&mut self, mask: u8) {
        let Some(old) = self.old.take() else { return };
        self.old = Some(std::mem::replace(&mut self.shard, old));
        let dies = self.dies.take();
        self.give_orders(mask, None);
        self.dies = dies;
        if let Some(leads) = self.old.take() {
            self.old = Some(std::mem::replace(&mut self.shard, leads));
        }
    }

    /// The shard that leads decides and does all that follows from it.
    pub(super) fn act(&mut self, mask: u8) {
        let dies = self.dies.take();
        if let Some(decision) = self.give_orders(mask, dies) {
            // With a record it is decided anew before anything else is written.
            if decision.record.is_none() {
                self.direct_traffic(&decision);
            }
            if self.shard.read.is_none() {
                self.publish(&decision, dies);
            }
            if let Some(instance) = decision.replace {
                self.replace(instance);
            }
            self.follow_trial(&decision.progress);
            self.start_and_stop(decision.pods);
            self.last = Some(decision);
        }
        if dies.is_some() {
            self.happen(Event::Takeover);
        }
    }

    /// Decides from what was read and heard, writes down what has to be recorded first, and gives the orders. Nothing
    /// of that if the status has changed since it was read: then it is read again.
    fn give_orders(&mut self, mask: u8, dies: Option<Point>) -> Option<Decision> {
        self.last = None;
        let read = self.shard.read.clone().unwrap_or_else(|| self.status.clone());
        let decision = decide(&self.view(&read));
        assert!(decision.opened >= read.opened, "an opened reign was forgotten");
        let wanted = written_first(&read, &decision, dies);
        if wanted != read {
            if self.shard.read.take().is_some() {
                return None;
            }
            self.check_record(&read.record, &wanted.record, &decision);
            self.write_status(|status| *status = wanted);
        }
        self.shard.catching_up.clone_from(&decision.catching_up);
        self.follow_wish(&decision, dies);
        if dies == Some(Point::BeforeRecord) {
            return None;
        }
        for order in &decision.orders {
            let heard = self.shard.heard[order.instance.0 as usize].known();
            let leaves = heard.is_some_and(|facts| facts.process == ProcessState::Leaving);
            let ends = matches!(order.action, Action::Close | Action::Fence);
            assert!(ends || !leaves, "an instance that leaves would begin something: {order}");
            assert_eq!(order.term, read.record.term, "an order of another term: {order}");
            if mask & (1 << order.instance.0) != 0 {
                self.carry_out(order);
            }
        }
        Some(decision)
    }

    fn view(&self, read: &Status) -> ClusterView {
        let instances = (0..).map(id).zip(self.nodes.iter().zip(&self.shard.heard));
        ClusterView {
            replicas: self.replicas,
            offline: false,
            paused: false,
            wanted_primary: read.wanted_primary,
            rebuild: read.rebuild,
            release: None,
            force: read.force,
            durability: Durability::Strict,
            record: read.record.clone(),
            opened: read.opened,
            ackers: read.ackers.clone(),
            catching_up: self.shard.catching_up.clone(),
            trial: self.trial.clone(),
            instances: instances
                .map(|(id, (node, heard))| InstanceView {
                    id,
                    pod: node.pod,
                    has_volume: true,
                    outdated: node.template.is_outdated(),
                    abandoned: node.template == Template::GivenUp,
                    facts: match node.pod {
                        PodState::Absent => Observed::Unknown { for_ms: 0 },
                        _ => heard.clone(),
                    },
                })
                .collect(),
        }
    }

    fn check_record(&mut self, before: &TermRecord, record: &TermRecord, decision: &Decision) {
        if record == before {
            return;
        }
        assert!(record.term > before.term, "I3: a term fell");
        assert!(decision.orders.is_empty(), "an order is given before its term is recorded");
        if record.forced != before.forced {
            let lost = self.acknowledged.subtract(record.promotion_point.as_ref().unwrap());
            self.acknowledged = self.acknowledged.subtract(&lost);
            self.left_behind = self.left_behind.union(&lost);
        } else if record.promotion_point.is_some() && record.primary != before.primary && !self.volumes_lost {
            let promoted = self.nodes[record.primary.unwrap().0 as usize].server.held();
            assert!(promoted.contains(&self.acknowledged), "I2: an acknowledged transaction is not promoted");
        }
    }

    /// Traffic goes to what was heard to be right for it, or stays where it is.
    fn direct_traffic(&mut self, decision: &Decision) {
        let read = self.shard.read.as_ref().unwrap_or(&self.status);
        let record = &read.record;
        let server =
            |id: InstanceId| self.shard.heard[id.0 as usize].known().and_then(|facts| facts.server.as_ref());
        let (writes, reads) = &self.traffic;
        let (writes, reads) = decision.traffic.after(*writes, reads);
        if let Some(primary) = writes {
            let is_new = decision.traffic.primary == writes;
            let takes_writes = |server: &ServerFacts| {
                !server.super_read_only && server.recorded_term >= record.primary_since
            };
            let is_of_record = record.primary.map_or(!is_new, |of_record| of_record == primary);
            assert!(is_of_record, "I4: writes go to an instance that is not the primary");
            assert!(
                server(primary).map_or(!is_new, takes_writes),
                "I4: writes go to a closed or deposed {primary}"
            );
        }
        let source = record.primary.filter(|_| record.stage == Stage::Reign).and_then(server);
        for reader in reads.iter().filter(|reader| self.replicas > 1 && Some(**reader) != record.primary) {
            let Some(server) = server(*reader) else { continue };
            assert!(server.super_read_only, "I4: reads go to {reader}, which takes writes");
            let foreign = source
                .map(|source| server.held().subtract(&source.held()).without_source(source.server_uuid));
            assert!(
                foreign.is_none_or(|foreign| foreign.is_empty()),
                "I4: reads go to {reader}, which is errant"
            );
        }
        self.traffic = (writes, reads);
    }

    /// What is recorded last: who can be relied on, and what has become of requests.
    fn publish(&mut self, decision: &Decision, dies: Option<Point>) {
        let Decision { ackers, wish, forcing, rebuilding, .. } = decision;
        self.write_status(|status| {
            status.ackers.clone_from(ackers);
            if dies.is_some() {
                return;
            }
            if matches!(wish, Some(Fulfilment::Done(_) | Fulfilment::Refused(_))) {
                status.wanted_primary = None;
            }
            if matches!(forcing, Some(Forcing::Done(_) | Forcing::Refused(_))) {
                status.force = None;
            }
            if matches!(rebuilding, Some(Rebuilding::Done | Rebuilding::Refused(_))) {
                status.rebuild = None;
            }
        });
    }

    fn start_and_stop(&mut self, pods: u32) {
        for ordinal in 0..self.nodes.len() {
            let pod = if ordinal < pods as usize { PodState::Running } else { PodState::Absent };
            if self.nodes[ordinal].pod != pod {
                self.nodes[ordinal].pod = pod;
                self.crash(ordinal);
            }
        }
    }

    /// The pod that the shard names ends, and one of the wanted template takes its place.
    fn replace(&mut self, instance: InstanceId) {
        let others = (0..self.nodes.len()).filter(|node| *node != instance.0 as usize);
        let replaced = self.nodes[instance.0 as usize].template;
        let primary = self.primary();
        let needed = self.status.record.quorum.required_acks() as usize;
        let acknowledge = others
            .filter(|node| {
                self.shard.heard[*node]
                    .known()
                    .is_some_and(|facts| facts.server.as_ref().is_some_and(|server| server.semi_sync_replica))
            })
            .count();
        assert!(
            acknowledge >= needed || replaced == Template::GivenUp,
            "too few ackers are left while {instance} is replaced"
        );
        assert!(needed == 0 || instance.0 as usize != primary, "the primary was replaced");
        assert!(replaced.is_outdated(), "{instance} is replaced and is up to date");
        self.crash(instance.0 as usize);
        let node = &mut self.nodes[instance.0 as usize];
        node.template = if self.is_bad { Template::Bad } else { Template::Wanted };
        self.shard.heard[instance.0 as usize] = Observed::Unknown { for_ms: 0 };
    }

    fn follow_wish(&mut self, decision: &Decision, dies: Option<Point>) {
        match (&decision.wish, &decision.record) {
            (Some(Fulfilment::UnderWay { to, .. }), Some(record))
                if record.stage == (Stage::Handover { to: *to }) && dies != Some(Point::BeforeRecord) =>
            {
                self.begun += 1;
                assert_eq!(self.begun, 1, "a handover was begun twice for one wish");
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
        self.shard.heard[instance.0 as usize] != self.facts(instance.0 as usize)
    }
}

/// What is recorded before an order is given: of requests first, then of the term.
fn written_first(read: &Status, decision: &Decision, dies: Option<Point>) -> Status {
    let mut status = read.clone();
    if let (Some(Forcing::UnderWay { begun }), Some(force)) = (&decision.forcing, &mut status.force) {
        assert!(force.begun.is_none_or(|before| before >= *begun), "a takeover was begun twice");
        force.begun = Some(*begun);
    }
    if let (Some(Rebuilding::UnderWay), Some(rebuild)) = (&decision.rebuilding, &mut status.rebuild) {
        rebuild.begun = true;
    }
    if let (Some(Fulfilment::UnderWay { to, term }), Some(_)) = (&decision.wish, &decision.record) {
        status.wanted_primary = Some(Wish::Begun { to: *to, term: *term });
    }
    if dies != Some(Point::BeforeRecord) {
        status.opened = decision.opened;
        if let Some(record) = &decision.record {
            status.record = record.clone();
        }
    }
    status
}
