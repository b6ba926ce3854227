//! Taking clusters down: no process, mount, namespace, link, loop device or cgroup is left.
//!
//! Only what provably belongs to the cluster is touched: processes in its control groups or network
//! namespaces or started by its daemons, mounts below its folders, loop devices of its volumes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cgroups::Hierarchy;
use super::plan::{self, Plan};
use super::{Cluster, Entry, RUNTIME, clusters, daemon, network};
use crate::progress::Progress;
use crate::{command, tools, wait};

/// Takes a cluster down. Its files are removed unless `keep`. Does nothing where there is no such cluster.
///
/// May be interrupted and called again; also takes down what is left of a cluster whose files are gone.
pub async fn down(name: &str, keep: bool, progress: &Progress) -> Result<()> {
    plan::check_name(name)?;
    if !nix::unistd::geteuid().is_root() {
        bail!("taking a local cluster down needs root rights: run it as root");
    }
    fs::create_dir_all(clusters()?)?;
    let lock = tools::exclusive(&clusters()?.join(format!("{name}.lock"))).await?;
    finish_removal(name)?;
    let Some(cluster) = find(name)? else {
        progress.say(format!("there is no local cluster \"{name}\": nothing to take down"));
        return Ok(());
    };
    let step = progress.step(format!("take down {name}"));
    stop(&cluster).await.with_context(|| format!("could not take down the cluster \"{name}\""))?;
    remove_tree(&cluster.runtime())?;
    // It stays while other clusters are in it.
    let _ = fs::remove_dir(RUNTIME);
    if !keep && cluster.home().exists() {
        // At once: what an interruption left of the files must never be taken for a cluster.
        let removed = removed(name)?;
        fs::rename(cluster.home(), &removed).with_context(|| {
            format!("could not rename {} to {}", cluster.home().display(), removed.display())
        })?;
        finish_removal(name)?;
    }
    drop(lock);
    step.done();
    Ok(())
}

/// Removes what an interrupted removal of the cluster's files has left. Its lock has to be held.
pub(super) fn finish_removal(name: &str) -> Result<()> {
    remove_tree(&removed(name)?)
}

/// Where the files of a cluster are while they are removed; no cluster can have such a name.
fn removed(name: &str) -> Result<PathBuf> {
    Ok(clusters()?.join(format!(".{name}.removed")))
}

/// The clusters of this user's cache and those of which only the entry on this machine is left.
pub fn known() -> Result<Vec<String>> {
    let mut names: Vec<String> = super::list()?.into_iter().map(|cluster| cluster.plan.name).collect();
    let here = clusters()?;
    names.extend(
        super::entries()?
            .into_iter()
            .filter(|(_, entry)| entry.home.starts_with(&here))
            .map(|(name, _)| name),
    );
    names.sort();
    names.dedup();
    Ok(names)
}

fn find(name: &str) -> Result<Option<Cluster>> {
    if let Some(cluster) = Cluster::find(name)? {
        return Ok(Some(cluster));
    }
    let home = clusters()?.join(name);
    let entry: Option<Entry> =
        super::entries()?.into_iter().find(|(other, _)| other == name).map(|(_, entry)| entry);
    match entry {
        Some(entry) if entry.home != home => bail!(
            "the cluster \"{name}\" was brought up from another cache, {}: set FLEET_CACHE_DIR to take it down",
            entry.home.display()
        ),
        Some(entry) => {
            Ok(Some(Cluster { plan: Plan { name: name.to_owned(), index: entry.index, nodes: 1 }, home }))
        }
        None => Ok(None),
    }
}

async fn stop(cluster: &Cluster) -> Result<()> {
    let plan = &cluster.plan;
    let hierarchy = Hierarchy::detect()?;
    let prefix = format!("mf-{}-", plan.name);
    let groups: Vec<String> = hierarchy
        .groups(&prefix)
        .into_iter()
        .filter(|group| group.strip_prefix(&prefix).is_some_and(|node| node.parse::<u8>().is_ok()))
        .collect();
    daemon::kill_all(&format!("the cluster {}", plan.name), || {
        let mut pids = daemon::of_cluster(&plan.name);
        for group in &groups {
            hierarchy.thaw(group);
            pids.extend(hierarchy.processes(group));
        }
        pids
    })
    .await?;
    let sockets = shim_sockets(cluster);
    for folder in [cluster.home(), &cluster.runtime()] {
        unmount_below(folder).await?;
    }
    detach_loops(&cluster.volumes()).await?;
    for group in &groups {
        wait::until(
            format!("the cgroup {group} to go"),
            Duration::from_secs(10),
            Duration::from_millis(50),
            || async { hierarchy.remove(group) },
        )
        .await?;
    }
    network::remove(plan).await?;
    for socket in sockets {
        let _ = fs::remove_file(socket);
    }
    remove_leavings(cluster);
    Ok(())
}

/// The sockets of the shims, which are outside of all our folders; a killed shim leaves its own behind.
fn shim_sockets(cluster: &Cluster) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for node in 0..plan::MOST_NODES {
        let tasks = cluster.node_runtime(node).join("containerd/io.containerd.runtime.v2.task/k8s.io");
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            let text = fs::read_to_string(task.path().join("bootstrap.json")).unwrap_or_default();
            let bootstrap: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let address = bootstrap.get("address").and_then(serde_json::Value::as_str).unwrap_or_default();
            if let Some(path) = address.strip_prefix("unix://") {
                sockets.push(PathBuf::from(path));
            }
        }
    }
    sockets
}

/// Unmounts everything below a folder, the deepest first.
async fn unmount_below(folder: &Path) -> Result<()> {
    let prefix = format!("{}/", folder.display());
    let below = || -> Result<Vec<String>> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("could not read /proc/self/mounts")?;
        let mut points: Vec<String> = mounts
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1))
            .filter(|point| point.starts_with(&prefix))
            .map(|point| point.replace("\\040", " "))
            .collect();
        points.sort_by(|one, other| other.cmp(one));
        Ok(points)
    };
    // A mount point may carry several mounts, so what is left is listed again.
    wait::until(
        format!("the mounts below {prefix} to go"),
        Duration::from_secs(20),
        Duration::from_millis(50),
        || async {
            let points = below()?;
            for point in &points {
                if command::run("umount", [point]).await.is_err() {
                    command::run("umount", ["-l", point]).await?;
                }
            }
            if points.is_empty() { Ok(()) } else { bail!("these were mounted a moment ago: {points:?}") }
        },
    )
    .await
}

/// Detaches loop devices of volumes. They detach themselves at umount, unless that came too early.
async fn detach_loops(volumes: &Path) -> Result<()> {
    let listing = command::run("losetup", ["--list", "--noheadings", "--output", "NAME,BACK-FILE"]).await?;
    for line in listing.lines() {
        let mut fields = line.split_whitespace();
        if let (Some(device), Some(file)) = (fields.next(), fields.next())
            && Path::new(file).starts_with(volumes)
        {
            command::run("losetup", ["--detach", device]).await?;
        }
    }
    Ok(())
}

/// What kubelet and the CNI plugins write to fixed places of the machine.
fn remove_leavings(cluster: &Cluster) {
    let results = format!("{}-", cluster.cni_network());
    for entry in fs::read_dir("/var/lib/cni/results").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&results) {
            let _ = fs::remove_file(entry.path());
        }
    }
    for entry in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(cluster.home())) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn remove_tree(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
