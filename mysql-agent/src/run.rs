//! `mysql-agent run`: puts the parts together.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fleet_proto::agent::v1::agent_service_server::AgentServiceServer;
use fleet_runtime::{
    grpc::{self, GrpcError},
    health::Health,
    metrics::Metrics,
    server::{self, BindError, serve_http},
    shutdown::{self, Supervisor, TaskEnded},
    tls::ReloadingIdentity,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    archive, certificates,
    config::{Config, RunArgs},
    facts::Published,
    instance::Instance,
    isolation::{self, Watchers},
    leave,
    metrics::InstanceMetrics,
    observer::Observer,
    orders::Orders,
    process,
    service::Service,
    stop, supervisor,
    volume::Volume,
};

/// Facts older than this say nothing of now.
const FRESH: Duration = Duration::from_secs(3);
/// Time between attempts at what needs a person or the shard to correct it.
const RETRY: Duration = Duration::from_secs(2);
/// Time the servers have to end after mysqld.
const SERVERS_GRACE: Duration = Duration::from_secs(3);

/// Why the agent ended otherwise than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address can't be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Signals can't be caught.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
    /// A part died.
    #[error("the agent ends, since a part of it ended: {0}")]
    Part(#[from] TaskEnded),
}

impl RunError {
    /// The exit code: 2 for what the arguments can correct.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Bind(_) => 2,
            Self::Signals(_) | Self::Part(_) => 1,
        }
    }
}

/// Runs until a signal; mysqld has ended when this returns.
pub async fn run(config: Config, args: &RunArgs) -> Result<(), RunError> {
    let signal = shutdown::on_signal().map_err(RunError::Signals)?;
    let config = Arc::new(config);
    let health = server::bind("--health-addr", args.health_addr).await?;
    let calls = server::bind("--grpc-addr", args.grpc_addr).await?;
    // The servers end after mysqld, so that its end can be watched.
    let servers = CancellationToken::new();
    let mut parts = Supervisor::new(servers.clone());

    let (facts_in, facts) = watch::channel(None);
    let metrics = Metrics::new();
    let routes = probes(facts.clone()).merge(metrics.router());
    parts.essential("probes", serve_http(health, routes, servers.clone()));
    parts.essential("reaper", process::reap_orphans(servers.clone()));

    let grace = config.shutdown + SERVERS_GRACE;
    parts.essential("instance", {
        let servers = servers.clone();
        async move {
            let ended = instance(config, calls, metrics, facts_in, &signal, &servers).await;
            servers.cancel();
            ended
        }
    });
    Ok(parts.run(grace).await?)
}

/// Everything that needs the volume and the certificates.
async fn instance(
    config: Arc<Config>,
    calls: tokio::net::TcpListener,
    metrics: Metrics,
    facts_out: watch::Sender<Option<watch::Receiver<Published>>>,
    signal: &CancellationToken,
    servers: &CancellationToken,
) -> Result<(), TaskEnded> {
    let prerequisites = async {
        let volume = until_it_works(|| Volume::open(&config.paths.state())).await;
        let identity = until_it_works(|| ReloadingIdentity::from_dir(&config.paths.tls)).await;
        (volume, identity)
    };
    let (volume, identity) = tokio::select! {
        ready = prerequisites => ready,
        () = ended(signal, servers) => return Ok(()),
    };
    let volume = Arc::new(volume);
    let (mysqld, process) = supervisor::new(Arc::clone(&config), Arc::clone(&volume));
    let instance = Arc::new(Instance::new(process));
    let (observer, facts) = Observer::new(Arc::clone(&config), Arc::clone(&volume), Arc::clone(&instance));
    metrics.register(|registry| registry.register_collector(Box::new(InstanceMetrics(facts.clone()))));
    facts_out.send_replace(Some(facts.clone()));
    let orders = Orders::new(Arc::clone(&config), volume, Arc::clone(&instance));
    let watchers = Watchers::default();
    let service =
        Service::new(config.namespace.clone(), Arc::clone(&orders), facts.clone(), watchers.clone());

    // A child, since these end with the servers but their death must not leave mysqld behind.
    let inner = servers.child_token();
    let mut parts = Supervisor::new(inner.clone());
    parts.essential("grpc", serve_grpc(calls, identity.clone(), service, inner.clone()));
    parts.essential("observer", infallible(observer.run(inner.clone())));
    parts.essential(
        "certificates",
        identity.clone().watch_dir(config.paths.tls.clone(), RETRY, inner.clone()),
    );
    let isolation =
        isolation::watch(Arc::clone(&config), Arc::clone(&instance), facts, watchers.clone(), inner.clone());
    parts.essential("isolation", infallible(isolation));
    parts.essential("archives", infallible(archive::expire(config.paths.archive(), inner.clone())));
    parts.essential("loaded certificates", {
        let directory = config.paths.tls.clone();
        infallible(certificates::follow(identity, directory, Arc::clone(&instance), inner.clone()))
    });
    parts.essential("mysqld", {
        let (signal, inner, patience) = (signal.clone(), inner.clone(), config.shutdown);
        infallible(async move {
            let run = mysqld.run();
            let end = async {
                ended(&signal, &inner).await;
                let told = Instant::now();
                // An agent one of whose parts has died takes no orders.
                if !inner.is_cancelled() {
                    leave::hand_over(&instance, &watchers, patience).await;
                }
                stop::stop(&instance, &orders, patience.saturating_sub(told.elapsed())).await;
            };
            tokio::join!(run, end);
            inner.cancel();
        })
    });
    parts.run(config.shutdown + SERVERS_GRACE).await
}

async fn ended(signal: &CancellationToken, servers: &CancellationToken) {
    tokio::select! {
        () = signal.cancelled() => {}
        () = servers.cancelled() => {}
    }
}

async fn infallible(part: impl Future<Output = ()>) -> Result<(), Infallible> {
    part.await;
    Ok(())
}

/// Repeats what a person or the shard can correct while the agent runs; ending would only add kubelet's
/// back-off to it.
async fn until_it_works<T, E: std::fmt::Display>(attempt: impl Fn() -> Result<T, E>) -> T {
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => tracing::error!("{error}; trying again"),
        }
        sleep(RETRY).await;
    }
}

async fn serve_grpc(
    listener: tokio::net::TcpListener,
    identity: ReloadingIdentity,
    service: Service,
    shutdown: CancellationToken,
) -> Result<(), GrpcError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<AgentServiceServer<Service>>().await;
    let routes = Routes::new(AgentServiceServer::new(service)).add_service(health);
    grpc::serve(listener, identity, routes, shutdown).await
}

/// Probes: the agent lives while it answers; the instance is ready while its mysqld answered just now.
fn probes(facts: watch::Receiver<Option<watch::Receiver<Published>>>) -> axum::Router {
    let check = move || {
        let state = readiness(facts.borrow().as_ref().map(|facts| facts.borrow().clone()));
        async move { state }
    };
    Health::new().ready("mysqld", check).router()
}

fn readiness(published: Option<Published>) -> Result<(), String> {
    let published = published.ok_or("the data volume or the certificates can't be used; see the log")?;
    let fresh = published.within(FRESH);
    let facts = published.facts;
    match (&facts.server, fresh) {
        (Some(_), true) => Ok(()),
        (Some(_), false) => Err("mysqld was not asked lately".to_owned()),
        (None, _) => Err(format!("{} {}", facts.process_state().as_str_name(), facts.process_message)),
    }
}
