//! Version 1 of the resources.

mod cluster;
mod status;

pub use cluster::{DeletionPolicy, Durability, MySQLCluster, MySQLClusterSpec, Paused, Storage};
pub use status::{
    AnsweredRequest, Condition, ConditionType, ForcedTakeover, InSyncInstance, InstanceRole, InstanceStatus,
    MySQLClusterStatus, Phase, RequestKind, RequestOutcome, TermStage,
};
