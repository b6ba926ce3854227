//! What became of the writes: every acknowledged one has to be there exactly once, and no refused one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use fleet_api::names::{self, UserRole};

use super::{Outcome, TABLE, Write};
use crate::tenant::Tenant;
use crate::wait;

const OFTEN: Duration = Duration::from_millis(100);

/// What became of the writes.
#[derive(Debug, Default)]
pub struct Verdict {
    /// How many were acknowledged.
    pub acknowledged: usize,
    /// How many were refused.
    pub refused: usize,
    /// Of how many nobody was told.
    pub unknown: usize,
    /// Acknowledged, and not there.
    pub lost: Vec<(u32, u32)>,
    /// There more than once.
    pub repeated: Vec<(u32, u32)>,
    /// Refused, and there nevertheless, or never sent.
    pub unasked: Vec<(u32, u32)>,
}

impl Verdict {
    /// Compares what clients were told with what an instance has.
    async fn of(writes: &[Write], tenant: &Tenant, cluster: &str, pod: &str) -> Result<Self> {
        let host = names::instance_host(&tenant.namespace, cluster, pod);
        let query = format!("SELECT client, number, COUNT(*) FROM {TABLE} GROUP BY client, number");
        let rows = tenant.sql(cluster, pod, &host, UserRole::Reader, &query).await?;
        let mut found = BTreeMap::new();
        for row in rows.lines() {
            let mut fields = row.split('\t').map(str::parse::<u32>);
            let (Some(Ok(client)), Some(Ok(number)), Some(Ok(count))) =
                (fields.next(), fields.next(), fields.next())
            else {
                bail!("{pod} answered the row {row:?}");
            };
            found.insert((client, number), count);
        }
        Ok(Self::compare(writes, &found))
    }

    /// The same once the instance has applied all that was acknowledged. An instance that was away has much to apply,
    /// however long that takes; what is missing once it has applied nothing for `limit` is lost.
    pub async fn once_applied(
        writes: &[Write],
        tenant: &Tenant,
        cluster: &str,
        pod: &str,
        limit: Duration,
    ) -> Result<Self> {
        let ask = || Self::of(writes, tenant, cluster, pod);
        let mut missing = usize::MAX;
        loop {
            let goes_on = wait::until(format!("{pod} to apply more"), limit, OFTEN, || async {
                let verdict = ask().await?;
                let lost = verdict.lost.len();
                ensure!(lost == 0 || lost < missing, "{lost} acknowledged writes are missing");
                Ok(verdict)
            });
            match goes_on.await {
                Ok(verdict) if verdict.lost.is_empty() => return Ok(verdict),
                Ok(verdict) => missing = verdict.lost.len(),
                // Where it can't be asked, this says why.
                Err(_) => return ask().await,
            }
        }
    }

    fn compare(writes: &[Write], found: &BTreeMap<(u32, u32), u32>) -> Self {
        let mut verdict = Self::default();
        let mut told = BTreeMap::new();
        for write in writes {
            let key = (write.client, write.number);
            told.insert(key, write.outcome);
            match write.outcome {
                Outcome::Acknowledged => {
                    verdict.acknowledged += 1;
                    if !found.contains_key(&key) {
                        verdict.lost.push(key);
                    }
                }
                Outcome::Refused => verdict.refused += 1,
                Outcome::Unknown => verdict.unknown += 1,
            }
        }
        for (key, count) in found {
            if *count > 1 {
                verdict.repeated.push(*key);
            }
            if told.get(key).is_none_or(|outcome| *outcome == Outcome::Refused) {
                verdict.unasked.push(*key);
            }
        }
        verdict
    }

    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.broken().is_empty()
    }

    /// Every broken promise, in words.
    pub fn broken(&self) -> Vec<String> {
        let all = [
            ("acknowledged writes are lost", &self.lost),
            ("writes are there more than once", &self.repeated),
            ("writes are there that were refused or never sent", &self.unasked),
        ];
        let broken = all.into_iter().filter(|(_, keys)| !keys.is_empty());
        broken
            .map(|(what, keys)| {
                let some: Vec<_> = keys.iter().take(5).collect();
                format!("{} {what}, such as {some:?}", keys.len())
            })
            .collect()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, refused, unknown, .. } = self;
        write!(f, "{acknowledged} writes acknowledged, {refused} refused, {unknown} unknown")?;
        self.broken().iter().try_for_each(|broken| write!(f, "; {broken}"))
    }
}

/// The longest time between `since` and `until` without an acknowledged write.
pub fn outage(writes: &[Write], since: Instant, until: Instant) -> Duration {
    let mut last = since;
    let mut longest = Duration::ZERO;
    let acknowledged = writes.iter().filter(|write| write.outcome == Outcome::Acknowledged);
    let ends = acknowledged.map(|write| write.ended).filter(|ended| (since..until).contains(ended));
    for end in ends.chain([until]) {
        longest = longest.max(end.saturating_duration_since(last));
        last = end;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::*;

    fn write(number: u32, outcome: Outcome, ended: Instant) -> Write {
        let server = Server::parse(&"0".repeat(32)).unwrap();
        Write { client: 1, number, sent: ended, ended, outcome, server, id: None }
    }

    #[test]
    fn broken_promises_are_told_apart() {
        let now = Instant::now();
        let told = [
            write(0, Outcome::Acknowledged, now),
            write(1, Outcome::Acknowledged, now),
            write(2, Outcome::Refused, now),
            write(3, Outcome::Unknown, now),
            write(4, Outcome::Unknown, now),
        ];
        let clean = BTreeMap::from([((1, 0), 1), ((1, 1), 1), ((1, 3), 1)]);
        assert!(Verdict::compare(&told, &clean).is_clean());
        let broken = BTreeMap::from([((1, 0), 2), ((1, 2), 1), ((7, 7), 1)]);
        let verdict = Verdict::compare(&told, &broken);
        assert_eq!(verdict.lost, [(1, 1)]);
        assert_eq!(verdict.repeated, [(1, 0)]);
        assert_eq!(verdict.unasked, [(1, 2), (7, 7)]);
        assert_eq!((verdict.acknowledged, verdict.refused, verdict.unknown), (2, 1, 2));
    }

    #[test]
    fn an_outage_is_the_longest_silence_of_a_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let writes = [
            write(0, Outcome::Acknowledged, at(100)),
            write(1, Outcome::Acknowledged, at(5000)),
            write(2, Outcome::Unknown, at(5100)),
            write(3, Outcome::Acknowledged, at(5200)),
            write(4, Outcome::Acknowledged, at(6000)),
        ];
        assert_eq!(outage(&writes, at(5050), at(6000)), Duration::from_millis(800));
        assert_eq!(outage(&writes, at(5050), at(9000)), Duration::from_secs(3));
        assert_eq!(outage(&[], at(7000), at(7001)), Duration::from_millis(1));
    }
}
