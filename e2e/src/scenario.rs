//! What the tests with real clusters share: one local cluster with the images loaded, tenants in it, and the
//! ways to disturb them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::cgroups::Hierarchy;
use crate::cluster::{self, Cluster, load};
use crate::images::fleet::{self, Fleet, Profile};
use crate::images::mysql;
use crate::progress::Progress;
use crate::tenant::{Access, Images, Tenant};
use crate::tools::Tools;

/// Names the local cluster of the tests, so that two checkouts can be tested side by side.
const CLUSTER_VARIABLE: &str = "FLEET_TEST_CLUSTER";

/// The local cluster of the tests.
pub fn cluster_name() -> String {
    std::env::var(CLUSTER_VARIABLE).ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "e2e".to_owned())
}

/// The cluster with the images in it.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    /// The images.
    pub images: Images,
    /// The programs of the image.
    pub programs: Fleet,
}

impl Stage {
    /// Brings the cluster up and the images into it, or finds them there.
    pub async fn set() -> Result<Self> {
        Self::with(Profile::Quick).await
    }

    /// The same with programs of a given profile.
    pub async fn with(profile: Profile) -> Result<Self> {
        Self::on(&cluster_name(), None, profile).await
    }

    /// The same in another cluster than that of the tests, with at least so many nodes.
    pub async fn on(name: &str, nodes: Option<u8>, profile: Profile) -> Result<Self> {
        let progress = Progress::default();
        let mut clusters = cluster::up::up(&[name.to_owned()], nodes, &progress).await?;
        let cluster = clusters.pop().context("the cluster did not come up")?;
        let mysql = mysql::mysql(&progress).await?;
        let fleet = fleet::fleet(profile, &progress).await?;
        let tools = Tools::of(&["containerd"], &progress).await?;
        for image in [&mysql.image, &fleet.image] {
            load::load(&cluster, &image.archive, &tools).await?;
        }
        let images = Images {
            fleet: fleet.image.reference.clone(),
            mysql: "localhost/mysql:{version}".into(),
            version: mysql.version,
            pull_policy: "Never",
        };
        Ok(Self { cluster, images, programs: fleet })
    }

    /// A tenant with a serving shard.
    pub async fn tenant(&self, namespace: &str) -> Result<Tenant> {
        let access = Access::File(self.cluster.kubeconfig());
        Tenant::deploy(access, self.programs.program("kubectl-fleet"), namespace, self.images.clone()).await
    }

    /// The processes of a pod whose program has a name, as this machine numbers them.
    pub fn processes(&self, pod: &Pod, program: &str) -> Result<Vec<i32>> {
        let uid = pod.metadata.uid.as_deref().context("a pod of the API server has a UID")?;
        let hierarchy = Hierarchy::detect()?;
        let plan = self.cluster.plan();
        let found: Vec<i32> = plan
            .each_node()
            .flat_map(|node| hierarchy.processes(&plan.cgroup(node)))
            .filter(|pid| belongs(*pid, uid) && name_of(*pid) == program)
            .collect();
        if found.is_empty() {
            bail!("there is no {program} in the pod {}", pod.metadata.name.as_deref().unwrap_or_default());
        }
        Ok(found)
    }

    /// Sends a signal to the processes of a pod whose program has a name.
    pub fn signal(&self, pod: &Pod, program: &str, signal: Signal) -> Result<()> {
        for pid in self.processes(pod, program)? {
            kill(Pid::from_raw(pid), signal)
                .with_context(|| format!("could not send {signal} to {program}"))?;
        }
        Ok(())
    }

    /// The requests about a namespace that the API server's audit log has from the byte `since` on, without those
    /// about Leases.
    pub fn audited(&self, namespace: &str, since: usize) -> Result<Audited> {
        let file = self.cluster.audit_log();
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        let end = text.rfind('\n').map_or(0, |last| last + 1);
        let mut audited = Audited { end, ..Audited::default() };
        for line in text.get(since..end).unwrap_or_default().lines() {
            let entry: serde_json::Value =
                serde_json::from_str(line).context("a line of the audit log is not JSON")?;
            let field =
                |pointer: &str| entry.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default();
            let (verb, resource) = (field("/verb"), field("/objectRef/resource"));
            if field("/objectRef/namespace") == namespace && resource != "leases" {
                let name = field("/objectRef/name");
                let key = format!("{} {verb} {resource}/{name}", field("/user/username"));
                let read = matches!(verb, "get" | "list" | "watch");
                let counts = if read { &mut audited.reads } else { &mut audited.writes };
                *counts.entry(key).or_default() += 1;
            }
        }
        Ok(audited)
    }
}

/// Requests to the API server, counted by user, verb and object.
#[derive(Debug, Default)]
pub struct Audited {
    /// All that change something.
    pub writes: BTreeMap<String, usize>,
    /// Those of pods' accounts that change nothing.
    pub reads: BTreeMap<String, usize>,
    /// Where the last whole line of the log ends.
    pub end: usize,
}

/// Processes of pods that are stopped until this is dropped.
pub struct Stopped<'a> {
    stage: &'a Stage,
    pods: Vec<&'a Pod>,
    programs: Vec<&'a str>,
}

impl<'a> Stopped<'a> {
    /// Stops the programs in the given order. Who stops mysqld alone has its agent end it after a while.
    pub fn new(stage: &'a Stage, pods: &[&'a Pod], programs: &[&'a str]) -> Result<Self> {
        let stopped = Self { stage, pods: pods.to_vec(), programs: programs.to_vec() };
        for pod in pods {
            for program in programs {
                stage.signal(pod, program, Signal::SIGSTOP)?;
            }
        }
        Ok(stopped)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        for pod in &self.pods {
            for program in self.programs.iter().rev() {
                // It fails only where the process has ended since; the one in its place is not stopped.
                let _ = self.stage.signal(pod, program, Signal::SIGCONT);
            }
        }
    }
}

/// Whether a process is in a pod: the pod's control group has its UID in its name.
fn belongs(pid: i32, uid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .is_ok_and(|groups| groups.contains(&format!("pod{uid}")))
}

fn name_of(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}
