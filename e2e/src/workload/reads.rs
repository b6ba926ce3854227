//! Readers of the primary, and what is wrong with what they saw.
//!
//! A row is visible only once it is acknowledged, and rows are never deleted, so the highest key on the primary
//! never falls. A read that was sent after a write was acknowledged and sees only lower keys than that write's
//! is *stale*: another instance had taken over, and the reader was still served by the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::{ANSWER, Client, PAUSE, Server, TABLE, Write, connect, rest};

/// Stale reads of one server that are further apart belong to different episodes.
const EPISODE: Duration = Duration::from_secs(5);

/// One answered read of one reader.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// Which reader.
    pub reader: u32,
    /// When it was sent.
    pub sent: Instant,
    /// When it was answered.
    pub ended: Instant,
    /// Who answered.
    pub server: Server,
    /// The highest key it saw; 0 for an empty table.
    pub highest: u64,
}

pub(super) async fn read(mut client: Client, name: u32) -> Vec<Read> {
    let mut reads = Vec::new();
    let mut connection: Option<(Conn, Server)> = None;
    while !*client.stopped.borrow() {
        let Some((open, server)) = connection.as_mut() else {
            connection = connect(&client.options).await;
            continue;
        };
        let sent = Instant::now();
        let query = format!("SELECT MAX(id) FROM {TABLE}");
        let answer = tokio::time::timeout(ANSWER, open.query_first::<Option<u64>, _>(query)).await;
        if let Ok(Ok(Some(highest))) = answer {
            let highest = highest.unwrap_or_default();
            reads.push(Read { reader: name, sent, ended: Instant::now(), server: *server, highest });
            rest(&mut client).await;
        } else {
            connection = None;
            tokio::time::sleep(PAUSE).await;
        }
    }
    reads
}

/// A time during which one server went on giving stale answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episode {
    /// The server.
    pub server: Server,
    /// When the first of the reads was sent.
    pub first: Instant,
    /// When the last one was.
    pub last: Instant,
    /// How many there were.
    pub reads: usize,
    /// Of whom.
    pub readers: BTreeSet<u32>,
    /// What the first one saw, and what was acknowledged before it was sent.
    pub missed: (u64, u64),
}

impl Episode {
    /// How long it was.
    pub fn duration(&self) -> Duration {
        self.last.duration_since(self.first)
    }
}

/// What is wrong with the reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// How many reads missed a write that was acknowledged before they were sent.
    pub reads: usize,
    /// How many saw less than an earlier read of the same reader.
    pub backwards: usize,
    /// The longest time during which one server went on giving stale answers.
    pub longest: Option<Episode>,
}

impl Stale {
    /// Compares reads with writes, each ordered by the time of the answer.
    pub fn among(reads: &[Read], writes: &[Write]) -> Self {
        let mut acknowledged = writes.iter().filter_map(|write| Some((write.ended, write.id?))).peekable();
        let mut sent: Vec<&Read> = reads.iter().collect();
        sent.sort_by_key(|read| read.sent);
        let mut stale = Self::default();
        let mut floor = 0;
        let mut seen: BTreeMap<u32, u64> = BTreeMap::new();
        let mut episodes: BTreeMap<Server, Episode> = BTreeMap::new();
        let mut over = Vec::new();
        for read in sent {
            while let Some((_, id)) = acknowledged.next_if(|(ended, _)| *ended < read.sent) {
                floor = floor.max(id);
            }
            let before = seen.entry(read.reader).or_default();
            if read.highest < *before {
                stale.backwards += 1;
            }
            *before = (*before).max(read.highest);
            if read.highest >= floor {
                continue;
            }
            stale.reads += 1;
            let begun = || Episode {
                server: read.server,
                first: read.sent,
                last: read.sent,
                reads: 0,
                readers: BTreeSet::new(),
                missed: (read.highest, floor),
            };
            let episode = episodes.entry(read.server).or_insert_with(begun);
            if read.sent.duration_since(episode.last) > EPISODE {
                over.push(std::mem::replace(episode, begun()));
            }
            episode.last = read.sent;
            episode.reads += 1;
            episode.readers.insert(read.reader);
        }
        stale.longest = over.into_iter().chain(episodes.into_values()).max_by_key(Episode::duration);
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn a_read_that_misses_an_acknowledged_write_is_stale() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let server = |digit: u128| Server(digit);
        let write = |ended, id, on| Write {
            client: 1,
            number: 0,
            sent: at(ended - 1),
            ended: at(ended),
            outcome: Outcome::Acknowledged,
            server: server(on),
            id: Some(id),
        };
        let read = |reader, sent, highest, on| Read {
            reader,
            sent: at(sent),
            ended: at(sent + 1),
            server: server(on),
            highest,
        };
        let writes = [write(100, 5, 1), write(1000, 9, 2)];
        let fine = [read(1, 50, 0, 1), read(1, 150, 5, 1), read(2, 999, 5, 1), read(1, 1001, 9, 2)];
        assert_eq!(Stale::among(&fine, &writes), Stale::default());
        let old = [read(1, 1001, 9, 2), read(1, 1500, 5, 1), read(2, 3500, 5, 1), read(2, 9000, 5, 1)];
        let stale = Stale::among(&old, &writes);
        let longest = Episode {
            server: server(1),
            first: at(1500),
            last: at(3500),
            reads: 2,
            readers: BTreeSet::from([1, 2]),
            missed: (5, 9),
        };
        assert_eq!(longest.duration(), Duration::from_secs(2));
        assert_eq!(stale, Stale { reads: 3, backwards: 1, longest: Some(longest) });
    }
}
