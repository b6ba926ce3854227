//! A new template that works, and one that is given up.

use fleet_topology::*;

use crate::views::*;

const DEADLINE_MS: u64 = 600_000;

/// Instance 2 is of the wanted template and has been waited for; the others are of the one before.
fn trial(replicas: u32, waited_ms: u64) -> ClusterView {
    let mut view = healthy(replicas);
    for other in (0..replicas).filter(|other| *other != 2) {
        view.instance(other).outdated = true;
    }
    view.trial = Trial {
        fallback: Fallback::There,
        proved: Vec::new(),
        waiting: Some(Waiting { instance: id(2), for_ms: waited_ms }),
        deadline_ms: DEADLINE_MS,
    };
    view
}

fn verdict(view: &ClusterView) -> (Option<u32>, bool, Verdict) {
    let Progress { waits_for, runs, verdict, .. } = decide(view).progress;
    (waits_for.map(|instance| instance.0), runs, verdict)
}

type Trouble = fn(&mut ClusterView);

const TROUBLES: [(&str, Trouble); 6] = [
    ("its pod is not there", |view| view.instance(2).pod = PodState::Absent),
    ("its pod is not started", |view| view.instance(2).pod = PodState::Pending),
    ("its agent does not answer", |view| view.silent(2, 100)),
    ("its mysqld has ended", |view| view.down(2)),
    ("it does not acknowledge", |view| view.server(2).semi_sync_replica = false),
    ("it does not apply", |view| view.replication(2).applier = ThreadState::Failed),
];

#[test]
fn a_template_is_given_up_once_an_instance_of_it_had_its_time_and_is_not_in_sync() {
    for (trouble, happens) in TROUBLES {
        let mut view = trial(3, DEADLINE_MS - 1);
        happens(&mut view);
        assert_eq!(verdict(&view), (Some(2), true, Verdict::Open), "{trouble}");
        view.trial.waiting = Some(Waiting { instance: id(2), for_ms: DEADLINE_MS });
        assert_eq!(verdict(&view), (Some(2), true, Verdict::GivenUp), "{trouble}");
        assert_eq!(decide(&view).replace, None, "{trouble}");
        view.trial.fallback = Fallback::Barred;
        assert_eq!(verdict(&view), (Some(2), true, Verdict::Overdue), "{trouble}");
        view.trial.fallback = Fallback::None;
        assert_eq!(verdict(&view), (None, false, Verdict::Open), "{trouble}");
    }
}

#[test]
fn an_instance_that_was_in_sync_has_proved_the_template_whatever_happens_to_it_later() {
    let mut view = trial(3, DEADLINE_MS);
    let progress = decide(&view).progress;
    assert_eq!((progress.proved.as_slice(), progress.waits_for), (&[id(2)][..], None));
    view.trial.proved = progress.proved;
    view.trial.waiting = None;
    view.down(2);
    assert_eq!(verdict(&view), (None, false, Verdict::Open));
    assert_eq!(decide(&view).progress.proved, [id(2)]);
    // Of the template before it proves nothing about this one.
    view.instance(2).outdated = true;
    assert_eq!(decide(&view).progress.proved, []);
}

#[test]
fn an_instance_that_is_outdated_proves_nothing_and_is_not_waited_for() {
    let mut view = trial(3, 0);
    view.down(1);
    assert_eq!(verdict(&view), (None, false, Verdict::Open));
    assert_eq!(decide(&view).progress.proved, [id(2)]);
}

#[test]
fn the_time_of_one_is_not_that_of_another_and_does_not_run_for_a_copy() {
    let mut view = trial(3, DEADLINE_MS);
    view.instance(1).outdated = false;
    view.down(1);
    assert_eq!(verdict(&view), (Some(1), true, Verdict::Open), "the other one has waited");
    view = trial(3, DEADLINE_MS);
    view.down(2);
    view.facts(2).clone = Some(CloneProgress { state: CloneState::Running, donor: Some(id(1)) });
    assert_eq!(verdict(&view), (Some(2), false, Verdict::Open));
}

#[test]
fn nothing_is_given_up_by_one_who_hears_nobody() {
    let mut view = trial(3, DEADLINE_MS);
    for instance in 0..3 {
        view.silent(instance, 100);
    }
    assert_eq!(verdict(&view), (Some(2), false, Verdict::Open));
    // That a pod was not started is known without hearing it.
    view.instance(2).pod = PodState::Pending;
    assert_eq!(verdict(&view), (Some(2), true, Verdict::GivenUp));
}

#[test]
fn nothing_is_given_up_while_the_cluster_is_left_alone_or_stopped() {
    for change in [|view: &mut ClusterView| view.paused = true, |view: &mut ClusterView| view.offline = true]
    {
        let mut view = trial(3, DEADLINE_MS);
        view.down(2);
        change(&mut view);
        assert_eq!(verdict(&view), (None, false, Verdict::Open));
    }
}

#[test]
fn a_template_works_once_all_instances_are_of_it_and_in_sync() {
    let mut view = healthy(3);
    assert_eq!(verdict(&view), (None, false, Verdict::Works));
    for outdated in [0, 1] {
        view = healthy(3);
        view.instance(outdated).outdated = true;
        assert_eq!(verdict(&view), (None, false, Verdict::Open));
    }
    view = healthy(3);
    view.down(1);
    assert_eq!(verdict(&view), (None, false, Verdict::Open));
    assert_eq!(verdict(&healthy(1)), (None, false, Verdict::Works));
}

/// A template was given up while instance 2 had it, so that the others are of the wanted one again.
fn given_up(replicas: u32) -> ClusterView {
    let mut view = healthy(replicas);
    (view.instance(2).outdated, view.instance(2).abandoned) = (true, true);
    view
}

fn replaced(view: &ClusterView) -> Option<u32> {
    decide(view).replace.map(|instance| instance.0)
}

#[test]
fn an_instance_that_is_stuck_with_a_template_that_was_given_up_is_replaced_first() {
    for (trouble, happens) in &TROUBLES[1..] {
        for replicas in [3, 5] {
            let mut view = given_up(replicas);
            (view.instance(1).outdated, view.instance(1).abandoned) = (true, true);
            happens(&mut view);
            assert_eq!(replaced(&view), Some(2), "{trouble}");
            view.instance(2).abandoned = false;
            assert_eq!(replaced(&view), None, "{trouble}, and its template is known to work");
        }
    }
}

#[test]
fn one_that_may_be_needed_is_replaced_only_while_all_others_are_in_sync() {
    for (trouble, happens) in &TROUBLES[2..] {
        let mut view = given_up(3);
        happens(&mut view);
        view.down(1);
        let useless = view.instance(2).facts.known().is_some_and(|facts| facts.server.is_none());
        assert_eq!(replaced(&view), useless.then_some(2), "{trouble}");
    }
    let mut view = given_up(3);
    view.silent(2, 5000);
    view.down(1);
    assert_eq!(replaced(&view), None, "it may serve well, and can't be asked");
    view = given_up(3);
    view.replication(2).applier = ThreadState::Failed;
    view.replication(1).lag_ms = Some(5000);
    (view.server(0).executed, view.server(1).executed) = (trx(0, 90), trx(0, 20));
    assert_eq!(replaced(&view), None, "the other one has missed much");
}

#[test]
fn one_whose_mysqld_has_ended_is_replaced_though_the_primary_is_lost() {
    let mut view = given_up(3);
    view.down(2);
    view.down(0);
    view.record = view.record.next(Stage::Fencing);
    view.facts(1).persisted_term = view.record.term;
    let decision = decide(&view);
    assert_eq!(
        (decision.state, decision.replace),
        (State::FailoverBlocked, Some(id(2))),
        "{}",
        decision.message
    );
    (view.instance(0).outdated, view.instance(0).abandoned) = (true, true);
    view.instance(2).abandoned = false;
    assert_eq!(replaced(&view), None, "what becomes of a lost primary is the failover's");
}

#[test]
fn one_that_gets_a_copy_or_whose_mysqld_misses_a_look_is_left_alone() {
    let mut view = given_up(3);
    view.down(1);
    view.facts(2).server = None;
    assert_eq!(replaced(&view), None, "it runs and does not answer just now");
    view = given_up(3);
    view.down(2);
    view.facts(2).clone = Some(CloneProgress { state: CloneState::Running, donor: Some(id(1)) });
    assert_eq!(replaced(&view), None);
}

#[test]
fn the_only_instance_goes_back_though_it_serves_nobody() {
    let given_up = |happens: fn(&mut ClusterView)| {
        let mut view = healthy(1);
        (view.instance(0).outdated, view.instance(0).abandoned) = (true, true);
        happens(&mut view);
        replaced(&view)
    };
    assert_eq!(given_up(|view| view.instance(0).pod = PodState::Pending), Some(0));
    assert_eq!(given_up(|view| view.down(0)), Some(0));
    assert_eq!(given_up(|view| view.silent(0, 3000)), Some(0));
    assert_eq!(given_up(|view| view.silent(0, 2999)), None, "it has only just been asked");
    assert_eq!(given_up(|view| view.instance(0).pod = PodState::Terminating), None);
}

#[test]
fn nobody_goes_back_while_the_cluster_is_left_alone_or_stopped() {
    let mut view = given_up(3);
    view.down(2);
    view.paused = true;
    assert_eq!(replaced(&view), None);
    (view.paused, view.offline) = (false, true);
    assert_eq!(replaced(&view), None);
}
