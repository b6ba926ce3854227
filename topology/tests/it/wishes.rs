//! What a person who asks for another primary is told.

use fleet_topology::*;

use crate::views::*;

fn wished(wish: Wish) -> ClusterView {
    ClusterView { wanted_primary: Some(wish), ..healthy(3) }
}

/// As the shard goes on once a decision has a record.
fn recorded(view: &mut ClusterView) {
    let decision = decide(view);
    if let Some(Fulfilment::UnderWay { to, term }) = decision.wish {
        view.wanted_primary = Some(Wish::Begun { to, term });
    }
    view.record = decision.record.unwrap();
}

#[track_caller]
fn refused(view: &ClusterView, parts: &[&str]) {
    let decision = decide(view);
    let Some(Fulfilment::Refused(reason)) = &decision.wish else {
        unreachable!("it is not refused: {:?}", decision.wish);
    };
    has_all(reason, parts);
    let without = decide(&ClusterView { wanted_primary: None, ..view.clone() });
    assert_eq!((decision.record, decision.orders), (without.record, without.orders));
}

#[test]
fn the_primary_is_not_changed_for_itself() {
    let decision = decide(&wished(Wish::To(id(0))));
    assert_eq!((decision.wish, decision.record), (Some(Fulfilment::Done(id(0))), None));
}

#[test]
fn any_other_primary_is_an_acker_in_sync_that_lacks_the_least() {
    let mut view = wished(Wish::Any);
    view.server(0).executed = trx(0, 12);
    view.server(1).executed = trx(0, 11);
    view.server(2).executed = trx(0, 12);
    let to = |view: &ClusterView| decide(view).record.map(|record| record.stage);
    assert_eq!(to(&view), Some(Stage::Handover { to: id(2) }));
    view.replication(2).applier = ThreadState::Stopped;
    assert_eq!(to(&view), Some(Stage::Handover { to: id(1) }));
    view.down(1);
    refused(&view, &["no other instance", "instance 1 starts mysqld", "instance 2 is told to go on"]);
}

#[test]
fn a_wish_is_done_once_the_new_primary_takes_writes_and_is_not_begun_again() {
    let mut view = wished(Wish::Any);
    recorded(&mut view);
    assert_eq!(view.wanted_primary, Some(Wish::Begun { to: id(1), term: Term(2) }));
    view.restarted(0);
    view.facts(0).persisted_term = Term(2);
    assert_eq!(decide(&view).wish, Some(Fulfilment::UnderWay { to: id(1), term: Term(3) }));
    recorded(&mut view);
    assert_eq!(decide(&view).wish, Some(Fulfilment::UnderWay { to: id(1), term: Term(3) }));
    for instance in 0..3 {
        view.facts(instance).persisted_term = Term(3);
        view.server(instance).recorded_term = Term(3);
    }
    let server = view.server(1);
    (server.super_read_only, server.semi_sync_source, server.semi_sync_clients) = (false, true, 2);
    for instance in [0, 2] {
        view.follow(instance, 1, true);
    }
    assert_eq!(decide(&view).wish, Some(Fulfilment::Done(id(1))));
    // Nobody was told, and another instance has become the primary since.
    view.record = TermRecord { term: Term(5), primary: Some(id(2)), primary_since: Term(5), ..view.record };
    refused(&view, &["the handover to instance 1 was given up", "instance 2 is the primary of term 5"]);
}

#[test]
fn a_handover_that_was_written_down_and_not_recorded_begins() {
    let begun = Wish::Begun { to: id(2), term: Term(2) };
    let decision = decide(&wished(begun));
    assert_eq!(decision.record.unwrap().stage, Stage::Handover { to: id(2) });
    let mut view = wished(begun);
    view.down(2);
    refused(&view, &["instance 2 can't become the primary"]);
}

#[test]
fn a_handover_that_is_given_up_is_not_tried_again() {
    let mut view = wished(Wish::To(id(2)));
    recorded(&mut view);
    view.down(2);
    let decision = decide(&view);
    let told = Some(Fulfilment::Refused(decision.message.clone()));
    assert_eq!(decision.wish, told);
    assert!(decision.message.contains("instance 0 stays the primary: instance 2 can't take over"));
    view.record = decision.record.unwrap();
    // It is back at once, and whoever decides now does not know of the answer.
    *view.instance(2) = healthy(3).instance(2).clone();
    refused(&view, &["the handover to instance 2 was given up"]);
}

#[test]
fn a_cluster_that_takes_no_writes_refuses() {
    let mut blocked = wished(Wish::Any);
    for instance in [1, 2] {
        blocked.replication(instance).receiver = ThreadState::Connecting;
    }
    blocked.restarted(0);
    refused(&blocked, &["can't hand over until it takes writes", "WritesBlocked"]);
    let mut lost = wished(Wish::Any);
    lost.down(0);
    assert!(matches!(decide(&lost).wish, Some(Fulfilment::Refused(_))));
    refused(&ClusterView { paused: true, ..wished(Wish::Any) }, &["Paused"]);
    refused(&ClusterView { offline: true, ..wished(Wish::To(id(1))) }, &["Offline"]);
    refused(&ClusterView { wanted_primary: Some(Wish::Any), ..healthy(1) }, &["one instance is wanted"]);
    refused(&ClusterView { wanted_primary: Some(Wish::Any), ..empty(3) }, &["Bootstrapping"]);
}

#[test]
fn an_instance_that_leaves_or_does_not_count_yet_does_not_become_the_primary() {
    let mut view = ClusterView { wanted_primary: Some(Wish::To(id(4))), ..healthy(5) };
    view.replicas = 3;
    refused(&view, &["instance 4 is leaving"]);
    let mut joins = ClusterView { replicas: 5, ..wished(Wish::To(id(3))) };
    joins.instances.extend([3, 4].map(idle_instance));
    for instance in [3, 4] {
        joins.facts(instance).persisted_term = Term(1);
        joins.server(instance).executed = trx(0, 10);
        joins.follow(instance, 0, false);
    }
    refused(&joins, &["the acknowledgements of instance 3 do not count yet"]);
    let mut stopping = wished(Wish::To(id(2)));
    stopping.instance(2).pod = PodState::Terminating;
    refused(&stopping, &["instance 2 has a pod that is being deleted"]);
}

#[test]
fn whoever_has_only_begun_to_listen_waits_before_anything_is_refused() {
    let mut view = wished(Wish::To(id(2)));
    view.silent(2, 0);
    assert_eq!(decide(&view).wish, Some(Fulfilment::Waits));
    view.silent(2, 3000);
    refused(&view, &["instance 2 runs, and its agent does not answer"]);
    let mut view = wished(Wish::Any);
    view.silent(0, 0);
    assert_eq!(decide(&view).wish, Some(Fulfilment::Waits));
}

#[test]
fn what_was_received_and_not_applied_would_be_waited_for_while_nobody_can_write() {
    let mut view = wished(Wish::To(id(2)));
    view.server(0).executed = trx(0, 90);
    view.replication(2).retrieved = trx(0, 90);
    view.replication(2).lag_ms = Some(1001);
    refused(&view, &["instance 2 is behind"]);
    view.replication(2).lag_ms = Some(1000);
    assert!(decide(&view).record.is_some());
}
