//! The streams of members: who is connected, what was reported, and what each shall be told.
//!
//! All of it is in memory. What has to outlive the process stands in the status of the objects.

mod outbox;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fleet_proto::federation::v1::{DesiredCluster, Hello, Outcome, Report, Welcome};
use fleet_runtime::controller::Changed;
use jiff::Timestamp;
pub use outbox::Outbox;
use tokio::sync::watch;
use tonic::Status;

use crate::{
    decide::{Answer, Contact, Heard},
    stores::Stores,
};

/// The shard of a namespace of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// Name of the MemberCluster.
    pub member: String,
    /// Its namespace.
    pub namespace: String,
}

/// All streams. Clones share them.
#[derive(Clone)]
pub struct Streams {
    inner: Arc<Mutex<Inner>>,
    generation: Arc<watch::Sender<u64>>,
    stores: Stores,
    federated_changed: Changed,
    members_changed: Changed,
}

#[derive(Default)]
struct Inner {
    next: u64,
    shards: BTreeMap<Shard, Known>,
}

/// What is known of a shard. It stays when its stream has ended.
#[derive(Default)]
struct Known {
    /// What it shall be told, by the UID of the federated cluster.
    wanted: BTreeMap<String, DesiredCluster>,
    last: Option<Timestamp>,
    version: String,
    session: Option<Session>,
}

/// The stream that a shard has now.
struct Session {
    id: u64,
    outbox: Arc<Outbox>,
    report: Option<Arc<Report>>,
    reported: Timestamp,
    /// The newest desired state that was worked off whole, and what came of it.
    answered: Option<Answered>,
}

/// A desired state, and what came of each of its clusters.
type Answered = (Arc<[DesiredCluster]>, Arc<[Outcome]>);

/// A stream that has begun. It is over when this is dropped.
pub struct Stream {
    streams: Streams,
    shard: Shard,
    id: u64,
    /// What the shard is told.
    pub outbox: Arc<Outbox>,
}

/// What is known of a member as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberContact {
    /// Namespaces whose shard is connected, ordered by name.
    pub connected: Vec<String>,
    /// When one of them was last heard by this process.
    pub last: Option<Timestamp>,
    /// Version of the shard that was last heard.
    pub version: Option<String>,
}

impl Streams {
    /// No streams. What they bring is marked in `federated_changed` and `members_changed`.
    pub fn new(stores: Stores, federated_changed: Changed, members_changed: Changed) -> Self {
        Self {
            inner: Arc::default(),
            generation: Arc::new(watch::Sender::new(0)),
            stores,
            federated_changed,
            members_changed,
        }
    }

    /// Begins the stream of a shard. One that it had before is over.
    pub fn begin(&self, shard: Shard, hello: &Hello, welcome: Welcome, now: Timestamp) -> Stream {
        let outbox = Arc::new(Outbox::new(welcome));
        let id = {
            let mut inner = self.lock();
            inner.next += 1;
            let id = inner.next;
            let known = inner.shards.entry(shard.clone()).or_default();
            let session =
                Session { id, outbox: Arc::clone(&outbox), report: None, reported: now, answered: None };
            if let Some(before) = known.session.replace(session) {
                before.outbox.end(Status::aborted("the shard has begun another stream"));
            }
            known.last = Some(now);
            known.version.clone_from(&hello.version);
            id
        };
        self.news(&shard);
        Stream { streams: self.clone(), shard, id, outbox }
    }

    /// What a shard has said of a federated cluster, by the MySQLCluster's name and the object's UID.
    pub fn contact(&self, shard: &Shard, name: &str, uid: &str) -> Contact {
        let inner = self.lock();
        let Some(known) = inner.shards.get(shard) else {
            return Contact::Silent { last: None };
        };
        let reported = known.session.as_ref().and_then(|session| Some((session, session.report.as_ref()?)));
        let (Some((session, report)), Some(at)) = (reported, known.last) else {
            return Contact::Silent { last: known.last };
        };
        let answer = session.answered.as_ref().map(|(wanted, outcomes)| Answer {
            wanted: wanted.iter().find(|wanted| wanted.federated_uid == uid).cloned(),
            outcome: outcomes.iter().find(|outcome| outcome.federated_uid == uid).cloned(),
        });
        let cluster = report.clusters.iter().find(|cluster| cluster.name == name).cloned();
        Contact::Heard(Box::new(Heard { at, reported: session.reported, cluster, answer }))
    }

    /// What is known of a member as a whole.
    pub fn member(&self, member: &str) -> MemberContact {
        let inner = self.lock();
        let mut contact = MemberContact::default();
        for (shard, known) in inner.shards.iter().filter(|(shard, _)| shard.member == member) {
            if known.session.is_some() {
                contact.connected.push(shard.namespace.clone());
            }
            if known.last > contact.last {
                contact.last = known.last;
                contact.version = Some(known.version.clone());
            }
        }
        contact
    }

    /// Sets what a shard shall be told of a federated cluster. It is sent once the shard has reported, and only if
    /// it is something else than before.
    pub fn want(&self, shard: &Shard, uid: &str, desired: Option<DesiredCluster>) {
        let mut inner = self.lock();
        let changed = match desired {
            Some(desired) => {
                let known = inner.shards.entry(shard.clone()).or_default();
                known.wanted.insert(uid.to_owned(), desired.clone()) != Some(desired)
            }
            None => inner.shards.get_mut(shard).is_some_and(|known| known.wanted.remove(uid).is_some()),
        };
        if changed && let Some(known) = inner.shards.get(shard) {
            known.tell();
        }
    }

    /// Grows with each stream that begins or ends, and with each report.
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    fn news(&self, shard: &Shard) {
        for (namespace, name) in self.stores.placed_on(&shard.member, Some(&shard.namespace)) {
            self.federated_changed.mark_in(&namespace, &name);
        }
        self.members_changed.mark(&shard.member);
        self.generation.send_modify(|generation| *generation = generation.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Hands what is wanted to the stream, unless it has not reported yet.
    fn tell(&self) {
        if let Some(session) = self.session.as_ref().filter(|session| session.report.is_some()) {
            session.outbox.desire(self.wanted.values().cloned().collect());
        }
    }
}

impl Stream {
    /// The shard has given a sign of life.
    pub fn heard(&self, now: Timestamp) {
        self.with(|known| known.last = Some(now));
    }

    /// The shard has reported. With the first report of a stream it is told what is wanted.
    pub fn report(&self, report: Report, now: Timestamp) -> Result<(), Status> {
        let taken = self.with(|known| {
            known.last = Some(now);
            let Some(session) = known.session.as_mut() else {
                return Ok(());
            };
            let before = session.report.as_ref().map_or(0, |report| report.sequence);
            if report.sequence <= before {
                return Err(Status::invalid_argument(format!(
                    "report.sequence is {} after {before}: it must rise",
                    report.sequence
                )));
            }
            if let Some(desired) = session.outbox.sent(report.answered) {
                session.answered = Some((desired, report.outcomes.clone().into()));
            }
            session.report = Some(Arc::new(report));
            session.reported = now;
            if before == 0 {
                known.tell();
            }
            Ok(())
        });
        taken.unwrap_or(Ok(()))?;
        self.streams.news(&self.shard);
        Ok(())
    }

    /// Nothing if the shard has begun another stream.
    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> Option<T> {
        let mut inner = self.streams.lock();
        let known = inner.shards.get_mut(&self.shard)?;
        (known.session.as_ref()?.id == self.id).then(|| act(known))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.with(|known| known.session = None).is_some() {
            self.streams.news(&self.shard);
        }
    }
}
