//! Clients that write and read through a Service and remember what they were told, and the verdict on it.
//!
//! Nothing here knows of the operator: whatever it claims, every acknowledged write has to be there exactly
//! once at the end, and every refused one must not.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fleet_api::names::{self, UserRole};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};
use nix::sched::{CloneFlags, setns};
use tokio::sync::watch;

use crate::cluster::{Cluster, network};
use crate::tenant::Tenant;
use crate::wait;

pub mod order;
pub mod reads;
mod verdict;

pub use verdict::{Verdict, outage};

/// How long a client waits for a connection.
const CONNECT: Duration = Duration::from_millis(500);
/// How long a client waits for the answer to a write before it gives the connection up.
const ANSWER: Duration = Duration::from_secs(2);
/// How often clients and instances are asked how far they are.
const OFTEN: Duration = Duration::from_millis(20);
/// How long it may take to make the table.
const PREPARED: Duration = Duration::from_secs(10);
/// How long a client waits after something went wrong, and a paced one after each answer.
const PAUSE: Duration = Duration::from_millis(10);
/// "The server is running with the --super-read-only option": refused before anything was done.
const READ_ONLY: u16 = 1290;
/// The database and table that the clients write to.
pub(crate) const TABLE: &str = "workload.writes";

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

/// The `server_uuid` of a mysqld.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server(u128);

impl Server {
    /// Reads the hexadecimal digits with hyphens that mysqld shows. None for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|character| *character != '-').collect();
        if digits.len() != 32 {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Self)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let mut parts = Vec::new();
        let mut rest = digits.as_str();
        for length in [8, 4, 4, 4, 12] {
            let (part, after) = rest.split_at(length);
            parts.push(part);
            rest = after;
        }
        f.write_str(&parts.join("-"))
    }
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
    /// The mysqld that the connection led to.
    pub server: Server,
    /// The row's key, where the write was acknowledged.
    pub id: Option<u64>,
}

/// Who is at work.
#[derive(Debug, Clone)]
pub struct Clients {
    /// Clients that write, on the nodes in turn.
    pub writers: u32,
    /// Clients that read the highest key, on the nodes in turn.
    pub readers: u32,
    /// The nodes whose network they use.
    pub nodes: Vec<u8>,
    /// How long each waits after an answer.
    pub pause: Duration,
}

impl Clients {
    /// Writers on node 0 that leave a processor to what is tested beside them.
    #[must_use]
    pub fn paced(writers: u32) -> Self {
        Self { writers, readers: 0, nodes: vec![0], pause: PAUSE }
    }
}

/// What the clients were told, by the time of the answer.
#[derive(Debug, Default)]
pub struct Told {
    /// The writes.
    pub writes: Vec<Write>,
    /// The reads.
    pub reads: Vec<reads::Read>,
}

/// Clients at work. When this is dropped they end soon after.
pub struct Workload {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<Result<Told>>>,
    acknowledged: Arc<AtomicU64>,
}

impl Workload {
    /// Starts clients that write through the Service of the primary of `cluster`, as programs on node 0 of
    /// `machine` would. The table is made first, so the cluster has to take writes.
    pub async fn start(machine: &Cluster, tenant: &Tenant, cluster: &str, clients: u32) -> Result<Self> {
        let clients = Clients { pause: Duration::ZERO, ..Clients::paced(clients) };
        Self::start_with(machine, tenant, cluster, &clients).await
    }

    /// The same with readers, and on some nodes.
    pub async fn start_with(
        machine: &Cluster,
        tenant: &Tenant,
        cluster: &str,
        clients: &Clients,
    ) -> Result<Self> {
        let services: Api<Service> = Api::namespaced(tenant.client.clone(), &tenant.namespace);
        let service = services.get(&names::primary_service(cluster)).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        let admin = options(tenant, cluster, &address, UserRole::Admin).await?;
        let writer = options(tenant, cluster, &address, UserRole::Writer).await?;
        let inside = |node: u8| {
            let file = network::namespace_file(&machine.plan().namespace(node));
            File::open(file).with_context(|| format!("could not open the network of node {node}"))
        };
        let first = clients.nodes.first().copied().context("the clients need a node")?;
        let made = in_network(inside(first)?, move || prepare(admin));
        tokio::task::spawn_blocking(move || made.join()).await?.map_err(|_| anyhow!("it panicked"))??;
        let (stop, stopped) = watch::channel(false);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let places = u32::try_from(clients.nodes.len()).unwrap_or(1);
        let mut threads = Vec::new();
        for (place, node) in (0_u32..).zip(&clients.nodes) {
            let here = move |count: u32| (0..count).filter(move |client| client % places == place);
            let (writers, readers) = (here(clients.writers), here(clients.readers));
            let client = Client {
                options: writer.clone(),
                pause: clients.pause,
                stopped: stopped.clone(),
                acknowledged: Arc::clone(&acknowledged),
            };
            threads.push(in_network(inside(*node)?, move || work(client, writers, readers)));
        }
        Ok(Self { stop, threads, acknowledged })
    }

    /// How many writes have been acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until a number of writes more have been acknowledged.
    pub async fn goes_on(&self, writes: u64, limit: Duration) -> Result<()> {
        let before = self.acknowledged();
        let more = || async {
            let now = self.acknowledged();
            ensure!(now >= before + writes, "{} writes were acknowledged", now - before);
            Ok(())
        };
        wait::until("the clients to be at work", limit, OFTEN, more).await
    }

    /// Ends the clients; returns what the writers were told, by the time of the answer.
    pub async fn stop(self) -> Result<Vec<Write>> {
        Ok(self.finish().await?.writes)
    }

    /// Ends the clients; returns what all were told.
    pub async fn finish(mut self) -> Result<Told> {
        self.stop.send_replace(true);
        let threads = std::mem::take(&mut self.threads);
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().map(JoinHandle::join).collect::<Vec<_>>()
        });
        let mut told = Told::default();
        for thread in joined.await? {
            let part = thread.map_err(|_| anyhow!("the clients panicked"))??;
            told.writes.extend(part.writes);
            told.reads.extend(part.reads);
        }
        told.writes.sort_by_key(|write| write.ended);
        told.reads.sort_by_key(|read| read.ended);
        Ok(told)
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// How a role connects to an address of `cluster`.
pub(crate) async fn options(tenant: &Tenant, cluster: &str, address: &str, role: UserRole) -> Result<Opts> {
    let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), &tenant.namespace);
    let tls = secrets.get(&names::tls_secret(cluster)).await?.data.unwrap_or_default();
    let authority = tls.get("ca.crt").context("the Secret has no ca.crt")?.0.clone();
    let (user, password) = tenant.account(cluster, role).await?;
    // The certificate names the Service, whose name no name server of this machine knows.
    let ssl = SslOpts::default()
        .with_root_certs(vec![authority.into()])
        .with_disable_built_in_roots(true)
        .with_danger_tls_hostname_override(Some(names::primary_service(cluster)));
    Ok(OptsBuilder::default()
        .ip_or_hostname(address.to_owned())
        .tcp_port(names::PORT_MYSQL)
        .user(Some(user))
        .pass(Some(password))
        .prefer_socket(false)
        .ssl_opts(ssl)
        .into())
}

/// Runs a future to its end in a thread of its own that uses the network of a namespace.
fn in_network<T, F>(network: File, work: impl FnOnce() -> F + Send + 'static) -> JoinHandle<Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    std::thread::spawn(move || {
        setns(&network, CloneFlags::CLONE_NEWNET).context("could not enter the network of a node")?;
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work())
    })
}

/// Waits until the clients have written at least 100 rows more to an instance.
pub async fn reaches(tenant: &Tenant, cluster: &str, pod: &str, limit: Duration) -> Result<()> {
    let host = names::instance_host(&tenant.namespace, cluster, pod);
    let query = format!("SELECT COUNT(*) FROM {TABLE}");
    let count = || async {
        let rows = tenant.sql(cluster, pod, &host, UserRole::Reader, &query);
        anyhow::Ok(rows.await?.parse::<u64>()?)
    };
    let before = count().await?;
    let more = || async {
        let now = count().await?;
        ensure!(now >= before + 100, "{now} rows, {before} before");
        Ok(())
    };
    wait::until(format!("the clients to write to {pod}"), limit, OFTEN, more).await
}

/// Makes the table. The nodes learn a moment after the cluster is Healthy where its Services lead to, and a connection
/// that is begun while one does may lead nowhere for ever: each has its own limit.
async fn prepare(admin: Opts) -> Result<()> {
    wait::until("the table to be made", PREPARED, PAUSE, || make_table(admin.clone())).await
}

async fn make_table(admin: Opts) -> Result<()> {
    let connection = tokio::time::timeout(CONNECT, Conn::new(admin)).await;
    let mut connection = connection.context("there is no connection in time")??;
    connection.query_drop("DROP DATABASE IF EXISTS workload").await?;
    connection.query_drop("CREATE DATABASE workload").await?;
    let table = format!(
        "CREATE TABLE {TABLE} (id BIGINT AUTO_INCREMENT PRIMARY KEY, client INT NOT NULL, \
         number INT NOT NULL, server_uuid CHAR(36) NOT NULL, KEY (client, number))"
    );
    connection.query_drop(table).await?;
    connection.disconnect().await?;
    Ok(())
}

/// What every client of a node has.
#[derive(Clone)]
struct Client {
    options: Opts,
    pause: Duration,
    stopped: watch::Receiver<bool>,
    acknowledged: Arc<AtomicU64>,
}

async fn work(
    client: Client,
    writers: impl Iterator<Item = u32>,
    readers: impl Iterator<Item = u32>,
) -> Result<Told> {
    let writing = futures::future::join_all(writers.map(|number| write(client.clone(), number)));
    let reading = futures::future::join_all(readers.map(|number| reads::read(client.clone(), number)));
    let (written, seen) = futures::future::join(writing, reading).await;
    Ok(Told { writes: written.into_iter().flatten().collect(), reads: seen.into_iter().flatten().collect() })
}

/// Connects, and asks which mysqld the connection leads to. None when that failed; the client has paused then.
async fn connect(options: &Opts) -> Option<(Conn, Server)> {
    let connect = async {
        let mut connection = Conn::new(options.clone()).await.ok()?;
        let server: Option<String> = connection.query_first("SELECT @@server_uuid").await.ok()?;
        Some((connection, Server::parse(&server?)?))
    };
    let connected = tokio::time::timeout(CONNECT, connect).await.ok().flatten();
    if connected.is_none() {
        tokio::time::sleep(PAUSE).await;
    }
    connected
}

async fn write(mut client: Client, name: u32) -> Vec<Write> {
    let mut writes = Vec::new();
    let mut connection: Option<(Conn, Server)> = None;
    while !*client.stopped.borrow() {
        let Some((open, server)) = connection.as_mut() else {
            connection = connect(&client.options).await;
            continue;
        };
        let number = u32::try_from(writes.len()).unwrap_or(u32::MAX);
        let insert = format!(
            "INSERT INTO {TABLE} (client, number, server_uuid) VALUES ({name}, {number}, @@server_uuid)"
        );
        let sent = Instant::now();
        let outcome = match tokio::time::timeout(ANSWER, open.query_drop(insert)).await {
            Ok(Ok(())) => Outcome::Acknowledged,
            Ok(Err(mysql_async::Error::Server(error))) if error.code == READ_ONLY => Outcome::Refused,
            Ok(Err(_)) | Err(_) => Outcome::Unknown,
        };
        let acknowledged = outcome == Outcome::Acknowledged;
        let id = if acknowledged { open.last_insert_id() } else { None };
        let ended = Instant::now();
        writes.push(Write { client: name, number, sent, ended, outcome, server: *server, id });
        if acknowledged {
            client.acknowledged.fetch_add(1, Ordering::Relaxed);
            rest(&mut client).await;
        } else {
            connection = None;
            tokio::time::sleep(PAUSE).await;
        }
    }
    writes
}

/// Waits as long as the clients are to wait between two statements, or until they are to end.
async fn rest(client: &mut Client) {
    if !client.pause.is_zero() {
        // The sender is gone only when the clients are to end.
        let _ = tokio::time::timeout(client.pause, client.stopped.changed()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_shown_as_mysqld_shows_it() {
        let uuid = "0f6c5c0a-0001-11f0-8de9-0242ac120002";
        assert_eq!(Server::parse(uuid).unwrap().to_string(), uuid);
        for bad in
            ["", "0f6c", "zz6c5c0a-0001-11f0-8de9-0242ac120002", "0f6c5c0a-0001-11f0-8de9-0242ac1200021"]
        {
            assert_eq!(Server::parse(bad), None, "{bad}");
        }
    }
}
