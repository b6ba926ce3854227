//! Errors of a reconcile, with what happens after each.

use std::time::Duration;

use fleet_runtime::{
    apply::ApplyError,
    error::{Classified, ErrorClass},
};

use super::{
    apply::ApplyChildrenError, build::BuildError, dereference::DereferenceError, observe::ObserveError,
};

/// A reconcile has failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The object is not of this shard's namespace. A namespaced watch never brings one.
    #[error("MySQLCluster {namespace}/{cluster} is not of this shard's namespace")]
    ForeignNamespace {
        /// The cluster.
        cluster: String,
        /// Its namespace.
        namespace: String,
    },
    /// The first step.
    #[error(transparent)]
    Dereference(#[from] DereferenceError),
    /// The second step.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// One record after another is decided on.
    #[error("the decision on {cluster} asks for one new term after another")]
    TooManyRecords {
        /// The cluster.
        cluster: String,
    },
    /// The fourth step.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The fifth step.
    #[error(transparent)]
    Apply(#[from] ApplyChildrenError),
    /// The cluster's own object can't be read.
    #[error("can't read the MySQLCluster: {0}")]
    Read(#[source] kube::Error),
    /// A write of the cluster's own object.
    #[error(transparent)]
    Write(#[from] ApplyError),
}

impl Classified for ReconcileError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::ForeignNamespace { .. } | Self::TooManyRecords { .. } => ErrorClass::Fatal,
            Self::Observe(ObserveError::Status { .. }) | Self::Build(BuildError::ReservedKey(_)) => {
                ErrorClass::Invalid
            }
            Self::Dereference(DereferenceError::NoKeys(_)) | Self::Build(BuildError::Certificate(_)) => {
                ErrorClass::Blocked
            }
            Self::Apply(error) => error.class(),
            Self::Read(error) => error.class(),
            Self::Write(error) => error.class(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::ForeignNamespace { .. } => "ForeignNamespace",
            Self::TooManyRecords { .. } => "TooManyRecords",
            Self::Dereference(DereferenceError::NoKeys(_)) => "NoTenantKeys",
            Self::Observe(ObserveError::Status { .. }) => "InvalidStatus",
            Self::Build(BuildError::ReservedKey(_)) => "ReservedKey",
            Self::Build(BuildError::Certificate(_)) => "CertificateFailed",
            Self::Apply(error) => error.reason(),
            Self::Read(error) => error.reason(),
            Self::Write(error) => error.reason(),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Apply(error) => error.retry_after(),
            Self::Read(error) => error.retry_after(),
            Self::Write(error) => error.retry_after(),
            _ => None,
        }
    }
}
