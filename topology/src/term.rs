//! The count of primaries.

use std::fmt;

/// Counts the primaries of a cluster: each change of the primary, or of the acknowledgements that a commit
/// waits for, starts a new term.
///
/// A term is raised only by a compare-and-swap on the cluster's record, so two controllers can't start the
/// same term. Agents keep the highest term they have seen on the data volume and refuse the orders of a lower
/// one. Zero means that there has been no primary yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

impl Term {
    /// The term of a cluster that never had a primary.
    pub const NONE: Self = Self(0);

    /// Whether this is the term of a cluster that never had a primary.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The term after this one.
    ///
    /// Saturates: at the end of the range (which raising a term every nanosecond reaches after 584 years) the
    /// compare-and-swap no longer changes anything and no new primary can be made, which is the safe side.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_term_is_higher_until_the_range_ends() {
        assert!(Term::NONE < Term::NONE.next());
        assert_eq!(Term(7).next(), Term(8));
        assert_eq!(Term(u64::MAX).next(), Term(u64::MAX));
    }
}
