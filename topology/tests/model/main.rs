//! Every order of events up to a depth, with a bounded number of faults, from every moment of a failover and of a
//! handover of three instances: the real [`decide`](fleet_topology::decide) in the toy world of the simulation.
//! `MODEL_DEPTH` and `MODEL_FAULTS` go further.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that goes wrong has to end"
)]

#[expect(dead_code, reason = "shared with the simulation, which uses more of it")]
#[path = "../it/views.rs"]
mod views;
#[expect(dead_code, reason = "shared with the simulation, which uses more of it")]
#[path = "../it/world.rs"]
mod world;

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fleet_topology::{Action, Order, Stage, State, TermRecord};
use stateright::{Checker, Model, Property};

use crate::world::{Event, World};

const INSTANCES: u32 = 3;
/// Rounds that suffice once faults have stopped.
const ROUNDS: usize = 20;

/// One state of the world. Two are the same if everything that can make a difference later is.
#[derive(Debug, Clone)]
struct Moment {
    world: World,
    /// How many faults may still happen.
    faults: u8,
    /// Orders of a decision that have not arrived yet.
    late: Vec<Order>,
    seen: Seen,
    /// What the world found wrong, if anything.
    broken: Option<String>,
    key: String,
}

/// What the last decision was about.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    blocked: bool,
    fencing: bool,
    taken_over: bool,
    archived: bool,
    forced: bool,
}

impl Moment {
    fn new(mut world: World, faults: u8, late: Vec<Order>, seen: Seen, broken: Option<String>) -> Self {
        world.last = None;
        let key = format!("{world:?} {faults} {late:?} {seen:?} {broken:?}");
        Self { world, faults, late, seen, broken, key }
    }

    /// Whether the cluster gets healthy with every acknowledged transaction once faults have stopped.
    fn gets_healthy(&self) -> bool {
        let mut world = self.world.clone();
        catch_unwind(AssertUnwindSafe(|| world.settle(ROUNDS))).unwrap_or(false)
    }
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Moment {}

impl Hash for Moment {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
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
                Event::Miss(_) | Event::Crash(_) | Event::Cut(_, 1) | Event::Takeover | Event::WantAnother
            ),
            Self::DecidesSlowly => true,
            Self::ArrivesLate => false,
        }
    }
}

struct Failover {
    faults: u8,
}

impl Failover {
    /// The moments of what follows from these events.
    fn script(&self, healthy: &Moment, events: &[Event]) -> Vec<Moment> {
        let rounds = (0..8).flat_map(|round| {
            let each = |instance| [Event::Cut(instance, 0), Event::Hear(instance), Event::Receive(instance)];
            let goes_on =
                |instance| [Event::Apply(instance), Event::EndCopy(instance), Event::Start(instance)];
            let instances =
                (0..INSTANCES).flat_map(move |instance| each(instance).into_iter().chain(goes_on(instance)));
            // Until others have taken over, what was lost stays away: what it alone holds stays its own.
            let instances = instances.filter(move |event| round > 3 || !matches!(event, Event::Start(_)));
            instances.chain([Event::Act(u8::MAX)])
        });
        let events = events.iter().copied().chain(rounds);
        self.moments(healthy, events)
    }

    /// The moments of a takeover that is forced, with the old primary and an acker cut off together.
    fn forced(&self, healthy: &Moment) -> Vec<Moment> {
        let lost = [Event::Cut(0, 1), Event::Cut(1, 1), Event::Write, Event::Force(2)];
        let rounds = (0..4).flat_map(|_| (0..INSTANCES).map(Event::Hear).chain([Event::Act(u8::MAX)]));
        self.moments(healthy, lost.into_iter().chain(rounds))
    }

    /// The moments of what follows from exactly these events.
    fn moments(&self, healthy: &Moment, events: impl Iterator<Item = Event>) -> Vec<Moment> {
        let mut moments = vec![healthy.clone()];
        for event in events {
            let before = Moment { faults: u8::MAX, ..moments[moments.len() - 1].clone() };
            if let Some(after) = self.next_state(&before, Step::Happens(event)) {
                assert_eq!(after.broken, None);
                moments.push(Moment::new(after.world, self.faults, after.late, after.seen, None));
            }
        }
        moments
    }
}

impl Model for Failover {
    type State = Moment;
    type Action = Step;

    /// Every moment of a failover, of a handover and of a forced takeover in which nothing else goes wrong, so that
    /// faults meet each of their steps.
    fn init_states(&self) -> Vec<Moment> {
        let mut world = World::new(INSTANCES);
        assert!(world.settle(ROUNDS));
        let healthy = Moment::new(world, self.faults, Vec::new(), Seen::default(), None);
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
            Event::Apply,
            Event::Start,
            Event::EndCopy,
            Event::Miss,
            Event::Crash,
        ];
        for instance in 0..INSTANCES {
            steps.extend(each.map(|event| Step::Happens(event(instance))));
            steps.extend([0, 1].map(|part| Step::Happens(Event::Cut(instance, part))));
            steps.push(Step::Happens(Event::Act(!(1 << instance))));
        }
        let all = [Event::Act(u8::MAX), Event::Write, Event::Takeover, Event::WantAnother];
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
        let seen = world.last.as_ref().map_or(before.seen, |decision| Seen {
            blocked: decision.state == State::FailoverBlocked,
            fencing: decision.record.as_ref().is_some_and(|record| record.stage == Stage::Fencing),
            taken_over: decision.record.as_ref().is_some_and(|record| record.promotion_point.is_some()),
            archived: decision
                .orders
                .iter()
                .any(|order| matches!(&order.action, Action::Clone { archive, .. } if !archive.is_empty())),
            forced: decision.record.as_ref().is_some_and(TermRecord::is_forced),
        });
        let faults = before.faults - u8::from(step.is_fault());
        let after = Moment::new(world, faults, late, seen, broken);
        (after != *before).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // One writer, nothing acknowledged lost, terms that never fall, no data given up: asserted by the
            // world in every step.
            Property::always("nothing breaks", |_, state: &Moment| state.broken.is_none()),
            Property::always("gets healthy once faults stop", |_, state: &Moment| {
                state.broken.is_some() || state.gets_healthy()
            }),
            Property::sometimes("a lost primary is deposed", |_, state: &Moment| state.seen.fencing),
            Property::sometimes("another takes over", |_, state: &Moment| state.seen.taken_over),
            Property::sometimes("a failover is blocked", |_, state: &Moment| state.seen.blocked),
            Property::sometimes("a takeover is forced", |_, state: &Moment| state.seen.forced),
            Property::sometimes("a tail is archived", |_, state: &Moment| state.seen.archived),
        ]
    }
}

fn limit<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")),
        Err(_) => default,
    }
}

#[test]
fn every_order_of_events_is_safe() {
    let depth = limit("MODEL_DEPTH", 4);
    let model = Failover { faults: limit("MODEL_FAULTS", 2) };
    let checker = model.checker().threads(2).target_max_depth(depth).spawn_bfs().join();
    println!("{} unique states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}
