//! The failover between three members, by the real [`decide_federation`]: the hub believes that the active member is
//! lost while that one goes on writing, so that nothing but revocations stops it. All that can happen with two faults
//! and two writes is searched.
//!
//! An order, once given, may arrive at any time, again, or never. A second hub decides from any status it read before.

use std::collections::BTreeSet;

use fleet_topology::federation::*;
use fleet_topology::{GtidSet, Term};
use stateright::{Checker, Model, Property};

const NAMES: [&str; 3] = ["a", "b", "w"];
const WRITES: u8 = 2;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Member {
    term: Term,
    source: Option<usize>,
    held: GtidSet,
    executed: GtidSet,
    open: bool,
    /// Who has to acknowledge what it commits.
    ackers: BTreeSet<String>,
    revoked: Option<Term>,
    proved: Option<Term>,
    heard: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fleet {
    record: FederationRecord,
    /// What a hub that led before has read.
    old: FederationRecord,
    members: Vec<Member>,
    sent: Vec<MemberOrder>,
    acknowledged: GtidSet,
    written: u8,
    faults: u8,
    early_traffic: bool,
    reigns: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Happens {
    Decides,
    OldDecides,
    Arrives(usize),
    Writes(usize),
    Receives(usize),
    Applies(usize),
    Restarts(usize),
    HeardOrNot(usize),
}

fn at(name: &str) -> usize {
    NAMES.iter().position(|it| *it == name).unwrap()
}

impl Fleet {
    fn view(&self, record: &FederationRecord, third: Preference) -> FederationView {
        let members = self.members.iter().zip(NAMES).enumerate().map(|(index, (member, name))| MemberView {
            name: name.to_owned(),
            domain: name.to_owned(),
            preference: if index == 2 { third } else { Preference::Data },
            failures: 5,
            sight: Sight::Missed,
            report: member.heard.then(|| MemberReport {
                revoked: member.revoked,
                executed: member.executed.clone(),
                held: member.held.clone(),
                proved: member.proved,
            }),
        });
        let members = members.collect();
        FederationView { mode: Mode::AckQuorum, suspect_after: 5, record: record.clone(), members }
    }

    fn decides(&mut self, read: &FederationRecord, third: Preference) {
        let FederationDecision { record, orders, traffic, .. } = decide_federation(&self.view(read, third));
        match record {
            Some(record) if *read == self.record => self.record = record,
            Some(_) => return,
            None => {}
        }
        if *read == self.record {
            let confirmed = |name: &String| self.members[at(name)].proved == Some(self.record.term);
            self.early_traffic |= traffic.is_some_and(|name| !confirmed(&name));
            self.reigns |= self.record.phase == Phase::Reign && self.record.term > Term(1);
        }
        for order in orders {
            if !self.sent.contains(&order) {
                self.sent.push(order);
            }
        }
    }

    fn arrives(&mut self, order: MemberOrder) {
        let (MemberOrder::Revoke { member, term }
        | MemberOrder::Close { member, term }
        | MemberOrder::Follow { member, term, .. }
        | MemberOrder::Promote { member, term, .. }) = &order;
        let (index, term) = (at(member), *term);
        let member = &mut self.members[index];
        if term < member.term {
            return;
        }
        member.term = term;
        match order {
            MemberOrder::Revoke { .. } if member.revoked != Some(term) => {
                (member.source, member.revoked, member.open) = (None, Some(term), false);
            }
            MemberOrder::Close { .. } => member.open = false,
            MemberOrder::Follow { source, .. } if !member.open => member.source = Some(at(&source)),
            MemberOrder::Promote { needs, ackers, .. } if member.executed.contains(&needs) => {
                (member.source, member.open, member.ackers) = (None, true, ackers);
            }
            MemberOrder::Revoke { .. } | MemberOrder::Follow { .. } | MemberOrder::Promote { .. } => {}
        }
    }

    fn receives(&mut self, index: usize) {
        let Some(source) = self.members[index].source else { return };
        let from = self.members[source].clone();
        self.members[index].held = self.members[index].held.union(&from.held);
        if from.open && from.ackers.contains(NAMES[index]) {
            self.acknowledged = self.acknowledged.union(&from.held);
            self.members[source].proved = Some(from.term);
        }
    }

    fn can_commit(&self, index: usize) -> bool {
        let acks = |(member, name): (&Member, &str)| {
            member.source == Some(index) && self.members[index].ackers.contains(name)
        };
        self.members[index].open && self.members.iter().zip(NAMES).any(acks)
    }
}

struct Failover(Preference, u8);

impl Model for Failover {
    type State = Fleet;
    type Action = Happens;

    fn init_states(&self) -> Vec<Fleet> {
        let follower = Member { term: Term(1), source: Some(0), heard: true, ..Member::default() };
        let ackers = BTreeSet::from(["b".to_owned(), "w".to_owned()]);
        let active = Member {
            open: true,
            source: None,
            heard: false,
            proved: Some(Term(1)),
            ackers: ackers.clone(),
            ..follower.clone()
        };
        let record = FederationRecord {
            term: Term(1),
            active: "a".to_owned(),
            ackers,
            required_acks: 1,
            phase: Phase::Reign,
        };
        vec![Fleet {
            old: record.clone(),
            record,
            members: vec![active, follower.clone(), follower],
            sent: Vec::new(),
            acknowledged: GtidSet::new(),
            written: 0,
            faults: self.1,
            early_traffic: false,
            reigns: false,
        }]
    }

    fn actions(&self, state: &Fleet, actions: &mut Vec<Happens>) {
        actions.extend([Happens::Decides, Happens::OldDecides]);
        actions.extend((0..state.sent.len()).map(Happens::Arrives));
        for index in 0..NAMES.len() {
            actions.extend([Happens::Writes(index), Happens::Receives(index), Happens::Applies(index)]);
            if state.faults > 0 {
                actions.extend([Happens::Restarts(index), Happens::HeardOrNot(index)]);
            }
        }
    }

    fn next_state(&self, before: &Fleet, action: Happens) -> Option<Fleet> {
        let mut state = before.clone();
        match action {
            Happens::Decides => {
                let read = state.record.clone();
                state.decides(&read, self.0);
            }
            Happens::OldDecides => {
                let read = std::mem::replace(&mut state.old, state.record.clone());
                state.decides(&read, self.0);
            }
            Happens::Arrives(order) => state.arrives(before.sent[order].clone()),
            Happens::Writes(index) if state.members[index].open && state.written < WRITES => {
                state.written += 1;
                let one = format!("00000000-0000-0000-0000-000000000001:{}", state.written).parse().unwrap();
                let member = &mut state.members[index];
                member.executed = member.executed.union(&one);
                member.held = member.held.union(&one);
            }
            Happens::Writes(_) => {}
            Happens::Receives(index) => state.receives(index),
            Happens::Applies(index) => state.members[index].executed = state.members[index].held.clone(),
            Happens::Restarts(index) => {
                state.faults -= 1;
                state.members[index].open = false;
            }
            Happens::HeardOrNot(index) => {
                state.faults -= 1;
                state.members[index].heard = !state.members[index].heard;
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one member can commit", |_, state: &Fleet| {
                (0..NAMES.len()).filter(|index| state.can_commit(*index)).count() <= 1
            }),
            Property::always("who can commit has every acknowledged write", |_, state: &Fleet| {
                let has_all = |index: usize| state.members[index].executed.contains(&state.acknowledged);
                (0..NAMES.len()).all(|index| !state.can_commit(index) || has_all(index))
            }),
            Property::always("traffic waits for the term row", |_, state: &Fleet| !state.early_traffic),
            Property::sometimes("another member reigns", |_, state: &Fleet| state.reigns),
        ]
    }
}

fn check(third: Preference, faults: u8) {
    let model = Failover(third, faults);
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("members: {} unique states, depth {}", checker.unique_state_count(), checker.max_depth());
    for (name, path) in checker.discoveries() {
        if name != "another member reigns" {
            println!("{name}: broken by {:?}", path.into_actions());
        }
    }
    checker.assert_properties();
}

#[test]
fn a_failover_between_members_is_safe_with_two_data_members_and_a_witness() {
    check(Preference::Witness, 2);
}

#[test]
fn a_failover_between_members_is_safe_with_three_data_members() {
    check(Preference::Data, 2);
}
