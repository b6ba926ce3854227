//! Bringing clusters up.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cgroups::Hierarchy;
use super::daemon::Daemon;
use super::parts::Parts;
use super::pki::Pki;
use super::storage::DRIVER;
use super::{Cluster, clusters, files, load, network, storage};
use crate::images::pause;
use crate::progress::Progress;
use crate::tools::{self, Tools};
use crate::{host, kubernetes, wait};

const START: Duration = Duration::from_secs(90);

/// How a kubelet ends that started in the same moment as another one of this machine: each makes this socket
/// anew, and its place can't be chosen.
const SOCKET_TAKEN: &str = "device-plugins/kubelet.sock: bind: address already in use";

/// Brings clusters up side by side, or repairs them; returns when all their nodes are Ready and DNS and
/// storage serve. `nodes` is the number of nodes of each; without it, 1 for a new cluster.
///
/// Cancelling leaves a cluster half-made; calling it again completes it.
pub async fn up(names: &[String], nodes: Option<u8>, progress: &Progress) -> Result<Vec<Cluster>> {
    for name in names {
        super::plan::check_name(name)?;
    }
    host::require_clusters()?;
    host::ensure_cluster_packages(progress).await?;
    let tools = Tools::of(&tools::CLUSTERS, progress).await?;
    let pause = pause::archive(progress).await?;
    try_join_all(names.iter().map(|name| {
        let work = one(name, nodes, &tools, &pause, progress);
        async move { work.await.with_context(|| format!("could not bring up the cluster \"{name}\"")) }
    }))
    .await
}

async fn one(
    name: &str,
    nodes: Option<u8>,
    tools: &Tools,
    pause: &std::path::Path,
    progress: &Progress,
) -> Result<Cluster> {
    let step = progress.step(format!("cluster {name}"));
    let folder = clusters()?;
    std::fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let lock = tools::exclusive(&folder.join(format!("{name}.lock"))).await?;
    super::down::finish_removal(name)?;
    let cluster = Cluster::claim(name, nodes).await?;
    let plan = cluster.plan();

    step.detail("certificates and network");
    let pki = Pki::ensure(&cluster.home().join("pki"), plan)?;
    for node in plan.each_node() {
        let folder = cluster.node_runtime(node);
        std::fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    }
    files::write_all(&cluster, &pki)?;
    let hierarchy = Hierarchy::detect()?;
    for node in plan.each_node() {
        hierarchy.create(&plan.cgroup(node))?;
    }
    network::ensure(plan).await?;

    step.detail("API server and containerd");
    let parts = Parts::new(&cluster, tools, &pki);
    let etcd = parts.etcd()?;
    etcd.ensure().await?;
    let api_server = parts.api_server()?;
    api_server.ensure().await?;
    let containerds: Vec<Daemon> =
        plan.each_node().map(|node| parts.containerd(node)).collect::<Result<_>>()?;
    for containerd in &containerds {
        containerd.ensure().await?;
    }
    let client = cluster.client().await?;
    let serving = async {
        let ask = || async { kubernetes::ready(&client).await };
        let served = api_server.ready(START, ask).await;
        served.with_context(|| wait::tail(&etcd.log, 5))
    };
    let images = try_join_all(plan.each_node().zip(&containerds).map(|(node, containerd)| {
        let (cluster, tools) = (&cluster, tools);
        async move {
            containerd.ready(START, || load::answers(cluster, node, tools)).await?;
            load::import(cluster, node, tools, pause).await
        }
    }));
    tokio::try_join!(serving, images)?;

    step.detail("nodes, DNS and storage");
    nodes_and_services(&cluster, &parts, &client).await?;
    drop(lock);
    step.done();
    Ok(cluster)
}

/// Starts all that needs a serving API server and waits until it is ready.
async fn nodes_and_services(cluster: &Cluster, parts: &Parts<'_>, client: &Client) -> Result<()> {
    let plan = cluster.plan();
    let mut kubelets = Vec::new();
    let mut proxies = Vec::new();
    let mut drivers = Vec::new();
    for node in plan.each_node() {
        kubelets.push(parts.kubelet(node)?);
        proxies.push(parts.proxy(node)?);
        drivers.push(parts.driver(node)?);
    }
    let controllers = parts.controller_manager()?;
    let scheduler = parts.scheduler()?;
    let dns = parts.dns()?;
    let starting =
        [&controllers, &scheduler].into_iter().chain(&kubelets).chain(&drivers).chain(&proxies).chain([&dns]);
    for daemon in starting {
        daemon.ensure().await?;
    }
    let objects = format!("{}---\n{}", storage::storage_objects(), storage::dns_objects(cluster));
    // A new cluster's own namespaces and ranges of addresses take a moment.
    wait::until("the objects of DNS and storage", START, Duration::from_millis(200), || async {
        kubernetes::apply(client, &objects, "kube-system").await.map(drop)
    })
    .await?;
    let sidecars = async {
        let driver = drivers.first().context("a cluster has a node")?;
        driver
            .ready(START, || async {
                tokio::net::UnixStream::connect(files::csi_socket(cluster, 0)).await?;
                Ok(())
            })
            .await?;
        for name in ["csi-provisioner", "csi-resizer"] {
            parts.sidecar(name)?.ensure().await?;
        }
        Ok(())
    };
    let nodes =
        try_join_all(plan.each_node().zip(kubelets.iter().zip(&drivers)).map(|(node, (kubelet, driver))| {
            let name = plan.node_name(node);
            async move {
                kubelet.ready_despite(SOCKET_TAKEN, START, || node_ready(client, &name)).await?;
                driver.ready(START, || driver_registered(client, &name)).await
            }
        }));
    let proxying = try_join_all(plan.each_node().zip(&proxies).map(|(node, proxy)| {
        let address = format!("{}:10256", plan.node_ip(node));
        async move { proxy.ready(START, || http_ok(&address, "/healthz")).await }
    }));
    let resolving = async {
        let address = format!("{}:8181", plan.node_ip(0));
        dns.ready(START, || http_ok(&address, "/ready")).await
    };
    tokio::try_join!(sidecars, nodes, proxying, resolving)?;
    // Nothing above waits for these two; a crash at their start would otherwise go unseen.
    for daemon in [&controllers, &scheduler] {
        if !daemon.is_running() {
            bail!("{} ended; {}", daemon.id, wait::tail(&daemon.log, 20));
        }
    }
    Ok(())
}

async fn node_ready(client: &Client, name: &str) -> Result<()> {
    let node = Api::<Node>::all(client.clone()).get(name).await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    match conditions.iter().find(|condition| condition.type_ == "Ready") {
        Some(ready) if ready.status == "True" => Ok(()),
        Some(ready) => bail!("{}", ready.message.as_deref().unwrap_or("it is not Ready")),
        None => bail!("it has not reported yet"),
    }
}

async fn driver_registered(client: &Client, name: &str) -> Result<()> {
    let node = Api::<CSINode>::all(client.clone()).get(name).await?;
    if node.spec.drivers.iter().any(|driver| driver.name == DRIVER) {
        return Ok(());
    }
    bail!("the kubelet has not registered {DRIVER} yet");
}

/// Succeeds when an HTTP server answers 200.
async fn http_ok(address: &str, path: &str) -> Result<()> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: local\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, anyhow::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), ask).await??;
    let status = answer.lines().next().unwrap_or_default();
    if status.contains(" 200 ") { Ok(()) } else { bail!("http://{address}{path} answered {status}") }
}
