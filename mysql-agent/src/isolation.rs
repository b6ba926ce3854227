//! An open mysqld that has lost everybody is ended.
//!
//! A source without acknowledgements can't commit, so a deposed primary that nobody reaches does no harm to the
//! data; but its clients go on reading what is no longer true. So the agent kills it once it has reached neither a
//! shard, nor the API server, nor as many ackers as a commit needs, for longer than [`BOUND`]. Any one of the
//! three within that time shows that it is not alone:
//!
//! - a shard watches it: the pings of the connection end one that is dead;
//! - the API server takes a connection;
//! - enough ackers are connected, and as many other agents take a connection. An acker that the shard has revoked
//!   is not connected any more, and one that is behind a dead connection takes no new one.
//!
//! With no acknowledgement required nobody can take the place of the instance, and it is left alone.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpStream, lookup_host},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, HostPort},
    facts::Published,
    instance::Instance,
};

/// Isolation that ends an open mysqld.
const BOUND: Duration = Duration::from_secs(10);
/// Time between two attempts to reach somebody.
const ROUND: Duration = Duration::from_secs(1);
/// Time to connect, and to resolve the names before that.
const CONNECT: Duration = Duration::from_secs(1);

/// Counts the shards that watch the instance. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Watchers(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Watching(Watchers);

impl Watchers {
    /// Counts one more.
    pub fn join(&self) -> Watching {
        self.0.fetch_add(1, Ordering::SeqCst);
        Watching(self.clone())
    }

    /// Whether one watches now.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whom one round reached.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    shard: bool,
    api_server: bool,
    /// Other agents that took a connection.
    agents: usize,
    /// Ackers that are connected, by what mysqld says.
    ackers: usize,
}

impl Reached {
    fn anybody(self, required_acks: usize) -> bool {
        self.shard || self.api_server || self.agents.min(self.ackers) >= required_acks.max(1)
    }
}

/// Since when nobody was reached.
#[derive(Debug)]
struct Isolation {
    last_contact: Instant,
    alone: bool,
}

impl Isolation {
    fn new(now: Instant) -> Self {
        Self { last_contact: now, alone: false }
    }

    /// Takes what a round that has just ended found.
    fn learn(&mut self, reached: Reached, required_acks: usize, now: Instant) {
        self.alone = !reached.anybody(required_acks);
        if !self.alone {
            self.last_contact = now;
        }
    }

    fn lasts(&self, now: Instant) -> Option<Duration> {
        self.alone.then(|| now.duration_since(self.last_contact))
    }

    /// Whether an instance that is open with `required_acks` must not go on serving.
    fn fences(&self, required_acks: Option<u32>, now: Instant) -> bool {
        required_acks.is_some_and(|acks| acks > 0) && self.lasts(now).is_some_and(|lasts| lasts >= BOUND)
    }
}

/// Watches for isolation until `shutdown`.
pub async fn watch(
    config: Arc<Config>,
    instance: Arc<Instance>,
    facts: watch::Receiver<Published>,
    watchers: Watchers,
    shutdown: CancellationToken,
) {
    let Some(api_server) = &config.api_server else {
        shutdown.cancelled().await;
        return;
    };
    let mut others = Others { at: config.agents.clone(), known: Vec::new(), lookup: None };
    let mut isolation = Isolation::new(Instant::now());
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = rounds.tick() => {}
        }
        // Nobody is asked while a shard watches.
        let mut reached = Reached { shard: watchers.any(), ..Reached::default() };
        if !reached.shard {
            let ackers = facts.borrow().facts.server.as_ref().map_or(0, |server| server.semi_sync_clients);
            reached.ackers = usize::try_from(ackers).unwrap_or(usize::MAX);
            (reached.api_server, reached.agents) = tokio::join!(takes_connection(api_server), others.reach());
            reached.shard = watchers.any();
        }
        let (required, now) = (instance.required_acks(), Instant::now());
        isolation.learn(reached, usize::try_from(required.unwrap_or(0)).unwrap_or(usize::MAX), now);
        instance.set_isolated_for(isolation.lasts(now));
        if isolation.fences(required, now) {
            tracing::error!(
                "reached neither a shard, nor the API server, nor enough ackers for {BOUND:?}: mysqld is killed, \
                 since another instance may have taken its place; it starts again closed"
            );
            instance.process.kill().await;
        }
    }
}

async fn takes_connection(at: &HostPort) -> bool {
    matches!(timeout(CONNECT, TcpStream::connect((at.host.as_str(), at.port))).await, Ok(Ok(_)))
}

/// The agents of the cluster.
#[derive(Debug)]
struct Others {
    at: HostPort,
    /// The addresses that their name had last: it can't be resolved without the network.
    known: Vec<SocketAddr>,
    lookup: Option<JoinHandle<Vec<SocketAddr>>>,
}

impl Others {
    /// How many but this one take a connection.
    async fn reach(&mut self) -> usize {
        self.resolve().await;
        let mut attempts: JoinSet<bool> = self.known.iter().copied().map(reach_other).collect();
        let mut reached = 0;
        while let Some(attempt) = attempts.join_next().await {
            reached += usize::from(attempt.unwrap_or(false));
        }
        reached
    }

    /// Looks the name up, one look-up at a time: one that is stuck holds a thread.
    async fn resolve(&mut self) {
        let HostPort { host, port } = self.at.clone();
        let lookup = self.lookup.get_or_insert_with(|| {
            tokio::spawn(
                async move { lookup_host((host, port)).await.map(Iterator::collect).unwrap_or_default() },
            )
        });
        let Ok(found) = timeout(CONNECT, lookup).await else { return };
        self.lookup = None;
        self.known =
            found.ok().filter(|found| !found.is_empty()).unwrap_or_else(|| std::mem::take(&mut self.known));
    }
}

async fn reach_other(address: SocketAddr) -> bool {
    let connection = timeout(CONNECT, TcpStream::connect(address)).await;
    // This one is among them; a connection with it comes from the address that it goes to.
    connection.is_ok_and(|stream| {
        stream.is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own.ip() != address.ip()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Reached = Reached { shard: false, api_server: false, agents: 0, ackers: 0 };

    #[test]
    fn open_instance_that_reaches_nobody_for_the_bound_is_fenced() {
        let start = Instant::now();
        let mut isolation = Isolation::new(start);
        assert!(!isolation.fences(Some(1), start + BOUND), "nothing was tried yet");
        let almost = start + BOUND - Duration::from_millis(1);
        isolation.learn(ALONE, 1, almost);
        assert!(!isolation.fences(Some(1), almost));
        isolation.learn(ALONE, 1, start + BOUND);
        assert!(isolation.fences(Some(1), start + BOUND));
        assert_eq!(isolation.lasts(start + BOUND), Some(BOUND));
    }

    #[test]
    fn any_contact_begins_the_bound_anew() {
        for contact in [
            Reached { shard: true, ..ALONE },
            Reached { api_server: true, ..ALONE },
            Reached { agents: 2, ackers: 1, ..ALONE },
        ] {
            let start = Instant::now();
            let mut isolation = Isolation::new(start);
            isolation.learn(contact, 1, start + BOUND);
            assert_eq!(isolation.lasts(start + BOUND), None, "{contact:?}");
            isolation.learn(ALONE, 1, start + BOUND * 2 - ROUND);
            assert!(!isolation.fences(Some(1), start + BOUND * 2 - ROUND), "{contact:?}");
            isolation.learn(ALONE, 1, start + BOUND * 2);
            assert!(isolation.fences(Some(1), start + BOUND * 2), "{contact:?}");
        }
    }

    #[test]
    fn fewer_ackers_than_a_commit_needs_are_no_contact() {
        for (agents, ackers) in [(1, 2), (2, 1), (0, 2), (2, 0)] {
            assert!(!Reached { agents, ackers, ..ALONE }.anybody(2), "{agents} {ackers}");
        }
        assert!(Reached { agents: 2, ackers: 2, ..ALONE }.anybody(2));
        assert!(!ALONE.anybody(0));
    }

    #[test]
    fn closed_instance_and_one_without_ackers_are_left_alone() {
        let start = Instant::now();
        let mut isolation = Isolation::new(start);
        isolation.learn(ALONE, 0, start + BOUND);
        assert!(!isolation.fences(None, start + BOUND));
        assert!(!isolation.fences(Some(0), start + BOUND));
        assert_eq!(isolation.lasts(start + BOUND), Some(BOUND), "it is shown nevertheless");
    }

    #[test]
    fn watchers_are_counted_while_their_streams_live() {
        let watchers = Watchers::default();
        assert!(!watchers.any());
        let (one, other) = (watchers.join(), watchers.join());
        drop(one);
        assert!(watchers.any());
        drop(other);
        assert!(!watchers.any());
    }

    #[tokio::test]
    async fn connection_with_itself_is_no_contact() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let at = HostPort { host: "127.0.0.1".to_owned(), port };
        assert!(takes_connection(&at).await);
        let mut others = Others { at, known: Vec::new(), lookup: None };
        assert_eq!(others.reach().await, 0);
        assert_eq!(others.known.len(), 1);
    }
}
