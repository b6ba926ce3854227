//! Where traffic goes.

use fleet_topology::*;

use crate::views::*;

#[test]
fn writes_go_to_the_primary_and_reads_to_the_replicas() {
    let traffic = decide(&healthy(3)).traffic;
    let expected = Traffic { primary: Some(id(0)), replicas: vec![id(1), id(2)], ..Traffic::default() };
    assert_eq!(traffic, expected);
}

#[test]
fn a_primary_alone_serves_reads_as_well() {
    let traffic = decide(&healthy(1)).traffic;
    assert_eq!((traffic.primary, traffic.replicas), (Some(id(0)), vec![id(0)]));
}

#[test]
fn a_lost_primary_does_not_take_the_reads_along() {
    let mut view = healthy(3);
    view.down(0);
    view.replication(1).receiver = ThreadState::Connecting;
    let traffic = decide(&view).traffic;
    assert_eq!(traffic.after(Some(id(0)), &[id(1), id(2)]), (None, vec![id(1), id(2)]));
    assert_eq!(traffic.after(None, &[]), (None, vec![]));
}

#[test]
fn a_replica_in_sync_gets_no_new_reads_while_nobody_can_tell_whether_it_is_errant() {
    let mut view = healthy(3);
    view.silent(0, 100);
    let traffic = decide(&view).traffic;
    assert_eq!(traffic.after(Some(id(0)), &[id(1)]), (Some(id(0)), vec![id(1)]));
}

#[test]
fn an_old_primary_that_cannot_be_asked_does_not_keep_the_writes() {
    let mut view = healthy(3);
    (view.record.primary, view.record.term, view.record.primary_since) = (Some(id(1)), Term(2), Term(2));
    view.silent(0, 100);
    assert_eq!(decide(&view).traffic.after(Some(id(0)), &[]).0, None);
}

#[test]
fn an_instance_without_a_pod_keeps_no_traffic() {
    for pod in [PodState::Absent, PodState::Pending] {
        let mut view = healthy(3);
        for instance in [0, 2] {
            view.instance(instance).pod = pod;
            view.silent(instance, 0);
        }
        let traffic = decide(&view).traffic;
        assert_eq!(traffic.after(Some(id(0)), &[id(1), id(2)]), (None, vec![id(1)]));
    }
}

#[test]
fn a_pod_that_goes_gets_no_reads() {
    let mut view = healthy(3);
    view.instance(2).pod = PodState::Terminating;
    assert_eq!(decide(&view).traffic.after(None, &[id(2)]).1, [id(1)]);
}
