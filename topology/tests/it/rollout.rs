//! Replacing the pods of another template.

use fleet_topology::*;

use crate::views::*;

fn outdated(replicas: u32, which: &[u32]) -> ClusterView {
    let mut view = healthy(replicas);
    for instance in which {
        view.instance(*instance).outdated = true;
    }
    view
}

fn replaced(view: &ClusterView) -> Option<u32> {
    decide(view).replace.map(|instance| instance.0)
}

#[test]
fn replicas_are_replaced_first_and_the_highest_ordinal_before_the_others() {
    assert_eq!(replaced(&outdated(3, &[])), None);
    assert_eq!(replaced(&outdated(3, &[0, 1, 2])), Some(2));
    assert_eq!(replaced(&outdated(3, &[0, 1])), Some(1));
    let decision = decide(&outdated(5, &[0, 1, 2, 3, 4]));
    assert_eq!((decision.replace, decision.record, decision.state), (Some(id(4)), None, State::Healthy));
}

#[test]
fn nobody_is_touched_before_the_last_one_is_in_sync_again() {
    type Trouble = fn(&mut ClusterView);
    let troubles: [(&str, Trouble); 8] = [
        ("its pod is not started", |view| view.instance(2).pod = PodState::Pending),
        ("its pod is being deleted", |view| view.instance(2).pod = PodState::Terminating),
        ("its agent does not answer", |view| view.silent(2, 100)),
        ("its mysqld has ended", |view| view.down(2)),
        ("its agent was told to end", |view| view.facts(2).process = ProcessState::Leaving),
        ("it does not acknowledge", |view| view.server(2).semi_sync_replica = false),
        ("it has missed much", |view| {
            view.server(0).executed = trx(0, 90);
            view.server(1).executed = trx(0, 90);
            view.replication(2).lag_ms = Some(5000);
        }),
        ("it does not apply", |view| view.replication(2).applier = ThreadState::Failed),
    ];
    for (trouble, happens) in troubles {
        // The replica that is left, and the primary where that is all that is left.
        for which in [&[0, 1][..], &[0]] {
            let mut view = outdated(3, which);
            happens(&mut view);
            let decision = decide(&view);
            assert_eq!((decision.replace, decision.record), (None, None), "{trouble}");
        }
    }
}

#[test]
fn the_primary_hands_over_once_all_others_are_up_to_date_and_is_replaced_then() {
    let decision = decide(&outdated(3, &[0]));
    says(&decision, State::SwitchoverRequested, &["instance 0 hands over"]);
    assert_eq!(decision.record.unwrap().stage, Stage::Handover { to: id(1) });
    assert_eq!(decision.replace, None);
}

#[test]
fn the_primary_is_not_replaced_while_it_does_not_hand_over() {
    let mut view = outdated(3, &[0]);
    view.wanted_primary = Some(Wish::To(id(7)));
    let decision = decide(&view);
    assert!(matches!(decision.wish, Some(Fulfilment::Refused(_))));
    assert_eq!((decision.replace, decision.record), (None, None));
}

/// Where the next one is lost, what it acknowledged is not proved by those that are left.
#[test]
fn nobody_is_replaced_before_all_ackers_have_what_was_acknowledged_before_they_were_there() {
    let mut view = outdated(3, &[2]);
    view.facts(1).volume_id = "new".to_owned();
    view.server(1).executed = trx(0, 4);
    view.replication(1).retrieved = trx(0, 9);
    let decision = decide(&view);
    says(&decision, State::Degraded, &["instance 1 gets what was acknowledged before it was there"]);
    assert_eq!(decision.replace, None);
    view.replication(1).retrieved = trx(0, 10);
    assert_eq!(replaced(&view), Some(2));
}

#[test]
fn the_only_instance_is_replaced_as_it_is() {
    let decision = decide(&outdated(1, &[0]));
    assert_eq!((decision.replace, decision.record), (Some(id(0)), None));
}

#[test]
fn no_pod_is_replaced_while_something_else_goes_on() {
    let mut view = outdated(3, &[0, 1, 2]);
    view.paused = true;
    assert_eq!(replaced(&view), None);
    view = outdated(3, &[0, 1, 2]);
    view.offline = true;
    assert_eq!(replaced(&view), None);
    view = outdated(3, &[0, 1, 2]);
    view.replicas = 5;
    assert_eq!(replaced(&view), None, "instances join");
    view.replicas = 1;
    assert_eq!(replaced(&view), None, "instances leave");
    view = outdated(3, &[0, 1, 2]);
    view.wanted_primary = Some(Wish::To(id(1)));
    assert_eq!(replaced(&view), None, "a person wants another primary");
}
