//! Why an order was not followed, and the gRPC status that says so.

use tonic::{Code, Status};

use crate::{archive::ArchiveError, sql::SqlError, users::CredentialsError, volume::VolumeError};

/// Why an order was not followed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The order is of the past.
    #[error("the order is of term {given}, and this instance has followed term {kept}")]
    LowerTerm {
        /// Term of the order.
        given: u64,
        /// Highest term kept.
        kept: u64,
    },
    /// A field can't be used.
    #[error("{field} {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// mysqld does not answer.
    #[error("mysqld is {state}{}{message}", if message.is_empty() { "" } else { ": " })]
    NotRunning {
        /// State of the process.
        state: &'static str,
        /// Why.
        message: String,
    },
    /// mysqld, which a copy needs again, does not start.
    #[error("mysqld does not start again: {reason}")]
    NotStarted {
        /// Why.
        reason: String,
    },
    /// The agent is ending.
    #[error("the agent is ending; ask its next run")]
    Stopping,
    /// A newer order took its place.
    #[error("a later order took the place of this one")]
    Superseded,
    /// A copy runs.
    #[error("the instance's data are being replaced by a copy; wait for its end")]
    Cloning,
    /// Received transactions are not applied yet.
    #[error("received transactions {missing} are not applied yet{}{error}", if error.is_empty() { "" } else { ", and the applier stopped: " })]
    Unapplied {
        /// The transactions.
        missing: String,
        /// Why the applier stopped, if it did.
        error: String,
    },
    /// The order needs a closed instance.
    #[error("the instance is open; close it first")]
    Open,
    /// The order needs the open primary of its term.
    #[error("the instance is not open for term {term}; open it first")]
    NotOpen {
        /// Term of the order.
        term: u64,
    },
    /// Commits waited for an acknowledgement, which ended with their mysqld.
    #[error(
        "commits waited for an acknowledgement, so mysqld was killed; it starts closed, with them committed, and can be opened then: {0}"
    )]
    CommitsWaited(SqlError),
    /// The instance holds more than the order gives up.
    #[error("the instance holds transactions that the order does not name as expendable: {0}")]
    NotExpendable(String),
    /// The opening failed.
    #[error("mysqld is open but the term's first transaction failed: {0}")]
    TermNotRecorded(String),
    /// Credentials of the replication user.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Binary logs to keep.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// State on the volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A statement.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl From<OrderError> for Status {
    fn from(error: OrderError) -> Self {
        let code = match &error {
            OrderError::LowerTerm { .. }
            | OrderError::Cloning
            | OrderError::Unapplied { .. }
            | OrderError::Open
            | OrderError::NotOpen { .. }
            | OrderError::NotExpendable(_)
            | OrderError::Credentials(_)
            | OrderError::Archive(_)
            | OrderError::Volume(_) => Code::FailedPrecondition,
            OrderError::Invalid { .. } => Code::InvalidArgument,
            OrderError::Superseded => Code::Aborted,
            OrderError::Sql(SqlError::Deadline { .. }) => Code::DeadlineExceeded,
            OrderError::NotRunning { .. }
            | OrderError::NotStarted { .. }
            | OrderError::Stopping
            | OrderError::CommitsWaited(_)
            | OrderError::TermNotRecorded(_)
            | OrderError::Sql(_) => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}
