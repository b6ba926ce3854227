//! Adopt: empty transactions by the names of those that another instance keeps.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{LookAfter, OrderError, Orders, Running};
use crate::{
    facts,
    sql::{Session, SqlError, text},
    users::quoted,
};

const STATEMENT: Duration = Duration::from_secs(5);
/// How long an order takes its turn: one that closes the instance must not wait for long. What is left is ordered again.
const TURN: Duration = Duration::from_secs(2);
/// Most names in one order.
const MOST: usize = 1000;

impl Orders {
    /// Commits an empty transaction by each of the names that mysqld has not executed, as many as it has time for.
    pub async fn adopt(self: Arc<Self>, term: u64, gtids: Vec<String>) -> Result<(), OrderError> {
        check(&gtids)?;
        let _state = self.admit(term).await?;
        let _look = LookAfter(&self.instance);
        let Running { mut session, .. } = self.running().await?;
        let recorded = facts::recorded(&mut session).await?.term;
        if !self.instance.may_be_open() || recorded != term {
            return Err(OrderError::NotOpen { term });
        }
        tracing::info!(
            term,
            names = gtids.len(),
            "commits empty transactions by the names of another instance's"
        );
        let until = Instant::now() + TURN;
        for gtid in &gtids {
            if Instant::now() >= until {
                break;
            }
            commit_empty(&mut session, gtid).await?;
        }
        Ok(())
    }
}

/// The session takes no name by itself while it has one, so it is of no use after an error and is dropped with it.
async fn commit_empty(session: &mut Session, gtid: &str) -> Result<(), SqlError> {
    let quoted = quoted(gtid);
    let missing = format!("SELECT GTID_SUBTRACT({quoted}, @@GLOBAL.gtid_executed) AS missing");
    let row = session.row(STATEMENT, &missing).await?.ok_or(SqlError::NotRunning)?;
    if text(&row, "missing").is_empty() {
        return Ok(());
    }
    session.run(STATEMENT, &format!("SET SESSION gtid_next = {quoted}")).await?;
    session.run(STATEMENT, "BEGIN").await?;
    session.run(STATEMENT, "COMMIT").await?;
    session.run(STATEMENT, "SET SESSION gtid_next = 'AUTOMATIC'").await
}

fn check(gtids: &[String]) -> Result<(), OrderError> {
    let invalid = |problem| OrderError::Invalid { field: "gtids", problem };
    if gtids.is_empty() || gtids.len() > MOST {
        return Err(invalid(format!("has {} names; give 1 to {MOST}", gtids.len())));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte);
    match gtids.iter().find(|gtid| !gtid.contains(':') || !gtid.bytes().all(fits)) {
        Some(gtid) => Err(invalid(format!("has {gtid:?}, which names no transaction"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_they_reach_a_statement() {
        let good = "3e11fa47-71ca-11e1-9e33-c80aa9429562:backup:23".to_owned();
        assert!(check(std::slice::from_ref(&good)).is_ok());
        for bad in [vec![], vec![good; MOST + 1], vec!["AUTOMATIC".to_owned()], vec!["a:1'".to_owned()]] {
            let error = check(&bad).unwrap_err();
            assert!(error.to_string().starts_with("gtids has"), "{error}");
        }
    }
}
