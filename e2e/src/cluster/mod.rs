//! Local Kubernetes clusters: several side by side on one machine, each with one or more nodes.
//!
//! A cluster's files are in `<cache>/clusters/NAME`, its sockets and mounts in `/run/mysql-fleet/NAME`.
//! [`up`](up::up) makes what is missing and keeps what is there, so it also repairs a cluster after a crash, an
//! interruption or a restart of the machine; [`down`](down::down) leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{kubernetes, paths};
use plan::Plan;

pub mod cgroups;
pub mod daemon;
pub mod down;
pub mod files;
pub mod load;
pub mod network;
pub mod parts;
pub mod pki;
pub mod plan;
pub mod storage;
pub mod up;

/// Where sockets, mounts and the machine-wide list of clusters are.
const RUNTIME: &str = "/run/mysql-fleet";

/// Held while a cluster takes its addresses. Lock files are never removed: a waiter may hold the old one.
const MACHINE_LOCK: &str = "/run/mysql-fleet.lock";

/// A cluster that was brought up, or was about to be.
#[derive(Debug, Clone)]
pub struct Cluster {
    plan: Plan,
    home: PathBuf,
}

/// What `state.json` keeps.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    index: u8,
    nodes: u8,
}

/// What the machine-wide list keeps of a cluster.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    index: u8,
    home: PathBuf,
}

impl Cluster {
    /// A cluster of this user's cache.
    pub fn open(name: &str) -> Result<Self> {
        Self::find(name)?.with_context(|| {
            let names: Vec<String> =
                list().unwrap_or_default().into_iter().map(|cluster| cluster.plan.name).collect();
            let known = if names.is_empty() {
                "there is none".to_owned()
            } else {
                format!("there are {}", names.join(", "))
            };
            format!("there is no local cluster \"{name}\" ({known}): `cargo xtask up {name}` makes it")
        })
    }

    /// A cluster of this user's cache, if it is there.
    pub fn find(name: &str) -> Result<Option<Self>> {
        plan::check_name(name)?;
        let home = clusters()?.join(name);
        let file = home.join("state.json");
        if !file.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        let state: State =
            serde_json::from_str(&text).with_context(|| format!("{} is damaged", file.display()))?;
        Ok(Some(Self { plan: Plan { name: name.to_owned(), index: state.index, nodes: state.nodes }, home }))
    }

    /// Takes an index for a new cluster, or confirms that of an old one; both are unique on this machine.
    async fn claim(name: &str, nodes: Option<u8>) -> Result<Self> {
        let lock = crate::tools::exclusive(Path::new(MACHINE_LOCK)).await?;
        let known = Self::find(name)?;
        let home = clusters()?.join(name);
        let entries = entries()?;
        if let Some((_, entry)) = entries.iter().find(|(other, entry)| other == name && entry.home != home) {
            bail!(
                "the cluster \"{name}\" was brought up from another cache, {}: take it down from there, or choose another name",
                entry.home.display()
            );
        }
        let wanted = nodes.or(known.as_ref().map(|cluster| cluster.plan.nodes)).unwrap_or(1);
        if wanted == 0 || wanted > plan::MOST_NODES {
            bail!("--nodes {wanted} is out of range: from 1 to {}", plan::MOST_NODES);
        }
        let taken = |index: u8| entries.iter().any(|(other, entry)| other != name && entry.index == index);
        let index = match &known {
            Some(cluster) if wanted < cluster.plan.nodes => bail!(
                "the cluster \"{name}\" has {} nodes and cannot shrink to {wanted}: `cargo xtask down {name}` first",
                cluster.plan.nodes
            ),
            Some(cluster) if taken(cluster.plan.index) => bail!(
                "the addresses of \"{name}\" (index {}) are in use by another cluster: `cargo xtask down {name}` first",
                cluster.plan.index
            ),
            Some(cluster) => cluster.plan.index,
            None => {
                let kept: Vec<u8> = list()?.iter().map(|cluster| cluster.plan.index).collect();
                (1..=plan::LAST_INDEX)
                    .find(|index| !taken(*index) && !kept.contains(index))
                    .context("all addresses are in use: take a cluster down (`cargo xtask ls` lists them)")?
            }
        };
        let cluster = Self { plan: Plan { name: name.to_owned(), index, nodes: wanted }, home: home.clone() };
        cluster.check_paths()?;
        for folder in [cluster.log_folder(), cluster.runtime()] {
            fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
        }
        let entry = serde_json::to_string(&Entry { index, home: home.clone() })?;
        files::write(&cluster.runtime().join("cluster.json"), &entry)?;
        files::write(&home.join("state.json"), &serde_json::to_string(&State { index, nodes: wanted })?)?;
        drop(lock);
        Ok(cluster)
    }

    /// The kernel takes no socket path of 108 bytes or more.
    fn check_paths(&self) -> Result<()> {
        let longest = storage::registration_socket(self, self.plan.nodes - 1);
        if longest.as_os_str().len() >= 108 {
            bail!(
                "the cache folder's path is too long for a socket ({}): set FLEET_CACHE_DIR to a shorter one",
                longest.display()
            );
        }
        Ok(())
    }

    /// Names and addresses.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The folder of the cluster's files.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.home.join("kubeconfig")
    }

    /// The folder of the logs of all daemons.
    pub fn log_folder(&self) -> PathBuf {
        self.home.join("log")
    }

    /// The API server's audit log: one JSON line per create, update, patch and delete, and per read of a pod's
    /// account.
    pub fn audit_log(&self) -> PathBuf {
        self.log_folder().join("audit.log")
    }

    /// The images of all volumes. All nodes are this machine, so one folder serves them all.
    pub fn volumes(&self) -> PathBuf {
        self.home.join("volumes")
    }

    /// The folder of a node's files.
    pub fn node_home(&self, node: u8) -> PathBuf {
        self.home.join(format!("n{node}"))
    }

    fn runtime(&self) -> PathBuf {
        Path::new(RUNTIME).join(&self.plan.name)
    }

    fn node_runtime(&self, node: u8) -> PathBuf {
        self.runtime().join(format!("n{node}"))
    }

    /// The socket of a node's containerd.
    pub fn containerd_socket(&self, node: u8) -> PathBuf {
        self.node_runtime(node).join("containerd.sock")
    }

    fn cni_network(&self) -> String {
        format!("mf-{}", self.plan.name)
    }

    /// A client with all rights.
    pub async fn client(&self) -> Result<kube::Client> {
        kubernetes::client_from_file(&self.kubeconfig()).await
    }

    /// Cuts a node off, or the cluster from the other clusters.
    pub async fn cut(&self, node: Option<u8>) -> Result<()> {
        network::set_link(&self.plan, node, false).await
    }

    /// Undoes [`Self::cut`].
    pub async fn heal(&self, node: Option<u8>) -> Result<()> {
        network::set_link(&self.plan, node, true).await
    }

    /// The program and arguments that undo [`Self::cut`] of a node, for those who can't wait.
    pub fn healing(&self, node: u8) -> Vec<String> {
        ["ip", "link", "set", &self.plan.link(node), "up"].map(str::to_owned).into()
    }

    /// Whether the API server answers now.
    pub async fn is_ready(&self) -> bool {
        let ask = async { kubernetes::ready(&self.client().await?).await };
        matches!(tokio::time::timeout(Duration::from_secs(2), ask).await, Ok(Ok(())))
    }
}

/// Splits `NAME` or `NAME/NODE`.
pub fn parse_target(target: &str) -> Result<(&str, Option<u8>)> {
    match target.split_once('/') {
        None => Ok((target, None)),
        Some((name, node)) => {
            let node = node.parse().with_context(|| {
                format!("\"{target}\" names no node: write NAME/NODE with a number, as demo/1")
            })?;
            Ok((name, Some(node)))
        }
    }
}

/// All clusters of this user's cache, by name.
pub fn list() -> Result<Vec<Cluster>> {
    let folder = clusters()?;
    let mut names: Vec<String> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| plan::check_name(name).is_ok())
        .collect();
    names.sort();
    names.iter().filter_map(|name| Cluster::find(name).transpose()).collect()
}

/// The machine-wide list.
fn entries() -> Result<Vec<(String, Entry)>> {
    let mut found = Vec::new();
    for folder in fs::read_dir(RUNTIME).into_iter().flatten().flatten() {
        let file = folder.path().join("cluster.json");
        let (Ok(name), Ok(text)) = (folder.file_name().into_string(), fs::read_to_string(&file)) else {
            continue;
        };
        let entry = serde_json::from_str(&text).with_context(|| format!("{} is damaged", file.display()))?;
        found.push((name, entry));
    }
    Ok(found)
}

fn clusters() -> Result<PathBuf> {
    Ok(paths::cache()?.join("clusters"))
}
