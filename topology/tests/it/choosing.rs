//! Choosing the first primary.

use fleet_topology::*;

use crate::views::*;

fn chosen(decision: &Decision) -> Option<(u32, u64)> {
    assert!(decision.orders.is_empty(), "nothing may be ordered for a term that is not recorded");
    decision.record.as_ref().map(|record| (record.primary.unwrap().0, record.term.0))
}

#[test]
fn an_empty_cluster_gets_its_lowest_instance_as_primary() {
    let decision = decide(&empty(3));
    assert_eq!(chosen(&decision), Some((0, 1)));
    assert_eq!(decision.record.as_ref().unwrap().quorum, Quorum::for_replicas(3).unwrap());
    says(&decision, State::Bootstrapping, &["instance 0"]);
}

#[test]
fn nobody_is_chosen_before_every_instance_has_been_heard() {
    let mut view = empty(3);
    view.instance(1).pod = PodState::Pending;
    view.silent(1, 10);
    view.facts(2).process = ProcessState::Failed("no mysqld in the image".to_owned());
    view.facts(2).server = None;
    let decision = decide(&view);
    assert_eq!(chosen(&decision), None);
    says(
        &decision,
        State::Bootstrapping,
        &[
            "instance 1 has a pod that has not been started",
            "instance 2 can't run mysqld: no mysqld in the image",
        ],
    );
}

#[test]
fn an_instance_without_a_pod_is_waited_for() {
    let mut view = empty(3);
    view.instances.truncate(2);
    let decision = decide(&view);
    assert_eq!(chosen(&decision), None);
    says(&decision, State::Bootstrapping, &["instance 2 has no pod"]);
}

#[test]
fn retained_data_are_adopted_and_the_term_goes_on() {
    let mut view = empty(3);
    view.server(1).executed = trx(1, 20);
    view.server(2).executed = trx(1, 19);
    view.facts(2).persisted_term = Term(7);
    view.server(1).recorded_term = Term(6);
    assert_eq!(chosen(&decide(&view)), Some((1, 8)));
}

#[test]
fn transactions_that_were_only_received_count() {
    let mut view = empty(3);
    view.server(0).executed = trx(5, 20);
    view.server(2).executed = trx(5, 10);
    view.follow(2, 1, true);
    view.replication(2).retrieved = trx(5, 21);
    assert_eq!(chosen(&decide(&view)), Some((2, 1)));
}

#[test]
fn one_that_has_nothing_left_to_apply_is_preferred() {
    let mut view = empty(3);
    view.follow(0, 2, true);
    view.replication(0).retrieved = trx(2, 21);
    view.server(2).executed = trx(2, 21);
    assert_eq!(chosen(&decide(&view)), Some((2, 1)));
}

#[test]
fn data_that_differ_are_left_to_a_person() {
    let mut view = empty(3);
    view.server(0).executed = trx(0, 5);
    view.server(1).executed = trx(0, 5).union(&trx(1, 3));
    view.server(2).executed = trx(0, 6);
    let decision = decide(&view);
    assert_eq!(chosen(&decision), None);
    let (one, two) =
        (format!("instance 1 alone holds {}", trx(1, 3)), format!("instance 2 alone holds {}:6", uuid(0)));
    says(&decision, State::Incomplete, &[&one, &two]);
}

#[test]
fn an_instance_that_takes_writes_goes_on_when_the_record_was_lost() {
    let mut view = healthy(3);
    view.record = TermRecord::NONE;
    // Received after the primary was asked.
    view.server(1).executed = trx(0, 12);
    let decision = decide(&view);
    assert_eq!(chosen(&decision), Some((0, 2)));
    assert_eq!(decision.record.unwrap().primary_since, Term(1));
    assert_eq!(decision.traffic.after(Some(id(0)), &[id(1)]), (Some(id(0)), vec![id(1)]));
}

#[test]
fn an_instance_that_takes_writes_is_never_passed_over() {
    let mut view = healthy(3);
    view.record = TermRecord::NONE;
    view.server(1).executed = trx(0, 10).union(&trx(1, 1));
    let decision = decide(&view);
    assert_eq!(chosen(&decision), None);
    says(&decision, State::Incomplete, &["instance 0 takes writes and lacks", &trx(1, 1).to_string()]);

    view.server(1).super_read_only = false;
    let decision = decide(&view);
    assert_eq!(chosen(&decision), None);
    says(&decision, State::Incomplete, &["instance 0 and instance 1 both take writes"]);
}

#[test]
fn a_record_older_than_the_data_is_not_relied_on() {
    let mut view = healthy(3);
    for instance in 0..3 {
        view.facts(instance).persisted_term = Term(4);
        view.restarted(instance);
    }
    view.server(2).recorded_term = Term(5);
    assert_eq!(chosen(&decide(&view)), Some((0, 6)));
}

#[test]
fn a_stray_instance_of_a_higher_term_does_not_stop_a_primary_that_works() {
    let mut view = healthy(3);
    view.facts(2).persisted_term = Term(99);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 2 knows of term 99"]);
    assert_eq!(decision.orders, vec![]);
    assert_eq!(decision.traffic.primary, Some(id(0)));
}

#[test]
fn a_number_of_instances_without_a_quorum_touches_nothing() {
    for replicas in [0, 2, 4, u32::MAX] {
        let mut view = healthy(3);
        view.replicas = replicas;
        let decision = decide(&view);
        says(&decision, State::Incomplete, &["choose 1, 3 or 5"]);
        assert_eq!((decision.record, decision.orders.len(), decision.pods), (None, 0, 3));
        assert_eq!(decision.traffic.after(Some(id(0)), &[id(1)]), (Some(id(0)), vec![id(1)]));
    }
}

#[test]
fn instances_that_are_not_wanted_are_heard_too_and_never_chosen() {
    let mut view = empty(5);
    view.replicas = 3;
    view.server(4).executed = trx(4, 10);
    let decision = decide(&view);
    assert_eq!(chosen(&decision), None);
    says(&decision, State::Incomplete, &["only instance 4 holds every transaction", "raise the number"]);

    view.silent(3, 9000);
    says(&decide(&view), State::Bootstrapping, &["waits for every instance", "instance 3"]);
    view.instance(3).pod = PodState::Absent;
    says(&decide(&view), State::Bootstrapping, &["instance 3 has no pod"]);
    view.instance(3).has_volume = false;
    view.server(4).executed = GtidSet::new();
    assert_eq!(chosen(&decide(&view)), Some((0, 1)));
}

/// A cluster made again with one instance, over the volumes of three.
fn made_again_smaller() -> ClusterView {
    let mut view = empty(3);
    view.replicas = 1;
    for instance in [1, 2] {
        view.instance(instance).pod = PodState::Absent;
        view.silent(instance, 0);
    }
    view
}

#[test]
fn every_volume_is_heard_though_its_instance_is_not_wanted() {
    let mut view = made_again_smaller();
    let decision = decide(&view);
    assert_eq!((chosen(&decision), decision.pods), (None, 3));
    says(&decision, State::Bootstrapping, &["instance 1 has no pod", "instance 2 has no pod"]);

    for instance in [1, 2] {
        *view.instance(instance) = idle_instance(instance);
    }
    view.server(2).executed = trx(2, 10);
    let decision = decide(&view);
    assert_eq!((chosen(&decision), decision.pods), (None, 3));
    says(&decision, State::Incomplete, &["only instance 2 holds every transaction", "raise the number"]);

    view.server(0).executed = trx(2, 10);
    assert_eq!(chosen(&decide(&view)), Some((0, 1)));
}

#[test]
fn a_volume_that_is_left_raises_no_pod_once_there_is_a_primary() {
    let mut view = made_again_smaller();
    view.record = TermRecord { term: Term(1), primary: Some(id(0)), ..healthy(1).record };
    view.opened = Term(1);
    *view.instance(0) = healthy(1).instances.remove(0);
    let decision = decide(&view);
    says(&decision, State::Healthy, &[]);
    assert_eq!((decision.pods, decision.instances.len()), (1, 1));
    view.restarted(0);
    assert_eq!(decide(&view).pods, 1);
}
