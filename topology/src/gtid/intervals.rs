//! Sets of numbers as sorted intervals.

use std::fmt;

/// The highest number of a transaction: MySQL keeps `2^63 - 1` as an end that is never used.
pub(super) const HIGHEST: u64 = i64::MAX as u64 - 1;

/// From and to, both included. `1 <= first <= last <= HIGHEST`, so one more or less never overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Interval {
    first: u64,
    last: u64,
}

/// Intervals in ascending order with at least one number missing between two of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Intervals(Vec<Interval>);

impl Intervals {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn count(&self) -> u128 {
        self.0.iter().map(|i| u128::from(i.last - i.first) + 1).sum()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|interval| interval.first..=interval.last)
    }

    /// Adds an interval at the end. [`normalize`](Self::normalize) has to follow before anything else.
    pub(super) fn push(&mut self, first: u64, last: u64) {
        self.0.push(Interval { first, last });
    }

    /// Sorts, and joins what overlaps or touches.
    pub(super) fn normalize(&mut self) {
        self.0.sort_unstable();
        let mut joined: Vec<Interval> = Vec::with_capacity(self.0.len());
        for next in self.0.drain(..) {
            match joined.last_mut() {
                Some(last) if next.first <= last.last + 1 => last.last = last.last.max(next.last),
                _ => joined.push(next),
            }
        }
        self.0 = joined;
    }

    pub(super) fn contains(&self, other: &Self) -> bool {
        let mut ours = self.0.iter().peekable();
        other.0.iter().all(|theirs| {
            while ours.next_if(|i| i.last < theirs.first).is_some() {}
            ours.peek().is_some_and(|i| i.first <= theirs.first && theirs.last <= i.last)
        })
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        let mut all = Self(self.0.iter().chain(&other.0).copied().collect());
        all.normalize();
        all
    }

    pub(super) fn intersect(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            let (first, last) = (a.first.max(b.first), a.last.min(b.last));
            if first <= last {
                both.push(Interval { first, last });
            }
            if a.last < b.last {
                ours.next();
            } else {
                theirs.next();
            }
        }
        Self(both)
    }

    pub(super) fn subtract(&self, other: &Self) -> Self {
        let mut theirs = other.0.iter().peekable();
        let mut left = Vec::new();
        for ours in &self.0 {
            while theirs.next_if(|i| i.last < ours.first).is_some() {}
            let mut first = ours.first;
            // The last one that overlaps may overlap the next of ours as well, so it is not consumed.
            while let Some(hole) = theirs.peek().filter(|hole| hole.first <= ours.last) {
                if first < hole.first {
                    left.push(Interval { first, last: hole.first - 1 });
                }
                first = hole.last + 1;
                if hole.last >= ours.last {
                    break;
                }
                theirs.next();
            }
            if first <= ours.last {
                left.push(Interval { first, last: ours.last });
            }
        }
        Self(left)
    }
}

/// Each interval after a colon: `:1-5:7`.
impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|Interval { first, last }| {
            if first == last { write!(f, ":{first}") } else { write!(f, ":{first}-{last}") }
        })
    }
}
