//! The failover of a cluster of three members: two with data, one witness.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that goes wrong has to end")]

use super::*;

fn set(last: u64) -> GtidSet {
    format!("00000000-0000-0000-0000-000000000001:1-{last}").parse().unwrap()
}

fn member(name: &str, preference: Preference, sight: Sight, holds: u64) -> MemberView {
    let report = MemberReport { executed: set(holds), held: set(holds), ..MemberReport::default() };
    let (name, domain) = (name.to_owned(), name.to_owned());
    MemberView { name, domain, preference, failures: 0, sight, report: Some(report) }
}

fn view() -> FederationView {
    let ackers = BTreeSet::from(["b".to_owned(), "w".to_owned()]);
    FederationView {
        mode: Mode::AckQuorum,
        suspect_after: 5,
        record: FederationRecord {
            term: Term(4),
            active: "a".to_owned(),
            ackers,
            required_acks: 1,
            phase: Phase::Reign,
        },
        members: vec![
            member("a", Preference::Data, Sight::Unknown, 9),
            member("b", Preference::Data, Sight::Missed, 7),
            member("w", Preference::Witness, Sight::Missed, 9),
        ],
    }
}

/// The active member is cut off from all.
fn lost() -> FederationView {
    let mut view = view();
    (view.members[0].report, view.members[0].failures) = (None, 5);
    view
}

fn report(view: &mut FederationView, member: usize) -> &mut MemberReport {
    view.members[member].report.as_mut().unwrap()
}

/// Writes the record that is decided, which comes without orders and without traffic.
fn write(view: &mut FederationView) {
    let decision = decide_federation(view);
    assert_eq!((decision.orders, decision.traffic), (vec![], None));
    view.record = decision.record.unwrap();
}

#[test]
fn a_lost_active_member_is_replaced_in_the_order_that_proves_it() {
    let mut view = lost();
    write(&mut view);
    assert_eq!((view.record.term, &view.record.phase), (Term(5), &Phase::Fencing));

    let revoke = |name: &str| MemberOrder::Revoke { member: name.to_owned(), term: Term(5) };
    assert_eq!(decide_federation(&view).orders, [revoke("b"), revoke("w")]);
    report(&mut view, 2).revoked = Some(Term(5));
    let decision = decide_federation(&view);
    assert_eq!(decision.state, FederationState::FailingOver);
    assert_eq!((decision.record, decision.orders, decision.traffic), (None, vec![revoke("b")], None));
    report(&mut view, 1).revoked = Some(Term(5));
    write(&mut view);
    assert_eq!(view.record.phase, Phase::CatchingUp { candidate: "b".to_owned(), needs: set(9) });

    let follow = MemberOrder::Follow { member: "b".to_owned(), source: "w".to_owned(), term: Term(5) };
    assert_eq!(decide_federation(&view).orders, [follow]);
    report(&mut view, 1).held = set(9);
    assert_eq!(decide_federation(&view).record, None, "received is not executed");
    report(&mut view, 1).executed = set(9);
    write(&mut view);

    let ackers = BTreeSet::from(["a".to_owned(), "w".to_owned()]);
    let promote = MemberOrder::Promote {
        member: "b".to_owned(),
        term: Term(5),
        needs: set(9),
        ackers: ackers.clone(),
        required_acks: 1,
    };
    let decision = decide_federation(&view);
    assert_eq!((decision.orders.last(), decision.record, decision.traffic), (Some(&promote), None, None));
    report(&mut view, 1).proved = Some(Term(5));
    write(&mut view);
    assert_eq!((view.record.active.as_str(), &view.record.ackers), ("b", &ackers));
    assert_eq!(decide_federation(&view).traffic, Some("b".to_owned()));
}

#[test]
fn a_member_that_another_one_reaches_is_only_suspect() {
    let mut view = lost();
    view.members[2].sight = Sight::Reached;
    assert_eq!(decide_federation(&view).state, FederationState::Suspect);
    view.members[2].sight = Sight::Unknown;
    assert_eq!(decide_federation(&view).state, FederationState::Suspect);
}

#[test]
fn four_failures_of_five_are_only_suspect() {
    let mut view = lost();
    view.members[0].failures = 4;
    assert_eq!(decide_federation(&view).state, FederationState::Suspect);
}

#[test]
fn a_hub_that_hears_few_members_does_nothing() {
    let mut view = lost();
    view.members[2].report = None;
    assert_eq!(decide_federation(&view), FederationDecision::waits(FederationState::Frozen));
}

#[test]
fn a_revocation_of_an_earlier_term_does_not_count() {
    let mut view = lost();
    write(&mut view);
    for member in [1, 2] {
        report(&mut view, member).revoked = Some(Term(4));
    }
    assert_eq!(decide_federation(&view).record, None);
}

#[test]
fn an_acker_in_the_candidates_own_failure_domain_does_not_count() {
    let mut view = lost();
    view.members[2].domain = "b".to_owned();
    assert_eq!(view.ackers_of("b"), BTreeSet::from(["a".to_owned()]));
}

#[test]
fn a_candidate_lost_before_it_may_take_writes_is_fenced_by_a_term_of_its_own() {
    let mut view = view();
    view.record.phase = Phase::CatchingUp { candidate: "b".to_owned(), needs: set(9) };
    view.members[1].report = None;
    assert_eq!(decide_federation(&view), FederationDecision::waits(FederationState::FailingOver));
    view.members[1].failures = 5;
    write(&mut view);
    assert_eq!((view.record.term, view.record.phase), (Term(5), Phase::Fencing));
}

#[test]
fn a_candidate_that_may_have_taken_writes_is_waited_for() {
    let mut view = view();
    let ackers = BTreeSet::from(["a".to_owned(), "w".to_owned()]);
    view.record.phase = Phase::Promoting { candidate: "b".to_owned(), needs: set(9), ackers };
    (view.members[1].report, view.members[1].failures) = (None, 5);
    let missing = BTreeSet::from(["b".to_owned()]);
    let blocked = FederationDecision::waits(FederationState::FailoverBlocked { missing });
    assert_eq!(decide_federation(&view), blocked);
}

#[test]
fn the_ackers_that_a_failover_waits_for_are_named() {
    let mut view = view();
    (view.record.phase, view.record.term) = (Phase::Fencing, Term(5));
    (view.members[1].report, view.members[1].failures) = (None, 5);
    let decision = decide_federation(&view);
    let missing = BTreeSet::from(["b".to_owned()]);
    assert_eq!(decision.state, FederationState::FailoverBlocked { missing });
    let close = MemberOrder::Close { member: "a".to_owned(), term: Term(5) };
    let revoke = MemberOrder::Revoke { member: "w".to_owned(), term: Term(5) };
    assert_eq!(decision.orders, [revoke, close]);
}

#[test]
fn a_failover_without_anybody_to_lead_is_refused() {
    let mut view = lost();
    view.record.phase = Phase::Fencing;
    view.members[1].preference = Preference::Witness;
    for member in [1, 2] {
        report(&mut view, member).revoked = Some(Term(4));
    }
    assert!(matches!(decide_federation(&view).state, FederationState::Refused { .. }));
}

#[test]
fn other_modes_and_an_active_member_alone_are_refused() {
    for mode in [Mode::WriteLease, Mode::Manual] {
        let decision = decide_federation(&FederationView { mode, ..lost() });
        assert!(matches!(decision.state, FederationState::Refused { .. }));
    }
    let mut view = lost();
    (view.record.ackers, view.record.required_acks) = (BTreeSet::new(), 0);
    assert!(matches!(decide_federation(&view).state, FederationState::Refused { .. }));
}
