//! What holds for every decision about every view, possible or not.

use fleet_topology::*;
use proptest::prelude::*;

use crate::views::{id, trx, uuid};

fn gtids() -> impl Strategy<Value = GtidSet> {
    (0..4_u64, 0..4_u64, 0..3_u64).prop_map(|(a, b, c)| trx(0, a).union(&trx(1, b)).union(&trx(2, c)))
}

fn thread() -> impl Strategy<Value = ThreadState> {
    prop::sample::select(vec![
        ThreadState::Stopped,
        ThreadState::Connecting,
        ThreadState::Running,
        ThreadState::Running,
        ThreadState::Running,
        ThreadState::Failed,
    ])
}

fn replication() -> impl Strategy<Value = ReplicationFacts> {
    let source = prop::option::weighted(0.9, 0..3_u32);
    let durations = (prop::option::of(0..5000_u64), prop::option::of(0..20_000_u64));
    (source, thread(), thread(), gtids(), durations).prop_map(
        |(source, receiver, applier, retrieved, (lag_ms, connecting_for_ms))| ReplicationFacts {
            source: source.map(id),
            receiver,
            receiver_error: String::new(),
            applier,
            applier_error: String::new(),
            retrieved,
            lag_ms,
            connecting_for_ms: connecting_for_ms.filter(|_| receiver == ThreadState::Connecting),
        },
    )
}

fn server() -> impl Strategy<Value = ServerFacts> {
    let flags = (prop::bool::weighted(0.7), any::<bool>(), any::<bool>());
    (0..4_u32, gtids(), gtids(), flags, prop::option::of(replication()), 0..3_u32, 0..4_u32, 0..4_u64)
        .prop_map(|(server, executed, purged, flags, replication, required_acks, semi_sync_clients, term)| {
            ServerFacts {
                server_uuid: uuid(server),
                purged: purged.intersect(&executed),
                executed,
                super_read_only: flags.0,
                replication,
                semi_sync_source: flags.1,
                required_acks,
                semi_sync_clients,
                semi_sync_replica: flags.2,
                recorded_term: Term(term),
                recorded_by: (term > 0).then(|| uuid(required_acks)),
            }
        })
}

fn process() -> impl Strategy<Value = ProcessState> {
    prop_oneof![
        6 => Just(ProcessState::Running),
        1 => prop::sample::select(vec![
            ProcessState::Initializing,
            ProcessState::Starting,
            ProcessState::Exited,
            ProcessState::Failed("broken".to_owned()),
            ProcessState::Leaving,
            ProcessState::Stopping,
        ]),
    ]
}

fn copy() -> impl Strategy<Value = CloneProgress> {
    let states = vec![CloneState::Running, CloneState::Completed, CloneState::Failed("full".to_owned())];
    (prop::sample::select(states), prop::option::of(0..4_u32))
        .prop_map(|(state, donor)| CloneProgress { state, donor: donor.map(id) })
}

fn facts() -> impl Strategy<Value = Observed<InstanceFacts>> {
    let known = (
        process(),
        0..4_u64,
        prop::option::weighted(0.9, server()),
        prop::option::weighted(0.2, copy()),
        prop::sample::select(vec!["a", "b"]),
    );
    prop_oneof![
        6 => known.prop_map(|(process, term, server, clone, volume)| Observed::Known(InstanceFacts {
            boot_id: volume.to_owned(),
            volume_id: volume.to_owned(),
            process,
            silent_for_ms: (term == 3).then_some(4000),
            persisted_term: Term(term),
            server,
            clone,
        })),
        1 => (0..6000_u64).prop_map(|for_ms| Observed::Unknown { for_ms }),
    ]
}

fn instance() -> impl Strategy<Value = InstanceView> {
    let pods = vec![
        PodState::Running,
        PodState::Running,
        PodState::Pending,
        PodState::Absent,
        PodState::Terminating,
    ];
    (0..6_u32, prop::sample::select(pods), any::<bool>(), (any::<bool>(), any::<bool>()), facts()).prop_map(
        |(ordinal, pod, has_volume, (outdated, abandoned), facts)| InstanceView {
            id: id(ordinal),
            pod,
            has_volume,
            outdated,
            abandoned,
            facts,
        },
    )
}

fn record() -> impl Strategy<Value = TermRecord> {
    let quorum = prop::sample::select(vec![1, 3, 5]).prop_map(|n| Quorum::for_replicas(n).unwrap());
    let stage =
        prop::sample::select(vec![Stage::Reign, Stage::Reign, Stage::Fencing, Stage::Handover { to: id(1) }]);
    let primary = prop::option::weighted(0.9, 0..4_u32);
    let forced = (0..5_u64, gtids()).prop_map(|(since, point)| Forced { since: Term(since), point });
    let points = (prop::option::of(gtids()), prop::option::weighted(0.3, forced));
    (1..5_u64, primary, 0..5_u64, quorum, 0..5_u64, stage, points).prop_map(
        |(term, primary, since, quorum, quorum_since, stage, (promotion_point, forced))| TermRecord {
            term: Term(term),
            primary: primary.map(id),
            primary_since: Term(since.min(term)),
            quorum,
            quorum_since: Term(quorum_since.min(term)),
            stage,
            promotion_point,
            planned: false,
            forced,
        },
    )
}

fn wish() -> impl Strategy<Value = Option<Wish>> {
    let instance = (0..5_u32).prop_map(id);
    let begun = (instance.clone(), 0..6_u64).prop_map(|(to, term)| Wish::Begun { to, term: Term(term) });
    prop::option::of(prop_oneof![Just(Wish::Any), instance.prop_map(Wish::To), begun])
}

fn rebuild() -> impl Strategy<Value = Option<Rebuild>> {
    prop::option::of(
        (0..5_u32, any::<bool>()).prop_map(|(instance, begun)| Rebuild { instance: id(instance), begun }),
    )
}

fn release() -> impl Strategy<Value = Option<Release>> {
    prop::option::of(
        (0..5_u32, gtids())
            .prop_map(|(instance, transactions)| Release { instance: id(instance), transactions }),
    )
}

fn force() -> impl Strategy<Value = Option<Force>> {
    let begun = prop::option::of((1..6_u64).prop_map(Term));
    prop::option::of((0..5_u32, begun).prop_map(|(instance, begun)| Force { instance: id(instance), begun }))
}

fn trial() -> impl Strategy<Value = Trial> {
    let fallback = prop::sample::select(vec![Fallback::None, Fallback::Barred, Fallback::There]);
    let waiting = prop::option::of(
        (0..4_u32, 0..200_u64).prop_map(|(instance, for_ms)| Waiting { instance: id(instance), for_ms }),
    );
    (fallback, prop::collection::vec((0..4_u32).prop_map(id), 0..3), waiting)
        .prop_map(|(fallback, proved, waiting)| Trial { fallback, proved, waiting, deadline_ms: 100 })
}

fn views() -> impl Strategy<Value = ClusterView> {
    let remembered = prop::collection::vec((0..4_u32, "[ab]", "[ab]"), 0..3);
    (
        prop::sample::select(vec![1_u32, 3, 3, 5, 2]),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        any::<bool>(),
        (record(), (0..5_u64).prop_map(Term), wish(), (rebuild(), release(), force()), trial()),
        remembered,
        prop::collection::vec(instance(), 0..8),
    )
        .prop_map(
            |(
                replicas,
                offline,
                paused,
                strict,
                (record, opened, wish, (rebuild, release, force), trial),
                remembered,
                instances,
            )| {
                ClusterView {
                    replicas,
                    offline,
                    paused,
                    wanted_primary: wish,
                    rebuild,
                    release,
                    force,
                    durability: if strict { Durability::Strict } else { Durability::Relaxed },
                    record,
                    opened,
                    ackers: remembered
                        .into_iter()
                        .map(|(instance, volume_id, boot_id)| AckerIdentity {
                            instance: id(instance),
                            volume_id,
                            boot_id,
                            errant: GtidSet::new(),
                        })
                        .collect(),
                    catching_up: Vec::new(),
                    trial,
                    instances,
                }
            },
        )
}

/// The facts that count of an instance: those of its last entry.
fn known(view: &ClusterView, instance: InstanceId) -> Option<&InstanceFacts> {
    view.instances.iter().rfind(|other| other.id == instance)?.facts.known()
}

proptest! {
    #![proptest_config(crate::cases(400))]

    #[test]
    fn equal_views_give_equal_decisions(view in views()) {
        prop_assert_eq!(decide(&view), decide(&view.clone()));
        let mut instances = view.instances.clone();
        instances.sort_by_key(|instance| instance.id);
        let sorted = ClusterView { instances, ..view.clone() };
        if view.replicas != 2 {
            prop_assert_eq!(decide(&view), decide(&sorted));
        }
    }

    #[test]
    fn a_pod_is_replaced_only_if_it_is_outdated_and_never_that_of_a_primary_that_another_one_could_be(view in views()) {
        let decision = decide(&view);
        if let Some(replaced) = decision.replace {
            let instance = view.instances.iter().rfind(|other| other.id == replaced);
            prop_assert!(instance.is_some_and(|instance| instance.outdated && instance.pod != PodState::Absent));
            prop_assert!(view.replicas == 1 || view.record.primary != Some(replaced));
            prop_assert!(!view.offline && !view.paused && decision.record.is_none());
        }
    }

    #[test]
    fn a_template_is_given_up_only_for_one_to_go_back_to_and_once_its_time_is_up(view in views()) {
        let decision = decide(&view);
        if decision.progress.verdict == Verdict::GivenUp {
            let waiting = view.trial.waiting.filter(|waiting| waiting.for_ms >= view.trial.deadline_ms);
            prop_assert!(waiting.is_some_and(|waiting| decision.progress.waits_for == Some(waiting.instance)));
            prop_assert_eq!(view.trial.fallback, Fallback::There);
            prop_assert!(!view.offline && !view.paused);
        }
    }

    #[test]
    fn orders_are_given_one_by_one_to_instances_that_answer(view in views()) {
        let decision = decide(&view);
        let mut ordered: Vec<_> = decision.orders.iter().map(|order| order.instance).collect();
        ordered.sort_unstable();
        ordered.dedup();
        prop_assert_eq!(ordered.len(), decision.orders.len());
        for order in &decision.orders {
            let facts = known(&view, order.instance);
            let hears = facts.is_some_and(|facts| facts.server.is_some() || order.action == Action::Fence);
            prop_assert!(hears);
            prop_assert_eq!(order.term, view.record.term);
            prop_assert!(facts.is_some_and(|facts| facts.persisted_term <= order.term), "the agent would refuse it");
        }
        prop_assert!(decision.record.is_none() || decision.orders.is_empty());
    }

    #[test]
    fn only_the_primary_of_the_record_is_opened_and_only_while_no_other_is_open(view in views()) {
        let decision = decide(&view);
        let opened: Vec<_> =
            decision.orders.iter().filter(|order| matches!(order.action, Action::Open { .. })).collect();
        prop_assert!(opened.len() <= 1);
        for order in opened {
            prop_assert_eq!(Some(order.instance), view.record.primary);
            for other in view.instances.iter().filter(|other| other.id != order.instance) {
                let server = known(&view, other.id).and_then(|facts| facts.server.as_ref());
                let harmless = |server: &ServerFacts| {
                    let deposed = view.record.promotion_point.is_some()
                        && server.recorded_term < view.record.primary_since;
                    server.super_read_only || (deposed && server.effective_acks() > 0)
                };
                let harmless = server.is_none_or(harmless);
                prop_assert!(harmless);
            }
        }
    }

    #[test]
    fn a_copy_never_replaces_what_its_donor_lacks(view in views()) {
        let decision = decide(&view);
        let mut donors = Vec::new();
        for order in &decision.orders {
            if let Action::Clone { donor, expendable, archive } = &order.action {
                let held = known(&view, order.instance).and_then(|facts| facts.server.as_ref()).unwrap().held();
                let source = known(&view, *donor).and_then(|facts| facts.server.as_ref()).unwrap();
                prop_assert!(expendable.contains(&held) && source.executed.union(archive).contains(&held));
                prop_assert_eq!(&source.executed.union(archive), expendable);
                let promised = view.record.promotion_point.clone().unwrap_or_default();
                let primary = known(&view, view.record.primary.unwrap()).and_then(|facts| facts.server.as_ref());
                let primary = primary.unwrap().held();
                let chosen = view.rebuild.is_some_and(|chosen| chosen.instance == order.instance);
                prop_assert!(archive.is_empty() || view.record.promotion_point.is_some() || chosen);
                prop_assert!(archive.intersect(&promised).is_empty());
                // After a forced takeover the same numbers may have been given twice.
                prop_assert!(archive.intersect(&primary).is_empty() || (chosen && view.record.forced.is_some()));
                donors.push(*donor);
            }
        }
        for instance in &view.instances {
            let copy = known(&view, instance.id).and_then(|facts| facts.clone.as_ref());
            if let Some(CloneProgress { state: CloneState::Running, donor: Some(donor), .. }) = copy {
                prop_assert!(!donors.contains(donor), "the donor is busy");
            }
        }
        let asked = donors.len();
        donors.sort_unstable();
        donors.dedup();
        prop_assert_eq!(asked, donors.len());
    }

    #[test]
    fn only_what_a_person_names_is_kept_and_only_by_a_primary_that_takes_writes(view in views()) {
        for order in decide(&view).orders {
            let Action::Adopt { transactions } = &order.action else { continue };
            let release = view.release.clone().unwrap();
            prop_assert!(release.transactions.contains(transactions) && !transactions.is_empty());
            prop_assert_eq!(Some(order.instance), view.record.primary);
            let primary = known(&view, order.instance).and_then(|facts| facts.server.as_ref()).unwrap();
            prop_assert!(!primary.super_read_only && primary.executed.intersect(transactions).is_empty());
            let kept = known(&view, release.instance).and_then(|facts| facts.server.as_ref()).unwrap();
            prop_assert!(kept.executed.contains(transactions));
        }
    }

    #[test]
    fn an_instance_with_errant_transactions_gets_no_order_to_replicate_and_no_reads(view in views()) {
        let decision = decide(&view);
        for verdict in decision.instances.iter().filter(|verdict| matches!(verdict.standing, Standing::Errant(_))) {
            let chosen = view.rebuild.is_some_and(|chosen| chosen.instance == verdict.id);
            for order in decision.orders.iter().filter(|order| order.instance == verdict.id) {
                prop_assert!(chosen && order.action == Action::Close, "{order}");
            }
            prop_assert!(!decision.traffic.replicas.contains(&verdict.id));
            prop_assert!(!decision.traffic.undecided_replicas.contains(&verdict.id));
        }
    }

    #[test]
    fn writes_go_to_an_open_primary_of_the_record_and_reads_to_closed_instances(view in views()) {
        let Traffic { primary, replicas, .. } = decide(&view).traffic;
        if let Some(primary) = primary {
            prop_assert_eq!(Some(primary), view.record.primary);
            let server = known(&view, primary).and_then(|facts| facts.server.as_ref()).unwrap();
            prop_assert!(!server.super_read_only && server.recorded_term >= view.record.primary_since);
        }
        for replica in replicas.into_iter().filter(|replica| Some(*replica) != primary) {
            prop_assert!(known(&view, replica).unwrap().server.as_ref().unwrap().super_read_only);
        }
    }

    #[test]
    fn a_new_record_has_a_higher_term_than_any_that_is_known(view in views()) {
        if let Some(record) = decide(&view).record {
            prop_assert!(record.term > view.record.term);
            let changes = record.primary != view.record.primary;
            let wanted = record.primary.is_some_and(|primary| primary.0 < view.replicas);
            prop_assert!(wanted || !changes || view.record.stage == Stage::Fencing);
            prop_assert!(record.primary_since <= record.term);
            if Some(record.primary) != Some(view.record.primary) {
                for instance in &view.instances {
                    prop_assert!(known(&view, instance.id).is_none_or(|facts| facts.persisted_term < record.term));
                }
            }
        }
    }

    #[test]
    fn a_wish_is_answered_by_what_is_done(view in views()) {
        let decision = decide(&view);
        prop_assert_eq!(decision.wish.is_some(), view.wanted_primary.is_some());
        let record = decision.record.as_ref().unwrap_or(&view.record);
        match &decision.wish {
            None | Some(Fulfilment::Waits) => {}
            Some(Fulfilment::UnderWay { to, term }) => {
                let takes_over = record.stage == Stage::Reign && record.primary == Some(*to);
                let goes_on = takes_over || record.stage == Stage::Handover { to: *to };
                prop_assert!(goes_on);
                prop_assert_eq!(*term, record.term);
            }
            Some(Fulfilment::Done(primary)) => {
                prop_assert_eq!(Some(*primary), record.primary);
                prop_assert_eq!(decision.traffic.primary, record.primary);
            }
            Some(Fulfilment::Refused(reason)) => prop_assert!(!reason.is_empty()),
        }
        let without = decide(&ClusterView { wanted_primary: None, ..view.clone() });
        if !matches!(decision.wish, Some(Fulfilment::UnderWay { .. })) {
            prop_assert_eq!(Decision { wish: None, ..decision }, without, "an unfulfilled wish changes something");
        }
    }

    #[test]
    fn a_choice_to_force_a_primary_is_answered_by_what_is_done(view in views()) {
        let decision = decide(&view);
        prop_assert_eq!(decision.forcing.is_some(), view.force.is_some());
        let record = decision.record.as_ref().unwrap_or(&view.record);
        let forces = record.forced != view.record.forced;
        let Some(Force { instance, begun }) = view.force else {
            prop_assert!(!forces, "nobody has asked for it");
            return Ok(());
        };
        match &decision.forcing {
            Some(Forcing::UnderWay { begun: term }) => {
                let revokes = record.stage == Stage::Fencing && record.term == *term;
                prop_assert!(revokes || (record.primary == Some(instance) && record.primary_since > *term));
                prop_assert!(begun.is_none_or(|begun| begun == *term || begun > view.record.term));
            }
            Some(Forcing::Done(said)) => {
                prop_assert_eq!(record.primary, Some(instance));
                prop_assert!(!said.is_empty());
            }
            Some(Forcing::Refused(reason)) => prop_assert!(!reason.is_empty()),
            None | Some(Forcing::Waits) => prop_assert!(begun.is_none_or(|begun| begun > view.record.term)),
        }
        let without = decide(&ClusterView { force: None, ..view.clone() });
        if !matches!(decision.forcing, Some(Forcing::UnderWay { .. })) {
            prop_assert_eq!(Decision { forcing: None, ..decision }, without, "an idle choice changes something");
            return Ok(());
        }
        let changes = decision.record != without.record || decision.orders != without.orders;
        let stays = without.record.as_ref().is_some_and(|record| record.primary == view.record.primary);
        let needed = without.state == State::FailoverBlocked || (view.record.stage == Stage::Fencing && stays);
        prop_assert!(!changes || needed, "{:?}", without);
        let revoked = view.record.stage == Stage::Fencing && record.primary == Some(instance);
        prop_assert!(!forces || (revoked && needed));
    }

    #[test]
    fn what_a_forced_takeover_left_behind_is_replaced_only_if_a_person_says_so(view in views()) {
        let Some(Forced { since, point }) = &view.record.forced else { return Ok(()) };
        for order in decide(&view).orders.iter().filter(|order| matches!(order.action, Action::Clone { .. })) {
            let server = known(&view, order.instance).and_then(|facts| facts.server.as_ref()).unwrap();
            let chosen = view.rebuild.is_some_and(|chosen| chosen.instance == order.instance);
            let gone_on = server.recorded_term >= *since;
            prop_assert!(chosen || gone_on || point.contains(&server.executed));
        }
    }

    #[test]
    fn a_decision_says_why(view in views()) {
        let decision = decide(&view);
        prop_assert!(!decision.message.is_empty());
        for verdict in &decision.instances {
            let says_it_all = matches!(verdict.standing, Standing::InSync | Standing::Open | Standing::Closed);
            prop_assert!(says_it_all || !verdict.message.is_empty(), "{:?}", verdict);
        }
    }
}
