//! Views to decide about, described by what differs from a cluster of idle instances that never had a primary.

use fleet_topology::*;

/// Identity of the server of an instance.
pub(crate) fn uuid(instance: u32) -> ServerUuid {
    ServerUuid::from_u128(0xaaaa_0000_0000_0000_0000_0000_0000_0000 + u128::from(instance))
}

/// Transactions 1 to `last` of an instance.
pub(crate) fn trx(instance: u32, last: u64) -> GtidSet {
    if last == 0 { GtidSet::new() } else { format!("{}:1-{last}", uuid(instance)).parse().unwrap() }
}

pub(crate) fn id(instance: u32) -> InstanceId {
    InstanceId(instance)
}

pub(crate) fn idle_server(instance: u32) -> ServerFacts {
    ServerFacts {
        server_uuid: uuid(instance),
        executed: GtidSet::new(),
        purged: GtidSet::new(),
        super_read_only: true,
        replication: None,
        semi_sync_source: false,
        required_acks: 1,
        semi_sync_clients: 0,
        semi_sync_replica: false,
        recorded_term: Term::NONE,
        recorded_by: None,
    }
}

pub(crate) fn idle_instance(instance: u32) -> InstanceView {
    InstanceView {
        id: id(instance),
        pod: PodState::Running,
        has_volume: true,
        outdated: false,
        abandoned: false,
        facts: Observed::Known(InstanceFacts {
            boot_id: format!("boot-{instance}"),
            volume_id: format!("volume-{instance}"),
            process: ProcessState::Running,
            silent_for_ms: None,
            persisted_term: Term::NONE,
            server: Some(idle_server(instance)),
            clone: None,
        }),
    }
}

/// A cluster of idle and empty instances without a record.
pub(crate) fn empty(replicas: u32) -> ClusterView {
    ClusterView {
        replicas,
        offline: false,
        paused: false,
        wanted_primary: None,
        rebuild: None,
        release: None,
        force: None,
        durability: Durability::Strict,
        record: TermRecord::NONE,
        opened: Term::NONE,
        ackers: Vec::new(),
        catching_up: Vec::new(),
        trial: Trial::default(),
        instances: (0..replicas).map(idle_instance).collect(),
    }
}

/// A cluster in term 1 with primary 0, which has executed 10 transactions that all the others have.
pub(crate) fn healthy(replicas: u32) -> ClusterView {
    let mut view = empty(replicas);
    let quorum = Quorum::for_replicas(replicas).unwrap();
    view.record = TermRecord {
        term: Term(1),
        primary: Some(id(0)),
        primary_since: Term(1),
        quorum,
        quorum_since: Term(1),
        ..TermRecord::NONE
    };
    for instance in 0..replicas {
        view.facts(instance).persisted_term = Term(1);
        let server = view.server(instance);
        (server.executed, server.recorded_term) = (trx(0, 10), Term(1));
        server.recorded_by = Some(uuid(0));
        if instance == 0 {
            server.super_read_only = false;
            server.semi_sync_source = replicas > 1;
            server.required_acks = quorum.required_acks().max(1);
            server.semi_sync_clients = quorum.ackers();
        } else {
            view.follow(instance, 0, true);
        }
    }
    let decision = decide(&view);
    (view.ackers, view.opened) = (decision.ackers, decision.opened);
    view
}

/// Changes of a view.
pub(crate) trait Change {
    fn instance(&mut self, instance: u32) -> &mut InstanceView;
    fn facts(&mut self, instance: u32) -> &mut InstanceFacts;
    fn server(&mut self, instance: u32) -> &mut ServerFacts;
    fn replication(&mut self, instance: u32) -> &mut ReplicationFacts;
    /// Follows with all threads running, having received what it executed.
    fn follow(&mut self, instance: u32, source: u32, acknowledge: bool);
    /// Has not answered for that long.
    fn silent(&mut self, instance: u32, for_ms: u64);
    /// Has a mysqld that ended.
    fn down(&mut self, instance: u32);
    /// Is restarted: closed, with threads stopped.
    fn restarted(&mut self, instance: u32);
}

impl Change for ClusterView {
    fn instance(&mut self, instance: u32) -> &mut InstanceView {
        self.instances.iter_mut().find(|view| view.id == id(instance)).unwrap()
    }

    fn facts(&mut self, instance: u32) -> &mut InstanceFacts {
        match &mut self.instance(instance).facts {
            Observed::Known(facts) => facts,
            Observed::Unknown { .. } => unreachable!("the instance is silent"),
        }
    }

    fn server(&mut self, instance: u32) -> &mut ServerFacts {
        self.facts(instance).server.as_mut().unwrap()
    }

    fn replication(&mut self, instance: u32) -> &mut ReplicationFacts {
        self.server(instance).replication.as_mut().unwrap()
    }

    fn follow(&mut self, instance: u32, source: u32, acknowledge: bool) {
        let server = self.server(instance);
        server.semi_sync_replica = acknowledge;
        server.replication = Some(ReplicationFacts {
            source: Some(id(source)),
            receiver: ThreadState::Running,
            receiver_error: String::new(),
            applier: ThreadState::Running,
            applier_error: String::new(),
            retrieved: server.executed.clone(),
            lag_ms: Some(0),
            connecting_for_ms: None,
        });
    }

    fn silent(&mut self, instance: u32, for_ms: u64) {
        self.instance(instance).facts = Observed::Unknown { for_ms };
    }

    fn down(&mut self, instance: u32) {
        let facts = self.facts(instance);
        (facts.process, facts.server) = (ProcessState::Exited, None);
    }

    fn restarted(&mut self, instance: u32) {
        let server = self.server(instance);
        server.super_read_only = true;
        (server.semi_sync_source, server.semi_sync_replica, server.semi_sync_clients) = (false, false, 0);
        if let Some(replication) = &mut server.replication {
            (replication.receiver, replication.applier) = (ThreadState::Stopped, ThreadState::Stopped);
        }
    }
}

/// The orders of a decision as an instance with what it is to do.
pub(crate) fn orders(decision: &Decision) -> Vec<(u32, Action)> {
    decision.orders.iter().map(|order| (order.instance.0, order.action.clone())).collect()
}

pub(crate) fn follow(source: u32, acknowledge: bool) -> Action {
    Action::Follow { source: id(source), acknowledge }
}

pub(crate) fn open(required_acks: u32) -> Action {
    Action::Open { required_acks }
}

pub(crate) fn standing(decision: &Decision, instance: u32) -> &Standing {
    &decision.instances.iter().find(|verdict| verdict.id == id(instance)).unwrap().standing
}

/// Fails unless the state is that one and the message has all the parts.
#[track_caller]
pub(crate) fn says(decision: &Decision, state: State, parts: &[&str]) {
    assert_eq!(decision.state, state, "{}", decision.message);
    has_all(&decision.message, parts);
}

/// Fails unless the text has all the parts.
#[track_caller]
pub(crate) fn has_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}
