//! StartClone: the data of another instance in place of the own.

use std::{sync::Arc, time::Duration};

use fleet_proto::agent::v1::{CloneFacts, CloneState, Endpoint, ProcessState};
use tokio_util::task::AbortOnDropHandle;

use super::{Address, LookAfter, OrderError, Orders, follow::stop_replica, lost};
use crate::{
    archive,
    sql::{Session, SqlError, text, truth},
    supervisor::ProcessStatus,
    users::{Credentials, quoted},
    volume::Replacement,
};

const STATEMENT: Duration = Duration::from_secs(5);
/// Copies of large volumes take hours.
const WHOLE_COPY: Duration = Duration::from_hours(30 * 24);
/// Starts of mysqld that fail one after the other before a copy is said to have failed.
pub(crate) const ENOUGH_STARTS: u32 = 5;
/// "Malformed GTID set specification".
const MALFORMED_SET: u16 = 1772;

impl Orders {
    /// Begins a copy.
    pub async fn start_clone(
        self: Arc<Self>,
        term: u64,
        donor: Option<Endpoint>,
        expendable: String,
        archived: String,
    ) -> Result<(), OrderError> {
        let donor = Address::check(donor, "donor")?;
        let mut state = self.admit(term).await?;
        let _look = LookAfter(&self.instance);
        if let Some(running) = self.instance.clone_override().filter(|_| self.instance.cloning()) {
            return if running.donor_host == donor.host { Ok(()) } else { Err(OrderError::Cloning) };
        }
        if self.instance.may_be_open() {
            return Err(OrderError::Open);
        }
        let user = self.replication_user()?;
        let mut session = self.running().await?.session;
        stop_replica(&mut session).await?;
        let empty = self.check_expendable(&mut session, &expendable).await?;
        if !empty {
            self.archive(&mut session, &archived).await?;
        }
        self.instance.set_clone_override(Some(CloneFacts {
            state: CloneState::Running.into(),
            donor_host: donor.host.clone(),
            ..CloneFacts::default()
        }));
        tracing::info!(term, donor = donor.host, "copies the data of another instance");
        let copy = Arc::clone(&self).copy(donor, user, empty);
        state.clone = Some(AbortOnDropHandle::new(tokio::spawn(copy)));
        Ok(())
    }

    /// Refuses what the order does not give up; returns whether the instance holds no transaction at all.
    async fn check_expendable(&self, session: &mut Session, expendable: &str) -> Result<bool, OrderError> {
        let query = format!(
            "SELECT GTID_SUBTRACT(CONCAT_WS(',', NULLIF(@@GLOBAL.gtid_executed, ''), \
               (SELECT NULLIF(s.RECEIVED_TRANSACTION_SET, '') \
                FROM performance_schema.replication_connection_status s WHERE s.CHANNEL_NAME = '')), {}) AS kept, \
             @@GLOBAL.gtid_executed = '' AS holds_none, @@GLOBAL.super_read_only AS closed",
            quoted(expendable)
        );
        let row =
            session.row(STATEMENT, &query).await.map_err(|error| set_error("expendable_gtids", error))?;
        let row = row.ok_or(SqlError::NotRunning)?;
        if !truth(&row, "closed") {
            return Err(OrderError::Open);
        }
        let kept: String = text(&row, "kept").split_whitespace().collect();
        if kept.is_empty() { Ok(truth(&row, "holds_none")) } else { Err(OrderError::NotExpendable(kept)) }
    }

    /// Keeps the binary logs of what is worth a look once its data are gone. mysqld still runs, but is closed and
    /// follows nobody: what it holds of the set is complete in its files.
    async fn archive(&self, session: &mut Session, gtids: &str) -> Result<(), OrderError> {
        let tail = archive::find(session, gtids).await.map_err(|error| set_error("archive_gtids", error))?;
        let Some(tail) = tail else { return Ok(()) };
        let (data, root) = (self.config.paths.data(), self.config.paths.archive());
        let keep = move || archive::keep(&tail, &data, &root, jiff::Timestamp::now());
        let folder = tokio::task::spawn_blocking(keep).await.map_err(|_| OrderError::Stopping)??;
        tracing::warn!(
            gtids,
            "keeps the binary logs of transactions that are given up in {}",
            folder.display()
        );
        Ok(())
    }

    /// Copies to the end, and shows why it failed if it did.
    async fn copy(self: Arc<Self>, donor: Address, user: Credentials, empty: bool) {
        let failed = match self.try_copy(&donor, &user, empty).await {
            Ok(()) => None,
            // Which the observer says for as long as it is so: the copy itself may be whole.
            Err(OrderError::NotStarted { .. }) if self.copied() => None,
            Err(error) => Some(error),
        };
        if let Some(error) = &failed {
            tracing::error!("{error}");
        }
        let facts = failed.zip(self.instance.clone_override()).map(|(error, begun)| CloneFacts {
            state: CloneState::Failed.into(),
            error: error.to_string(),
            ..begun
        });
        self.instance.set_clone_override(facts);
        self.instance.look.notify_one();
    }

    /// Whether CLONE was begun, and what it left was not looked at yet.
    fn copied(&self) -> bool {
        matches!(self.volume.replacement(), Ok(Some(Replacement::Cloning)))
    }

    async fn try_copy(&self, donor: &Address, user: &Credentials, empty: bool) -> Result<(), OrderError> {
        if !empty {
            // CLONE drops users' schemas first, which super_read_only refuses (error 1290). So it only ever fills
            // an empty data directory, and the instance stays closed.
            self.volume.keep_replacement(Some(Replacement::Discard))?;
            let generation = self.instance.now().generation;
            self.instance.process.kill().await;
            self.running_after(generation).await?;
        }
        let ProcessStatus { generation, login, .. } = self.instance.now();
        let mut session = Session::open(&login.ok_or(SqlError::NotRunning)?).await?;
        let donors = quoted(&format!("{}:{}", donor.host, donor.port));
        session.run(STATEMENT, &format!("SET GLOBAL clone_valid_donor_list = {donors}")).await?;
        let statement = format!(
            "CLONE INSTANCE FROM {}@{}:{} IDENTIFIED BY {} REQUIRE SSL",
            quoted(&user.username),
            quoted(&donor.host),
            donor.port,
            quoted(&user.password)
        );
        // Its logs of what it received and acknowledged go too, though it has applied nothing.
        self.volume.renew_id()?;
        self.volume.keep_replacement(Some(Replacement::Cloning))?;
        match session.run(WHOLE_COPY, &statement).await {
            Err(error) if !lost(&error) => Err(error.into()),
            // Its end is that of mysqld, and its result is known once mysqld answers again.
            Ok(()) | Err(_) => self.running_after(generation).await,
        }
    }

    /// Waits until a later start of mysqld answers, or until that can't be expected without a person. What the
    /// volume says of the data stays: they are whole or made anew once a mysqld runs again.
    async fn running_after(&self, generation: u64) -> Result<(), OrderError> {
        let mut process = self.instance.process.status();
        let runs =
            |status: &ProcessStatus| status.generation > generation && status.state == ProcessState::Running;
        let decided = |status: &ProcessStatus| runs(status) || status.failed_starts.count >= ENOUGH_STARTS;
        // Fails only as the agent ends.
        let status = process.wait_for(decided).await.map_err(|_| OrderError::Stopping)?.clone();
        if runs(&status) {
            Ok(())
        } else {
            Err(OrderError::NotStarted { reason: status.failed_starts.reason })
        }
    }
}

fn set_error(field: &'static str, error: SqlError) -> OrderError {
    if error.code() == Some(MALFORMED_SET) {
        OrderError::Invalid { field, problem: error.to_string() }
    } else {
        error.into()
    }
}
