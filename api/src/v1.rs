//! Version 1 of the resources.

mod cluster;
mod federated;
mod member;
mod span;
mod status;

pub use cluster::{DeletionPolicy, Durability, MySQLCluster, MySQLClusterSpec, Paused, Storage};
pub use federated::{
    Conflict, ConflictPolicy, FederatedDeletion, FederatedPhase, LastObservedState, MAX_CONDITIONS,
    MAX_GTIDS, MAX_MESSAGE, MySQLClusterFederated, MySQLClusterFederatedSpec, MySQLClusterFederatedStatus,
    ObservedCondition, Overrides, PlacedMember, PlacedOutcome, Placement, StorageOverrides,
};
pub use member::{Location, MemberCluster, MemberClusterSpec, MemberClusterStatus};
pub use span::Span;
pub use status::{
    AnsweredRequest, Condition, ConditionType, CopyStatus, ForcedTakeover, GivenUpTemplate, InSyncInstance,
    InstanceRole, InstanceStatus, MySQLClusterStatus, Phase, RequestKind, RequestOutcome, RolloutState,
    RolloutStatus, RolloutWait, TermStage,
};
