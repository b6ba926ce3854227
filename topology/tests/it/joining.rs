//! Bringing instances in sync with the primary.

use fleet_topology::*;

use crate::views::*;

fn copy(donor: u32, last: u64) -> Action {
    Action::Clone { donor: id(donor), expendable: trx(0, last), archive: GtidSet::new() }
}

#[test]
fn a_healthy_cluster_is_left_alone() {
    for replicas in [1, 3, 5] {
        let decision = decide(&healthy(replicas));
        says(&decision, State::Healthy, &["instance 0 takes writes"]);
        assert_eq!((decision.record, decision.orders), (None, vec![]));
        assert_eq!(decision.pods, replicas);
        assert_eq!(u32::try_from(decision.ackers.len()), Ok(replicas));
    }
}

#[test]
fn an_instance_that_stopped_following_is_told_to_go_on() {
    let mut view = healthy(3);
    view.restarted(1);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 1"]);
    assert_eq!(orders(&decision), [(1, follow(0, true))]);
    assert_eq!(decision.orders[0].term, Term(1));
}

#[test]
fn an_instance_of_another_source_is_told_to_follow_the_primary() {
    let mut view = healthy(3);
    view.follow(2, 1, true);
    assert_eq!(orders(&decide(&view)), [(2, follow(0, true))]);
    view.replication(2).source = None;
    assert_eq!(orders(&decide(&view)), [(2, follow(0, true))]);
}

#[test]
fn an_instance_that_does_not_acknowledge_is_told_to() {
    let mut view = healthy(3);
    view.server(2).semi_sync_replica = false;
    assert_eq!(orders(&decide(&view)), [(2, follow(0, true))]);
}

#[test]
fn an_instance_that_connects_is_waited_for() {
    let mut view = healthy(3);
    view.server(1).semi_sync_replica = false;
    view.replication(1).receiver = ThreadState::Connecting;
    view.replication(1).receiver_error = "Access denied".to_owned();
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 1 connects to instance 0: Access denied"]);
    assert_eq!(decision.orders, vec![]);
}

#[test]
fn a_failed_thread_is_started_again_and_its_error_told() {
    let mut view = healthy(3);
    view.replication(1).applier = ThreadState::Failed;
    view.replication(1).applier_error = "Duplicate entry".to_owned();
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 1 can't apply what instance 0 sent: Duplicate entry"]);
    assert_eq!(orders(&decision), [(1, follow(0, true))]);
}

#[test]
fn an_empty_instance_follows_while_the_primary_has_all_logs() {
    let mut view = healthy(3);
    *view.server(2) = idle_server(2);
    assert_eq!(orders(&decide(&view)), [(2, follow(0, true))]);
}

#[test]
fn an_instance_that_lacks_dropped_transactions_gets_a_copy_from_a_replica() {
    let mut view = healthy(3);
    view.server(0).purged = trx(0, 5);
    *view.server(2) = idle_server(2);
    let decision = decide(&view);
    says(&decision, State::Cloning, &["instance 2 lacks transactions whose logs instance 0 has dropped"]);
    assert_eq!(orders(&decision), [(2, copy(1, 10))]);
    assert_eq!(decision.traffic.replicas, [id(1)]);
}

#[test]
fn what_was_received_from_another_source_is_dropped_and_does_not_count() {
    let mut view = healthy(3);
    view.server(0).purged = trx(0, 5);
    view.server(2).executed = trx(0, 4);
    view.follow(2, 1, true);
    view.replication(2).retrieved = trx(0, 10);
    assert_eq!(orders(&decide(&view)), [(2, copy(1, 10))]);
    view.replication(2).source = Some(id(0));
    view.replication(2).receiver = ThreadState::Stopped;
    assert_eq!(orders(&decide(&view)), [(2, follow(0, true))]);
}

#[test]
fn the_primary_gives_its_data_only_if_nobody_else_can() {
    let mut view = healthy(3);
    view.server(0).purged = trx(0, 5);
    *view.server(2) = idle_server(2);
    view.silent(1, 5000);
    assert_eq!(orders(&decide(&view)), [(2, copy(0, 10))]);
}

#[test]
fn a_donor_gives_its_data_to_one_instance_at_a_time() {
    let mut view = healthy(5);
    view.server(0).purged = trx(0, 5);
    for instance in [2, 3, 4] {
        *view.server(instance) = idle_server(instance);
    }
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(2, copy(1, 10))]);
    says(
        &decision,
        State::WritesBlocked,
        &["instance 3", "waits: instance 1 gives its data to another instance first"],
    );

    view.facts(2).clone = Some(CloneProgress { state: CloneState::Running, donor: Some(id(1)) });
    let decision = decide(&view);
    assert_eq!(decision.orders, vec![]);
    assert_eq!(*standing(&decision, 2), Standing::Cloning);
    says(&decision, State::WritesBlocked, &["instance 2 copies the data of instance 1"]);

    // Whoever it is that gives.
    view.facts(2).clone = Some(CloneProgress { state: CloneState::Running, donor: None });
    *view.instance(4) = healthy(5).instance(4).clone();
    let decision = decide(&view);
    assert_eq!(decision.orders, vec![]);
    says(&decision, State::Cloning, &["instance 3", "waits: instance 1 gives its data to another"]);
}

#[test]
fn a_failed_copy_is_tried_again_and_its_error_told() {
    let mut view = healthy(3);
    view.server(0).purged = trx(0, 5);
    *view.server(2) = idle_server(2);
    let state = CloneState::Failed("disk full".to_owned());
    view.facts(2).clone = Some(CloneProgress { state, donor: Some(id(1)) });
    let decision = decide(&view);
    says(&decision, State::Cloning, &["the last copy failed: disk full"]);
    assert_eq!(orders(&decision), [(2, copy(1, 10))]);
}

#[test]
fn no_copy_is_made_of_data_that_lack_what_the_instance_holds() {
    let mut view = healthy(3);
    let before = trx(7, 2);
    view.server(0).purged = before.clone();
    view.server(0).executed = trx(0, 12).union(&before);
    view.server(1).executed = trx(0, 9).union(&before);
    view.replication(1).retrieved = GtidSet::new();
    // Holds more of the primary than the replica does.
    *view.server(2) = ServerFacts { executed: trx(0, 10), ..idle_server(2) };
    let expendable = trx(0, 12).union(&before);
    assert_eq!(
        orders(&decide(&view)),
        [(2, Action::Clone { donor: id(0), expendable, archive: GtidSet::new() })]
    );
}

#[test]
fn no_copy_is_made_of_data_that_lack_what_the_primary_has_dropped() {
    let mut view = healthy(3);
    view.server(0).purged = trx(0, 5);
    view.server(1).executed = trx(0, 4);
    view.replication(1).retrieved = trx(0, 10);
    *view.server(2) = idle_server(2);
    assert_eq!(orders(&decide(&view)), [(2, copy(0, 10))]);
}

#[test]
fn an_instance_that_nobody_can_give_a_copy_waits() {
    let mut view = healthy(3);
    view.server(0).purged = trx(7, 2);
    view.server(0).executed = trx(0, 8).union(&trx(7, 2));
    view.silent(1, 9000);
    // Newer than the facts of the primary.
    *view.server(2) = ServerFacts { executed: trx(0, 9), ..idle_server(2) };
    let decision = decide(&view);
    assert_eq!(decision.orders, vec![]);
    says(&decision, State::Degraded, &["instance 2 lacks", "waits: no instance holds all that it holds"]);
}

#[test]
fn an_errant_instance_is_left_alone_and_named() {
    let mut view = healthy(3);
    view.restarted(1);
    view.server(1).executed = trx(0, 10).union(&trx(1, 2));
    view.server(0).purged = trx(0, 10);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 1", &trx(1, 2).to_string()]);
    assert_eq!(*standing(&decision, 1), Standing::Errant(trx(1, 2)));
    assert_eq!(decision.orders, vec![]);
    assert_eq!(decision.traffic.replicas, [id(2)]);
}

#[test]
fn an_errant_instance_gives_its_data_to_nobody() {
    let mut view = healthy(3);
    view.server(0).purged = trx(0, 5);
    view.server(1).executed = trx(0, 10).union(&trx(1, 2));
    *view.server(2) = idle_server(2);
    assert_eq!(orders(&decide(&view)), [(2, copy(0, 10))]);
}

#[test]
fn transactions_of_the_primary_that_are_newer_than_its_facts_are_not_errant() {
    let mut view = healthy(3);
    view.server(1).executed = trx(0, 11);
    view.replication(1).retrieved = trx(0, 12);
    says(&decide(&view), State::Healthy, &[]);
}

#[test]
fn an_open_instance_that_is_not_the_primary_is_closed_before_anything_else() {
    let mut view = healthy(3);
    view.restarted(0);
    view.restarted(1);
    view.server(2).super_read_only = false;
    assert_eq!(orders(&decide(&view)), [(2, Action::Close)]);
}

#[test]
fn an_instance_that_cannot_be_asked_is_neither_errant_nor_ordered() {
    let mut view = healthy(3);
    view.silent(1, 5000);
    let decision = decide(&view);
    assert_eq!(decision.orders, vec![]);
    assert_eq!(*standing(&decision, 1), Standing::Unknown);
    says(&decision, State::Degraded, &["instance 1 runs, and its agent does not answer"]);
}

#[test]
fn a_paused_cluster_gets_no_orders_and_keeps_its_traffic() {
    let mut view = healthy(3);
    view.paused = true;
    view.restarted(1);
    let decision = decide(&view);
    says(&decision, State::Paused, &["without that: Degraded", "instance 1"]);
    assert_eq!(decision.orders, vec![]);
    assert_eq!(decision.traffic.primary, Some(id(0)));
}

#[test]
fn an_offline_cluster_is_closed_before_its_pods_go() {
    let mut view = healthy(3);
    (view.offline, view.paused) = (true, true);
    let decision = decide(&view);
    says(&decision, State::Offline, &["instance 0 is closed first"]);
    assert_eq!(orders(&decision), [(0, Action::Close)]);
    assert_eq!((decision.pods, decision.traffic), (3, Traffic::default()));

    view.restarted(0);
    view.silent(1, 9000);
    let decision = decide(&view);
    assert_eq!((decision.pods, decision.orders), (0, vec![]));
}
