//! How each fault is caused.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fleet_api::names::{self, UserRole};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

use super::action::{Action, Kind, Target};
use super::arena::{self, Arena, CHAIN, CLUSTER, CONTROL, FILLER, Roles};
use super::fault::{Fault, Undo};
use super::waiting::{self, Ending};
use crate::cluster::daemon::Daemon;
use crate::cluster::{load, network};
use crate::wait;

/// The program names of an instance's processes.
const AGENT: &str = "mysql-agent";
const MYSQLD: &str = "mysqld";
/// How long one step of a fault may take.
const SOON: Duration = Duration::from_secs(20);
const OFTEN: Duration = Duration::from_millis(20);
/// How long a table is locked: the replica whose applier it holds up is killed long before.
const LOCKED: u32 = 15;

/// What came of a fault.
#[derive(Debug, Default)]
pub struct Caused {
    /// The fault, as long as it lasts.
    pub fault: Fault,
    /// What else there is to say of it.
    pub note: Option<String>,
    /// Commits that were answered with OK, to be found afterwards.
    pub promised: Vec<u32>,
}

impl Caused {
    fn lasting(fault: Fault) -> Self {
        Self { fault, ..Self::default() }
    }
}

/// Causes a fault. `roles` says which instance is meant by a target. What was caused before an error is undone.
pub async fn inject(arena: &Arena, roles: &Roles, action: &Action) -> Result<Caused> {
    let work = Box::pin(cause(arena, roles, action));
    work.await.with_context(|| format!("could not cause {} on {:?}", action.kind, action.target))
}

async fn cause(arena: &Arena, roles: &Roles, action: &Action) -> Result<Caused> {
    let pod = target(roles, action.target)?;
    let fault = match action.kind {
        Kind::KillMysqld => signalled(arena, pod, MYSQLD, Signal::SIGKILL)?,
        Kind::KillAgent => signalled(arena, pod, AGENT, Signal::SIGKILL)?,
        Kind::StopMysqld => stopped(arena, pod, &[MYSQLD])?,
        Kind::StopAgent => stopped(arena, pod, &[AGENT])?,
        Kind::StopInstance => stopped(arena, pod, &[AGENT, MYSQLD])?,
        Kind::DeletePod => deleted(arena, pod, &DeleteParams::default()).await?,
        Kind::DeletePodByForce => deleted(arena, pod, &DeleteParams::default().grace_period(0)).await?,
        Kind::KillContainer => {
            end_container(arena, pod, "SIGKILL").await?;
            Fault::over()
        }
        Kind::CutNode => cut(arena, arena.node_of(pod)?).await?,
        Kind::CutControlPlane => cut(arena, CONTROL).await?,
        Kind::CutIncoming => filtered(arena, pod, &["-i"], &["-j", "DROP"]).await?,
        Kind::CutOutgoing => filtered(arena, pod, &["-o"], &["-j", "DROP"]).await?,
        Kind::LosePackets => {
            let lossy = ["-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP"];
            filtered(arena, pod, &["-i", "-o"], &lossy).await?
        }
        Kind::SlowLink => slow(arena, arena.node_of(pod)?).await?,
        Kind::FillVolume => filled(arena, pod)?,
        Kind::StopKubelet => daemon_stopped(&arena.parts().kubelet(arena.node_of(pod)?)?)?,
        Kind::StopApiServer => daemon_stopped(&arena.parts().api_server()?)?,
        Kind::StopEtcd => daemon_stopped(&arena.parts().etcd()?)?,
        Kind::KillApiServer => daemon_killed(arena.parts().api_server()?).await?,
        Kind::KillEtcd => daemon_killed(arena.parts().etcd()?).await?,
        Kind::KillShard => {
            let leader = arena.leader().await?;
            end_shard(arena, &leader).await?;
            return Ok(Caused { note: Some(format!("{} led", leader.name_any())), ..Caused::default() });
        }
        Kind::KillShardAtEachStep => return shard_killed_at_each_step(arena, roles).await,
        Kind::KillSourceAndAcker => source_and_acker(arena, roles).await?,
        Kind::KillEverything => {
            for pod in roles.all() {
                // An instance that has no process is as dead as it is to be.
                let _ = arena.stage.signal(pod, AGENT, Signal::SIGKILL);
            }
            Fault::over()
        }
        Kind::WaitingDelete => return waiting::commits(arena, roles, Ending::Delete).await,
        Kind::WaitingForce => return waiting::commits(arena, roles, Ending::DeleteByForce).await,
        Kind::WaitingEvict => return waiting::commits(arena, roles, Ending::Evict).await,
        Kind::WaitingStopContainer => return waiting::commits(arena, roles, Ending::StopContainer).await,
        Kind::WaitingScaleIn => return waiting::commits(arena, roles, Ending::ScaleIn).await,
        Kind::WaitingStopAgent => return waiting::commits(arena, roles, Ending::StopAgent).await,
    };
    Ok(Caused::lasting(fault))
}

fn target(roles: &Roles, target: Target) -> Result<&Pod> {
    match target {
        Target::Primary => Some(&roles.primary),
        Target::FirstReplica => roles.replicas.first(),
        Target::LastReplica => roles.replicas.last(),
    }
    .context("there is no such instance")
}

fn signalled(arena: &Arena, pod: &Pod, program: &str, signal: Signal) -> Result<Fault> {
    arena.stage.signal(pod, program, signal)?;
    Ok(Fault::over())
}

/// Stops processes of an instance, in the given order.
pub(super) fn stopped(arena: &Arena, pod: &Pod, programs: &[&str]) -> Result<Fault> {
    let mut fault = Fault::over();
    for program in programs {
        let pids = arena.stage.processes(pod, program)?;
        fault.undo_by(Undo::Continue(pids.clone()));
        for pid in pids {
            kill(Pid::from_raw(pid), Signal::SIGSTOP).with_context(|| format!("could not stop {program}"))?;
        }
    }
    Ok(fault)
}

pub(super) async fn deleted(arena: &Arena, pod: &Pod, how: &DeleteParams) -> Result<Fault> {
    let pods: Api<Pod> = Api::namespaced(arena.tenant.client.clone(), &arena.tenant.namespace);
    pods.delete(&pod.name_any(), how).await?;
    Ok(Fault::over())
}

/// Has containerd send a signal to the first process of the instance's container.
pub(super) async fn end_container(arena: &Arena, pod: &Pod, signal: &str) -> Result<()> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let container = statuses
        .and_then(|statuses| statuses.iter().find(|status| status.name == "mysqld"))
        .and_then(|status| status.container_id.as_deref())
        .and_then(|id| id.strip_prefix("containerd://"))
        .context("the instance has no container")?;
    let node = arena.node_of(pod)?;
    let arguments = ["tasks", "kill", "--signal", signal, container];
    load::ctr(arena.machine(), node, arena.tools(), &arguments).await.map(drop)
}

async fn cut(arena: &Arena, node: u8) -> Result<Fault> {
    let mut fault = Fault::over();
    fault.undo_by(Undo::Run(arena.machine().healing(node)));
    arena.machine().cut(Some(node)).await?;
    Ok(fault)
}

/// Has a rule decide on what arrives (`-i`) or leaves (`-o`) by the link of a pod's node. What stays on the node
/// passes.
async fn filtered(arena: &Arena, pod: &Pod, ways: &[&str], verdict: &[&str]) -> Result<Fault> {
    let namespace = arena.machine().plan().namespace(arena.node_of(pod)?);
    let iptables = |arguments: &[&str]| {
        let all: Vec<String> = ["iptables", "-w", "-t", "mangle"]
            .iter()
            .chain(arguments)
            .map(|word| (*word).to_owned())
            .collect();
        let namespace = namespace.clone();
        async move {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            network::inside(&namespace, &all).await
        }
    };
    // The chain and the jumps to it are made once, and kept. It fails where it is there.
    let _ = iptables(&["-N", CHAIN]).await;
    for hook in ["PREROUTING", "POSTROUTING"] {
        if iptables(&["-C", hook, "-j", CHAIN]).await.is_err() {
            iptables(&["-A", hook, "-j", CHAIN]).await?;
        }
    }
    let mut fault = Fault::over();
    fault.undo_by(Undo::Run(entering(&namespace, &["iptables", "-w", "-t", "mangle", "-F", CHAIN])));
    for way in ways {
        iptables(&[&["-A", CHAIN, way, "eth0"][..], verdict].concat()).await?;
    }
    Ok(fault)
}

fn entering(namespace: &str, arguments: &[&str]) -> Vec<String> {
    let net = format!("--net={}", network::namespace_file(namespace).display());
    ["nsenter", net.as_str()].iter().chain(arguments).map(|word| (*word).to_owned()).collect()
}

/// Makes both directions of a node's link slow. The kernel may lack netem, which alone could delay each packet.
async fn slow(arena: &Arena, node: u8) -> Result<Fault> {
    let plan = arena.machine().plan();
    let namespace = plan.namespace(node);
    let bucket = ["root", "tbf", "rate", "256kbit", "burst", "16kb", "latency", "400ms"];
    let mut fault = Fault::over();
    let link = plan.link(node);
    let outside = ["tc", "qdisc", "del", "dev", &link, "root"];
    fault.undo_by(Undo::Run(outside.map(str::to_owned).into()));
    crate::command::run("tc", [&["qdisc", "replace", "dev", &link][..], &bucket].concat()).await?;
    fault.undo_by(Undo::Run(entering(&namespace, &["tc", "qdisc", "del", "dev", "eth0", "root"])));
    network::inside(&namespace, &[&["tc", "qdisc", "replace", "dev", "eth0"][..], &bucket].concat()).await?;
    Ok(fault)
}

/// Takes all the space that is left on the volume of an instance.
fn filled(arena: &Arena, pod: &Pod) -> Result<Fault> {
    let volume = arena.volume_of(pod)?;
    let file = volume.join(FILLER);
    let mut fault = Fault::over();
    fault.undo_by(Undo::Remove(file.clone()));
    let open = File::create(&file).with_context(|| format!("could not make {}", file.display()))?;
    let mut length = 0;
    // What is free in one moment may be taken in the next, so ever smaller pieces are asked for.
    let mut piece: i64 = 1 << 30;
    while piece >= 4096 {
        match fallocate(&open, FallocateFlags::empty(), length, piece) {
            Ok(()) => length += piece,
            Err(Errno::ENOSPC) => piece /= 2,
            Err(error) => return Err(error).with_context(|| format!("could not fill {}", volume.display())),
        }
    }
    let left = statvfs(&volume).with_context(|| format!("could not read {}", volume.display()))?;
    let left = left.blocks_available() * left.fragment_size();
    ensure!(left < 1 << 20, "{left} bytes are left on {}", volume.display());
    Ok(fault)
}

fn daemon_stopped(daemon: &Daemon) -> Result<Fault> {
    let mut fault = Fault::over();
    fault.undo_by(Undo::Continue(daemon.processes()));
    arena::signal(daemon, Signal::SIGSTOP)?;
    Ok(fault)
}

async fn daemon_killed(daemon: Daemon) -> Result<Fault> {
    let mut fault = Fault::over();
    fault.undo_by(Undo::Start(Box::new(daemon.clone())));
    daemon.kill().await?;
    Ok(fault)
}

/// Kills a pod of the shard, and has it replaced rather than restarted later and later.
async fn end_shard(arena: &Arena, pod: &Pod) -> Result<()> {
    // It may have ended since it was looked up.
    let _ = arena.stage.signal(pod, "shard-manager", Signal::SIGKILL);
    deleted(arena, pod, &DeleteParams::default().grace_period(0)).await.map(drop)
}

/// Loses the primary, and then the leader of the shard each time that the record of the term changes.
async fn shard_killed_at_each_step(arena: &Arena, roles: &Roles) -> Result<Caused> {
    // Nobody starts mysqld again before another instance has taken over.
    let fault = stopped(arena, &roles.primary, &[AGENT])?;
    arena.stage.signal(&roles.primary, MYSQLD, Signal::SIGKILL)?;
    let killed = Arc::new(AtomicU32::new(0));
    let step = || async {
        let status = arena.cluster().await?.status.context("there is no status")?;
        anyhow::Ok((status.term, status.stage, status.primary))
    };
    let mut last = step().await?;
    let counted = Arc::clone(&killed);
    let watch = async move {
        // Fencing, the next reign and its end: more would be another fault.
        while counted.load(Ordering::Relaxed) < 4 {
            if let Ok(now) = step().await
                && now != last
            {
                last = now;
                if let Ok(leader) = arena.leader().await
                    && end_shard(arena, &leader).await.is_ok()
                {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
            tokio::time::sleep(OFTEN).await;
        }
    };
    let old = roles.primary.name_any();
    tokio::select! {
        replaced = arena.replaced(&old, Duration::from_mins(2)) => replaced?,
        () = watch => arena.replaced(&old, Duration::from_mins(2)).await?,
    }
    let note = format!("the leader was killed {} times", killed.load(Ordering::Relaxed));
    Ok(Caused { fault, note: Some(note), promised: vec![] })
}

/// Kills the primary and the one replica that acknowledged the last commits while its applier stands still.
async fn source_and_acker(arena: &Arena, roles: &Roles) -> Result<Fault> {
    let [acker, other] = roles.replicas.as_slice() else {
        anyhow::bail!("it takes two replicas, there are {}", roles.replicas.len());
    };
    let name = acker.name_any();
    let host = names::instance_host(&arena.tenant.namespace, CLUSTER, &name);
    // The table is locked on the replica: its applier waits, its receiver does not.
    let lock = format!("LOCK TABLES workload.writes READ; SELECT SLEEP({LOCKED})");
    let locked = arena.tenant.sql(CLUSTER, &name, &host, UserRole::Admin, &lock);
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE STATE LIKE 'Waiting for table%' \
                 AND USER LIKE 'system user%'";
    let kill_both = async {
        // The other one holds nothing newer than this.
        let fault = stopped(arena, other, &[AGENT, MYSQLD])?;
        let waiting = wait::until("the applier to wait", SOON, OFTEN, || async {
            let found = arena.tenant.sql(CLUSTER, &name, &host, UserRole::Admin, waits).await?;
            ensure!(found != "0", "it does not wait");
            Ok(())
        });
        waiting.await?;
        arena.stage.signal(&roles.primary, MYSQLD, Signal::SIGKILL)?;
        arena.stage.signal(acker, MYSQLD, Signal::SIGKILL)?;
        fault.heal()
    };
    tokio::select! {
        killed = kill_both => killed?,
        // It ends only when its mysqld does, or too late.
        ended = locked => drop(ended.context("the lock was not held long enough")?),
    }
    Ok(Fault::over())
}
