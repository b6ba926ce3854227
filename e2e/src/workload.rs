//! Clients that write through a Service and remember what they were told, and the verdict on it.
//!
//! Nothing here knows of the operator: whatever it claims, every acknowledged write has to be there exactly
//! once at the end, and every refused one must not.

use std::collections::BTreeMap;
use std::fs::File;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use fleet_api::names::{self, UserRole};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};
use nix::sched::{CloneFlags, setns};
use tokio::sync::watch;

use crate::cluster::{Cluster, network};
use crate::tenant::Tenant;

/// How long a client waits for a connection.
const CONNECT: Duration = Duration::from_millis(500);
/// How long a client waits for the answer to a write before it gives the connection up.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a client waits after something went wrong.
const PAUSE: Duration = Duration::from_millis(10);
/// "The server is running with the --super-read-only option": refused before anything was done.
const READ_ONLY: u16 = 1290;
/// The database and table that the clients write to.
const TABLE: &str = "workload.writes";

/// What a client was told of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// That it is committed.
    Acknowledged,
    /// That it was refused.
    Refused,
    /// Nothing: the connection ended, or the answer did not come in time.
    Unknown,
}

/// One write of one client.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// Which client.
    pub client: u32,
    /// Which of its writes.
    pub number: u32,
    /// When it was sent.
    pub sent: Instant,
    /// When its outcome was known.
    pub ended: Instant,
    /// Its outcome.
    pub outcome: Outcome,
}

/// Clients at work.
pub struct Workload {
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<Vec<Write>>>,
}

impl Workload {
    /// Starts clients that write through the Service of the primary of `cluster`, as programs on node 0 of
    /// `machine` would. The table is made first, so the cluster has to take writes.
    pub async fn start(machine: &Cluster, tenant: &Tenant, cluster: &str, clients: u32) -> Result<Self> {
        let services: Api<Service> = Api::namespaced(tenant.client.clone(), &tenant.namespace);
        let service = services.get(&names::primary_service(cluster)).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), &tenant.namespace);
        let tls = secrets.get(&names::tls_secret(cluster)).await?.data.unwrap_or_default();
        let authority = tls.get("ca.crt").context("the Secret has no ca.crt")?.0.clone();
        let options = |user: String, password: String| -> Opts {
            // The certificate names the Service, whose name no name server of this machine knows.
            let ssl = SslOpts::default()
                .with_root_certs(vec![authority.clone().into()])
                .with_disable_built_in_roots(true)
                .with_danger_tls_hostname_override(Some(names::primary_service(cluster)));
            OptsBuilder::default()
                .ip_or_hostname(address.clone())
                .tcp_port(names::PORT_MYSQL)
                .user(Some(user))
                .pass(Some(password))
                .prefer_socket(false)
                .ssl_opts(ssl)
                .into()
        };
        let (user, password) = tenant.account(cluster, UserRole::Admin).await?;
        let admin = options(user, password);
        let (user, password) = tenant.account(cluster, UserRole::Writer).await?;
        let writer = options(user, password);
        let (stop, stopped) = watch::channel(false);
        let network = File::open(network::namespace_file(&machine.plan().namespace(0)))
            .context("could not open the network of node 0")?;
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || -> Result<Vec<Write>> {
            setns(&network, CloneFlags::CLONE_NEWNET).context("could not enter the network of node 0")?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async move {
                let made = prepare(admin).await;
                // Nobody listens any more only where the start was given up.
                let _ = ready.send(made);
                let work = (0..clients).map(|client| run(client, writer.clone(), stopped.clone()));
                Ok(futures::future::join_all(work).await.into_iter().flatten().collect())
            })
        });
        is_ready.await.context("the clients ended")??;
        Ok(Self { stop, thread })
    }

    /// Ends the clients; returns what they were told, by the time of the answer.
    pub async fn stop(self) -> Result<Vec<Write>> {
        self.stop.send_replace(true);
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        let mut writes = joined.map_err(|_| anyhow!("the clients panicked"))??;
        writes.sort_by_key(|write| write.ended);
        Ok(writes)
    }
}

async fn prepare(admin: Opts) -> Result<()> {
    let make = async {
        let mut connection = Conn::new(admin).await?;
        connection.query_drop("DROP DATABASE IF EXISTS workload").await?;
        connection.query_drop("CREATE DATABASE workload").await?;
        let table = format!(
            "CREATE TABLE {TABLE} (id BIGINT AUTO_INCREMENT PRIMARY KEY, client INT NOT NULL, \
             number INT NOT NULL, server_uuid CHAR(36) NOT NULL, KEY (client, number))"
        );
        connection.query_drop(table).await?;
        connection.disconnect().await?;
        Ok::<_, mysql_async::Error>(())
    };
    tokio::time::timeout(Duration::from_secs(10), make).await.context("the table was not made in 10 s")??;
    Ok(())
}

async fn run(client: u32, options: Opts, stopped: watch::Receiver<bool>) -> Vec<Write> {
    let mut writes = Vec::new();
    let mut connection: Option<Conn> = None;
    while !*stopped.borrow() {
        let Some(open) = connection.as_mut() else {
            match tokio::time::timeout(CONNECT, Conn::new(options.clone())).await {
                Ok(Ok(open)) => connection = Some(open),
                Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
            }
            continue;
        };
        let number = u32::try_from(writes.len()).unwrap_or(u32::MAX);
        let insert = format!(
            "INSERT INTO {TABLE} (client, number, server_uuid) VALUES ({client}, {number}, @@server_uuid)"
        );
        let sent = Instant::now();
        let outcome = match tokio::time::timeout(ANSWER, open.query_drop(insert)).await {
            Ok(Ok(())) => Outcome::Acknowledged,
            Ok(Err(mysql_async::Error::Server(error))) if error.code == READ_ONLY => Outcome::Refused,
            Ok(Err(_)) | Err(_) => Outcome::Unknown,
        };
        writes.push(Write { client, number, sent, ended: Instant::now(), outcome });
        if outcome != Outcome::Acknowledged {
            connection = None;
            tokio::time::sleep(PAUSE).await;
        }
    }
    writes
}

/// What became of the writes.
#[derive(Debug, Default)]
pub struct Verdict {
    /// How many were acknowledged.
    pub acknowledged: usize,
    /// How many were refused.
    pub refused: usize,
    /// Of how many nobody was told.
    pub unknown: usize,
    /// Acknowledged, and not there.
    pub lost: Vec<(u32, u32)>,
    /// There more than once.
    pub repeated: Vec<(u32, u32)>,
    /// Refused, and there nevertheless, or never sent.
    pub unasked: Vec<(u32, u32)>,
}

impl Verdict {
    /// Compares what clients were told with what an instance has.
    pub async fn of(writes: &[Write], tenant: &Tenant, cluster: &str, pod: &str) -> Result<Self> {
        let host = names::instance_host(&tenant.namespace, cluster, pod);
        let query = format!("SELECT client, number, COUNT(*) FROM {TABLE} GROUP BY client, number");
        let rows = tenant.sql(cluster, pod, &host, UserRole::Reader, &query).await?;
        let mut found = BTreeMap::new();
        for row in rows.lines() {
            let mut fields = row.split('\t').map(str::parse::<u32>);
            let (Some(Ok(client)), Some(Ok(number)), Some(Ok(count))) =
                (fields.next(), fields.next(), fields.next())
            else {
                bail!("{pod} answered the row {row:?}");
            };
            found.insert((client, number), count);
        }
        Ok(Self::compare(writes, &found))
    }

    fn compare(writes: &[Write], found: &BTreeMap<(u32, u32), u32>) -> Self {
        let mut verdict = Self::default();
        let mut told = BTreeMap::new();
        for write in writes {
            let key = (write.client, write.number);
            told.insert(key, write.outcome);
            match write.outcome {
                Outcome::Acknowledged => {
                    verdict.acknowledged += 1;
                    if !found.contains_key(&key) {
                        verdict.lost.push(key);
                    }
                }
                Outcome::Refused => verdict.refused += 1,
                Outcome::Unknown => verdict.unknown += 1,
            }
        }
        for (key, count) in found {
            if *count > 1 {
                verdict.repeated.push(*key);
            }
            if told.get(key).is_none_or(|outcome| *outcome == Outcome::Refused) {
                verdict.unasked.push(*key);
            }
        }
        verdict
    }

    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.repeated.is_empty() && self.unasked.is_empty()
    }
}

/// The longest time between `since` and `until` without an acknowledged write.
pub fn outage(writes: &[Write], since: Instant, until: Instant) -> Duration {
    let mut last = since;
    let mut longest = Duration::ZERO;
    let acknowledged = writes.iter().filter(|write| write.outcome == Outcome::Acknowledged);
    let ends = acknowledged.map(|write| write.ended).filter(|ended| (since..until).contains(ended));
    for end in ends.chain([until]) {
        longest = longest.max(end.saturating_duration_since(last));
        last = end;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u32, outcome: Outcome, ended: Instant) -> Write {
        Write { client: 1, number, sent: ended, ended, outcome }
    }

    #[test]
    fn broken_promises_are_told_apart() {
        let now = Instant::now();
        let told = [
            write(0, Outcome::Acknowledged, now),
            write(1, Outcome::Acknowledged, now),
            write(2, Outcome::Refused, now),
            write(3, Outcome::Unknown, now),
            write(4, Outcome::Unknown, now),
        ];
        let clean = BTreeMap::from([((1, 0), 1), ((1, 1), 1), ((1, 3), 1)]);
        assert!(Verdict::compare(&told, &clean).is_clean());
        let broken = BTreeMap::from([((1, 0), 2), ((1, 2), 1), ((7, 7), 1)]);
        let verdict = Verdict::compare(&told, &broken);
        assert_eq!(verdict.lost, [(1, 1)]);
        assert_eq!(verdict.repeated, [(1, 0)]);
        assert_eq!(verdict.unasked, [(1, 2), (7, 7)]);
        assert_eq!((verdict.acknowledged, verdict.refused, verdict.unknown), (2, 1, 2));
    }

    #[test]
    fn an_outage_is_the_longest_silence_of_a_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let writes = [
            write(0, Outcome::Acknowledged, at(100)),
            write(1, Outcome::Acknowledged, at(5000)),
            write(2, Outcome::Unknown, at(5100)),
            write(3, Outcome::Acknowledged, at(5200)),
            write(4, Outcome::Acknowledged, at(6000)),
        ];
        assert_eq!(outage(&writes, at(5050), at(6000)), Duration::from_millis(800));
        assert_eq!(outage(&writes, at(5050), at(9000)), Duration::from_secs(3));
        assert_eq!(outage(&[], at(7000), at(7001)), Duration::from_millis(1));
    }
}
