//! What becomes of a person's choice to keep what an instance holds and its primary does not.

use fleet_topology::*;

use crate::views::*;

/// Instance 1 holds two transactions of its own, and those that are named are to be kept.
fn errant(named: &GtidSet) -> ClusterView {
    let mut view = chosen(1, named);
    view.server(1).executed = trx(0, 10).union(&trx(1, 2));
    view
}

fn chosen(instance: u32, named: &GtidSet) -> ClusterView {
    let release = Release { instance: id(instance), transactions: named.clone() };
    ClusterView { release: Some(release), ..healthy(3) }
}

#[track_caller]
fn refused(view: &ClusterView, parts: &[&str]) {
    let decision = decide(view);
    let Some(Releasing::Refused(reason)) = &decision.releasing else {
        unreachable!("it is not refused: {:?}", decision.releasing);
    };
    has_all(reason, parts);
    let without = decide(&ClusterView { release: None, ..view.clone() });
    assert_eq!((decision.record, decision.orders), (without.record, without.orders));
}

#[track_caller]
fn waits(view: &ClusterView) {
    let decision = decide(view);
    assert_eq!(decision.releasing, Some(Releasing::Waits), "{}", decision.message);
    assert!(decision.orders.iter().all(|order| !matches!(order.action, Action::Adopt { .. })));
}

#[test]
fn the_primary_commits_what_a_released_instance_holds() {
    let mut view = errant(&trx(1, 2));
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(0, Action::Adopt { transactions: trx(1, 2) })]);
    assert_eq!(decision.releasing, Some(Releasing::UnderWay));
    assert_eq!(decide(&ClusterView { release: None, ..view.clone() }).orders, []);

    view.server(0).executed = trx(0, 10).union(&trx(1, 1));
    let rest = trx(1, 2).subtract(&trx(1, 1));
    assert_eq!(orders(&decide(&view)), [(0, Action::Adopt { transactions: rest })]);

    view.server(0).executed = trx(0, 10).union(&trx(1, 2));
    let decision = decide(&view);
    assert_eq!((decision.releasing.clone(), orders(&decision)), (Some(Releasing::Done), vec![]));
    says(&decision, State::Healthy, &[]);
    view.silent(1, 60_000);
    waits(&view);
}

/// Nobody can look through what changes meanwhile.
#[test]
fn what_is_not_named_is_not_kept() {
    refused(&errant(&trx(1, 1)), &["instance 1 also holds", ":2"]);
    refused(&errant(&trx(2, 7)), &["instance 1 also holds", ":1-2"]);
}

#[test]
fn what_need_not_be_released_is_left_alone() {
    refused(&chosen(1, &trx(1, 2)), &["instance 1 is in sync"]);
    refused(&chosen(0, &trx(0, 2)), &["instance 0 is the primary"]);
    refused(&chosen(7, &trx(1, 2)), &["there is no instance 7"]);
    let mut view = chosen(2, &trx(2, 1));
    view.down(2);
    refused(&view, &["instance 2 starts mysqld again", "once it is found"]);
    let mut view = errant(&trx(1, 2));
    view.paused = true;
    refused(&view, &["the cluster is Paused"]);
    let mut view = errant(&trx(1, 2));
    view.rebuild = Some(Rebuild { instance: id(1), begun: false });
    refused(&view, &["instance 1 is to be rebuilt"]);
}

#[test]
fn an_instance_that_was_not_heard_yet_is_waited_for() {
    let mut view = errant(&trx(1, 2));
    view.silent(1, 100);
    waits(&view);
    view.silent(1, 60_000);
    refused(&view, &["instance 1"]);
}

/// What is received only could still fail to be applied.
#[test]
fn what_the_instance_has_not_executed_is_waited_for() {
    let mut view = errant(&trx(1, 2));
    view.server(1).executed = trx(0, 10).union(&trx(1, 1));
    view.replication(1).retrieved = trx(1, 2);
    waits(&view);
}

#[test]
fn only_a_primary_that_serves_and_is_whole_commits_them() {
    let mut view = errant(&trx(1, 2));
    view.server(0).super_read_only = true;
    waits(&view);
    let mut view = errant(&trx(1, 2));
    view.record.promotion_point = Some(trx(0, 11));
    waits(&view);
}

/// They may have been acknowledged, and an empty transaction in the place of each would say that all is there.
#[test]
fn what_a_forced_takeover_left_behind_is_not_released() {
    let mut view = errant(&trx(1, 2));
    view.record.forced = Some(Forced { since: Term(2), point: trx(0, 10) });
    view.record.term = Term(2);
    refused(&view, &["may have been acknowledged before a primary without them was forced"]);
}
