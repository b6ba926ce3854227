//! Opening the primary.

use fleet_topology::*;

use crate::views::*;

/// Term 1 is recorded, nobody has been told of it.
fn recorded(replicas: u32) -> ClusterView {
    let mut view = empty(replicas);
    view.record = decide(&view).record.unwrap();
    view
}

#[test]
fn the_others_follow_before_the_primary_opens() {
    let mut view = recorded(3);
    let decision = decide(&view);
    says(
        &decision,
        State::Bootstrapping,
        &["1 ackers have to follow it, 0 do", "instance 1 is told to follow instance 0"],
    );
    assert_eq!(orders(&decision), [(1, follow(0, true)), (2, follow(0, true))]);

    view.follow(2, 0, true);
    view.facts(2).persisted_term = Term(1);
    let decision = decide(&view);
    says(&decision, State::Bootstrapping, &["instance 0 is opened for term 1"]);
    assert_eq!(orders(&decision), [(1, follow(0, true)), (0, open(1))]);
    assert_eq!(decision.traffic.primary, None);
}

#[test]
fn an_acker_counts_once_it_refuses_earlier_terms() {
    let mut view = recorded(3);
    view.follow(1, 0, true);
    assert_eq!(orders(&decide(&view)), [(1, follow(0, true)), (2, follow(0, true))]);
}

#[test]
fn five_instances_need_two_ackers() {
    let mut view = recorded(5);
    for instance in 1..5 {
        view.facts(instance).persisted_term = Term(1);
    }
    view.follow(3, 0, true);
    assert!(!orders(&decide(&view)).contains(&(0, open(2))));
    view.follow(4, 0, true);
    assert!(orders(&decide(&view)).contains(&(0, open(2))));
}

#[test]
fn a_primary_alone_opens_by_itself() {
    let decision = decide(&recorded(1));
    assert_eq!(orders(&decision), [(0, open(0))]);
    says(&decision, State::Bootstrapping, &[]);
}

#[test]
fn an_opening_primary_gets_traffic_only_after_its_first_transaction() {
    let mut view = healthy(3);
    view.server(0).recorded_term = Term::NONE;
    let decision = decide(&view);
    assert_eq!(decision.traffic.primary, None);
    assert_eq!(orders(&decision), [(0, open(1))]);
}

#[test]
fn a_primary_restarted_in_place_is_opened_again_in_the_same_term() {
    let mut view = healthy(3);
    view.restarted(0);
    let decision = decide(&view);
    says(&decision, State::WritesBlocked, &["instance 0 is opened for term 1"]);
    assert_eq!((orders(&decision), decision.record), (vec![(0, open(1))], None));
}

#[test]
fn a_primary_that_lost_transactions_is_kept_closed_and_replaced() {
    let mut view = healthy(3);
    view.restarted(0);
    view.server(0).executed = trx(0, 9);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["instance 0 is kept closed", "instance 1 holds", ":10"]);
    let holder = decision.instances.iter().find(|verdict| verdict.id == id(1)).unwrap();
    has_all(
        &holder.message,
        &["of instance 0 that it has lost", "had not made yet when it was asked", ":10"],
    );
    assert_eq!(decision.record.unwrap().stage, Stage::Fencing);
    assert_eq!(decision.orders, vec![]);
    assert_eq!(decision.traffic.primary, None);
}

#[test]
fn a_primary_that_lost_its_volume_is_kept_closed() {
    for server in [0, 9] {
        let mut view = healthy(3);
        *view.server(0) = idle_server(server);
        view.facts(0).persisted_term = Term::NONE;
        assert_eq!(decide(&view).record.unwrap().stage, Stage::Fencing);

        view.silent(2, 5000);
        let decision = decide(&view);
        let why = ["instance 0 is kept closed", "instance 1 holds", "1 do: instance 2 runs, and its agent"];
        says(&decision, State::FailoverBlocked, &why);
        assert_eq!((decision.record, decision.orders), (None, vec![]));
        assert_eq!(decision.traffic.primary, None);
    }
}

#[test]
fn nobody_gets_the_data_of_a_primary_that_lost_transactions() {
    let mut view = healthy(3);
    view.restarted(0);
    (view.server(0).executed, view.server(0).purged) = (trx(0, 9), trx(0, 5));
    *view.server(2) = idle_server(2);
    view.ackers.clear();
    let decision = decide(&view);
    says(&decision, State::FailoverBlocked, &["instance 0 is kept closed", "instance 1 holds", ":10"]);
    assert_eq!(decision.orders, vec![]);
}

#[test]
fn an_emptied_primary_is_kept_closed_though_nobody_else_knows_what_it_held() {
    let mut view = healthy(1);
    assert_eq!(view.opened, Term(1));
    *view.server(0) = idle_server(9);
    view.facts(0).persisted_term = Term::NONE;
    let decision = decide(&view);
    says(&decision, State::FailoverBlocked, &["instance 0 is kept closed: it has lost its data", "term 1"]);
    assert_eq!((decision.record, decision.orders, decision.opened), (None, vec![], Term(1)));

    let mut view = healthy(3);
    for instance in 0..3 {
        *view.instance(instance) = idle_instance(instance);
    }
    says(&decide(&view), State::FailoverBlocked, &["instance 0 is kept closed: it has lost its data"]);
}

#[test]
fn a_primary_of_a_new_reign_is_opened_whatever_the_reigns_before() {
    let mut view = recorded(1);
    (view.record.term, view.record.primary_since, view.opened) = (Term(4), Term(4), Term(3));
    assert_eq!(orders(&decide(&view)), [(0, open(0))]);
}

#[test]
fn a_reign_counts_as_opened_once_its_first_transaction_is_there() {
    let mut view = recorded(1);
    view.server(0).super_read_only = false;
    assert_eq!(decide(&view).opened, Term::NONE);
    view.server(0).recorded_term = Term(1);
    assert_eq!(decide(&view).opened, Term(1));
}

#[test]
fn a_primary_with_the_data_of_an_earlier_term_is_kept_closed() {
    let mut view = healthy(3);
    (view.record.term, view.record.quorum_since) = (Term(2), Term(2));
    *view.server(0) = ServerFacts { recorded_term: Term(1), executed: trx(0, 5), ..idle_server(9) };
    assert_eq!(*standing(&decide(&view), 1), Standing::Errant(trx(0, 10).subtract(&trx(0, 5))));
    view.ackers.clear();
    view.server(1).recorded_term = Term(2);
    says(&decide(&view), State::FailoverBlocked, &["instance 0 is kept closed", "instance 1 holds"]);
}

#[test]
fn a_chosen_primary_that_lost_its_data_before_it_was_opened_is_kept_closed() {
    let mut view = recorded(3);
    view.server(1).executed = trx(5, 10);
    let decision = decide(&view);
    says(&decision, State::FailoverBlocked, &["instance 0 is kept closed", "instance 1 holds"]);
    assert_eq!(decision.record, None);
    assert!(!orders(&decision).iter().any(|(instance, _)| *instance < 2));
}

#[test]
fn an_errant_replica_does_not_keep_the_primary_closed() {
    let mut view = healthy(3);
    view.restarted(0);
    view.server(1).executed = trx(0, 10).union(&trx(1, 1));
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(0, open(1))]);
    assert_eq!(*standing(&decision, 1), Standing::Errant(trx(1, 1)));

    view.restarted(2);
    let decision = decide(&view);
    says(&decision, State::WritesBlocked, &["1 ackers have to follow it, 0 do"]);
}

/// It was not replaced by a failover that left it too few ackers: it is of this reign, or of one before that nobody
/// was revoked in.
#[test]
fn an_instance_whose_commits_may_be_acknowledged_keeps_the_primary_closed() {
    for (recorded_term, promotion_point) in [(Term(1), Some(trx(0, 5))), (Term::NONE, None)] {
        let mut view = healthy(3);
        view.restarted(0);
        view.record.promotion_point = promotion_point;
        let server = view.server(2);
        (server.super_read_only, server.semi_sync_source) = (false, true);
        server.recorded_term = recorded_term;
        let decision = decide(&view);
        says(&decision, State::WritesBlocked, &["instance 2 takes writes and has to be closed first"]);
        assert_eq!(orders(&decision), [(2, Action::Fence)]);
    }
}

#[test]
fn a_stopping_primary_is_not_opened() {
    let mut view = healthy(3);
    view.restarted(0);
    view.facts(0).process = ProcessState::Stopping;
    assert_eq!(decide(&view).orders, vec![]);
    view.facts(0).process = ProcessState::Running;
    view.instance(0).pod = PodState::Terminating;
    let decision = decide(&view);
    assert_eq!(decision.orders, vec![]);
    says(&decision, State::WritesBlocked, &["its pod is being deleted"]);
}

#[test]
fn commits_that_wait_for_too_few_are_made_to_wait_or_stopped() {
    let mut view = healthy(3);
    view.server(0).semi_sync_source = false;
    let decision = decide(&view);
    says(&decision, State::WritesBlocked, &["wait for 0 acknowledgements instead of 1"]);
    assert_eq!(orders(&decision), [(0, open(1))]);
    assert_eq!(decision.traffic.primary, None);

    view.down(1);
    view.silent(2, 9000);
    assert_eq!(orders(&decide(&view)), [(0, Action::Close)]);
}

#[test]
fn writes_are_blocked_when_too_few_acknowledge() {
    let mut view = healthy(3);
    view.down(1);
    says(&decide(&view), State::Degraded, &["instance 1 starts mysqld again"]);
    view.down(2);
    view.server(0).semi_sync_clients = 0;
    let decision = decide(&view);
    says(&decision, State::WritesBlocked, &["waits for 1 acknowledgements, 0 can be given", "instance 2"]);
    assert_eq!(decision.traffic.primary, Some(id(0)));
}

#[test]
fn ackers_that_cannot_be_asked_are_believed_to_the_primary() {
    let mut view = healthy(3);
    view.silent(1, 100);
    view.silent(2, 100);
    says(&decide(&view), State::Degraded, &["instance 1", "instance 2"]);
    view.server(0).semi_sync_clients = 0;
    says(&decide(&view), State::WritesBlocked, &[]);
}
