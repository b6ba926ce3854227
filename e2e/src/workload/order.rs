//! Who took writes when, as clients saw it, against the terms that the cluster has recorded.
//!
//! The answer to a write proves that its server was the writer at some instant between its sending and its
//! answer. From such intervals follows a chain of servers that provably took over from one another. Each of
//! those takeovers needs a term: where the chain is no part of the terms' servers, two were writers at once.

use super::{Outcome, Server, Write};

/// The longest chain of different servers whose writes provably followed one another. `writes` are ordered by
/// the time of the answer.
pub fn chain(writes: &[Write]) -> Vec<Server> {
    let mut chain: Vec<Server> = Vec::new();
    let mut since = None;
    for write in writes.iter().filter(|write| write.outcome == Outcome::Acknowledged) {
        let follows = since.is_none_or(|since| write.sent > since);
        if follows && chain.last() != Some(&write.server) {
            chain.push(write.server);
            since = Some(write.ended);
        }
    }
    chain
}

/// Whether the servers of a chain follow one another in the servers of the terms.
pub fn is_explained(chain: &[Server], terms: &[Server]) -> bool {
    let mut terms = terms.iter();
    chain.iter().all(|server| terms.any(|term| term == server))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn two_writers_at_once_are_not_explained_by_the_terms() {
        let start = Instant::now();
        let write = |sent, ended, server| Write {
            client: 1,
            number: 0,
            sent: start + Duration::from_millis(sent),
            ended: start + Duration::from_millis(ended),
            outcome: Outcome::Acknowledged,
            server: Server(server),
            id: None,
        };
        let (one, two) = (Server(1), Server(2));
        // The second write on 1 was sent before 2 answered: it may have been committed before.
        let handover = [write(0, 1, 1), write(5, 8, 2), write(2, 9, 1), write(10, 11, 2)];
        assert_eq!(chain(&handover), [one, two]);
        assert!(is_explained(&chain(&handover), &[one, one, two]));
        let both = [write(0, 1, 1), write(2, 3, 2), write(4, 5, 1), write(6, 7, 2)];
        assert_eq!(chain(&both), [one, two, one, two]);
        assert!(!is_explained(&chain(&both), &[one, two]));
        assert!(!is_explained(&chain(&both), &[one, two, one]));
        assert!(is_explained(&chain(&both), &[one, two, two, one, two]));
        assert!(!is_explained(&[two], &[one]));
    }
}
