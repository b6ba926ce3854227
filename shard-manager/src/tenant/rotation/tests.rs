use std::collections::VecDeque;

use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

const WAIT: Duration = Duration::from_mins(5);

fn authority(number: u64) -> Fingerprint {
    format!("{number:064}").into()
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + i64::try_from(second).unwrap()).unwrap()
}

fn party(trusts: &[u64], shows: &[u64]) -> Party {
    Party {
        who: "pod orders-0".to_owned(),
        is_secret: false,
        seen: Ok(Seen {
            trusts: trusts.iter().copied().map(authority).collect(),
            shows: shows.iter().map(|number| Some(authority(*number))).collect(),
        }),
    }
}

fn introducing(since: Option<u64>) -> Stage {
    Stage::Introducing { next: authority(1), wait: WAIT, since: since.map(at) }
}

fn replacing(since: Option<u64>) -> Stage {
    Stage::Replacing { previous: authority(0), wait: WAIT, since: since.map(at) }
}

#[test]
fn every_stage_is_in_the_documentation() {
    let (page, module) = (include_str!("../../../../docs/rotation.md"), include_str!("../rotation.rs"));
    for stage in [Stage::Steady, introducing(None), replacing(None)] {
        let row = format!("| `{}` |", stage.name());
        assert!(page.contains(&row) && module.contains(&row), "{row}");
    }
}

#[test]
fn nothing_happens_while_there_is_one_authority() {
    assert_eq!(step(&authority(0), &Stage::Steady, &[], at(0)), Step::Rest);
}

#[test]
fn a_new_authority_issues_once_everybody_has_trusted_it_for_the_whole_wait() {
    let go = |since, parties: &[Party], now| step(&authority(0), &introducing(since), parties, at(now));
    let ready = party(&[0, 1], &[0]);
    assert_eq!(go(None, std::slice::from_ref(&ready), 0), Step::NoteReady);
    assert_eq!(go(Some(0), std::slice::from_ref(&ready), 299), Step::WaitUntil(at(300)));
    assert_eq!(go(Some(0), std::slice::from_ref(&ready), 300), Step::Replace);
    let late = party(&[0], &[0]);
    let text = "pod orders-0 does not trust both authorities yet".to_owned();
    assert_eq!(go(Some(0), &[ready, late], 1000), Step::WaitFor(text));
}

#[test]
fn an_old_authority_goes_once_nobody_shows_a_certificate_of_it() {
    let go = |since, parties: &[Party], now| step(&authority(1), &replacing(since), parties, at(now));
    assert_eq!(go(None, &[party(&[0, 1], &[1])], 0), Step::NoteReady);
    assert_eq!(go(Some(0), &[party(&[0, 1], &[1])], 300), Step::Withdraw);
    for late in [
        party(&[0, 1], &[0]),
        party(&[0, 1], &[1, 0]),
        Party {
            who: "pod orders-0".to_owned(),
            is_secret: false,
            seen: Ok(Seen { trusts: [authority(0), authority(1)].into(), shows: [None].into() }),
        },
    ] {
        assert!(matches!(go(Some(0), &[late], 1000), Step::WaitFor(text) if text.contains("does not show")));
    }
}

#[test]
fn one_that_is_not_seen_is_never_taken_for_ready_and_few_are_named() {
    let unseen = |number: usize| Party {
        who: format!("pod orders-{number}"),
        is_secret: false,
        seen: Err("does not answer".to_owned()),
    };
    let parties: Vec<Party> = (0..6).map(unseen).collect();
    for (issuer, stage) in [(0, introducing(Some(0))), (1, replacing(Some(0)))] {
        let Step::WaitFor(text) = step(&authority(issuer), &stage, &parties, at(10_000)) else {
            panic!("goes on")
        };
        assert!(text.starts_with("pod orders-0 does not answer; pod orders-1 "), "{text}");
        assert!(text.ends_with("; and 2 more"), "{text}");
    }
}

#[test]
fn the_wait_begins_anew_after_a_secret_was_put_back() {
    let late = Party { is_secret: true, who: "Secret orders-tls".to_owned(), ..party(&[0], &[0]) };
    let go = |since| step(&authority(0), &introducing(since), std::slice::from_ref(&late), at(1000));
    assert!(
        matches!(go(Some(0)), Step::NoteUnready(who) if who.starts_with("Secret orders-tls does not trust"))
    );
    assert!(matches!(go(None), Step::WaitFor(_)));
}

#[test]
fn a_clock_that_goes_back_only_delays() {
    let go = |now| step(&authority(0), &introducing(Some(1000)), &[party(&[0, 1], &[0])], at(now));
    assert_eq!(go(0), Step::WaitUntil(at(1300)));
    assert_eq!(go(1300), Step::Replace);
}

// A world of Secrets and of who mounts them, in which everything but the wait lags as long as it likes.

/// The longest that a kubelet shows a pod which it starts what the Secret held before, and that another pod of the shard
/// goes on with an old Secret: less than any wait.
const STALE: u64 = 200;
const CLUSTERS: usize = 2;
const PODS: usize = 3;

/// What a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    trusts: BTreeSet<u64>,
    leaf: u64,
}

/// A process that reads a Secret.
#[derive(Clone, Debug)]
struct Reader {
    cluster: usize,
    agent: Held,
    mysqld: Held,
    /// What it says of itself, which is older than what it is.
    said: Option<(Held, Held)>,
}

/// What the leader knows: kept in the Secret, but for what it has in memory.
#[derive(Clone, Debug)]
struct Kept {
    issuer: u64,
    stage: Stage,
}

/// What a leader does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// It takes who can't be seen for ready.
    ForgetsUnseen,
    /// It leaves nobody time.
    WaitsForNobody,
    /// It asks the Secrets alone.
    AsksSecrets,
    /// It asks the agents and not their mysqld.
    AsksAgents,
}

#[derive(Debug)]
struct Model {
    flaw: Flaw,
    now: u64,
    next: u64,
    kept: Kept,
    /// Each Secret, with what it held before and until when.
    secrets: [VecDeque<(u64, Held)>; CLUSTERS],
    pods: [Option<Reader>; PODS],
    /// Another pod of the shard, that nobody sees.
    standby: Held,
    withdrawn: u32,
}

#[derive(Clone, Debug)]
enum Event {
    Rotate,
    Lead,
    Reconcile(usize),
    LateReconcile(usize),
    Kubelet(usize),
    Reload(usize),
    Say(usize),
    Fall(usize),
    Start(usize, u64),
    Standby,
    Time(u64),
}

fn number(fingerprint: &Fingerprint) -> u64 {
    fingerprint.to_string().parse().unwrap()
}

impl Kept {
    fn wanted(&self) -> Held {
        let other = match &self.stage {
            Stage::Steady => None,
            Stage::Introducing { next: other, .. } | Stage::Replacing { previous: other, .. } => {
                Some(number(other))
            }
        };
        Held { trusts: [self.issuer].into_iter().chain(other).collect(), leaf: self.issuer }
    }
}

impl Model {
    fn new(flaw: Flaw) -> Self {
        let held = Held { trusts: [0].into(), leaf: 0 };
        let reader = |cluster| {
            Some(Reader {
                cluster,
                agent: held.clone(),
                mysqld: held.clone(),
                said: Some((held.clone(), held.clone())),
            })
        };
        Self {
            flaw,
            now: 0,
            next: 1,
            kept: Kept { issuer: 0, stage: Stage::Steady },
            secrets: [(); CLUSTERS].map(|()| [(0, held.clone())].into()),
            pods: [reader(0), reader(1), reader(1)],
            standby: held,
            withdrawn: 0,
        }
    }

    fn current(&self, cluster: usize) -> Held {
        self.secrets[cluster].back().unwrap().1.clone()
    }

    /// What a Secret held at some moment of the last `age` seconds.
    fn earlier(&self, cluster: usize, age: u64) -> Held {
        let moment = self.now.saturating_sub(age);
        let since = self.secrets[cluster].iter().rev().find(|(since, _)| *since <= moment);
        since.or_else(|| self.secrets[cluster].front()).unwrap().1.clone()
    }

    fn parties(&self) -> Vec<Party> {
        let seen = |held: &[&Held]| Seen {
            trusts: held
                .iter()
                .map(|held| held.trusts.clone())
                .reduce(|one, other| &one & &other)
                .unwrap()
                .into_iter()
                .map(authority)
                .collect(),
            shows: held.iter().map(|held| Some(authority(held.leaf))).collect(),
        };
        let secrets = (0..CLUSTERS).map(|cluster| Party {
            who: format!("Secret {cluster}"),
            is_secret: true,
            seen: Ok(seen(&[&self.current(cluster)])),
        });
        let pods = self.pods.iter().flatten().map(|reader| Party {
            who: "pod".to_owned(),
            is_secret: false,
            seen: match &reader.said {
                Some((agent, _)) if self.flaw == Flaw::AsksAgents => Ok(seen(&[agent])),
                Some((agent, mysqld)) => Ok(seen(&[agent, mysqld])),
                None => Err("does not answer".to_owned()),
            },
        });
        let forgotten = |party: &Party| match self.flaw {
            Flaw::None | Flaw::WaitsForNobody | Flaw::AsksAgents => false,
            Flaw::ForgetsUnseen => party.seen.is_err(),
            Flaw::AsksSecrets => !party.is_secret,
        };
        secrets.chain(pods).filter(|party| !forgotten(party)).collect()
    }

    fn lead(&mut self) {
        let Kept { issuer, stage } = self.kept.clone();
        let now = at(self.now);
        let seen_at = if self.flaw == Flaw::WaitsForNobody { at(self.now + WAIT.as_secs()) } else { now };
        match step(&authority(issuer), &stage, &self.parties(), seen_at) {
            Step::Rest | Step::WaitFor(_) | Step::WaitUntil(_) => {}
            Step::NoteReady => self.kept.stage.set_since(Some(now)),
            Step::NoteUnready(_) => self.kept.stage.set_since(None),
            Step::Replace => {
                let Stage::Introducing { next, wait, .. } = stage else { unreachable!() };
                let stage = Stage::Replacing { previous: authority(issuer), wait, since: None };
                self.kept = Kept { issuer: number(&next), stage };
            }
            Step::Withdraw => {
                self.kept.stage = Stage::Steady;
                self.withdrawn += 1;
            }
        }
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Rotate => {
                if self.kept.stage == Stage::Steady {
                    self.kept.stage =
                        Stage::Introducing { next: authority(self.next), wait: WAIT, since: None };
                    self.next += 1;
                }
            }
            // Nothing of it is in memory alone: that a leader dies at any point makes no difference.
            Event::Lead => self.lead(),
            Event::Reconcile(cluster) => {
                let wanted = self.kept.wanted();
                if self.current(cluster) != wanted {
                    self.secrets[cluster].push_back((self.now, wanted));
                }
            }
            // A reconcile that has begun before the last change of the Secret, and writes what was wanted then.
            Event::LateReconcile(cluster) => {
                let before = self.secrets[cluster].iter().rev().nth(1).cloned();
                let changed = self.secrets[cluster].back().unwrap().0;
                if let Some((_, before)) = before
                    && self.now.saturating_sub(changed) < STALE / 2
                {
                    self.secrets[cluster].push_back((self.now, before));
                    // Which looks every second.
                    self.lead();
                }
            }
            Event::Kubelet(pod) => {
                let held = self.pods[pod].as_ref().map(|reader| self.current(reader.cluster));
                if let (Some(reader), Some(held)) = (&mut self.pods[pod], held) {
                    reader.agent = held;
                }
            }
            Event::Reload(pod) => {
                if let Some(reader) = &mut self.pods[pod] {
                    reader.mysqld = reader.agent.clone();
                }
            }
            Event::Say(pod) => {
                if let Some(reader) = &mut self.pods[pod] {
                    reader.said = Some((reader.agent.clone(), reader.mysqld.clone()));
                }
            }
            Event::Fall(pod) => self.pods[pod] = None,
            Event::Start(pod, age) => {
                if self.pods[pod].is_none() {
                    let cluster = pod % CLUSTERS;
                    let held = self.earlier(cluster, age);
                    self.pods[pod] = Some(Reader { cluster, agent: held.clone(), mysqld: held, said: None });
                }
            }
            Event::Standby => self.standby = self.current(0),
            Event::Time(seconds) => {
                // Watches are back within their limit.
                self.now += seconds;
                if self.earlier(0, STALE) == self.current(0) {
                    self.standby = self.current(0);
                }
            }
        }
    }

    /// The certificates that are shown, and who checks them.
    fn holds(&self) -> Result<(), String> {
        let pods: Vec<&Held> =
            self.pods.iter().flatten().flat_map(|reader| [&reader.agent, &reader.mysqld]).collect();
        let everybody: Vec<&Held> = pods.into_iter().chain([&self.standby]).collect();
        for shown in &everybody {
            for checks in &everybody {
                if !checks.trusts.contains(&shown.leaf) {
                    return Err(format!("{} is shown to who trusts {:?}", shown.leaf, checks.trusts));
                }
            }
        }
        Ok(())
    }
}

fn event() -> impl Strategy<Value = Event> {
    let (cluster, pod) = (0..CLUSTERS, 0..PODS);
    prop_oneof![
        2 => Just(Event::Rotate),
        6 => Just(Event::Lead),
        4 => cluster.clone().prop_map(Event::Reconcile),
        1 => cluster.prop_map(Event::LateReconcile),
        5 => pod.clone().prop_map(Event::Kubelet),
        5 => pod.clone().prop_map(Event::Reload),
        5 => pod.clone().prop_map(Event::Say),
        1 => pod.clone().prop_map(Event::Fall),
        2 => (pod, 0..STALE).prop_map(|(pod, age)| Event::Start(pod, age)),
        1 => Just(Event::Standby),
        4 => (1..400_u64).prop_map(Event::Time),
    ]
}

/// The first moment at which somebody is shown a certificate that it does not trust.
fn broken(flaw: Flaw, events: &[Event]) -> Option<String> {
    let mut model = Model::new(flaw);
    events.iter().find_map(|event| {
        model.play(event);
        model.holds().err().map(|broken| format!("after {event:?}: {broken}, in {model:?}"))
    })
}

#[test]
fn each_flaw_is_found() {
    for flaw in [Flaw::ForgetsUnseen, Flaw::WaitsForNobody, Flaw::AsksSecrets, Flaw::AsksAgents] {
        let config = ProptestConfig {
            cases: 20_000,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..ProptestConfig::default()
        };
        let found = TestRunner::new(config).run(&prop::collection::vec(event(), 0..300), |events| {
            prop_assert!(broken(flaw, &events).is_none());
            Ok(())
        });
        assert!(found.is_err(), "{flaw:?} is not found");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nobody_shows_a_certificate_that_another_does_not_trust(events in prop::collection::vec(event(), 0..300)) {
        let broken = broken(Flaw::None, &events);
        prop_assert!(broken.is_none(), "{broken:?}");
    }

    #[test]
    fn once_everybody_is_there_the_old_authority_goes(events in prop::collection::vec(event(), 0..100)) {
        let mut model = Model::new(Flaw::None);
        for event in &events {
            model.play(event);
        }
        model.play(&Event::Rotate);
        let begun = model.withdrawn;
        for _ in 0..8 {
            for cluster in 0..CLUSTERS {
                model.play(&Event::Reconcile(cluster));
            }
            for pod in 0..PODS {
                for event in [Event::Kubelet(pod), Event::Reload(pod), Event::Say(pod)] {
                    model.play(&event);
                }
            }
            model.play(&Event::Lead);
            model.play(&Event::Time(WAIT.as_secs()));
        }
        prop_assert!(model.withdrawn > begun, "{model:?}");
        prop_assert_eq!(model.kept.stage.clone(), Stage::Steady);
    }
}
