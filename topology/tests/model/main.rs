//! Every order of events up to a depth, with a bounded number of faults, from every moment of a failover, of a
//! handover and of a forced takeover: the real [`decide`](fleet_topology::decide) in the toy world of the simulation.
//! What is checked, and how to go further than by default, is in `docs/proofs.md`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that goes wrong has to end"
)]

mod members;
#[expect(dead_code, reason = "shared with the simulation, which uses more of it")]
#[path = "../it/views.rs"]
mod views;
#[expect(dead_code, reason = "shared with the simulation, which uses more of it")]
#[path = "../it/world/mod.rs"]
mod world;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use fleet_topology::{Action, Decision, Order, Stage, State, TermRecord};
use stateright::{Checker, Expectation, Model, Property};

use crate::world::{Event, Point, World};

/// Rounds that suffice once faults have stopped.
const ROUNDS: usize = 20;

/// One state of the world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Moment {
    world: World,
    /// How many faults may still happen.
    faults: u8,
    /// Orders of a decision that have not arrived yet.
    late: Vec<Order>,
    seen: Seen,
    /// What the world found wrong, if anything.
    broken: Option<String>,
}

/// What the last decision was about.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Seen {
    blocked: bool,
    fencing: bool,
    hands_over: bool,
    taken_over: bool,
    archived: bool,
    forced: bool,
    /// Whether a status had changed since it was read, and nothing came of what was decided.
    refused: bool,
}

impl Seen {
    fn of(decision: &Decision) -> Self {
        let Decision { state, record, orders, .. } = decision;
        let record = record.as_ref();
        let archives =
            |order: &Order| matches!(&order.action, Action::Clone { archive, .. } if !archive.is_empty());
        Self {
            blocked: *state == State::FailoverBlocked,
            fencing: record.is_some_and(|record| record.stage == Stage::Fencing),
            hands_over: record.is_some_and(|record| matches!(record.stage, Stage::Handover { .. })),
            taken_over: record.is_some_and(|record| record.promotion_point.is_some()),
            archived: orders.iter().any(archives),
            forced: record.is_some_and(TermRecord::is_forced),
            refused: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Happens(Event),
    /// A decision whose orders arrive late, or never.
    DecidesSlowly,
    /// The orders of a slow decision arrive, whatever has been decided since.
    ArrivesLate,
}

impl Step {
    fn is_fault(&self) -> bool {
        match self {
            Self::Happens(Event::Act(mask)) => *mask != u8::MAX,
            Self::Happens(event) => matches!(
                event,
                Event::Miss(_)
                    | Event::Crash(_)
                    | Event::Pause(_)
                    | Event::Stray(_)
                    | Event::ReceiveSlowly(_)
                    | Event::Cut(_, 1)
                    | Event::Die(_)
                    | Event::Takeover
                    | Event::Usurp
                    | Event::WantAnother
            ),
            Self::DecidesSlowly => true,
            Self::ArrivesLate => false,
        }
    }
}

struct Failover {
    instances: u32,
    faults: u8,
    /// By a world without faults that the shard has heard all of, whether it gets healthy.
    healthy: Mutex<HashMap<u64, bool>>,
}

impl Failover {
    fn new(instances: u32, faults: u8) -> Self {
        Self { instances, faults, healthy: Mutex::default() }
    }

    /// The moments of what follows from these events.
    fn script(&self, healthy: &Moment, events: &[Event]) -> Vec<Moment> {
        let instances = self.instances;
        let rounds = (0..8).flat_map(|round| {
            let each = |instance| [Event::Cut(instance, 0), Event::Hear(instance), Event::Receive(instance)];
            let goes_on =
                |instance| [Event::Apply(instance), Event::EndCopy(instance), Event::Start(instance)];
            let instances =
                (0..instances).flat_map(move |instance| each(instance).into_iter().chain(goes_on(instance)));
            // Until others have taken over, what was lost stays away: what it alone holds stays its own.
            let instances = instances.filter(move |event| round > 3 || !matches!(event, Event::Start(_)));
            instances.chain([Event::Act(u8::MAX)])
        });
        let events = events.iter().copied().chain(rounds);
        self.moments(healthy, events)
    }

    /// The moments of a takeover that is forced, with the old primary and so many ackers cut off together that nobody
    /// can prove anything.
    fn forced(&self, healthy: &Moment) -> Vec<Moment> {
        let cut = (0..self.instances.div_ceil(2)).map(|instance| Event::Cut(instance, 1));
        let round = || (0..self.instances).map(Event::Hear).chain([Event::Act(u8::MAX)]);
        let lost = cut.chain([Event::Write]).chain(round()).chain([Event::Force(self.instances - 1)]);
        self.moments(healthy, lost.chain((0..4).flat_map(|_| round())))
    }

    /// The moments of what follows from exactly these events.
    fn moments(&self, healthy: &Moment, events: impl Iterator<Item = Event>) -> Vec<Moment> {
        let mut moments = vec![healthy.clone()];
        for event in events {
            let before = Moment { faults: u8::MAX, ..moments[moments.len() - 1].clone() };
            if let Some(after) = self.next_state(&before, Step::Happens(event)) {
                assert_eq!(after.broken, None);
                moments.push(Moment { faults: self.faults, ..after });
            }
        }
        moments
    }

    /// Whether the cluster gets healthy with every acknowledged transaction once faults have stopped. Many moments
    /// come to the same once everything was heard, so each of those is followed once.
    fn gets_healthy(&self, moment: &Moment) -> bool {
        let mut world = moment.world.clone();
        let mut passed = Vec::new();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            world.end_faults();
            for round in 0..ROUNDS {
                world.go_on(round);
                let mut hasher = DefaultHasher::new();
                world.hash(&mut hasher);
                let key = hasher.finish();
                if let Some(known) = self.healthy.lock().unwrap().get(&key) {
                    return *known;
                }
                passed.push(key);
                if world.decides_settled() {
                    return true;
                }
                world.last = None;
            }
            false
        }));
        let healthy = ended.unwrap_or(false);
        self.healthy.lock().unwrap().extend(passed.into_iter().map(|key| (key, healthy)));
        healthy
    }
}

impl Model for Failover {
    type State = Moment;
    type Action = Step;

    /// Every moment of a failover, of a handover and of a forced takeover in which nothing else goes wrong, so that
    /// faults meet each of their steps.
    fn init_states(&self) -> Vec<Moment> {
        let mut world = World::new(self.instances);
        assert!(world.settle(ROUNDS));
        world.last = None;
        let (faults, late, seen) = (self.faults, Vec::new(), Seen::default());
        let healthy = Moment { world, faults, late, seen, broken: None };
        let failover = [Event::Cut(0, 1), Event::Write, Event::Crash(0)];
        let mut moments = self.script(&healthy, &failover);
        moments.extend(self.script(&healthy, &[Event::WantAnother]));
        moments.extend(self.forced(&healthy));
        moments
    }

    fn actions(&self, state: &Moment, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        let each = [
            Event::Hear,
            Event::Receive,
            Event::ReceiveSlowly,
            Event::Acknowledge,
            Event::Apply,
            Event::Start,
            Event::EndCopy,
            Event::Miss,
            Event::Crash,
            Event::Pause,
            Event::Resume,
            Event::Stray,
        ];
        for instance in 0..self.instances {
            steps.extend(each.map(|event| Step::Happens(event(instance))));
            steps.extend([0, 1].map(|part| Step::Happens(Event::Cut(instance, part))));
            steps.push(Step::Happens(Event::Act(!(1 << instance))));
        }
        let all = [
            Event::Act(u8::MAX),
            Event::OldActs(u8::MAX),
            Event::Read,
            Event::Write,
            Event::Die(Point::BeforeRecord),
            Event::Die(Point::BeforeAnswer),
            Event::Takeover,
            Event::Usurp,
            Event::WantAnother,
        ];
        steps.extend(all.map(Step::Happens));
        steps.push(if state.late.is_empty() { Step::DecidesSlowly } else { Step::ArrivesLate });
        steps.retain(|step| state.faults > 0 || !step.is_fault());
    }

    fn next_state(&self, before: &Moment, step: Step) -> Option<Moment> {
        let mut world = before.world.clone();
        let mut late = before.late.clone();
        let ended = catch_unwind(AssertUnwindSafe(|| match &step {
            Step::Happens(event) => world.happen(*event),
            Step::DecidesSlowly => {
                world.happen(Event::Act(0));
                late = world.last.as_ref().map(|decision| decision.orders.clone()).unwrap_or_default();
            }
            Step::ArrivesLate => late.drain(..).for_each(|order| world.carry_out(&order)),
        }));
        let broken = ended.err().map(|panic| match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => (*panic.downcast_ref::<&str>().unwrap_or(&"unknown")).to_string(),
        });
        let decides = matches!(step, Step::DecidesSlowly | Step::Happens(Event::Act(_) | Event::OldActs(_)));
        let seen = match world.last.take() {
            Some(decision) => Seen::of(&decision),
            None => Seen { refused: decides && broken.is_none(), ..before.seen },
        };
        let faults = before.faults - u8::from(step.is_fault());
        let after = Moment { world, faults, late, seen, broken };
        (after != *before).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn holds(state: &Moment, invariant: &str) -> bool {
            !state.broken.as_ref().is_some_and(|message| message.starts_with(invariant))
        }
        vec![
            Property::always("I1: one instance commits", |_, state: &Moment| holds(state, "I1")),
            Property::always("I2: what is acknowledged is kept", |_, state: &Moment| holds(state, "I2")),
            Property::always("I3: terms rise", |_, state: &Moment| holds(state, "I3")),
            Property::always("I4: traffic is right", |_, state: &Moment| holds(state, "I4")),
            Property::always("I5: no data are given up", |_, state: &Moment| holds(state, "I5")),
            Property::always("I6: gets healthy once faults stop", |model: &Self, state: &Moment| {
                state.broken.is_some() || model.gets_healthy(state)
            }),
            Property::always("nothing else breaks", |_, state: &Moment| {
                state.broken.as_ref().is_none_or(|message| message.starts_with('I'))
            }),
            Property::sometimes("a lost primary is deposed", |_, state: &Moment| state.seen.fencing),
            Property::sometimes("a primary hands over", |_, state: &Moment| state.seen.hands_over),
            Property::sometimes("another takes over", |_, state: &Moment| state.seen.taken_over),
            Property::sometimes("a failover is blocked", |_, state: &Moment| state.seen.blocked),
            Property::sometimes("a takeover is forced", |_, state: &Moment| state.seen.forced),
            Property::sometimes("a tail is archived", |_, state: &Moment| state.seen.archived),
            Property::sometimes("an outdated write is refused", |_, state: &Moment| state.seen.refused),
        ]
    }
}

fn limit<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")),
        Err(_) => default,
    }
}

fn check(instances: u32, depth: usize) {
    let begun = Instant::now();
    let model = Failover::new(instances, limit("MODEL_FAULTS", 2));
    let depth = depth + limit("MODEL_DEEPER", 0);
    let checker = model.checker().threads(2).target_max_depth(depth).spawn_bfs().join();
    println!(
        "{instances} instances: {} unique states, depth {} in {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64()
    );
    for (name, path) in checker.discoveries() {
        if checker
            .model()
            .properties()
            .iter()
            .any(|it| it.name == name && it.expectation == Expectation::Always)
        {
            println!("{name}: broken by {:?}", path.clone().into_actions());
            explain(path.last_state());
        }
    }
    checker.assert_properties();
}

/// Prints what was found wrong, or what is decided once faults have stopped.
fn explain(moment: &Moment) {
    if let Some(broken) = &moment.broken {
        return println!("{broken}");
    }
    let mut world = moment.world.clone();
    world.end_faults();
    for round in 0..ROUNDS {
        world.go_on(round);
        world.decides_settled();
        if let Some(Decision { state, message, .. }) = &world.last {
            println!("{state}: {message}");
        }
    }
}

#[test]
fn every_order_of_events_is_safe_with_three_instances() {
    check(3, 4);
}

#[test]
fn every_order_of_events_is_safe_with_five_instances() {
    check(5, 3);
}
