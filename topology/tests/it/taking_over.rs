//! Another primary in place of a lost one, or of one that hands over.

use fleet_topology::*;

use crate::views::*;

/// Primary 0 has ended and its loss is recorded as term 2: nobody is told yet.
fn fencing(replicas: u32) -> ClusterView {
    let mut view = healthy(replicas);
    view.down(0);
    for instance in 1..replicas {
        view.replication(instance).receiver = ThreadState::Connecting;
        view.server(instance).semi_sync_replica = false;
    }
    view.record = decide(&view).record.unwrap();
    view
}

/// The acker has been told, and receives nothing more.
fn revoke(view: &mut ClusterView, instance: u32) {
    view.facts(instance).persisted_term = view.record.term;
    view.replication(instance).receiver = ThreadState::Stopped;
}

/// Instance 1 has taken over from the lost primary 0 and is open in term 3; instance 2 follows it.
fn taken_over() -> ClusterView {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.record = decide(&view).record.unwrap();
    for instance in [1, 2] {
        view.facts(instance).persisted_term = Term(3);
        let server = view.server(instance);
        server.executed = trx(0, 10).union(&trx(1, 1));
        (server.recorded_term, server.recorded_by) = (Term(3), Some(uuid(1)));
    }
    view.follow(2, 1, true);
    let server = view.server(1);
    (server.super_read_only, server.replication) = (false, None);
    (server.semi_sync_source, server.semi_sync_clients) = (true, 1);
    view
}

/// The old primary is back: closed, with what it held.
fn comes_back(view: &mut ClusterView, held: GtidSet) {
    view.instance(0).facts = healthy(3).instance(0).facts.clone();
    view.restarted(0);
    view.facts(0).persisted_term = Term(2);
    view.server(0).executed = held;
}

#[test]
fn ackers_are_revoked_and_the_old_primary_is_ended() {
    let mut view = fencing(3);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["instance 0 was lost", "receive nothing more"]);
    assert_eq!(orders(&decision), [(1, Action::Close), (2, Action::Close), (0, Action::Fence)]);
    assert!(decision.orders.iter().all(|order| order.term == Term(2)));
    assert_eq!(decision.traffic.after(Some(id(0)), &[]).0, None, "it must get no more writes");

    view.facts(0).persisted_term = Term(2);
    revoke(&mut view, 1);
    let decision = decide(&view);
    assert_eq!((orders(&decision), decision.record), (vec![(2, Action::Close)], None));

    // It was told, and takes writes all the same.
    comes_back(&mut view, trx(0, 10));
    view.server(0).super_read_only = false;
    assert_eq!(orders(&decide(&view)), [(2, Action::Close), (0, Action::Fence)]);
}

#[test]
fn an_acker_whose_receiver_may_still_connect_is_not_revoked() {
    for receiver in [ThreadState::Running, ThreadState::Connecting] {
        let mut view = fencing(3);
        revoke(&mut view, 1);
        revoke(&mut view, 2);
        view.replication(2).receiver = receiver;
        assert_eq!(decide(&view).record, None);
    }
}

#[test]
fn an_acker_that_would_follow_orders_of_the_lost_term_is_not_revoked() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.facts(2).persisted_term = Term(1);
    assert_eq!(decide(&view).record, None);
}

#[test]
fn the_instance_that_holds_everything_takes_over() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.server(1).executed = trx(0, 8);
    view.replication(1).retrieved = trx(0, 9);
    view.replication(2).retrieved = trx(0, 12);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.term, record.primary, record.primary_since), (Term(3), Some(id(2)), Term(3)));
    assert_eq!((record.stage, record.promotion_point), (Stage::Reign, Some(trx(0, 12))));
    assert_eq!(record.quorum, view.record.quorum);
}

#[test]
fn of_equals_the_one_that_has_applied_everything_takes_over() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.server(1).executed = trx(0, 9);
    assert_eq!(decide(&view).record.unwrap().primary, Some(id(2)));
}

#[test]
fn five_instances_go_on_with_three_of_their_four_ackers() {
    let mut view = fencing(5);
    for instance in [1, 2] {
        revoke(&mut view, instance);
    }
    view.silent(3, 5000);
    assert_eq!(decide(&view).record, None);
    revoke(&mut view, 4);
    assert_eq!(decide(&view).record.unwrap().primary, Some(id(1)));
}

#[test]
fn what_no_one_holds_whole_is_fetched_first() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.server(1).executed = trx(0, 10).union(&trx(5, 1));
    view.server(2).executed = trx(0, 12);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["gets what", "holds first"]);
    assert_eq!((orders(&decision), decision.record), (vec![(2, follow(1, false))], None));
    // What it has received is applied before others can get it.
    view.server(1).executed = trx(0, 10);
    view.replication(1).retrieved = trx(0, 10).union(&trx(5, 1));
    view.replication(1).applier = ThreadState::Stopped;
    assert_eq!(orders(&decide(&view)), [(2, follow(1, false)), (1, Action::Close)]);
}

#[test]
fn an_instance_that_is_ending_does_not_take_over() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.facts(1).process = ProcessState::Leaving;
    assert_eq!(decide(&view).record.unwrap().primary, Some(id(2)));
    view.facts(2).process = ProcessState::Leaving;
    says(&decide(&view), State::FailoverBlocked, &["can become the primary", "are stopping"]);
}

#[test]
fn an_instance_that_takes_writes_is_closed_before_it_is_revoked() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.server(2).super_read_only = false;
    let decision = decide(&view);
    assert_eq!(decision.record, None);
    assert!(orders(&decision).contains(&(2, Action::Close)), "{:?}", decision.orders);
}

#[test]
fn an_instance_with_errant_transactions_never_takes_over() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.server(1).executed = trx(0, 10).union(&trx(1, 1));
    view.ackers.iter_mut().find(|known| known.instance == id(1)).unwrap().errant = trx(1, 1);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.promotion_point), (Some(id(2)), Some(trx(0, 10))));
}

#[test]
fn errant_transactions_are_remembered_while_there_is_a_primary_to_compare_with() {
    let mut view = healthy(3);
    view.server(1).executed = trx(0, 10).union(&trx(1, 1));
    let known = decide(&view).ackers;
    assert_eq!((known[1].instance, &known[1].errant), (id(1), &trx(1, 1)));
}

#[test]
fn an_old_primary_that_is_back_before_enough_ackers_are_stays_the_primary() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    view.silent(2, 5000);
    says(&decide(&view), State::FailoverBlocked, &["instance 0 was lost", "instance 2 runs, and its agent"]);
    comes_back(&mut view, trx(0, 11));
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["instance 0 is back and stays the primary"]);
    let record = decision.record.unwrap();
    assert_eq!((record.term, record.primary, record.stage), (Term(3), Some(id(0)), Stage::Reign));
    assert_eq!((record.primary_since, record.quorum_since), (Term(1), Term(1)));

    view.facts(0).volume_id = "another".to_owned();
    says(&decide(&view), State::FailoverBlocked, &["instance 2 runs, and its agent"]);
}

#[test]
fn a_new_primary_opens_once_enough_ackers_follow_it() {
    let mut view = taken_over();
    view.restarted(1);
    let server = view.server(1);
    (server.executed, server.recorded_term, server.recorded_by) = (trx(0, 10), Term(1), Some(uuid(0)));
    let server = view.server(2);
    (server.executed, server.recorded_term) = (trx(0, 10), Term(1));
    view.replication(2).retrieved = trx(0, 10);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["instance 1 is opened for term 3"]);
    assert_eq!(orders(&decision), [(1, open(1))]);

    view.server(1).executed = trx(0, 9);
    says(&decide(&view), State::FailoverBlocked, &["instance 1 is kept closed", "when it was chosen", ":10"]);
}

#[test]
fn an_old_primary_that_hangs_open_does_not_keep_the_new_one_closed() {
    let mut view = taken_over();
    view.restarted(1);
    view.server(1).recorded_term = Term(1);
    comes_back(&mut view, trx(0, 10));
    view.server(0).super_read_only = false;
    (view.server(0).semi_sync_source, view.server(0).required_acks) = (true, 1);
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(0, Action::Fence), (1, open(1))]);
    view.server(0).semi_sync_source = false;
    assert_eq!(orders(&decide(&view)), [(0, Action::Close)]);
}

/// One acker is left to it, and it waits for no more.
#[test]
fn an_old_primary_that_waits_for_too_few_keeps_the_new_one_closed() {
    let mut view = fencing(5);
    for instance in 1..5 {
        revoke(&mut view, instance);
    }
    view.record = decide(&view).record.unwrap();
    comes_back(&mut view, trx(0, 10));
    (view.server(0).super_read_only, view.server(0).semi_sync_source) = (false, true);
    for instance in 1..5 {
        view.facts(instance).persisted_term = Term(3);
        view.follow(instance, 1, true);
    }
    view.server(1).replication = None;
    view.server(0).required_acks = 2;
    assert_eq!(orders(&decide(&view)), [(0, Action::Fence), (1, open(2))]);
    view.server(0).required_acks = 1;
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(0, Action::Fence)]);
    says(&decision, State::PrimaryLost, &["instance 0 takes writes and has to be closed first"]);
}

#[test]
fn an_old_primary_without_a_tail_follows() {
    let mut view = taken_over();
    comes_back(&mut view, trx(0, 10));
    assert_eq!(orders(&decide(&view)), [(0, follow(1, true))]);
}

#[test]
fn an_old_primary_with_a_tail_is_archived_and_copied_anew() {
    let mut view = taken_over();
    comes_back(&mut view, trx(0, 13));
    let tail = trx(0, 13).subtract(&trx(0, 10));
    let decision = decide(&view);
    says(&decision, State::Cloning, &["nobody acknowledged"]);
    let expendable = trx(0, 13).union(&trx(1, 1));
    assert_eq!(orders(&decision), [(0, Action::Clone { donor: id(2), expendable, archive: tail })]);
}

#[test]
fn the_tail_of_a_lost_primary_is_one_on_every_instance_that_has_not_gone_on() {
    let mut view = taken_over();
    view.instance(2).facts = healthy(3).instance(2).facts.clone();
    view.restarted(2);
    view.server(2).executed = trx(0, 11);
    let archive = trx(0, 11).subtract(&trx(0, 10));
    let expendable = trx(0, 11).union(&trx(1, 1));
    assert!(orders(&decide(&view)).contains(&(2, Action::Clone { donor: id(1), expendable, archive })));
}

#[test]
fn transactions_that_no_primary_made_are_no_tail() {
    for foreign in [trx(2, 1), trx(7, 1), trx(0, 13).union(&trx(2, 1))] {
        let mut view = taken_over();
        comes_back(&mut view, trx(0, 10).union(&foreign));
        let decision = decide(&view);
        assert!(matches!(standing(&decision, 0), Standing::Errant(_)), "{:?}", standing(&decision, 0));
        assert_eq!(decision.orders, vec![]);
    }
    // Once it has gone on to the new primary's reign, nothing of its own can be a tail.
    for recorded_by in [0, 1] {
        let mut view = taken_over();
        comes_back(&mut view, trx(0, 11).union(&trx(1, 1)));
        (view.server(0).recorded_term, view.server(0).recorded_by) = (Term(3), Some(uuid(recorded_by)));
        assert!(matches!(standing(&decide(&view), 0), Standing::Errant(_)));
    }
}

/// What the old primary alone holds may be what the new one has lost.
#[test]
fn nothing_is_a_tail_of_a_primary_that_has_lost_what_it_was_chosen_for() {
    let mut view = taken_over();
    comes_back(&mut view, trx(0, 11));
    view.record.promotion_point = Some(trx(0, 12));
    let decision = decide(&view);
    assert!(matches!(standing(&decision, 0), Standing::Errant(_)), "{:?}", standing(&decision, 0));
    assert_eq!(decision.orders, vec![]);
}

#[test]
fn a_new_primary_that_is_lost_before_it_opens_is_replaced_by_those_who_hold_what_it_did() {
    let mut view = taken_over();
    comes_back(&mut view, trx(0, 11));
    view.down(1);
    let server = view.server(2);
    (server.executed, server.recorded_term, server.recorded_by) = (trx(0, 10), Term(1), Some(uuid(0)));
    let replication = view.replication(2);
    (replication.receiver, replication.retrieved) = (ThreadState::Connecting, trx(0, 10));
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["2 faithful ackers"]);
    assert_eq!(decision.record.unwrap().stage, Stage::Fencing);

    view.record.promotion_point = Some(trx(0, 12));
    says(&decide(&view), State::FailoverBlocked, &["first transaction of term 3"]);
}

#[test]
fn a_mysqld_that_hangs_is_lost_once_nobody_receives_from_it() {
    let mut view = healthy(3);
    (view.facts(0).server, view.facts(0).silent_for_ms) = (None, Some(3000));
    says(&decide(&view), State::Incomplete, &["does not answer, but instance 1 receives from it"]);
    for instance in [1, 2] {
        view.replication(instance).receiver = ThreadState::Connecting;
    }
    assert_eq!(decide(&view).record.unwrap().stage, Stage::Fencing);
    view.facts(0).silent_for_ms = Some(2999);
    says(&decide(&view), State::Incomplete, &["is suspected after 3000 ms"]);
}

#[test]
fn a_follower_that_hangs_is_ended() {
    let mut view = healthy(3);
    (view.facts(1).server, view.facts(1).silent_for_ms) = (None, Some(9999));
    assert_eq!(decide(&view).orders, vec![]);
    view.facts(1).silent_for_ms = Some(10_000);
    assert_eq!(orders(&decide(&view)), [(1, Action::Fence)]);

    let mut view = fencing(3);
    view.facts(0).persisted_term = Term(2);
    (view.facts(1).server, view.facts(1).silent_for_ms) = (None, Some(2999));
    assert_eq!(orders(&decide(&view)), [(2, Action::Close)]);
    view.facts(1).silent_for_ms = Some(3000);
    assert_eq!(orders(&decide(&view)), [(2, Action::Close), (1, Action::Fence)]);
}

#[test]
fn a_wanted_primary_takes_over_with_exactly_what_the_other_had() {
    let mut view = healthy(3);
    view.wanted_primary = Some(Wish::To(id(2)));
    let decision = decide(&view);
    says(&decision, State::SwitchoverRequested, &["instance 0 hands over"]);
    view.record = decision.record.unwrap();
    assert_eq!((view.record.term, view.record.stage), (Term(2), Stage::Handover { to: id(2) }));

    let decision = decide(&view);
    assert_eq!(orders(&decision), [(0, Action::Close)]);
    assert_eq!(decision.traffic.after(Some(id(0)), &[]).0, None);

    view.server(0).super_read_only = true;
    view.facts(0).persisted_term = Term(2);
    view.server(0).executed = trx(0, 11);
    says(&decide(&view), State::SwitchoverRequested, &["gets its last transactions"]);
    view.replication(2).retrieved = trx(0, 11);
    says(&decide(&view), State::SwitchoverRequested, &["gets its last transactions"]);
    view.server(2).executed = trx(0, 11);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.primary_since, record.planned), (Some(id(2)), Term(3), true));
    assert_eq!((record.stage, record.promotion_point), (Stage::Reign, Some(trx(0, 11))));
}

#[test]
fn nobody_takes_over_from_a_primary_that_takes_writes_or_could_be_opened_again() {
    // One has not been closed, the other by somebody else.
    for (closed, told) in [(false, Term(2)), (true, Term(1))] {
        let mut view = healthy(3);
        view.wanted_primary = Some(Wish::To(id(2)));
        view.record = decide(&view).record.unwrap();
        (view.server(0).super_read_only, view.facts(0).persisted_term) = (closed, told);
        let decision = decide(&view);
        assert_eq!(decision.record, None);
        assert!(orders(&decision).contains(&(0, Action::Close)), "{:?}", decision.orders);
    }
}

#[test]
fn a_handover_whose_other_end_fails_leaves_the_primary_as_it_was() {
    let mut view = healthy(3);
    view.wanted_primary = Some(Wish::To(id(2)));
    view.record = decide(&view).record.unwrap();
    view.down(2);
    let decision = decide(&view);
    says(
        &decision,
        State::SwitchoverRequested,
        &["instance 0 stays the primary", "instance 2 can't take over"],
    );
    let record = decision.record.unwrap();
    assert_eq!((record.stage, record.primary), (Stage::Reign, Some(id(0))));
    assert_eq!((record.primary_since, record.quorum_since), (Term(1), Term(1)));
}

#[test]
fn a_primary_that_is_lost_while_it_hands_over_is_replaced_by_proof() {
    let mut view = healthy(3);
    view.wanted_primary = Some(Wish::To(id(2)));
    view.record = decide(&view).record.unwrap();
    view.down(0);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &[]);
    let record = decision.record.unwrap();
    assert_eq!((record.term, record.stage), (Term(3), Stage::Fencing));
}

#[test]
fn nobody_hands_over_to_an_instance_that_could_not_go_on() {
    let with = |change: &dyn Fn(&mut ClusterView)| {
        let mut view = healthy(3);
        view.wanted_primary = Some(Wish::To(id(2)));
        change(&mut view);
        decide(&view)
    };
    let errant = with(&|view| view.server(2).executed = trx(0, 10).union(&trx(2, 1)));
    let down = with(&|view| view.down(2));
    let late = with(&|view| {
        view.server(0).executed = trx(0, 90);
        view.replication(2).lag_ms = Some(60_000);
    });
    let absent = with(&|view| view.wanted_primary = Some(Wish::To(id(7))));
    for (decision, why) in [
        (errant, "does not have"),
        (down, "starts mysqld"),
        (late, "is behind"),
        (absent, "no such instance"),
    ] {
        let Some(Fulfilment::Refused(reason)) = &decision.wish else {
            unreachable!("{why}: {:?}", decision.wish);
        };
        assert!(reason.contains("can't become the primary") && reason.contains(why), "{reason}");
        assert_eq!(decision.record, None);
        assert!(decision.state.takes_writes());
    }
}

#[test]
fn an_emptied_primary_that_was_never_open_takes_nobodys_data_along() {
    let mut view = taken_over();
    *view.server(1) = idle_server(9);
    view.facts(1).volume_id = "new".to_owned();
    view.silent(0, 5000);
    let server = view.server(2);
    (server.executed, server.recorded_term, server.recorded_by) = (trx(0, 10), Term(1), Some(uuid(0)));
    let decision = decide(&view);
    says(&decision, State::FailoverBlocked, &["instance 1 is kept closed"]);
    assert_eq!(decision.orders, vec![]);
}

#[test]
fn a_tail_never_gets_into_the_cluster_by_a_second_failover() {
    for tail in [11, 13, 90] {
        let mut view = taken_over();
        comes_back(&mut view, trx(0, tail));
        view.down(1);
        view.replication(2).receiver = ThreadState::Connecting;
        view.record = decide(&view).record.unwrap();
        revoke(&mut view, 2);
        view.facts(0).persisted_term = Term(4);
        let decision = decide(&view);
        assert_eq!(decision.orders, vec![]);
        let record = decision.record.unwrap();
        assert_eq!(record.primary, Some(id(2)));
        assert_eq!(record.promotion_point, Some(trx(0, 10).union(&trx(1, 1))));
    }
}

/// Instance 2 has acknowledged what nobody else has, and is no replica of the lost primary any more.
#[test]
fn what_was_acknowledged_is_no_tail_of_an_instance_that_has_gone_on() {
    let mut view = taken_over();
    comes_back(&mut view, trx(0, 10));
    view.down(1);
    view.replication(2).receiver = ThreadState::Connecting;
    view.record = decide(&view).record.unwrap();
    view.server(2).replication = None;
    for instance in [0, 2] {
        view.facts(instance).persisted_term = Term(4);
    }
    let record = decide(&view).record.unwrap();
    assert_eq!(record.primary, Some(id(2)));
    assert_eq!(record.promotion_point, Some(trx(0, 10).union(&trx(1, 1))));
}

/// Instance 0 is the primary again, and instance 2 has not executed anything since its first reign.
#[test]
fn what_was_received_from_the_lost_primary_is_no_tail_of_an_earlier_reign_of_it() {
    let mut view = fencing(3);
    (view.record.term, view.record.primary_since, view.record.quorum_since) = (Term(6), Term(5), Term(5));
    view.record.promotion_point = Some(trx(0, 10));
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.replication(2).retrieved = trx(0, 12);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.promotion_point), (Some(id(2)), Some(trx(0, 12))));
}

#[test]
fn what_an_instance_holds_that_was_never_in_sync_counts_for_nothing() {
    let mut view = healthy(3);
    view.replicas = 5;
    let mut foreign = idle_instance(3);
    if let Observed::Known(facts) = &mut foreign.facts {
        facts.persisted_term = Term(2);
        facts.server.as_mut().unwrap().executed = trx(7, 2);
    }
    view.instances.push(foreign);
    view.down(0);
    for instance in [1, 2] {
        view.replication(instance).receiver = ThreadState::Stopped;
        view.facts(instance).persisted_term = Term(2);
    }
    (view.record.term, view.record.stage) = (Term(2), Stage::Fencing);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.promotion_point), (Some(id(1)), Some(trx(0, 10))));
}

#[test]
fn an_old_primary_is_taken_back_where_nobody_else_can_take_over() {
    let mut view = fencing(3);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    view.server(1).executed = trx(0, 12).union(&trx(1, 1));
    view.ackers.iter_mut().find(|known| known.instance == id(1)).unwrap().errant = trx(1, 1);
    says(&decide(&view), State::FailoverBlocked, &["nobody can give it"]);
    comes_back(&mut view, trx(0, 12));
    let record = decide(&view).record.unwrap();
    assert_eq!((record.stage, record.primary, record.term), (Stage::Reign, Some(id(0)), Term(3)));
}

#[test]
fn an_old_primary_whose_kernel_ended_is_not_taken_back_where_its_logs_were_not_synced() {
    let mut view = fencing(3);
    view.durability = Durability::Relaxed;
    revoke(&mut view, 1);
    view.silent(2, 5000);
    comes_back(&mut view, trx(0, 11));
    view.facts(0).boot_id = "another".to_owned();
    says(&decide(&view), State::FailoverBlocked, &[]);
    view.durability = Durability::Strict;
    assert_eq!(decide(&view).record.unwrap().stage, Stage::Reign);
}

#[test]
fn an_instance_that_still_receives_from_the_lost_primary_stops_before_it_follows_the_new_one() {
    let mut view = taken_over();
    view.instance(2).facts = healthy(3).instance(2).facts.clone();
    assert_eq!(orders(&decide(&view)), [(2, Action::Close)]);
    view.replication(2).receiver = ThreadState::Stopped;
    assert_eq!(orders(&decide(&view)), [(2, follow(1, true))]);
}

#[test]
fn received_transactions_are_applied_by_a_revoked_acker_that_was_restarted() {
    let mut view = fencing(3);
    view.facts(0).persisted_term = Term(2);
    for instance in [1, 2] {
        view.restarted(instance);
        view.facts(instance).persisted_term = Term(2);
        let server = view.server(instance);
        (server.executed, server.recorded_term, server.recorded_by) = (trx(0, 9), Term::NONE, None);
        view.replication(instance).retrieved = trx(0, 10);
    }
    assert_eq!(orders(&decide(&view)), [(1, Action::Close), (2, Action::Close)]);
}

#[test]
fn a_handover_ends_where_the_other_end_cannot_have_exactly_what_the_primary_had() {
    let closed = || {
        let mut view = healthy(3);
        view.wanted_primary = Some(Wish::To(id(2)));
        view.record = decide(&view).record.unwrap();
        view.server(0).super_read_only = true;
        view.server(0).executed = trx(0, 11);
        view.facts(0).persisted_term = Term(2);
        view
    };
    let mut fails = closed();
    fails.replication(2).applier = ThreadState::Failed;
    let mut unreachable = closed();
    unreachable.replication(2).receiver = ThreadState::Connecting;
    unreachable.replication(2).receiver_error = "no route".to_owned();
    let mut errant = closed();
    errant.server(2).executed = trx(0, 11).union(&trx(2, 1));
    let mut emptied = closed();
    emptied.server(0).executed = trx(0, 9);
    for view in [fails, unreachable, errant, emptied] {
        let record = decide(&view).record.unwrap();
        assert_eq!((record.stage, record.primary), (Stage::Reign, Some(id(0))));
    }
}

#[test]
fn a_primary_that_knows_of_a_later_term_is_not_ordered_to_hand_over_in_an_earlier_one() {
    let mut view = healthy(3);
    view.wanted_primary = Some(Wish::To(id(2)));
    view.record = decide(&view).record.unwrap();
    assert!(orders(&decide(&view)).contains(&(0, Action::Close)));
    view.facts(0).persisted_term = Term(9);
    assert!(!orders(&decide(&view)).contains(&(0, Action::Close)));
    // The same where it takes writes for the term on record, which is relied on then.
    view.server(0).recorded_term = Term(2);
    let decision = decide(&view);
    says(&decision, State::SwitchoverRequested, &["instance 0 is closed"]);
    assert!(!orders(&decision).contains(&(0, Action::Close)));
}

/// The primary takes writes, and its pod is about to end.
fn leaving() -> ClusterView {
    let mut view = healthy(3);
    view.facts(0).process = ProcessState::Leaving;
    view
}

#[test]
fn a_primary_that_ends_hands_over_first() {
    let mut deleted = healthy(3);
    deleted.instance(0).pod = PodState::Terminating;
    let mut told = leaving();
    told.instance(0).pod = PodState::Terminating;
    for mut view in [deleted, leaving(), told] {
        view.server(1).executed = trx(0, 9);
        let decision = decide(&view);
        says(&decision, State::SwitchoverRequested, &["instance 0 hands over"]);
        view.record = decision.record.unwrap();
        assert_eq!(view.record.stage, Stage::Handover { to: id(2) });
        assert!(orders(&decide(&view)).contains(&(0, Action::Close)));
        view.server(0).super_read_only = true;
        view.facts(0).persisted_term = Term(2);
        let record = decide(&view).record.unwrap();
        assert_eq!((record.primary, record.planned), (Some(id(2)), true));
    }
}

#[test]
fn a_primary_that_ends_goes_on_until_somebody_is_able_to_take_over() {
    let mut view = leaving();
    for instance in [1, 2] {
        view.server(instance).executed = trx(0, 3);
        view.replication(instance).retrieved = trx(0, 3);
        view.replication(instance).lag_ms = Some(60_000);
    }
    let decision = decide(&view);
    says(
        &decision,
        State::Degraded,
        &["instance 0 is the primary and leaves once another one can take over"],
    );
    assert_eq!((decision.record, decision.orders, decision.traffic.primary), (None, vec![], Some(id(0))));
    let mut alone = healthy(1);
    alone.facts(0).process = ProcessState::Leaving;
    assert_eq!(decide(&alone).record, None);
}

#[test]
fn a_primary_that_ends_hands_over_to_a_third_where_the_other_one_fails() {
    let mut view = leaving();
    view.record = decide(&view).record.unwrap();
    assert_eq!(view.record.stage, Stage::Handover { to: id(1) });
    view.server(0).super_read_only = true;
    view.facts(0).persisted_term = Term(2);
    view.down(1);
    let decision = decide(&view);
    says(&decision, State::SwitchoverRequested, &["instance 0 hands over to instance 2", "instance 1 can't"]);
    view.record = decision.record.unwrap();
    assert_eq!((view.record.term, view.record.stage), (Term(3), Stage::Handover { to: id(2) }));
    view.facts(0).persisted_term = Term(3);
    assert_eq!(decide(&view).record.unwrap().primary, Some(id(2)));
}

#[test]
fn an_instance_that_ends_is_not_followed_to_be_opened_and_not_given_the_primary() {
    let mut view = healthy(3);
    view.facts(1).process = ProcessState::Leaving;
    view.wanted_primary = Some(Wish::To(id(1)));
    assert!(matches!(decide(&view).wish, Some(Fulfilment::Refused(_))));
    let mut closed = leaving();
    closed.server(0).super_read_only = true;
    let decision = decide(&closed);
    says(&decision, State::WritesBlocked, &["is being stopped"]);
    assert!(!orders(&decision).contains(&(0, open(1))));
}

#[test]
fn a_primary_that_ends_and_misses_a_look_is_not_lost_for_that() {
    let mut view = leaving();
    view.facts(0).server = None;
    view.facts(0).silent_for_ms = Some(500);
    let decision = decide(&view);
    assert_eq!((decision.state, decision.record), (State::Incomplete, None));
}
