//! How many acknowledgements make a commit durable, and how many ackers prove it.
//!
//! A source has `N` ackers and answers a commit once `W` of them have acknowledged it. Then any
//! `R = N - W + 1` ackers
//!
//! 1. **hold every acknowledged transaction between them**: the ackers outside of the `R` are `W - 1`, one
//!    fewer than acknowledged, so at least one that did is among the `R`;
//! 2. **stop the source once they are revoked**: only `W - 1` ackers can still acknowledge, one fewer than a
//!    commit waits for. So an old source that nobody can reach can't commit either.
//!
//! Both need what the word acker promises: that it still holds what it acknowledged. See
//! [`AckerIdentity`](crate::AckerIdentity).
//!
//! The same arithmetic serves inside one cluster (an acker is an instance) and across clusters (an acker is
//! the head of a member cluster).

use thiserror::Error;

/// The ackers of a source, and how many acknowledgements each of its commits waits for.
///
/// Always `required_acks <= ackers`, and no acker without a required acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quorum {
    ackers: u32,
    required_acks: u32,
}

/// Why two numbers are no quorum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QuorumError {
    /// A commit would wait for ever.
    #[error(
        "a quorum of {required_acks} acknowledgements from {ackers} ackers was asked for, which no commit can get: \
         require at most {ackers}"
    )]
    Unreachable {
        /// Number of ackers.
        ackers: u32,
        /// Acknowledgements asked for.
        required_acks: u32,
    },
    /// A commit would wait for nobody although there are ackers: none of them would prove anything.
    #[error(
        "a quorum of 0 acknowledgements from {ackers} ackers was asked for, which proves nothing: require at least 1"
    )]
    Unproved {
        /// Number of ackers.
        ackers: u32,
    },
    /// A number of instances that has no quorum.
    #[error("{replicas} instances were asked for, which have no quorum: choose 1, 3 or 5")]
    UnsupportedReplicas {
        /// Number of instances.
        replicas: u32,
    },
}

impl Quorum {
    /// The quorum of a source alone: no acker, no acknowledgement.
    pub const ALONE: Self = Self { ackers: 0, required_acks: 0 };

    /// A quorum of `required_acks` out of `ackers`.
    pub const fn new(ackers: u32, required_acks: u32) -> Result<Self, QuorumError> {
        if required_acks > ackers {
            return Err(QuorumError::Unreachable { ackers, required_acks });
        }
        if required_acks == 0 && ackers > 0 {
            return Err(QuorumError::Unproved { ackers });
        }
        Ok(Self { ackers, required_acks })
    }

    /// The quorum of a cluster of 1, 3 or 5 instances: a majority of them, the source included, holds each
    /// acknowledged transaction.
    pub const fn for_replicas(replicas: u32) -> Result<Self, QuorumError> {
        match replicas {
            1 => Ok(Self::ALONE),
            3 => Ok(Self { ackers: 2, required_acks: 1 }),
            5 => Ok(Self { ackers: 4, required_acks: 2 }),
            _ => Err(QuorumError::UnsupportedReplicas { replicas }),
        }
    }

    /// `N`: the number of ackers.
    pub const fn ackers(self) -> u32 {
        self.ackers
    }

    /// `W`: the acknowledgements that a commit waits for.
    pub const fn required_acks(self) -> u32 {
        self.required_acks
    }

    /// `R`: how many ackers have to be revoked before another instance may become the source.
    ///
    /// One for a source alone, which has no acker: nobody can take its place.
    pub const fn revocations_needed(self) -> u32 {
        self.ackers - self.required_acks + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_have_the_quorum_of_a_majority() {
        let numbers =
            |n| Quorum::for_replicas(n).map(|q| (q.ackers(), q.required_acks(), q.revocations_needed()));
        assert_eq!(numbers(1), Ok((0, 0, 1)));
        assert_eq!(numbers(3), Ok((2, 1, 2)));
        assert_eq!(numbers(5), Ok((4, 2, 3)));
        for replicas in [0, 2, 4, 6, u32::MAX] {
            assert_eq!(numbers(replicas), Err(QuorumError::UnsupportedReplicas { replicas }));
        }
    }

    #[test]
    fn a_quorum_that_proves_nothing_or_blocks_for_ever_is_refused() {
        assert_eq!(Quorum::new(1, 2), Err(QuorumError::Unreachable { ackers: 1, required_acks: 2 }));
        assert_eq!(Quorum::new(2, 0), Err(QuorumError::Unproved { ackers: 2 }));
        assert_eq!(Quorum::new(0, 0), Ok(Quorum::ALONE));
    }

    /// Every subset of ackers that acknowledged, against every subset that is revoked.
    #[test]
    fn revoked_ackers_hold_what_was_acknowledged_and_leave_too_few_to_commit() {
        for ackers in 1..=8_u32 {
            for required in 1..=ackers {
                let quorum = Quorum::new(ackers, required).unwrap();
                for revoked in 0..1_u32 << ackers {
                    let enough = revoked.count_ones() >= quorum.revocations_needed();
                    let left = ackers - revoked.count_ones();
                    let mut always_held = true;
                    for acked in 0..1_u32 << ackers {
                        if acked.count_ones() >= required {
                            always_held &= acked & revoked != 0;
                        }
                    }
                    assert_eq!(enough, always_held, "N {ackers} W {required} revoked {revoked:b}");
                    assert_eq!(enough, left < required, "N {ackers} W {required} revoked {revoked:b}");
                }
            }
        }
    }
}
