//! Whatever happens on the way, once faults stop the cluster gets healthy, with every acknowledged
//! transaction and never two instances open.

use fleet_topology::*;
use proptest::prelude::*;

use crate::views::{id, trx};
use crate::world::{Event, Point, World};

/// Rounds that suffice once faults have stopped.
const ROUNDS: usize = 20;

fn event() -> impl Strategy<Value = Event> {
    let instance = 0..5_u32;
    prop_oneof![
        4 => instance.clone().prop_map(Event::Hear),
        1 => instance.clone().prop_map(Event::Miss),
        6 => any::<u8>().prop_map(Event::Act),
        3 => instance.clone().prop_map(Event::Receive),
        3 => instance.clone().prop_map(Event::Apply),
        1 => instance.clone().prop_map(Event::EndCopy),
        1 => instance.clone().prop_map(Event::Crash),
        1 => instance.clone().prop_map(Event::Pause),
        2 => instance.clone().prop_map(Event::Resume),
        1 => instance.clone().prop_map(Event::ReceiveSlowly),
        1 => instance.clone().prop_map(Event::Acknowledge),
        2 => instance.clone().prop_map(Event::Start),
        1 => instance.clone().prop_map(Event::Leave),
        1 => instance.clone().prop_map(Event::Want),
        1 => Just(Event::WantAnother),
        1 => prop::sample::select(vec![Point::BeforeRecord, Point::BeforeAnswer]).prop_map(Event::Die),
        1 => (instance, 0..2_u8).prop_map(|(instance, part)| Event::Cut(instance, part)),
        1 => Just(Event::Takeover),
        1 => Just(Event::Usurp),
        2 => any::<u8>().prop_map(Event::OldActs),
        1 => Just(Event::Read),
        4 => Just(Event::Write),
        1 => Just(Event::Lock),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(), 0..120)
}

/// The same, and people who force a primary.
fn forcing_events() -> impl Strategy<Value = Vec<Event>> {
    let force = (0..5_u32).prop_map(Event::Force);
    prop::collection::vec(prop_oneof![9 => event(), 1 => force], 0..60)
}

/// The primary and just as many ackers are lost that nobody can prove what was acknowledged, and one of the others is
/// forced to take over.
#[derive(Debug, Clone)]
struct Disaster {
    /// Which of the others are lost: those from this one on.
    first: usize,
    /// Whether each that is lost ends. The others go on together, and are only cut off.
    ends: Vec<bool>,
    /// Which of those that are left takes over.
    chosen: usize,
}

fn disaster() -> impl Strategy<Value = Disaster> {
    (0..4_usize, prop::collection::vec(prop::bool::weighted(0.3), 3), 0..2_usize)
        .prop_map(|(first, ends, chosen)| Disaster { first, ends, chosen })
}

fn lose_and_force(world: &mut World, replicas: u32, disaster: &Disaster) {
    let Disaster { first, ends, chosen } = disaster;
    let before = world.forced();
    let primary = world.last.as_ref().unwrap().traffic.primary.unwrap().0;
    let mut others: Vec<_> = (0..replicas).filter(|instance| *instance != primary).collect();
    let by = first % others.len();
    others.rotate_left(by);
    let acks = Quorum::for_replicas(replicas).unwrap().required_acks() as usize;
    let left = others.split_off(acks);
    others.push(primary);
    for lost in &others {
        world.happen(Event::Cut(*lost, 1));
    }
    world.happen(Event::Write);
    for (lost, _) in others.iter().zip(ends).filter(|(_, ends)| **ends) {
        world.happen(Event::Crash(*lost));
    }
    world.happen(Event::Force(left[chosen % left.len()]));
    for _ in 0..5 {
        for instance in 0..replicas {
            for event in [Event::Receive, Event::Apply, Event::Hear] {
                world.happen(event(instance));
            }
        }
        world.happen(Event::Act(u8::MAX));
        world.happen(Event::Write);
    }
    assert_ne!(world.forced(), before, "{:?}", world.last);
}

#[track_caller]
fn gets_healthy(world: &mut World) {
    assert!(world.settle(ROUNDS), "{:#?}", world.last);
}

fn healthy(replicas: u32) -> World {
    let mut world = World::new(replicas);
    gets_healthy(&mut world);
    world
}

fn run(world: &mut World, events: &[Event]) {
    for event in events {
        world.happen(*event);
    }
    gets_healthy(world);
}

proptest! {
    #![proptest_config(crate::cases(48))]

    #[test]
    fn an_empty_cluster_gets_healthy(replicas in prop::sample::select(vec![1_u32, 3, 5]), events in events()) {
        run(&mut World::new(replicas), &events);
    }

    #[test]
    fn a_cluster_made_again_over_its_data_gets_healthy(
        last in 1..30_u64, behind in 0..30_u64, purged in 0..30_u64, of in 0..3_u32, events in events()
    ) {
        let mut world = World::new(3);
        for instance in 0..3 {
            let held = if instance == of { last } else { last.saturating_sub(behind) };
            world.retain(instance, &trx(of, held), &trx(of, purged.min(held)), Term(4));
        }
        run(&mut world, &events);
    }

    #[test]
    fn a_cluster_made_again_with_fewer_instances_opens_with_all_data_or_not_at_all(
        before in events(), last in 0..3_u32, extra in 0..3_u64, after in events()
    ) {
        let mut world = healthy(3);
        run(&mut world, &before);
        if extra > 0 {
            world.retain(last, &world.held(last).union(&trx(9, extra)), &GtidSet::new(), Term(2));
        }
        world.make_again(1);
        for event in after {
            world.happen(event);
        }
        if extra == 0 || last == 0 {
            gets_healthy(&mut world);
            prop_assert_eq!(world.pods(), 1);
        } else {
            prop_assert!(!world.settle(ROUNDS));
            prop_assert_eq!(world.last.as_ref().unwrap().state, State::Incomplete);
        }
    }

    #[test]
    fn a_cluster_that_was_used_and_whose_record_is_lost_gets_healthy(before in events(), after in events()) {
        let mut world = healthy(3);
        for event in before {
            world.happen(event);
        }
        world.forget();
        run(&mut world, &after);
    }

    #[test]
    fn a_lost_volume_of_a_replica_is_filled_again(
        before in events(), after in events(), which in 1..3_u32, purge: bool
    ) {
        let mut world = healthy(3);
        run(&mut world, &before);
        if purge {
            world.purge();
        }
        let primary = world.last.as_ref().unwrap().traffic.primary;
        let which = if primary == Some(id(which)) { 0 } else { which };
        world.happen(Event::Crash(which));
        world.lose_volume(which);
        run(&mut world, &after);
    }

    #[test]
    fn after_a_forced_takeover_nothing_that_was_acknowledged_is_given_up_but_by_a_person(
        replicas in prop::sample::select(vec![3_u32, 5]), before in events(), first in disaster(),
        meanwhile in forcing_events(), second in disaster(), after in forcing_events()
    ) {
        let mut world = healthy(replicas);
        run(&mut world, &before);
        for (disaster, events) in [(first, meanwhile), (second, after)] {
            lose_and_force(&mut world, replicas, &disaster);
            run(&mut world, &events);
        }
    }

    #[test]
    fn another_template_reaches_all_instances(
        replicas in prop::sample::select(vec![1_u32, 3, 5]), before in events(), after in events()
    ) {
        let mut world = healthy(replicas);
        run(&mut world, &before);
        world.roll_out();
        for event in after {
            world.happen(event);
        }
        prop_assert!(world.settle(3 * ROUNDS), "{:#?}", world.last);
    }

    #[test]
    fn a_template_that_does_not_work_is_taken_back(
        replicas in prop::sample::select(vec![1_u32, 3, 5]), before in events(), after in events(), at_last in events()
    ) {
        let mut world = healthy(replicas);
        run(&mut world, &before);
        world.roll_out_a_bad_one();
        for event in after {
            world.happen(event);
        }
        prop_assert!(world.settle(3 * ROUNDS) && !world.is_bad(), "{:#?}", world.last);
        run(&mut world, &at_last);
    }

    #[test]
    fn a_cluster_of_another_size_gets_healthy(
        sizes in prop::collection::vec(prop::sample::select(vec![1_u32, 3, 5]), 2..5),
        events in prop::collection::vec(events(), 5)
    ) {
        let mut world = healthy(sizes[0]);
        for (size, events) in sizes.iter().zip(&events) {
            world.resize(*size);
            run(&mut world, events);
            prop_assert_eq!(world.pods(), *size as usize);
        }
    }
}
