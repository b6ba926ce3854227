//! What becomes of a person's choice to rebuild an instance.

use fleet_topology::*;

use crate::views::*;

fn chosen(instance: u32, begun: bool) -> ClusterView {
    ClusterView { rebuild: Some(Rebuild { instance: id(instance), begun }), ..healthy(3) }
}

/// The same, with transactions of its own on instance 1.
fn errant(begun: bool) -> ClusterView {
    let mut view = chosen(1, begun);
    view.server(1).executed = trx(0, 10).union(&trx(1, 2));
    view
}

#[track_caller]
fn refused(view: &ClusterView, parts: &[&str]) {
    let decision = decide(view);
    let Some(Rebuilding::Refused(reason)) = &decision.rebuilding else {
        unreachable!("it is not refused: {:?}", decision.rebuilding);
    };
    has_all(reason, parts);
    let without = decide(&ClusterView { rebuild: None, ..view.clone() });
    assert_eq!((decision.record, decision.orders), (without.record, without.orders));
}

#[test]
fn an_errant_instance_is_copied_over_with_its_transactions_kept_aside() {
    let decision = decide(&errant(false));
    let expendable = trx(0, 10).union(&trx(1, 2));
    let copy = Action::Clone { donor: id(2), expendable, archive: trx(1, 2) };
    assert_eq!(orders(&decision), [(1, copy)]);
    assert_eq!(decision.rebuilding, Some(Rebuilding::UnderWay));
    assert_eq!(decide(&ClusterView { rebuild: None, ..errant(false) }).orders, []);
}

#[test]
fn a_rebuilt_instance_is_done_once_it_is_in_sync() {
    assert_eq!(decide(&chosen(1, true)).rebuilding, Some(Rebuilding::Done));
    let mut view = chosen(1, true);
    *view.server(1) = idle_server(1);
    assert_eq!(decide(&view).rebuilding, Some(Rebuilding::UnderWay), "it is empty, and gets a copy");
    view.down(1);
    assert_eq!(decide(&view).rebuilding, Some(Rebuilding::UnderWay));
}

#[test]
fn what_need_not_be_rebuilt_is_left_alone() {
    refused(&chosen(1, false), &["instance 1 is in sync"]);
    refused(&chosen(0, false), &["instance 0 is the primary", "first"]);
    refused(&chosen(7, false), &["there is no instance 7"]);
    let mut view = chosen(2, false);
    view.down(2);
    refused(&view, &["instance 2 starts mysqld again", "once it is found"]);
    let mut view = errant(false);
    view.paused = true;
    refused(&view, &["the cluster is Paused"]);
}

#[test]
fn an_instance_that_was_not_heard_yet_is_waited_for() {
    let mut view = errant(false);
    view.silent(1, 100);
    assert_eq!(decide(&view).rebuilding, Some(Rebuilding::Waits));
    view.silent(1, 60_000);
    refused(&view, &["instance 1"]);
}

/// The errant instance acknowledges as the others do. Without it commits would wait.
#[test]
fn an_errant_instance_whose_acknowledgements_are_needed_is_not_rebuilt_yet() {
    let mut view = errant(false);
    view.down(2);
    let decision = decide(&view);
    assert_eq!((decision.rebuilding.clone(), orders(&decision)), (Some(Rebuilding::Waits), vec![]));
    says(&decision, State::Degraded, &["waits until enough others acknowledge"]);
}

/// Else nobody could ever rebuild the first of two, since the other one waits for it in turn.
#[test]
fn another_errant_instance_acknowledges_while_one_is_rebuilt() {
    let mut view = errant(false);
    view.server(2).executed = trx(0, 10).union(&trx(2, 1));
    let expendable = trx(0, 10).union(&trx(1, 2));
    let copy = Action::Clone { donor: id(0), expendable, archive: trx(1, 2) };
    assert_eq!(orders(&decide(&view)), [(1, copy)]);
    view.server(2).semi_sync_replica = false;
    let decision = decide(&view);
    assert_eq!(orders(&decision), []);
    says(&decision, State::Degraded, &["waits until enough others acknowledge"]);
}

/// What the primary has lost may be acknowledged, and nobody else holds it.
#[test]
fn nothing_is_given_up_for_a_primary_that_has_lost_what_it_was_chosen_for() {
    let mut view = errant(false);
    view.record.promotion_point = Some(trx(0, 10).union(&trx(1, 1)));
    let decision = decide(&view);
    assert!(decision.orders.iter().all(|order| !matches!(order.action, Action::Clone { .. })));
}
