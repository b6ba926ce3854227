//! Sets of transaction identifiers and their algebra.
//!
//! A global transaction identifier names the server a transaction was first committed on, optionally a tag,
//! and a number (MySQL reference manual, "GTID Format and Storage"). Which transactions two servers hold is
//! the only evidence of which of them lost or gained some, so every comparison of instances is made here, on
//! exact sets: a set that can't be parsed is an error and never an empty set.

mod intervals;
mod parse;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use self::intervals::Intervals;
pub use self::parse::ParseGtidSetError;

/// `@@server_uuid`: the identity of a server, which its transactions carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerUuid(u128);

impl ServerUuid {
    /// The identity with these 128 bits.
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for ServerUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bits) = *self;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            bits >> 96,
            (bits >> 80) & 0xffff,
            (bits >> 64) & 0xffff,
            (bits >> 48) & 0xffff,
            bits & 0xffff_ffff_ffff
        )
    }
}

impl FromStr for ServerUuid {
    type Err = ParseGtidSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::server_uuid(text)
    }
}

/// What a number belongs to: a server and a tag, which is empty for most transactions.
///
/// The order of the fields gives MySQL's canonical order: by server, then by tag, the empty one first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Origin {
    uuid: ServerUuid,
    tag: String,
}

/// A set of transaction identifiers, such as `@@gtid_executed`.
///
/// Parsed from and printed as MySQL's text form, tags included. What is printed is canonical: equal sets give
/// equal texts. The algebra costs time and memory by the number of intervals, not of transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct GtidSet {
    /// Never holds an origin without a number, so that equal sets are equal values.
    origins: BTreeMap<Origin, Intervals>,
}

impl GtidSet {
    /// The set without a transaction.
    pub const fn new() -> Self {
        Self { origins: BTreeMap::new() }
    }

    /// Whether there is no transaction in it.
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty()
    }

    /// The number of transactions in it.
    pub fn count(&self) -> u128 {
        self.origins.values().map(Intervals::count).sum()
    }

    /// Whether all transactions of `other` are in it.
    pub fn contains(&self, other: &Self) -> bool {
        other
            .origins
            .iter()
            .all(|(origin, theirs)| self.origins.get(origin).is_some_and(|ours| ours.contains(theirs)))
    }

    /// The transactions in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut origins = self.origins.clone();
        for (origin, theirs) in &other.origins {
            match origins.get_mut(origin) {
                Some(ours) => *ours = ours.union(theirs),
                None => {
                    origins.insert(origin.clone(), theirs.clone());
                }
            }
        }
        Self { origins }
    }

    /// The transactions of this set that are not in `other`: MySQL's `GTID_SUBTRACT(self, other)`.
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        self.map_origins(|origin, ours| match other.origins.get(origin) {
            Some(theirs) => ours.subtract(theirs),
            None => ours.clone(),
        })
    }

    /// The transactions in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        self.map_origins(|origin, ours| match other.origins.get(origin) {
            Some(theirs) => ours.intersect(theirs),
            None => Intervals::default(),
        })
    }

    /// The transactions of this set that were first committed on that server, whatever their tag.
    #[must_use]
    pub fn of_source(&self, uuid: ServerUuid) -> Self {
        self.map_origins(|origin, ours| if origin.uuid == uuid { ours.clone() } else { Intervals::default() })
    }

    /// The set without the transactions that were first committed on that server.
    #[must_use]
    pub fn without_source(&self, uuid: ServerUuid) -> Self {
        self.map_origins(|origin, ours| if origin.uuid == uuid { Intervals::default() } else { ours.clone() })
    }

    /// The names of the transactions, each as a set of its own, in canonical order.
    pub fn iter(&self) -> impl Iterator<Item = Self> {
        self.origins.iter().flat_map(|(origin, intervals)| {
            intervals.numbers().map(|number| {
                let mut one = Self::new();
                one.insert(origin.uuid, &origin.tag, number, number);
                one
            })
        })
    }

    fn map_origins(&self, f: impl Fn(&Origin, &Intervals) -> Intervals) -> Self {
        let mapped = self.origins.iter().map(|(origin, ours)| (origin, f(origin, ours)));
        Self {
            origins: mapped
                .filter(|(_, intervals)| !intervals.is_empty())
                .map(|(origin, intervals)| (origin.clone(), intervals))
                .collect(),
        }
    }

    /// Adds the numbers `first` to `last`, both included.
    fn insert(&mut self, uuid: ServerUuid, tag: &str, first: u64, last: u64) {
        let origin = Origin { uuid, tag: tag.to_owned() };
        self.origins.entry(origin).or_default().push(first, last);
    }

    /// Restores the order of intervals after [`insert`](Self::insert).
    fn normalize(&mut self) {
        for intervals in self.origins.values_mut() {
            intervals.normalize();
        }
    }
}

impl FromStr for GtidSet {
    type Err = ParseGtidSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::gtid_set(text)
    }
}

/// Canonical, on one line: `uuid:1-5:7:tag:1-3,uuid:1`.
impl fmt::Display for GtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for (origin, intervals) in &self.origins {
            if last != Some(origin.uuid) {
                let comma = if last.is_some() { "," } else { "" };
                write!(f, "{comma}{}", origin.uuid)?;
                last = Some(origin.uuid);
            }
            if !origin.tag.is_empty() {
                write!(f, ":{}", origin.tag)?;
            }
            write!(f, "{intervals}")?;
        }
        Ok(())
    }
}
