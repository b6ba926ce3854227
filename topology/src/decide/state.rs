//! The states of a cluster.

use std::fmt;

/// The state of a cluster: the first that matches, in this order.
///
/// | state | when | what happens |
/// |---|---|---|
/// | Offline | the cluster is to be stopped | an open instance is closed, then the pods go; data stays |
/// | Paused | roles are to be left alone | nothing is recorded or ordered |
/// | Bootstrapping | the cluster has no primary yet, or its first one was never opened | waits for every wanted instance and every volume there is, makes the one that holds everything the primary, opens it once enough ackers follow |
/// | Cloning | the primary takes writes, and an instance is being replaced by a copy | the copy goes on, then the instance follows |
/// | SwitchoverRequested | another instance is to become the primary, and can | the primary is closed, the other one gets its last transactions and is opened once enough ackers follow |
/// | Healthy | the primary takes writes, and all wanted instances are in sync | an outdated pod is replaced, one at a time |
/// | Degraded | the primary takes writes, and enough ackers for that acknowledge | the others are brought back, or the quorum is changed |
/// | WritesBlocked | the primary answers, and takes no writes, or fewer acknowledge than a commit waits for | ackers are brought back, a closed primary is opened once enough of them follow |
/// | PrimaryLost | the primary is lost, and enough faithful ackers answer to prove what was acknowledged, or a person has chosen who takes over without that | the ackers are revoked, then one that holds all of it, or the chosen one, becomes the primary and is opened once enough ackers follow |
/// | FailoverBlocked | the primary is lost or has lost data, and too few faithful ackers answer | waits for the instances that the message names, for the primary to come back, or for a person to choose who takes over |
/// | Incomplete | nothing above can be said for sure | waits for what the message names |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The cluster is to be stopped.
    Offline,
    /// Roles are to be left alone.
    Paused,
    /// No primary yet, or one that was never opened.
    Bootstrapping,
    /// The primary takes writes, and an instance is being replaced by a copy.
    Cloning,
    /// Another instance is to become the primary, and can.
    SwitchoverRequested,
    /// The primary takes writes, and all wanted instances are in sync.
    Healthy,
    /// The primary takes writes, and enough ackers for that acknowledge.
    Degraded,
    /// The primary answers, and no commit can be acknowledged.
    WritesBlocked,
    /// The primary is lost, and enough faithful ackers answer, or a person has chosen who takes over.
    PrimaryLost,
    /// The primary is lost, and too few faithful ackers answer.
    FailoverBlocked,
    /// Nothing else can be said for sure.
    Incomplete,
}

impl State {
    /// All states, in the order in which they are tried.
    pub const ALL: [Self; 11] = [
        Self::Offline,
        Self::Paused,
        Self::Bootstrapping,
        Self::Cloning,
        Self::SwitchoverRequested,
        Self::Healthy,
        Self::Degraded,
        Self::WritesBlocked,
        Self::PrimaryLost,
        Self::FailoverBlocked,
        Self::Incomplete,
    ];

    /// The name, as it stands in a cluster's status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offline => "Offline",
            Self::Paused => "Paused",
            Self::Bootstrapping => "Bootstrapping",
            Self::Cloning => "Cloning",
            Self::SwitchoverRequested => "SwitchoverRequested",
            Self::Healthy => "Healthy",
            Self::Degraded => "Degraded",
            Self::WritesBlocked => "WritesBlocked",
            Self::PrimaryLost => "PrimaryLost",
            Self::FailoverBlocked => "FailoverBlocked",
            Self::Incomplete => "Incomplete",
        }
    }

    /// Whether the primary takes writes and gets them acknowledged.
    pub const fn takes_writes(self) -> bool {
        matches!(self, Self::Cloning | Self::Healthy | Self::Degraded)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
