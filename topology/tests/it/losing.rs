//! A primary that does not answer.

use fleet_topology::decide::UNREACHED_AFTER_MS;
use fleet_topology::*;

use crate::views::*;

/// The primary is silent, and no receiver reaches it.
fn lost() -> ClusterView {
    let mut view = healthy(3);
    view.silent(0, 5000);
    for instance in [1, 2] {
        view.replication(instance).receiver = ThreadState::Connecting;
        view.server(instance).semi_sync_replica = false;
    }
    view
}

#[test]
fn a_primary_that_nobody_reaches_is_lost() {
    let view = lost();
    let decision = decide(&view);
    says(
        &decision,
        State::PrimaryLost,
        &["instance 0 runs, and its agent does not answer", "2 faithful ackers"],
    );
    let fencing = decision.record.unwrap();
    assert_eq!((fencing.term, fencing.stage, fencing.primary), (Term(2), Stage::Fencing, Some(id(0))));
    assert_eq!(fencing.quorum, view.record.quorum);
    assert_eq!(decision.orders, vec![], "nothing is ordered for a term that is not recorded");
}

#[test]
fn a_primary_whose_mysqld_ended_is_lost_at_once() {
    let mut view = lost();
    view.instance(0).facts = healthy(3).instance(0).facts.clone();
    view.down(0);
    says(&decide(&view), State::PrimaryLost, &["instance 0 starts mysqld again"]);
}

#[test]
fn a_primary_that_stops_is_lost_once_it_is_closed() {
    let mut view = healthy(3);
    view.facts(0).process = ProcessState::Stopping;
    assert_eq!(decide(&view).record, None);
    view.server(0).super_read_only = true;
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["instance 0 is being stopped"]);
    assert_eq!(decision.record.unwrap().stage, Stage::Fencing);

    let mut alone = healthy(1);
    alone.facts(0).process = ProcessState::Stopping;
    alone.server(0).super_read_only = true;
    says(&decide(&alone), State::WritesBlocked, &["is being stopped"]);
}

#[test]
fn a_primary_without_a_pod_is_lost_at_once() {
    for pod in [PodState::Absent, PodState::Pending] {
        let mut view = lost();
        view.silent(0, 0);
        view.instance(0).pod = pod;
        says(&decide(&view), State::PrimaryLost, &[]);
    }
}

#[test]
fn a_short_silence_is_no_evidence() {
    let mut view = lost();
    view.silent(0, 2999);
    says(&decide(&view), State::Incomplete, &["is suspected after 3000 ms"]);
    view.instance(0).pod = PodState::Terminating;
    says(&decide(&view), State::Incomplete, &[]);
}

#[test]
fn a_primary_whose_mysqld_misses_a_look_is_not_lost_and_keeps_its_traffic() {
    let mut view = healthy(3);
    view.facts(0).server = None;
    let decision = decide(&view);
    says(&decision, State::Incomplete, &["instance 0 runs a mysqld that does not answer"]);
    assert_eq!(decision.orders, vec![]);
    assert_eq!(decision.traffic.after(Some(id(0)), &[id(1), id(2)]), (Some(id(0)), vec![id(1), id(2)]));
}

#[test]
fn what_is_said_of_silence_does_not_change_with_its_length() {
    let said = |for_ms: u64| {
        let mut view = lost();
        view.silent(0, for_ms);
        view.silent(1, for_ms);
        let decision = decide(&view);
        (decision.message, decision.instances)
    };
    assert_eq!(said(5000), said(5001));
    assert_eq!(said(100), said(101));
}

#[test]
fn a_primary_that_a_replica_receives_from_is_not_lost() {
    let mut view = lost();
    view.replication(2).receiver = ThreadState::Running;
    let decision = decide(&view);
    says(&decision, State::Incomplete, &["its agent does not answer", "instance 2 receives from it"]);
    assert_eq!(decision.orders, vec![]);
}

/// The primary answers, and its ackers have been connecting for that long.
fn unreached(for_ms: u64) -> ClusterView {
    let mut view = healthy(3);
    view.server(0).semi_sync_clients = 0;
    for instance in [1, 2] {
        let replication = view.replication(instance);
        (replication.receiver, replication.connecting_for_ms) = (ThreadState::Connecting, Some(for_ms));
        view.server(instance).semi_sync_replica = false;
    }
    view
}

#[test]
fn a_primary_that_lets_none_of_its_ackers_in_is_replaced() {
    let decision = decide(&unreached(UNREACHED_AFTER_MS));
    says(&decision, State::PrimaryLost, &["instance 0", "its ackers do not get in", "2 faithful ackers"]);
    assert_eq!(decision.record.unwrap().stage, Stage::Fencing);
    let decision = decide(&unreached(UNREACHED_AFTER_MS - 1));
    says(&decision, State::WritesBlocked, &[]);
    assert_eq!(decision.record, None);
}

#[test]
fn a_primary_is_kept_while_a_commit_may_be_acknowledged() {
    let kept = |why: &str, change: fn(&mut ClusterView)| {
        let mut view = unreached(UNREACHED_AFTER_MS);
        change(&mut view);
        let decision = decide(&view);
        let ended = decision.orders.iter().any(|order| order.action == Action::Fence);
        assert!(decision.record.is_none() && !ended, "{why}: {decision:?}");
    };
    kept("instance 2 acknowledges", |view| {
        view.follow(2, 0, true);
        view.server(0).semi_sync_clients = 1;
    });
    kept("an instance whose acknowledgements do not count any more gives them", |view| {
        view.instances.push(idle_instance(3));
        view.server(3).executed = trx(0, 10);
        view.follow(3, 0, true);
        view.server(0).semi_sync_clients = 1;
    });
    kept("instance 2 has just begun to connect", |view| view.replication(2).connecting_for_ms = Some(0));
    kept("instance 2 is not heard", |view| view.silent(2, 20_000));
    kept("no commit waits", |view| view.record.quorum = Quorum::ALONE);
}

#[test]
fn mysqld_of_a_primary_that_lets_nobody_in_is_started_anew_where_nobody_can_take_over() {
    let mut view = unreached(UNREACHED_AFTER_MS);
    view.facts(2).volume_id = "another".to_owned();
    let decision = decide(&view);
    says(&decision, State::WritesBlocked, &["its ackers do not get in, and its mysqld is started anew"]);
    let fence = Order { instance: id(0), term: Term(1), action: Action::Fence };
    assert_eq!((decision.record, decision.orders), (None, vec![fence]));
    // It is opened again only once they have got in.
    view.restarted(0);
    assert!(decide(&view).orders.iter().all(|order| order.instance != id(0)));
}

#[test]
fn a_shard_that_has_just_started_says_nothing_and_cuts_nobody_off() {
    let mut view = healthy(3);
    for instance in 0..3 {
        view.silent(instance, 0);
    }
    let decision = decide(&view);
    says(&decision, State::Incomplete, &[]);
    assert_eq!(decision.traffic.after(Some(id(0)), &[id(1), id(2)]), (Some(id(0)), vec![id(1), id(2)]));
    assert_eq!(decision.ackers, view.ackers);
}

#[test]
fn too_few_faithful_ackers_block_a_failover_and_are_named() {
    let mut view = lost();
    view.silent(2, 9000);
    says(
        &decide(&view),
        State::FailoverBlocked,
        &["2 faithful ackers have to prove", "1 do", "instance 2 runs, and its agent"],
    );

    let mut view = lost();
    view.facts(1).volume_id = "another".to_owned();
    says(&decide(&view), State::FailoverBlocked, &["instance 1 has another volume"]);

    let mut view = lost();
    view.facts(1).clone = Some(CloneProgress { state: CloneState::Running, donor: Some(id(2)) });
    says(&decide(&view), State::FailoverBlocked, &["instance 1 copies the data of another instance"]);

    let mut view = lost();
    view.server(1).super_read_only = false;
    says(&decide(&view), State::FailoverBlocked, &["instance 1 takes writes without being the primary"]);

    let mut view = lost();
    view.ackers.clear();
    says(
        &decide(&view),
        State::FailoverBlocked,
        &["instance 1 was not in sync", "instance 2 was not in sync"],
    );
}

#[test]
fn a_kernel_that_ended_matters_only_where_relay_logs_are_not_synced() {
    let mut view = lost();
    view.facts(1).boot_id = "another".to_owned();
    says(&decide(&view), State::PrimaryLost, &[]);
    view.durability = Durability::Relaxed;
    says(&decide(&view), State::FailoverBlocked, &["instance 1 was on a kernel that has ended"]);
}

#[test]
fn a_term_whose_first_transaction_nobody_has_proves_nothing() {
    let mut view = lost();
    (view.record.term, view.record.quorum_since) = (Term(2), Term(2));
    says(&decide(&view), State::FailoverBlocked, &["first transaction of term 2"]);
    // What the primary took over with says nothing of the quorum that it has had since.
    view.record.promotion_point = Some(trx(0, 5));
    says(&decide(&view), State::FailoverBlocked, &["first transaction of term 2"]);
    // Nor does an instance whose acknowledgements never counted.
    view.instances.push(idle_instance(3));
    view.facts(3).persisted_term = Term(2);
    (view.server(3).executed, view.server(3).recorded_term) = (trx(0, 11), Term(2));
    says(&decide(&view), State::FailoverBlocked, &["first transaction of term 2"]);
    view.server(2).recorded_term = Term(2);
    says(&decide(&view), State::PrimaryLost, &["2 faithful ackers"]);
}

#[test]
fn ackers_are_remembered_once_the_first_transaction_of_their_term_is_there() {
    let mut view = healthy(3);
    (view.record.term, view.record.quorum_since) = (Term(2), Term(2));
    for instance in 0..3 {
        view.facts(instance).persisted_term = Term(2);
    }
    view.ackers.clear();
    assert_eq!(decide(&view).ackers, []);
    view.server(0).recorded_term = Term(2);
    assert_eq!(decide(&view).ackers.len(), 3);
}

#[test]
fn a_primary_alone_is_waited_for() {
    let mut view = healthy(1);
    view.down(0);
    says(&decide(&view), State::FailoverBlocked, &["instance 0 starts mysqld again", "it alone holds"]);
}

#[test]
fn an_acker_with_a_new_volume_is_remembered_once_it_has_caught_up() {
    let mut view = healthy(3);
    let before = view.ackers.clone();
    view.facts(1).volume_id = "new".to_owned();
    view.server(1).executed = trx(0, 4);
    view.replication(1).retrieved = trx(0, 9);
    let decision = decide(&view);
    assert_eq!(decision.ackers, before);
    says(&decision, State::Degraded, &["instance 1 gets what was acknowledged before it was there"]);
    // The primary goes on, and what it had when the acker was first seen so is enough.
    view.catching_up = decision.catching_up;
    view.server(0).executed = trx(0, 20);
    view.replication(1).retrieved = trx(0, 10);
    let decision = decide(&view);
    says(&decision, State::Healthy, &[]);
    let after = decision.ackers;
    assert_eq!((&after[0], after[1].volume_id.as_str(), &after[2]), (&before[0], "new", &before[2]));
}

/// Whoever has lost a volume again, or has another primary, may have acknowledged more since.
#[test]
fn what_an_acker_has_to_catch_up_with_was_seen_for_its_volume_and_its_term() {
    let mut view = healthy(3);
    view.facts(1).volume_id = "new".to_owned();
    view.server(1).executed = trx(0, 4);
    view.replication(1).retrieved = trx(0, 9);
    view.catching_up = decide(&view).catching_up;
    view.server(0).executed = trx(0, 20);
    view.replication(1).retrieved = trx(0, 10);
    let remembered = |view: &ClusterView| decide(view).ackers[1].volume_id.clone();
    assert_eq!(remembered(&view), "new");

    let mut again = view.clone();
    again.facts(1).volume_id = "newer".to_owned();
    assert_ne!(remembered(&again), "newer");
    assert_eq!(decide(&again).catching_up[0].goal, trx(0, 20));

    view.record.term = Term(2);
    for instance in 0..3 {
        view.facts(instance).persisted_term = Term(2);
        view.server(instance).recorded_term = Term(2);
    }
    assert_ne!(remembered(&view), "new");
    assert_eq!(decide(&view).catching_up[0].goal, trx(0, 20));
}
