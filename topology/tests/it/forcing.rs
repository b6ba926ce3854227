//! A takeover that a person forces, though nobody can prove what was acknowledged.

use fleet_topology::*;

use crate::views::*;

/// Primary 0 and acker 1 are gone, and a person wants instance 2, which has executed 10 transactions.
fn blocked() -> ClusterView {
    let mut view = healthy(3);
    for instance in [0, 1] {
        view.silent(instance, 60_000);
        view.instance(instance).pod = PodState::Absent;
    }
    view.replication(2).receiver = ThreadState::Connecting;
    view.server(2).semi_sync_replica = false;
    view.force = Some(Force { instance: id(2), begun: None });
    view
}

/// The same once the ackers of the lost primary are being revoked for it, in term 2.
fn begun() -> ClusterView {
    let mut view = blocked();
    goes_on(&mut view);
    assert_eq!(view.force, Some(Force { instance: id(2), begun: Some(Term(2)) }));
    view
}

/// The same once instance 2 has taken over, in term 3. It is not open.
fn taken_over() -> ClusterView {
    let mut view = begun();
    revoke(&mut view, 2);
    goes_on(&mut view);
    view.facts(2).persisted_term = Term(3);
    view
}

/// The same once it is open, with its first transaction on instance 1, which lacked the last two transactions.
fn open_again() -> ClusterView {
    let mut view = taken_over();
    *view.instance(1) = healthy(3).instance(1).clone();
    let executed = trx(0, 10).union(&trx(2, 1));
    for instance in [1, 2] {
        view.facts(instance).persisted_term = Term(3);
        let server = view.server(instance);
        server.executed = executed.clone();
        (server.recorded_term, server.recorded_by) = (Term(3), Some(uuid(2)));
    }
    view.follow(1, 2, true);
    let server = view.server(2);
    (server.super_read_only, server.replication) = (false, None);
    (server.semi_sync_source, server.semi_sync_clients) = (true, 1);
    let Decision { ackers, opened, .. } = decide(&view);
    (view.ackers, view.opened) = (ackers, opened);
    view
}

/// As the shard goes on once a decision has a record.
#[track_caller]
fn goes_on(view: &mut ClusterView) {
    let decision = decide(view);
    if let (Some(Forcing::UnderWay { begun }), Some(force)) = (&decision.forcing, &mut view.force) {
        force.begun = Some(*begun);
    }
    view.ackers = decision.ackers;
    view.record = decision.record.unwrap();
}

/// The instance has been told, and receives nothing more.
fn revoke(view: &mut ClusterView, instance: u32) {
    view.facts(instance).persisted_term = view.record.term;
    view.replication(instance).receiver = ThreadState::Stopped;
}

/// An instance is back as it was before the primary was lost, closed, with what it holds.
fn comes_back(view: &mut ClusterView, instance: u32, held: GtidSet) {
    *view.instance(instance) = healthy(3).instance(instance).clone();
    view.restarted(instance);
    view.server(instance).executed = held.clone();
    if let Some(replication) = &mut view.server(instance).replication {
        replication.retrieved = held;
    }
}

#[track_caller]
fn refused(view: &ClusterView, parts: &[&str]) {
    let decision = decide(view);
    let Some(Forcing::Refused(reason)) = &decision.forcing else {
        unreachable!("it is not refused: {:?}", decision.forcing);
    };
    has_all(reason, parts);
    let without = decide(&ClusterView { force: None, ..view.clone() });
    assert_eq!(
        (decision.state, decision.record, decision.orders),
        (without.state, without.record, without.orders)
    );
}

#[test]
fn a_takeover_is_forced_step_by_step() {
    let mut view = blocked();
    let without = decide(&ClusterView { force: None, ..view.clone() });
    says(&without, State::FailoverBlocked, &["instance 1 has no pod"]);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["instance 1 has no pod", "instance 2 takes over all the same"]);
    assert_eq!(decision.forcing, Some(Forcing::UnderWay { begun: Term(2) }));
    assert_eq!(decision.orders, []);
    goes_on(&mut view);
    assert_eq!(
        (view.record.term, view.record.stage, view.record.primary),
        (Term(2), Stage::Fencing, Some(id(0)))
    );

    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["as soon as instance 2 takes no part"]);
    assert_eq!((orders(&decision), &decision.record), (vec![(2, Action::Close)], &None));
    revoke(&mut view, 2);
    goes_on(&mut view);
    let TermRecord { term, primary, primary_since, quorum, stage, promotion_point, planned, forced, .. } =
        &view.record;
    assert_eq!((*term, *primary, *primary_since, *stage), (Term(3), Some(id(2)), Term(3), Stage::Reign));
    assert_eq!((*quorum, *planned), (Quorum::for_replicas(3).unwrap(), false));
    assert_eq!(promotion_point, &Some(trx(0, 10)));
    assert_eq!(forced, &Some(Forced { since: Term(3), point: trx(0, 10) }));
    assert!(view.record.is_forced());

    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["1 ackers have to follow it, 0 do", "instance 1 has no pod"]);
    assert_eq!(decision.forcing, Some(Forcing::UnderWay { begun: Term(2) }));
    comes_back(&mut view, 1, trx(0, 8));
    assert_eq!(orders(&decide(&view)), [(1, follow(2, true))]);

    let view = ClusterView { force: view.force, ..open_again() };
    let decision = decide(&view);
    assert_eq!(decision.traffic.primary, Some(id(2)));
    let Some(Forcing::Done(said)) = decision.forcing else { unreachable!("{:?}", decision.forcing) };
    has_all(&said, &["instance 2 takes writes", "term 3", "is lost", &trx(0, 10).to_string()]);
}

#[test]
fn nothing_is_forced_where_nothing_has_to_be_lost() {
    let force = Some(Force { instance: id(2), begun: None });
    let blocked_only = "forced only where a failover is blocked";
    refused(&ClusterView { force, ..healthy(3) }, &["Healthy", blocked_only]);
    refused(&ClusterView { force, ..healthy(1) }, &["Healthy", blocked_only]);
    refused(&ClusterView { force, ..empty(3) }, &["Bootstrapping", blocked_only]);
    refused(&ClusterView { paused: true, ..blocked() }, &["Paused", blocked_only]);
    refused(&ClusterView { offline: true, ..blocked() }, &["Offline", blocked_only]);
    let mut closed = ClusterView { force, ..healthy(3) };
    closed.restarted(0);
    refused(&closed, &["instance 0 is opened"]);
    // The others can prove it all.
    let mut provable = ClusterView { force, ..healthy(3) };
    provable.down(0);
    refused(&provable, &["PrimaryLost", "2 faithful ackers hold all"]);
    let record = decide(&provable).record.unwrap();
    provable.record = record;
    refused(&provable, &["PrimaryLost", "receive nothing more"]);
    // A shard that alone can't reach the primary.
    let mut heard_by_others = ClusterView { force, ..healthy(3) };
    heard_by_others.silent(0, 5000);
    refused(&heard_by_others, &["Incomplete", "instance 1 receives from it"]);
}

#[test]
fn an_instance_that_cannot_be_the_primary_is_refused() {
    let with = |instance: u32, change: &dyn Fn(&mut ClusterView)| {
        let mut view = blocked();
        view.force = Some(Force { instance: id(instance), begun: None });
        change(&mut view);
        view
    };
    refused(&with(0, &|_| {}), &["instance 0 can't become the primary: it is the primary that was lost"]);
    refused(&with(1, &|_| {}), &["instance 1 can't become the primary: it has no pod"]);
    refused(&with(7, &|_| {}), &["there is no such instance"]);
    refused(&with(2, &|view| view.down(2)), &["it starts mysqld again"]);
    refused(&with(2, &|view| view.silent(2, 3000)), &["its agent does not answer"]);
    refused(&with(2, &|view| view.instance(2).pod = PodState::Terminating), &["being deleted"]);
    refused(&with(2, &|view| view.facts(2).process = ProcessState::Leaving), &["is being stopped"]);
    refused(&with(2, &|view| *view.server(2) = idle_server(2)), &["it holds no data"]);
    let copying = CloneProgress { state: CloneState::Running, donor: Some(id(1)) };
    refused(&with(2, &|view| view.facts(2).clone = Some(copying.clone())), &["copies the data of another"]);
    refused(
        &with(2, &|view| view.server(2).super_read_only = false),
        &["takes writes without being the primary"],
    );
}

/// The ackers are those of the lowest ordinals: of another primary there would be one too many.
#[test]
fn an_instance_beyond_those_that_the_quorum_is_of_is_refused() {
    let mut growing = blocked();
    growing.replicas = 5;
    growing.instances.extend([3, 4].map(idle_instance));
    for instance in [3, 4] {
        growing.facts(instance).persisted_term = Term(1);
        growing.server(instance).executed = trx(0, 10);
        growing.force = Some(Force { instance: id(instance), begun: None });
        refused(&growing, &["its acknowledgements do not count, but those of the lowest 3 ordinals"]);
    }
    growing.force = Some(Force { instance: id(2), begun: None });
    assert!(decide(&growing).record.is_some());

    let mut shrunk = alone_and_down();
    shrunk.instances.push(idle_instance(1));
    shrunk.facts(1).persisted_term = Term(1);
    shrunk.server(1).executed = trx(0, 10);
    shrunk.force = Some(Force { instance: id(1), begun: None });
    refused(&shrunk, &["it is leaving"]);
    shrunk.replicas = 3;
    assert!(decide(&shrunk).record.is_some());
}

/// Five instances of which the primary and two ackers are gone: two that answer are one too few.
fn two_of_five(chosen: u32) -> ClusterView {
    let mut view = healthy(5);
    for instance in [0, 1, 2] {
        view.silent(instance, 60_000);
        view.instance(instance).pod = PodState::Absent;
    }
    for instance in [3, 4] {
        view.replication(instance).receiver = ThreadState::Connecting;
    }
    view.force = Some(Force { instance: id(chosen), begun: None });
    view
}

#[test]
fn less_is_not_lost_for_more() {
    let mut view = two_of_five(3);
    assert!(decide(&view).record.is_some());
    view.replication(4).retrieved = trx(0, 12);
    refused(&view, &["instance 4 answers as well, and holds what it lacks", ":11-12"]);
    view.force = Some(Force { instance: id(4), begun: None });
    assert!(decide(&view).record.is_some());
    // What an instance has made itself no primary ever gave to anybody.
    let mut view = two_of_five(3);
    view.server(4).executed = trx(0, 10).union(&trx(4, 1));
    assert!(decide(&view).record.is_some());
}

#[test]
fn an_errant_instance_is_forced_only_if_nobody_is_better() {
    let with_errant = |others: u64| {
        let mut view = two_of_five(3);
        view.server(3).executed = trx(0, 10).union(&trx(9, 1));
        view.server(4).executed = trx(0, others);
        view.replication(4).retrieved = GtidSet::new();
        view.ackers.iter_mut().find(|known| known.instance == id(3)).unwrap().errant = trx(9, 1);
        view
    };
    refused(&with_errant(10), &["not the cluster's", &trx(9, 1).to_string(), "instance 4", "all the rest"]);
    refused(&with_errant(12), &["instance 4 answers as well, and holds what it lacks"]);
    let mut view = with_errant(9);
    goes_on(&mut view);
    revoke(&mut view, 3);
    revoke(&mut view, 4);
    goes_on(&mut view);
    assert_eq!(view.record.promotion_point, Some(trx(0, 10).union(&trx(9, 1))));
    // The one without them is not refused for what they are.
    let mut view = with_errant(9);
    view.force = Some(Force { instance: id(4), begun: None });
    assert!(decide(&view).record.is_some());
}

/// Whoever has just begun to decide may not know yet that a failover without loss is possible.
#[test]
fn nothing_is_begun_before_everybody_who_may_answer_was_heard() {
    for for_ms in [0, 2999] {
        let mut view = blocked();
        view.instance(1).pod = PodState::Running;
        view.silent(1, for_ms);
        let decision = decide(&view);
        assert_eq!((decision.forcing, decision.record), (Some(Forcing::Waits), None));
        let mut view = blocked();
        *view.instance(1) = healthy(3).instance(1).clone();
        (view.facts(1).server, view.facts(1).silent_for_ms) = (None, Some(for_ms));
        assert_eq!(decide(&view).forcing, Some(Forcing::Waits));
    }
    let mut view = blocked();
    view.instance(1).pod = PodState::Running;
    view.silent(1, 3000);
    assert_eq!(decide(&view).forcing, Some(Forcing::UnderWay { begun: Term(2) }));
    let mut view = blocked();
    view.instance(0).pod = PodState::Running;
    view.silent(0, 0);
    assert_eq!(decide(&view).forcing, Some(Forcing::Waits), "the primary may be fine");
}

#[test]
fn another_replica_of_the_shard_goes_on_at_each_step() {
    // It was written down that it begins, and the record was not.
    let mut view = blocked();
    view.force = Some(Force { instance: id(2), begun: Some(Term(2)) });
    let decision = decide(&view);
    assert_eq!(decision.forcing, Some(Forcing::UnderWay { begun: Term(2) }));
    assert_eq!(decision.record.unwrap().stage, Stage::Fencing);
    // It has heard nobody yet.
    let told = |view: &ClusterView| {
        let mut unheard = view.clone();
        unheard.silent(2, 0);
        let decision = decide(&unheard);
        assert_eq!((decision.record, decision.orders), (None, vec![]));
        assert_eq!(decision.forcing, Some(Forcing::UnderWay { begun: Term(2) }));
        decide(view)
    };
    assert_eq!(orders(&told(&begun())), [(2, Action::Close)]);
    let mut view = begun();
    revoke(&mut view, 2);
    let record = told(&view).record.unwrap();
    assert_eq!((record.primary, record.is_forced()), (Some(id(2)), true));
    // The old primary may be back.
    view.instance(0).pod = PodState::Running;
    view.silent(0, 0);
    told(&view);
    assert_eq!(decide(&view).record, None);
    assert_eq!(told(&taken_over()).forcing, Some(Forcing::UnderWay { begun: Term(2) }));
    // Nobody was told of the end, and another instance is the primary by now.
    let mut view = ClusterView { force: taken_over().force, ..open_again() };
    view.record = view.record.taken_over(id(1), trx(0, 10), Takeover::Planned);
    refused(&view, &["the takeover by instance 2 was given up, and instance 1 is the primary of term 4"]);
}

#[test]
fn a_failover_that_was_blocked_while_the_ackers_were_revoked_is_forced_as_well() {
    let mut view = ClusterView { force: None, ..begun() };
    says(&decide(&view), State::FailoverBlocked, &["instance 1 has no pod"]);
    view.force = Some(Force { instance: id(2), begun: None });
    let decision = decide(&view);
    assert_eq!(decision.forcing, Some(Forcing::UnderWay { begun: Term(2) }));
    assert_eq!(orders(&decision), [(2, Action::Close)]);
    view.force = Some(Force { instance: id(2), begun: Some(Term(2)) });
    revoke(&mut view, 2);
    assert!(decide(&view).record.unwrap().is_forced());
}

#[test]
fn whoever_answers_is_revoked_first_and_the_old_primary_ended() {
    let mut view = begun();
    revoke(&mut view, 2);
    // The acker is back with another volume, and hangs.
    comes_back(&mut view, 1, trx(0, 10));
    view.facts(1).volume_id = "new".to_owned();
    (view.facts(1).server, view.facts(1).silent_for_ms) = (None, Some(3000));
    let decision = decide(&view);
    assert_eq!((orders(&decision), decision.record), (vec![(1, Action::Fence)], None));
    view.facts(1).persisted_term = Term(2);
    assert!(decide(&view).record.is_some(), "its agent ends a mysqld that hangs");

    // The old primary is back with another volume, and so can't stay the primary.
    *view.instance(0) = healthy(3).instance(0).clone();
    view.facts(0).volume_id = "new".to_owned();
    let decision = decide(&view);
    assert!(orders(&decision).contains(&(0, Action::Fence)));
    assert_eq!(decision.record, None);
    view.restarted(0);
    view.facts(0).persisted_term = Term(2);
    assert!(decide(&view).record.unwrap().is_forced());
    // Nobody can tell an instance whose mysqld does not run.
    view.facts(1).persisted_term = Term(1);
    view.down(1);
    assert!(decide(&view).record.is_some());
}

#[test]
fn an_old_primary_that_is_back_in_time_stays_the_primary() {
    let mut view = begun();
    revoke(&mut view, 2);
    comes_back(&mut view, 0, trx(0, 12));
    let decision = decide(&view);
    let Some(Forcing::Refused(reason)) = &decision.forcing else { unreachable!("{:?}", decision.forcing) };
    has_all(reason, &["instance 0 is back and stays the primary"]);
    view.record = decision.record.unwrap();
    let TermRecord { primary, stage, forced, .. } = &view.record;
    assert_eq!((*primary, *stage, forced), (Some(id(0)), Stage::Reign, &None));
    // It is lost again, and nobody was told: a person has to ask again.
    view.down(0);
    refused(&view, &["the takeover by instance 2 was given up, and instance 0 is the primary of term 3"]);
}

#[test]
fn ackers_that_are_back_in_time_make_force_needless() {
    let mut view = begun();
    revoke(&mut view, 2);
    comes_back(&mut view, 1, trx(0, 10));
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["receive nothing more"]);
    assert_eq!(decision.forcing, Some(Forcing::UnderWay { begun: Term(2) }), "it may be lost again");
    revoke(&mut view, 1);
    let decision = decide(&view);
    let record = decision.record.clone().unwrap();
    assert_eq!((record.primary, record.forced), (Some(id(1)), None));
    let Some(Forcing::Refused(reason)) = decision.forcing else { unreachable!("{:?}", decision.forcing) };
    has_all(&reason, &["instance 1 holds all that was acknowledged and takes over"]);
    // It is the chosen one that takes over, with all that was acknowledged.
    view.replication(2).retrieved = trx(0, 11);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.forced), (Some(id(2)), None));
}

#[test]
fn an_instance_that_fails_before_it_takes_over_is_given_up() {
    let mut view = begun();
    view.down(2);
    refused(&view, &["instance 2 can't become the primary: it starts mysqld again"]);
    says(&decide(&view), State::FailoverBlocked, &["instance 1 has no pod"]);
}

#[test]
fn an_instance_that_is_lost_once_it_has_taken_over_is_said_to_be() {
    let mut view = taken_over();
    comes_back(&mut view, 0, trx(0, 10));
    comes_back(&mut view, 1, trx(0, 10));
    view.down(2);
    let decision = decide(&view);
    says(&decision, State::PrimaryLost, &["2 faithful ackers"]);
    let Some(Forcing::Done(said)) = decision.forcing else { unreachable!("{:?}", decision.forcing) };
    has_all(&said, &["instance 2 became the primary of term 3, and was lost"]);
}

/// It took writes, and its volume is another one: it answers, and can't be the primary.
#[test]
fn a_primary_that_has_lost_its_data_is_passed_over() {
    for volume in ["volume-0", "new"] {
        let mut view = blocked();
        *view.instance(0) = idle_instance(0);
        view.facts(0).volume_id = volume.to_owned();
        view.server(0).executed = trx(0, 3);
        says(
            &decide(&ClusterView { force: None, ..view.clone() }),
            State::FailoverBlocked,
            &["instance 0 is kept closed"],
        );
        goes_on(&mut view);
        assert_eq!(view.record.stage, Stage::Fencing);
        view.facts(0).persisted_term = Term(2);
        // Another replica of the shard, which has not heard of the chosen one yet.
        let mut unheard = view.clone();
        unheard.silent(2, 0);
        assert_eq!(decide(&unheard).record, None, "{volume}");
        revoke(&mut view, 2);
        let record = decide(&view).record.unwrap();
        assert_eq!((record.primary, record.is_forced()), (Some(id(2)), true), "{volume}");
    }
}

#[test]
fn a_primary_that_alone_held_all_is_passed_over_for_one_that_was_to_become_an_acker() {
    let mut view = healthy(3);
    view.record.quorum = Quorum::ALONE;
    view.silent(0, 60_000);
    view.instance(0).pod = PodState::Absent;
    for instance in [1, 2] {
        view.replication(instance).receiver = ThreadState::Connecting;
    }
    says(&decide(&view), State::FailoverBlocked, &["it alone holds all that was committed"]);
    view.force = Some(Force { instance: id(1), begun: None });
    goes_on(&mut view);
    says(&decide(&view), State::PrimaryLost, &["it alone holds all", "instance 1 takes over all the same"]);
    revoke(&mut view, 1);
    assert_eq!(decide(&view).record, None, "instance 2 is not revoked");
    revoke(&mut view, 2);
    goes_on(&mut view);
    assert_eq!((view.record.quorum, view.record.is_forced()), (Quorum::ALONE, true));
    assert!(orders(&decide(&view)).contains(&(1, open(0))));
    refused(
        &ClusterView { force: Some(Force { instance: id(0), begun: None }), ..alone_and_down() },
        &["was lost"],
    );
}

fn alone_and_down() -> ClusterView {
    let mut view = healthy(1);
    view.down(0);
    view
}

#[track_caller]
fn is_left_alone(view: &ClusterView, instance: u32, left: &GtidSet) {
    let decision = decide(view);
    assert_eq!(standing(&decision, instance), &Standing::Errant(left.clone()));
    let verdict = decision.instances.iter().find(|verdict| verdict.id == id(instance)).unwrap();
    has_all(
        &verdict.message,
        &["may have been acknowledged", "forced in term 3", "has it rebuilt", &left.to_string()],
    );
    assert!(decision.orders.iter().all(|order| order.instance != id(instance)), "{:?}", decision.orders);
}

#[test]
fn what_the_forced_primary_lacks_is_no_tail_whoever_comes_back_with_it() {
    let left = trx(0, 13).subtract(&trx(0, 10));
    for (instance, mut view) in [(0, open_again()), (0, taken_over()), (1, taken_over())] {
        comes_back(&mut view, instance, trx(0, 13));
        is_left_alone(&view, instance, &left);
        // Received, and not applied.
        if instance == 1 {
            view.server(1).executed = trx(0, 9);
            is_left_alone(&view, 1, &left);
        }
    }
    // One that holds nothing more simply follows.
    let mut view = open_again();
    comes_back(&mut view, 0, trx(0, 10));
    assert_eq!(orders(&decide(&view)), [(0, follow(2, true))]);
}

#[test]
fn it_is_no_tail_in_any_later_reign_either() {
    let mut view = open_again();
    view.record = view.record.taken_over(id(1), trx(0, 10).union(&trx(2, 1)), Takeover::Planned);
    assert!(!view.record.is_forced());
    view.facts(1).persisted_term = Term(4);
    (view.server(1).super_read_only, view.server(1).replication) = (false, None);
    comes_back(&mut view, 0, trx(0, 13));
    is_left_alone(&view, 0, &trx(0, 13).subtract(&trx(0, 10)));
    // A tail of the reign afterwards is one.
    comes_back(&mut view, 0, trx(0, 10).union(&trx(2, 2)));
    (view.server(0).recorded_term, view.server(0).recorded_by) = (Term(3), Some(uuid(2)));
    let archive = trx(2, 2).subtract(&trx(2, 1));
    let copies = |(instance, action): (u32, Action)| match action {
        Action::Clone { archive, .. } => Some((instance, archive)),
        _ => None,
    };
    assert!(orders(&decide(&view)).into_iter().filter_map(copies).eq([(0, archive)]));
}

/// The old primary was rebuilt, is the primary again, and has given other transactions the numbers of those that
/// instance 1 still holds.
#[test]
fn numbers_that_were_given_twice_do_not_hide_what_was_left_behind() {
    let mut view = open_again();
    let executed = trx(0, 14).union(&trx(2, 1));
    view.record = view.record.taken_over(id(0), trx(0, 10).union(&trx(2, 1)), Takeover::Planned);
    for instance in [0, 2] {
        *view.instance(instance) = healthy(3).instance(instance).clone();
        view.facts(instance).persisted_term = Term(4);
        let server = view.server(instance);
        (server.executed, server.recorded_term, server.recorded_by) =
            (executed.clone(), Term(4), Some(uuid(0)));
    }
    view.follow(2, 0, true);
    comes_back(&mut view, 1, trx(0, 13));
    view.server(1).executed = trx(0, 9);
    let left = trx(0, 13).subtract(&trx(0, 10));
    is_left_alone(&view, 1, &left);
    // It was told of the term once; what it has executed was there before.
    view.facts(1).persisted_term = Term(4);
    view.server(1).executed = trx(0, 13);
    is_left_alone(&view, 1, &left);
    // More numbers than the primary has are no sign that the primary has lost some.
    view.server(1).executed = trx(0, 20);
    view.restarted(0);
    is_left_alone(&view, 1, &trx(0, 20).subtract(&trx(0, 10)));
    assert!(orders(&decide(&view)).contains(&(0, open(1))), "{:?}", decide(&view));
    // Nor do they get into the cluster if that primary is lost.
    view.down(0);
    view.replication(2).receiver = ThreadState::Connecting;
    goes_on(&mut view);
    revoke(&mut view, 1);
    revoke(&mut view, 2);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.promotion_point), (Some(id(2)), Some(executed)));
}

#[test]
fn what_was_left_behind_is_given_up_only_by_a_person_who_rebuilds_the_instance() {
    let mut view = open_again();
    comes_back(&mut view, 0, trx(0, 13));
    view.rebuild = Some(Rebuild { instance: id(0), begun: false });
    let archive = trx(0, 13).subtract(&trx(0, 10));
    let expendable = trx(0, 13).union(&trx(2, 1));
    assert_eq!(orders(&decide(&view)), [(0, Action::Clone { donor: id(1), expendable, archive })]);
}

/// Relay logs are not kept aside, and go with the data.
#[test]
fn what_was_received_and_not_applied_is_applied_before_it_is_given_up() {
    let mut view = open_again();
    // The old primary is the primary again, and has given the same numbers.
    view.record = view.record.taken_over(id(0), trx(0, 10).union(&trx(2, 1)), Takeover::Planned);
    *view.instance(0) = healthy(3).instance(0).clone();
    let executed = trx(0, 14).union(&trx(2, 1));
    for instance in [0, 2] {
        view.facts(instance).persisted_term = Term(4);
        let server = view.server(instance);
        (server.executed, server.recorded_term, server.recorded_by) =
            (executed.clone(), Term(4), Some(uuid(0)));
    }
    view.restarted(2);
    view.follow(2, 0, true);
    comes_back(&mut view, 1, trx(0, 12));
    view.server(1).executed = trx(0, 9);
    view.rebuild = Some(Rebuild { instance: id(1), begun: false });
    let archive = trx(0, 12).subtract(&trx(0, 10));
    let decision = decide(&view);
    assert_eq!(orders(&decision), [(1, Action::Close)]);
    assert_eq!(decision.rebuilding, Some(Rebuilding::Waits));
    // It was told of the term by that, and its applier runs.
    view.facts(1).persisted_term = Term(4);
    for applied in [9, 10, 11] {
        view.server(1).executed = trx(0, applied);
        view.replication(1).applier = ThreadState::Running;
        let decision = decide(&view);
        assert_eq!(standing(&decision, 1), &Standing::Errant(archive.clone()), "{applied}");
        assert_eq!(orders(&decision), []);
        view.replication(1).applier = ThreadState::Failed;
        view.replication(1).applier_error = "no space".to_owned();
        let decision = decide(&view);
        assert_eq!(orders(&decision), [(1, Action::Close)]);
        says(&decision, State::Degraded, &["applies what it has received first: no space"]);
    }
    view.server(1).executed = trx(0, 12);
    assert_eq!(orders(&decide(&view)), [(1, Action::Clone { donor: id(2), expendable: executed, archive })]);
}

/// Without a copy of it there would never be an acker.
#[test]
fn an_instance_that_acknowledges_nothing_is_rebuilt_though_nobody_else_does() {
    let mut view = taken_over();
    comes_back(&mut view, 1, trx(0, 12));
    view.rebuild = Some(Rebuild { instance: id(1), begun: false });
    let (archive, expendable) = (trx(0, 12).subtract(&trx(0, 10)), trx(0, 12));
    assert_eq!(orders(&decide(&view)), [(1, Action::Clone { donor: id(2), expendable, archive })]);
}

#[test]
fn a_forced_primary_that_was_never_in_sync_is_known_again_when_it_comes_back() {
    let mut view = blocked();
    view.facts(2).volume_id = "new".to_owned();
    goes_on(&mut view);
    revoke(&mut view, 2);
    goes_on(&mut view);
    view.facts(2).persisted_term = Term(3);
    let known = |decision: &Decision| {
        decision.ackers.iter().find(|known| known.instance == id(2)).unwrap().volume_id.clone()
    };
    let decision = decide(&view);
    assert_eq!(known(&decision), "new");
    assert_eq!(decision.ackers.len(), 3);
    // It is deposed by a failover that stops half way, and is back: its volume is the one that counts.
    view.ackers = decision.ackers;
    view.record = view.record.next(Stage::Fencing);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.stage), (Some(id(2)), Stage::Reign));
    assert!(record.is_forced());
    // Another volume again is none that it took over with.
    let mut view = taken_over();
    *view.server(2) = idle_server(2);
    view.facts(2).volume_id = "newer".to_owned();
    assert_eq!(known(&decide(&view)), "volume-2");
}

#[test]
fn the_failover_after_a_forced_one_needs_those_who_hold_what_the_forced_primary_did() {
    // Instance 1 has gone on with it, and the old primary has nothing more.
    let mut view = open_again();
    comes_back(&mut view, 0, trx(0, 9));
    view.down(2);
    view.replication(1).receiver = ThreadState::Connecting;
    says(&decide(&view), State::PrimaryLost, &["2 faithful ackers"]);
    goes_on(&mut view);
    revoke(&mut view, 1);
    view.facts(0).persisted_term = Term(4);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, record.is_forced()), (Some(id(1)), false));
    assert_eq!(record.promotion_point, Some(trx(0, 10).union(&trx(2, 1))));
    assert_eq!(record.forced, view.record.forced, "what was left behind may still come back");

    // It took over, and was lost before it was open: together they lack its last transaction.
    let mut view = taken_over();
    comes_back(&mut view, 0, trx(0, 9));
    comes_back(&mut view, 1, trx(0, 9));
    view.down(2);
    says(&decide(&view), State::FailoverBlocked, &["first transaction of term 3"]);
}

#[test]
fn what_was_left_behind_gets_into_the_cluster_by_no_later_failover() {
    let mut view = open_again();
    comes_back(&mut view, 0, trx(0, 13));
    view.down(2);
    view.replication(1).receiver = ThreadState::Connecting;
    goes_on(&mut view);
    revoke(&mut view, 1);
    view.facts(0).persisted_term = Term(4);
    let record = decide(&view).record.unwrap();
    assert_eq!((record.primary, &record.promotion_point), (Some(id(1)), &Some(trx(0, 10).union(&trx(2, 1)))));
    view.record = record;
    view.facts(1).persisted_term = Term(5);
    let decision = decide(&view);
    assert!(matches!(standing(&decision, 0), Standing::Errant(_)), "{:?}", standing(&decision, 0));
    assert!(decision.orders.iter().all(|order| order.instance != id(0)));
}

/// Nobody is left but those who hold what the forced primary lacked: by a second choice that is what counts.
#[test]
fn a_second_choice_takes_what_the_first_one_left_behind() {
    let mut view = taken_over();
    comes_back(&mut view, 0, trx(0, 12));
    comes_back(&mut view, 1, trx(0, 12));
    view.silent(2, 60_000);
    view.instance(2).pod = PodState::Absent;
    view.force = None;
    goes_on(&mut view);
    for instance in [0, 1] {
        view.facts(instance).persisted_term = Term(4);
    }
    says(&decide(&view), State::FailoverBlocked, &["none of the instances"]);
    view.force = Some(Force { instance: id(0), begun: None });
    let record = decide(&view).record.unwrap();
    assert_eq!(record.forced, Some(Forced { since: Term(5), point: trx(0, 12) }));
    assert_eq!((record.primary, record.is_forced()), (Some(id(0)), true));
}
