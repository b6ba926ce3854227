//! Contenders under random faults, on the test's clock: pauses, lost requests, lost and late answers, failing
//! calls, processes that end, and clocks that run at different rates.
//!
//! What must hold at every instant: no two gates are open, and a write that has passed a gate arrives while the
//! Lease is in the name of its writer.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Mutex as StdMutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Poll, Waker},
};

use proptest::prelude::*;
use tokio::{
    sync::{Notify, RwLock},
    time::sleep,
};

use super::*;

/// Lease duration by a clock that is right. Renew deadline and retry period follow from it.
const DURATION: u64 = 300;

/// How long a second takes by the clock of a contender, in percent.
const RATES: [u32; 3] = [97, 100, 103];

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Link {
    #[default]
    Fine,
    /// Requests are lost on their way.
    Deaf,
    /// Requests are carried out, and the answers are lost.
    Mute,
    /// Requests fail.
    Broken,
    /// Requests and answers take so many seconds each.
    Slow(u64),
}

#[derive(Clone, Debug)]
enum Fault {
    /// The process does not run for so many seconds, as after SIGSTOP.
    Pause(usize, u64),
    Link(usize, Link),
    /// The process is killed; another takes its place under its name.
    Kill(usize),
    /// The process ends its work and gives the Lease up; another takes its place.
    End(usize),
    /// Everything works again.
    Heal,
}

fn fault(contenders: usize) -> impl Strategy<Value = Fault> {
    let who = 0..contenders;
    let link =
        prop_oneof![Just(Link::Deaf), Just(Link::Mute), Just(Link::Broken), (1_u64..40).prop_map(Link::Slow)];
    prop_oneof![
        4 => (who.clone(), 1..3 * DURATION).prop_map(|(who, seconds)| Fault::Pause(who, seconds)),
        6 => (who.clone(), link).prop_map(|(who, link)| Fault::Link(who, link)),
        1 => who.clone().prop_map(Fault::Kill),
        1 => who.prop_map(Fault::End),
        3 => Just(Fault::Heal),
    ]
}

/// A process that can be made to stand still.
#[derive(Default)]
struct Pause {
    paused: AtomicBool,
    waiting: StdMutex<Option<Waker>>,
}

impl Pause {
    fn set(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
        if let Some(waker) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    /// Does nothing of the future while the process stands still.
    async fn stalling<T>(&self, process: impl Future<Output = T>) -> T {
        let mut process = pin!(process);
        poll_fn(|context| {
            *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            if self.paused.load(SeqCst) { Poll::Pending } else { process.as_mut().poll(context) }
        })
        .await
    }
}

struct Contender {
    identity: String,
    rate: u32,
    pause: Pause,
    link: StdMutex<Link>,
    kill: Notify,
    end: Notify,
    gate: StdMutex<Gate>,
    /// Shared by the writes under way, and taken when the process ends.
    work: Arc<RwLock<()>>,
}

struct World {
    server: Server,
    contenders: Vec<Contender>,
    violations: StdMutex<Vec<String>>,
}

/// How long it takes until a clock has counted so many seconds.
fn by_clock(rate: u32, seconds: u64) -> Duration {
    Duration::from_secs(seconds * u64::from(rate) / 100)
}

impl Contender {
    fn config(&self) -> LeaseConfig {
        let times = |seconds| by_clock(self.rate, seconds);
        LeaseConfig {
            lease_duration: times(DURATION),
            renew_deadline: times(DURATION * 2 / 3),
            retry_period: times(DURATION / 3),
            ..LeaseConfig::new("tenant-a", "shard-tenant-a", &self.identity)
        }
    }

    fn link(&self) -> Link {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self) -> Gate {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl World {
    fn new(rates: &[u32]) -> Arc<Self> {
        let contenders = rates.iter().enumerate().map(|(index, rate)| Contender {
            identity: format!("pod-{index}"),
            rate: *rate,
            pause: Pause::default(),
            link: StdMutex::default(),
            kill: Notify::new(),
            end: Notify::new(),
            gate: StdMutex::new(Gate::closed(Duration::from_secs(1))),
            work: Arc::default(),
        });
        let contenders = contenders.collect();
        Arc::new(Self { server: Server::default(), contenders, violations: StdMutex::default() })
    }

    fn client(self: &Arc<Self>, who: usize) -> Client {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let world = self.clone();
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let world = world.clone();
                tokio::spawn(async move {
                    let Some((code, body)) = world.carried(who, request).await else {
                        // Dropped at once it would be an answer.
                        sleep(LONG * 100).await;
                        return drop(send);
                    };
                    let body = Body::from(body.to_string().into_bytes());
                    send.send_response(Response::builder().status(code).body(body).unwrap());
                });
            }
        });
        Client::new(service, "tenant-a")
    }

    /// What a link makes of a request. One that is late is carried out though nobody waits for it any more.
    async fn carried(&self, who: usize, request: Request<Body>) -> Option<(u16, Value)> {
        let contender = &self.contenders[who];
        if let Link::Slow(seconds) = contender.link() {
            sleep(Duration::from_secs(seconds)).await;
        }
        match contender.link() {
            Link::Deaf => return None,
            Link::Broken => return Some(failure(500)),
            Link::Fine | Link::Mute | Link::Slow(_) => {}
        }
        let (code, mut answer) = self.server.answer(request).await?;
        // The same duration, as this one's clock counts it.
        if answer["spec"]["leaseDurationSeconds"].as_u64().is_some_and(|seconds| seconds > 1) {
            answer["spec"]["leaseDurationSeconds"] = json!(contender.config().lease_duration.as_secs());
        }
        match contender.link() {
            Link::Mute => None,
            Link::Slow(seconds) => {
                sleep(Duration::from_secs(seconds)).await;
                Some((code, answer))
            }
            Link::Fine | Link::Deaf | Link::Broken => Some((code, answer)),
        }
    }

    /// One process after the other, as a kubelet would start them.
    async fn live(self: Arc<Self>, who: usize) {
        let contender = &self.contenders[who];
        loop {
            let lease = Lease::new(self.client(who), contender.config()).unwrap();
            *contender.gate.lock().unwrap() = lease.gate();
            let (gate, stopped) = (lease.gate(), CancellationToken::new());
            let process = async {
                let mut run = pin!(lease.run(stopped.clone()));
                let asked = async {
                    contender.end.notified().await;
                    contender.work.write().await
                };
                tokio::select! {
                    _lost = &mut run => {}
                    work_ended = asked => {
                        stopped.cancel();
                        let _released = run.await;
                        drop(work_ended);
                    }
                }
            };
            tokio::select! {
                () = contender.pause.stalling(process) => {}
                () = contender.kill.notified() => {}
            }
            gate.close();
            sleep(Duration::from_secs(3)).await;
        }
    }

    /// Writes again and again while the gate is open, each write arriving as late as the applier allows.
    async fn write(self: Arc<Self>, who: usize) {
        let contender = &self.contenders[who];
        loop {
            sleep(Duration::from_secs(2)).await;
            let (gate, paused) = (contender.gate(), contender.pause.paused.load(SeqCst));
            let Ok(working) = contender.work.clone().try_read_owned() else { continue };
            if paused || !gate.is_open() {
                continue;
            }
            self.judge(who, "begins a write", true).await;
            let world = self.clone();
            tokio::spawn(async move {
                sleep(gate.write_timeout()).await;
                world.judge(who, "has written", false).await;
                drop(working);
            });
        }
    }

    async fn judge(&self, who: usize, what: &str, own: bool) {
        let contender = &self.contenders[who];
        let holder = {
            let stored = self.server.0.lock().await;
            stored
                .lease
                .as_ref()
                .and_then(|lease| lease["spec"]["holderIdentity"].as_str())
                .map(str::to_owned)
        };
        let open: Vec<&str> = self
            .contenders
            .iter()
            .filter(|other| other.gate().is_open() && (own || other.identity != contender.identity))
            .map(|other| other.identity.as_str())
            .collect();
        let most = usize::from(own);
        if holder.as_deref() != Some(&contender.identity) || open.len() > most {
            let text = format!("{} {what} while {holder:?} holds and {open:?} are open", contender.identity);
            self.violations.lock().unwrap().push(text);
        }
    }

    fn heal(&self) {
        for contender in &self.contenders {
            *contender.link.lock().unwrap() = Link::Fine;
            contender.pause.set(false);
        }
    }

    async fn play(self: &Arc<Self>, faults: &[(Fault, u64)]) {
        for (fault, wait) in faults {
            match *fault {
                Fault::Pause(who, seconds) => {
                    self.contenders[who].pause.set(true);
                    let world = self.clone();
                    tokio::spawn(async move {
                        sleep(Duration::from_secs(seconds)).await;
                        world.contenders[who].pause.set(false);
                    });
                }
                Fault::Link(who, link) => *self.contenders[who].link.lock().unwrap() = link,
                Fault::Kill(who) => self.contenders[who].kill.notify_one(),
                Fault::End(who) => self.contenders[who].end.notify_one(),
                Fault::Heal => self.heal(),
            }
            sleep(Duration::from_secs(*wait)).await;
        }
    }
}

fn run(rates: &[u32], faults: &[(Fault, u64)]) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let world = World::new(rates);
        for who in 0..rates.len() {
            tokio::spawn(world.clone().live(who));
            tokio::spawn(world.clone().write(who));
        }
        sleep(Duration::from_secs(10)).await;
        world.play(faults).await;
        world.heal();
        // A lease duration for one that is gone, and as much again for requests that are still under way.
        sleep(Duration::from_secs(3 * DURATION)).await;
        let violations = world.violations.lock().unwrap().clone();
        prop_assert!(violations.is_empty(), "{violations:?}");
        let leads = world.contenders.iter().any(|contender| contender.gate().is_open());
        prop_assert!(leads, "nobody leads though everything works");
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn there_are_never_two_that_write(
        rates in prop::collection::vec(prop::sample::select(&RATES), 4),
        faults in prop::collection::vec((fault(4), 0_u64..400), 1..25),
    ) {
        run(&rates, &faults)?;
    }
}
