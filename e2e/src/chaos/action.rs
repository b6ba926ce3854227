//! What can be done to a cluster, as data, and the order in which a seed does it.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Which instance, by what it is when the step begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The primary.
    Primary,
    /// The replica with the lowest ordinal.
    FirstReplica,
    /// The replica with the highest ordinal.
    LastReplica,
}

impl Target {
    const ALL: [Self; 3] = [Self::Primary, Self::FirstReplica, Self::LastReplica];
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SIGKILL of mysqld.
    KillMysqld,
    /// SIGKILL of the agent, and with it of the container.
    KillAgent,
    /// SIGSTOP of mysqld, then SIGCONT.
    StopMysqld,
    /// SIGSTOP of the agent, then SIGCONT.
    StopAgent,
    /// SIGSTOP of agent and mysqld, then SIGCONT.
    StopInstance,
    /// The pod is deleted, with its grace period.
    DeletePod,
    /// The pod is deleted by force, without a grace period.
    DeletePodByForce,
    /// containerd kills the container.
    KillContainer,
    /// The node's link is down.
    CutNode,
    /// Nothing reaches the node; what it sends arrives.
    CutIncoming,
    /// Nothing leaves the node; what is sent to it arrives.
    CutOutgoing,
    /// Three of ten packets to and from the node are lost.
    LosePackets,
    /// The node's link carries 256 kbit/s, and packets queue for up to 400 ms.
    SlowLink,
    /// The instance's volume is full.
    FillVolume,
    /// SIGSTOP of the node's kubelet, then SIGCONT.
    StopKubelet,
    /// SIGSTOP of the API server, then SIGCONT.
    StopApiServer,
    /// SIGKILL of the API server, and a new start later.
    KillApiServer,
    /// SIGSTOP of etcd, then SIGCONT.
    StopEtcd,
    /// SIGKILL of etcd, and a new start later.
    KillEtcd,
    /// The link of the node with the control plane and DNS is down.
    CutControlPlane,
    /// The shard's leader is killed.
    KillShard,
    /// The primary's mysqld is killed while its agent stands still, and then the shard's leader each time that
    /// the term or its stage changes.
    KillShardAtEachStep,
    /// Primary and a replica are killed at once, while the replica alone has received the last commits and
    /// applies none.
    KillSourceAndAcker,
    /// All agents and mysqlds are killed at once.
    KillEverything,
    /// 20 commits wait for acknowledgements that can't come, and the pod is deleted.
    WaitingDelete,
    /// The same, and the pod is deleted by force.
    WaitingForce,
    /// The same, and the pod is evicted, as a drain does.
    WaitingEvict,
    /// The same, and containerd stops the container.
    WaitingStopContainer,
    /// The same, and the cluster is to have one instance.
    WaitingScaleIn,
    /// The same, and the agent gets SIGTERM.
    WaitingStopAgent,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 30] = [
        Self::KillMysqld,
        Self::KillAgent,
        Self::StopMysqld,
        Self::StopAgent,
        Self::StopInstance,
        Self::DeletePod,
        Self::DeletePodByForce,
        Self::KillContainer,
        Self::CutNode,
        Self::CutIncoming,
        Self::CutOutgoing,
        Self::LosePackets,
        Self::SlowLink,
        Self::FillVolume,
        Self::StopKubelet,
        Self::StopApiServer,
        Self::KillApiServer,
        Self::StopEtcd,
        Self::KillEtcd,
        Self::CutControlPlane,
        Self::KillShard,
        Self::KillShardAtEachStep,
        Self::KillSourceAndAcker,
        Self::KillEverything,
        Self::WaitingDelete,
        Self::WaitingForce,
        Self::WaitingEvict,
        Self::WaitingStopContainer,
        Self::WaitingScaleIn,
        Self::WaitingStopAgent,
    ];

    /// What it does, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::KillMysqld => "SIGKILL of an instance's mysqld",
            Self::KillAgent => "SIGKILL of an instance's agent, and with it of its container",
            Self::StopMysqld => "SIGSTOP of an instance's mysqld, SIGCONT later",
            Self::StopAgent => "SIGSTOP of an instance's agent, SIGCONT later",
            Self::StopInstance => "SIGSTOP of an instance's agent and mysqld, SIGCONT later",
            Self::DeletePod => "deletion of an instance's pod",
            Self::DeletePodByForce => "forced deletion of an instance's pod",
            Self::KillContainer => "containerd kills an instance's container",
            Self::CutNode => "an instance's node loses its link",
            Self::CutIncoming => "nothing reaches an instance's node, what it sends arrives",
            Self::CutOutgoing => "nothing leaves an instance's node, what is sent to it arrives",
            Self::LosePackets => "an instance's node loses 30 % of the packets each way",
            Self::SlowLink => "the link of an instance's node carries 256 kbit/s and delays up to 400 ms",
            Self::FillVolume => "an instance's volume is full",
            Self::StopKubelet => "SIGSTOP of a node's kubelet, SIGCONT later",
            Self::StopApiServer => "SIGSTOP of the API server, SIGCONT later",
            Self::KillApiServer => "SIGKILL of the API server, started again later",
            Self::StopEtcd => "SIGSTOP of etcd, SIGCONT later",
            Self::KillEtcd => "SIGKILL of etcd, started again later",
            Self::CutControlPlane => "the node of the API server and DNS loses its link",
            Self::KillShard => "the shard's leader is killed",
            Self::KillShardAtEachStep => {
                "mysqld of the primary is killed, and the shard's leader at each step"
            }
            Self::KillSourceAndAcker => {
                "the primary and the one replica that acknowledged, not applied, at once"
            }
            Self::KillEverything => "SIGKILL of all agents and mysqlds at once",
            Self::WaitingDelete => "20 commits wait for lost ackers; the primary's pod is deleted",
            Self::WaitingForce => "20 commits wait for lost ackers; the primary's pod is deleted by force",
            Self::WaitingEvict => "20 commits wait for lost ackers; the primary's pod is evicted",
            Self::WaitingStopContainer => {
                "20 commits wait for lost ackers; the primary's container is stopped"
            }
            Self::WaitingScaleIn => "20 commits wait for lost ackers; the cluster is to have one instance",
            Self::WaitingStopAgent => "20 commits wait for lost ackers; the primary's agent gets SIGTERM",
        }
    }

    /// Reads the name that [`fmt::Display`] shows.
    pub fn parse(name: &str) -> Result<Self> {
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.to_string() == name) {
            return Ok(kind);
        }
        let names: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
        bail!("there is no action \"{name}\"; there are {}", names.join(", "));
    }

    /// Whether it is over as soon as it has been done.
    fn is_instant(self) -> bool {
        matches!(
            self,
            Self::KillMysqld
                | Self::KillAgent
                | Self::DeletePod
                | Self::DeletePodByForce
                | Self::KillContainer
                | Self::KillShard
                | Self::KillSourceAndAcker
                | Self::KillEverything
        )
    }

    /// Whether it may come on top of another one: it chooses nothing by what it finds.
    fn adds_up(self) -> bool {
        matches!(
            self,
            Self::KillMysqld
                | Self::KillAgent
                | Self::StopInstance
                | Self::CutNode
                | Self::CutIncoming
                | Self::CutOutgoing
                | Self::LosePackets
                | Self::StopApiServer
                | Self::KillApiServer
                | Self::KillEtcd
                | Self::StopKubelet
                | Self::KillShard
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name that serde writes, so that it is written down once.
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => f.write_str(&name),
            _ => Err(fmt::Error),
        }
    }
}

/// A fault to cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Which.
    pub kind: Kind,
    /// On which instance, or on whose node. Some kinds have a place of their own.
    pub target: Target,
    /// How long it lasts, in milliseconds.
    pub hold: u64,
}

impl Action {
    /// How long it lasts.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.hold)
    }
}

/// What is done between two times at which all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Milliseconds during which clients work undisturbed before it.
    pub pause: u64,
    /// The first fault.
    pub first: Action,
    /// Another one, so many milliseconds after the first.
    pub second: Option<(u64, Action)>,
}

/// The steps of a seed, without end.
#[derive(Debug)]
pub struct Plan {
    random: Rng,
    kinds: Vec<Kind>,
}

impl Plan {
    /// The plan of a seed with the given kinds of faults; all where there is none.
    pub fn new(seed: u64, kinds: &[Kind]) -> Self {
        let kinds = if kinds.is_empty() { Kind::ALL.to_vec() } else { kinds.to_vec() };
        Self { random: Rng::with_seed(seed), kinds }
    }

    fn action(&mut self, kinds: &[Kind]) -> Option<Action> {
        let kind = self.random.choice(kinds).copied()?;
        let target = self.random.choice(Target::ALL)?;
        // Mostly short, sometimes longer than anybody's patience.
        let most = if self.random.u8(0..4) == 0 { 30_000 } else { 12_000 };
        let hold = self.random.u64(1_000..most);
        Some(Action { kind, target, hold: if kind.is_instant() { 0 } else { hold } })
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let pause = self.random.u64(200..4_000);
        let kinds = self.kinds.clone();
        let first = self.action(&kinds)?;
        let more: Vec<Kind> = kinds.into_iter().filter(|kind| kind.adds_up()).collect();
        let doubled = self.random.u8(0..3) == 0 && first.kind.adds_up();
        let second = if doubled {
            let after = self.random.u64(0..6_000);
            self.action(&more).map(|action| (after, action))
        } else {
            None
        };
        Some(Step { pause, first, second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_steps_each_time() {
        let steps = |seed| Plan::new(seed, &[]).take(50).collect::<Vec<_>>();
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
        let only = Plan::new(7, &[Kind::StopEtcd]).take(50);
        assert!(only.into_iter().all(|step| step.first.kind == Kind::StopEtcd));
    }

    #[test]
    fn every_kind_is_drawn_and_is_read_by_its_name() {
        let drawn: Vec<Kind> = Plan::new(1, &[]).take(1_000).map(|step| step.first.kind).collect();
        for kind in Kind::ALL {
            assert!(drawn.contains(&kind), "{kind}");
            assert_eq!(Kind::parse(&kind.to_string()).unwrap(), kind);
        }
        let error = Kind::parse("kill-mysql").unwrap_err().to_string();
        assert!(error.contains("kill-mysql") && error.contains("kill-mysqld"), "{error}");
    }
}
