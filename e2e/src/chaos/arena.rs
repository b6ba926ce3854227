//! The place where faults are caused: a cluster with a node for the control plane and one for each instance, a
//! tenant, and a MySQL cluster of three.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleet_api::names;
use fleet_api::v1::{ConditionType, MySQLCluster};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::json;

use super::fault::Undo;
use crate::cluster::cgroups::Hierarchy;
use crate::cluster::daemon::{self, Daemon};
use crate::cluster::parts::Parts;
use crate::cluster::pki::Pki;
use crate::cluster::{Cluster, network};
use crate::images::fleet::Profile;
use crate::progress::Progress;
use crate::scenario::Stage;
use crate::tenant::Tenant;
use crate::tools::{self, Tools};
use crate::wait;

/// The name of the MySQL cluster.
pub const CLUSTER: &str = "orders";
/// The node with the control plane, DNS, and no instance.
pub const CONTROL: u8 = 0;
/// The chain of our rules in a node's network. Emptied, nothing is left of them.
pub const CHAIN: &str = "FLEET-CHAOS";
/// The name of the file that fills a volume.
pub const FILLER: &str = ".fleet-chaos";
/// How often something is looked at.
const OFTEN: Duration = Duration::from_millis(50);
/// How long an answer of the API server may take.
const ANSWER: Duration = Duration::from_secs(3);
/// How long a cluster has to be Healthy without a break to count as that: for a moment after a fault its status
/// still says what was true before.
const SETTLED: Duration = Duration::from_secs(3);

/// The place.
pub struct Arena {
    /// The cluster of Kubernetes.
    pub stage: Stage,
    /// The tenant.
    pub tenant: Tenant,
    tools: Tools,
    pki: Pki,
}

/// The instances, by what they were when it was looked at.
#[derive(Debug, Clone)]
pub struct Roles {
    /// The primary.
    pub primary: Pod,
    /// The others, by ordinal.
    pub replicas: Vec<Pod>,
}

impl Roles {
    /// All instances, the primary first.
    pub fn all(&self) -> impl Iterator<Item = &Pod> {
        std::iter::once(&self.primary).chain(&self.replicas)
    }
}

impl Arena {
    /// Brings up a cluster of that name with `nodes` nodes besides that of the control plane, and MySQL in the
    /// tenant `namespace`, or finds them; ends what faults an earlier run has left. Returns once it is Healthy.
    pub async fn set(name: &str, nodes: u8, namespace: &str, profile: Profile) -> Result<Self> {
        calm(name).await?;
        let stage = Stage::on(name, Some(nodes + 1), profile).await?;
        let control = stage.cluster.plan().node_name(CONTROL);
        Api::<Node>::all(stage.cluster.client().await?)
            .cordon(&control)
            .await
            .context("could not keep pods off the node of the control plane")?;
        let tenant = stage.tenant(namespace).await?;
        let tools = Tools::of(&tools::CLUSTERS, &Progress::default()).await?;
        let pki = Pki::ensure(&stage.cluster.home().join("pki"), stage.cluster.plan())?;
        let arena = Self { stage, tenant, tools, pki };
        arena.wanted(3).await?;
        arena.tenant.wait_for(CLUSTER, ConditionType::Healthy, "True", Duration::from_mins(4)).await?;
        Ok(arena)
    }

    /// Asks for a number of instances.
    pub async fn wanted(&self, replicas: u8) -> Result<()> {
        // Room for the binary logs of hours.
        let fields = json!({"replicas": replicas, "storage": {"size": "8Gi"}, "deletionPolicy": "Delete"});
        let spec = self.tenant.spec(fields);
        let applied = tokio::time::timeout(ANSWER, self.tenant.apply(CLUSTER, &spec));
        applied.await.context("the API server does not answer")?.map(drop)
    }

    /// The local cluster.
    pub fn machine(&self) -> &Cluster {
        &self.stage.cluster
    }

    /// The tools that it is made of.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// The daemons of the cluster.
    pub fn parts(&self) -> Parts<'_> {
        Parts::new(self.machine(), &self.tools, &self.pki)
    }

    /// Starts what does not run of the cluster's own daemons, as a node's init system would: an API server without
    /// etcd, for one, gives up after a while.
    pub fn revive(&self) -> Result<()> {
        let parts = self.parts();
        let mut daemons = vec![parts.etcd()?, parts.api_server()?];
        for node in self.machine().plan().each_node() {
            daemons.extend([
                parts.containerd(node)?,
                parts.kubelet(node)?,
                parts.proxy(node)?,
                parts.driver(node)?,
            ]);
        }
        daemons.extend([parts.controller_manager()?, parts.scheduler()?, parts.dns()?]);
        daemons.extend([parts.sidecar("csi-provisioner")?, parts.sidecar("csi-resizer")?]);
        daemons.iter().try_for_each(Daemon::start_again)
    }

    /// The MySQLCluster now. Fails where the API server does not answer in time.
    pub async fn cluster(&self) -> Result<MySQLCluster> {
        let clusters = self.tenant.clusters();
        let asked = tokio::time::timeout(ANSWER, clusters.get(CLUSTER)).await;
        Ok(asked.context("the API server does not answer")??)
    }

    /// The instances by their roles now.
    pub async fn roles(&self) -> Result<Roles> {
        let primary = primary_of(&self.cluster().await?)?;
        let mut pods = tokio::time::timeout(ANSWER, self.tenant.instances(CLUSTER))
            .await
            .context("the API server does not answer")??;
        let primary = pods.remove(&primary).with_context(|| format!("the primary {primary} has no pod"))?;
        Ok(Roles { primary, replicas: pods.into_values().collect() })
    }

    /// The node that a pod runs on.
    pub fn node_of(&self, pod: &Pod) -> Result<u8> {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let plan = self.machine().plan();
        plan.each_node()
            .find(|number| Some(plan.node_name(*number).as_str()) == node)
            .with_context(|| format!("the pod {} is on no node of ours", pod.name_any()))
    }

    /// Where the volume of a pod is mounted on this machine.
    pub fn volume_of(&self, pod: &Pod) -> Result<PathBuf> {
        let uid = pod.uid().context("a pod has a UID")?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("could not read the mounts")?;
        mounts
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1))
            .find(|point| point.contains(&format!("/pods/{uid}/volumes/kubernetes.io~csi/")))
            .map(PathBuf::from)
            .with_context(|| format!("the volume of {} is not mounted", pod.name_any()))
    }

    /// The pod of the shard that leads.
    pub async fn leader(&self) -> Result<Pod> {
        let holder = self.lease().await?.holder_identity.context("the Lease has no holder")?;
        let pods: Api<Pod> = Api::namespaced(self.tenant.client.clone(), &self.tenant.namespace);
        let all = pods.list(&kube::api::ListParams::default()).await?.items;
        let named = |pod: &Pod| holder.starts_with(&pod.name_any());
        all.into_iter().find(named).with_context(|| format!("the Lease's holder {holder} is no pod"))
    }

    async fn lease(&self) -> Result<LeaseSpec> {
        let leases: Api<Lease> = Api::namespaced(self.tenant.client.clone(), &self.tenant.namespace);
        let name = names::shard_lease(&self.tenant.namespace);
        let asked = tokio::time::timeout(ANSWER, leases.get(&name)).await;
        asked.context("the API server does not answer")??.spec.context("the Lease is empty")
    }

    /// Waits until the cluster has been Healthy for some seconds; returns since when.
    ///
    /// Somebody has to lead the shard meanwhile: until then the status is what the last one saw.
    pub async fn settled(&self, limit: Duration) -> Result<Instant> {
        let mut since: Option<Instant> = None;
        let mut before = None;
        let mut led: Option<Instant> = None;
        let deadline = Instant::now() + limit;
        loop {
            if let (None, Ok(lease)) = (led, self.lease().await)
                && lease.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty())
                && *before.get_or_insert_with(|| lease.clone()) != lease
            {
                led = Some(Instant::now());
            }
            let reason = match self.cluster().await.and_then(|cluster| healthy(&cluster)) {
                Ok(()) => {
                    let since = *since.get_or_insert_with(Instant::now);
                    match led {
                        Some(led) if led.max(since).elapsed() >= SETTLED => return Ok(since),
                        Some(_) => "it is Healthy since a moment".to_owned(),
                        None => "nobody has led the shard since".to_owned(),
                    }
                }
                Err(error) => {
                    since = None;
                    format!("{error:#}")
                }
            };
            ensure!(
                Instant::now() < deadline,
                "the cluster is not in sync {} s after the faults ended: {reason}",
                limit.as_secs()
            );
            tokio::time::sleep(OFTEN).await;
        }
    }

    /// Waits until another instance than `old` is the primary, and open.
    pub async fn replaced(&self, old: &str, limit: Duration) -> Result<()> {
        wait::until(format!("another primary than {old}"), limit, OFTEN, || async {
            let cluster = self.cluster().await?;
            let primary = primary_of(&cluster)?;
            ensure!(primary != old, "it is {primary}");
            available(&cluster)
        })
        .await
    }
}

/// The primary that the status names.
pub fn primary_of(cluster: &MySQLCluster) -> Result<String> {
    cluster.status.as_ref().and_then(|status| status.primary.clone()).context("there is no primary")
}

fn healthy(cluster: &MySQLCluster) -> Result<()> {
    is_true(cluster, ConditionType::Healthy)
}

fn available(cluster: &MySQLCluster) -> Result<()> {
    is_true(cluster, ConditionType::Available)
}

fn is_true(cluster: &MySQLCluster, wanted: ConditionType) -> Result<()> {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let found = conditions.iter().find(|found| found.type_ == wanted).context("it has no status yet")?;
    if found.status == "True" && found.observed_generation == cluster.metadata.generation {
        return Ok(());
    }
    bail!("{wanted:?} is {} ({}: {})", found.status, found.reason, found.message)
}

/// Ends all faults that an earlier run may have left in a cluster when it was killed itself: stopped processes,
/// rules and queues in the nodes' networks, links that are down, filled volumes.
pub async fn calm(name: &str) -> Result<()> {
    let Some(cluster) = Cluster::find(name)? else { return Ok(()) };
    Undo::Continue(daemon::of_cluster(name)).run()?;
    let hierarchy = Hierarchy::detect()?;
    for node in cluster.plan().each_node() {
        Undo::Continue(hierarchy.processes(&cluster.plan().cgroup(node))).run()?;
        let namespace = cluster.plan().namespace(node);
        if !network::namespace_file(&namespace).exists() {
            continue;
        }
        // Each fails where there is nothing to undo.
        for arguments in [
            &["iptables", "-w", "-t", "mangle", "-F", CHAIN][..],
            &["tc", "qdisc", "del", "dev", "eth0", "root"],
        ] {
            let _ = network::inside(&namespace, arguments).await;
        }
        let link = cluster.plan().link(node);
        let _ = crate::command::run("tc", ["qdisc", "del", "dev", &link, "root"]).await;
        cluster.heal(Some(node)).await?;
    }
    let home = cluster.home().display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("could not read the mounts")?;
    let points = mounts.lines().filter_map(|line| line.split_whitespace().nth(1));
    for point in points.filter(|point| point.starts_with(&home) && point.contains("kubernetes.io~csi")) {
        Undo::Remove(PathBuf::from(point).join(FILLER)).run()?;
    }
    Ok(())
}

/// Sends a signal to a daemon that runs.
pub fn signal(daemon: &Daemon, signal: Signal) -> Result<Vec<i32>> {
    let pids = daemon.processes();
    ensure!(!pids.is_empty(), "{} does not run", daemon.id);
    daemon.signal(signal)?;
    Ok(pids)
}
