//! More instances and fewer.

use fleet_topology::*;

use crate::views::*;

fn quorum(decision: &Decision) -> Option<(u32, u32)> {
    decision.record.as_ref().map(|record| (record.quorum.ackers(), record.quorum.required_acks()))
}

/// A healthy cluster of `from` instances of which `to` are wanted, all of them there and empty.
fn resized(from: u32, to: u32) -> ClusterView {
    let mut view = healthy(from);
    view.replicas = to;
    view.instances.extend((from..to).map(idle_instance));
    view
}

fn joined(from: u32, to: u32) -> ClusterView {
    let mut view = resized(from, to);
    for instance in from..to {
        view.facts(instance).persisted_term = Term(1);
        view.server(instance).executed = trx(0, 10);
        view.follow(instance, 0, false);
    }
    view
}

#[test]
fn new_instances_follow_without_being_counted() {
    let decision = decide(&resized(1, 3));
    says(&decision, State::Degraded, &["instance 1", "wait for 0 acknowledgements instead of 1 until 2"]);
    assert_eq!(orders(&decision), [(1, follow(0, false)), (2, follow(0, false))]);
    assert_eq!((decision.pods, decision.traffic.primary), (3, Some(id(0))));
}

#[test]
fn the_quorum_grows_once_all_new_ackers_are_in_sync() {
    let mut view = joined(1, 3);
    view.down(2);
    assert_eq!(quorum(&decide(&view)), None);
    view = joined(1, 3);
    view.server(2).executed = trx(0, 3);
    view.replication(2).retrieved = trx(0, 3);
    view.replication(2).lag_ms = Some(60_000);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 2 is behind"]);
    assert_eq!(quorum(&decision), None);

    let decision = decide(&joined(1, 3));
    assert_eq!(quorum(&decision), Some((2, 1)));
    let record = decision.record.unwrap();
    assert_eq!((record.term, record.primary, record.primary_since), (Term(2), Some(id(0)), Term(1)));
    assert_eq!(record.quorum_since, Term(2));
    assert_eq!(decision.orders, vec![]);
}

#[test]
fn writes_go_on_while_the_quorum_changes() {
    let mut view = joined(1, 3);
    view.record = decide(&view).record.unwrap();
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(1, follow(0, true)), (2, follow(0, true))]);
    says(&decision, State::Degraded, &["instance 0 takes writes", "not opened for term 2 yet"]);
    assert_eq!(decision.traffic.primary, Some(id(0)));

    view.follow(1, 0, true);
    view.facts(1).persisted_term = Term(2);
    assert_eq!(orders(&decide(&view)), [(2, follow(0, true)), (0, open(1))]);
}

#[test]
fn blocked_commits_without_anybody_in_trouble_are_said_in_one_piece() {
    let mut view = resized(3, 1);
    view.down(1);
    view.down(2);
    view.server(0).semi_sync_clients = 0;
    let decision = decide(&view);
    says(&decision, State::WritesBlocked, &["waits for 1 acknowledgements, 0 can be given"]);
    assert!(decision.message.ends_with("can be given"), "{}", decision.message);
}

#[test]
fn fewer_are_waited_for_before_instances_go() {
    let mut view = resized(3, 1);
    let decision = decide(&view);
    assert_eq!((quorum(&decision), decision.pods), (Some((0, 0)), 3));
    view.record = decision.record.unwrap();
    let decision = decide(&view);
    // The ackers go on acknowledging: a commit that waits for them would otherwise wait for ever.
    assert_eq!(orders(&decision), [(0, open(0))]);
    assert_eq!(decision.pods, 3);

    view.facts(0).persisted_term = Term(2);
    view.server(0).recorded_term = Term(2);
    view.server(0).semi_sync_source = false;
    let decision = decide(&view);
    says(&decision, State::Healthy, &[]);
    assert_eq!(decision.pods, 1);
}

#[test]
fn the_quorum_gets_smaller_once_those_that_stay_suffice() {
    let mut view = resized(5, 3);
    view.down(1);
    view.down(2);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["wait for 2 acknowledgements instead of 1 until 1 of the new ackers"]);
    assert_eq!(quorum(&decision), None);

    let mut view = resized(5, 3);
    view.restarted(1);
    let decision = decide(&view);
    assert_eq!((quorum(&decision), decision.orders), (Some((2, 1)), vec![]), "an order waits for the record");
}

#[test]
fn the_quorum_does_not_change_before_another_open_instance_is_closed() {
    let mut view = resized(5, 3);
    view.server(4).super_read_only = false;
    let decision = decide(&view);
    assert_eq!((quorum(&decision), orders(&decision)), (None, vec![(4, Action::Close)]));
}

#[test]
fn an_instance_that_leaves_stops_acknowledging_before_fewer_are_waited_for() {
    let mut view = resized(5, 3);
    view.record = decide(&view).record.unwrap();
    for instance in 1..5 {
        view.facts(instance).persisted_term = Term(2);
    }
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 3 has to stop acknowledging first"]);
    assert_eq!(orders(&decision), [(3, follow(0, false)), (4, follow(0, false))]);

    view.server(3).semi_sync_replica = false;
    let four = view.instance(4).clone();
    view.silent(4, 100);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 4 might still acknowledge"]);
    assert_eq!(decision.orders, vec![]);

    *view.instance(4) = four;
    view.server(4).semi_sync_replica = false;
    says(&decide(&view), State::Degraded, &["4 replicas acknowledge to it, and only 2 are counted"]);
    view.server(0).semi_sync_clients = 2;
    assert_eq!(orders(&decide(&view)), [(0, open(1))]);
}

#[test]
fn a_primary_is_never_removed_before_another_one_has_taken_over() {
    let mut view = healthy(3);
    view.replicas = 1;
    view.record.primary = Some(id(2));
    view.instances.swap(0, 2);
    let mut zero = view.instance(0).clone();
    let mut two = view.instance(2).clone();
    std::mem::swap(&mut zero.facts, &mut two.facts);
    view.instances = vec![zero, view.instances[1].clone(), two];
    for instance in [0, 1] {
        view.follow(instance, 2, true);
    }
    let decision = decide(&view);
    says(&decision, State::SwitchoverRequested, &["instance 2 hands over"]);
    assert_eq!(decision.record.unwrap().stage, Stage::Handover { to: id(0) });
    assert_eq!(decision.pods, 3);

    view.down(0);
    let decision = decide(&view);
    says(
        &decision,
        State::Degraded,
        &["instance 2 is the primary and leaves once another one can take over"],
    );
    assert_eq!((decision.record, decision.pods), (None, 3));
}

#[test]
fn an_instance_that_leaves_is_told_of_the_term_before_the_primary_opens_for_it() {
    let mut view = healthy(5);
    view.replicas = 3;
    view.record = decide(&view).record.unwrap();
    assert_eq!(view.record.quorum, Quorum::for_replicas(3).unwrap());
    for instance in [1, 2, 4] {
        view.facts(instance).persisted_term = Term(2);
    }
    view.server(4).semi_sync_replica = false;
    view.replication(3).receiver = ThreadState::Connecting;
    view.server(3).semi_sync_replica = false;
    view.server(0).semi_sync_clients = 2;
    let given = orders(&decide(&view));
    assert!(given.contains(&(3, follow(0, false))), "{given:?}");
    assert!(!given.iter().any(|(instance, _)| *instance == 0), "{given:?}");
    view.facts(3).persisted_term = Term(2);
    assert!(orders(&decide(&view)).contains(&(0, open(1))));
    // Somebody acknowledges whom nobody knows.
    view.down(1);
    assert!(!orders(&decide(&view)).contains(&(0, open(1))));
}
