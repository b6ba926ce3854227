//! When the tenant's authority is exchanged for another one, and how far that is. Pure.
//!
//! | stage | who signs | what is trusted | goes on once |
//! |---|---|---|---|
//! | `Steady` | the authority | the authority | a person asks, or two thirds of the authority's life are over |
//! | `Introducing` | the old one | both | everybody trusts both, and has for the whole wait |
//! | `Replacing` | the new one | both | everybody shows a certificate of the new one, and has for the whole wait |
//!
//! So at no moment is a certificate shown that somebody does not trust: one of the new authority not before everybody
//! trusts that, and the old one is trusted until nobody shows one of it. Everybody is who can be seen: the Secrets with
//! certificates, this process, the agent and the mysqld of every pod. Who can't be seen counts as one that is not ready,
//! never as one that is. For the others (clients with a copy of `ca.crt`, the shard's other pods, a kubelet that shows a
//! pod what a Secret held some seconds ago) there is the wait, which begins when everybody who can be seen was ready.
//!
//! The stage is in the authority's Secret, so that another leader goes on from there.

use std::{collections::BTreeSet, time::Duration};

use fleet_runtime::tls::Fingerprint;
use jiff::Timestamp;

/// How many of those that are waited for are named.
const NAMED: usize = 4;

/// How far the exchange is. The authorities are known by their fingerprints, or kept with all that they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage<N = Fingerprint, P = Fingerprint> {
    /// There is one authority.
    Steady,
    /// There is another one, that nothing was issued by.
    Introducing {
        /// The new one.
        next: N,
        /// Time for who can't be seen.
        wait: Duration,
        /// Since when everybody trusts it.
        since: Option<Timestamp>,
    },
    /// The new one issues.
    Replacing {
        /// The old one.
        previous: P,
        /// Time for who can't be seen.
        wait: Duration,
        /// Since when nobody shows a certificate of the old one.
        since: Option<Timestamp>,
    },
}

impl<N, P> Stage<N, P> {
    /// Its name, in the authority's Secret and in docs/rotation.md.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Steady => "Steady",
            Self::Introducing { .. } => "Introducing",
            Self::Replacing { .. } => "Replacing",
        }
    }

    /// The same, with another begin of its wait.
    pub fn set_since(&mut self, begin: Option<Timestamp>) {
        match self {
            Self::Steady => {}
            Self::Introducing { since, .. } | Self::Replacing { since, .. } => *since = begin,
        }
    }

    /// The same, with another wait.
    pub fn set_wait(&mut self, time: Duration) {
        match self {
            Self::Steady => {}
            Self::Introducing { wait, .. } | Self::Replacing { wait, .. } => *wait = time,
        }
    }
}

/// Somebody who shows a certificate and trusts authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// Who, for people.
    pub who: String,
    /// Whether it is a Secret, which others read.
    pub is_secret: bool,
    /// What was seen of it, or why nothing was.
    pub seen: Result<Seen, String>,
}

/// What is seen of a party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The authorities that all parts of it trust.
    pub trusts: BTreeSet<Fingerprint>,
    /// Who has issued what its parts show; `None` is nobody that it trusts itself.
    pub shows: BTreeSet<Option<Fingerprint>>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: there is one authority.
    Rest,
    /// Somebody is not ready; the text says who and why.
    WaitFor(String),
    /// Nobody is missing who can be seen; this is kept as the begin of the wait.
    NoteReady,
    /// A Secret is not any more what it was when the wait began: it begins anew once it is, since somebody may read it
    /// meanwhile who can't be seen. The text says which one.
    NoteUnready(String),
    /// Until then the others have time.
    WaitUntil(Timestamp),
    /// The new authority issues from now on.
    Replace,
    /// The old authority is trusted no more.
    Withdraw,
}

/// What to do next. `issuer` is who signs now.
pub fn step(issuer: &Fingerprint, stage: &Stage, parties: &[Party], now: Timestamp) -> Step {
    let (other, wait, since, then) = match stage {
        Stage::Steady => return Step::Rest,
        Stage::Introducing { next, wait, since } => (next, *wait, *since, Step::Replace),
        Stage::Replacing { previous, wait, since } => (previous, *wait, *since, Step::Withdraw),
    };
    let replacing = then == Step::Withdraw;
    let (mut missing, mut secret) = (Vec::new(), false);
    for party in parties {
        if let Some(why) = unready(party, issuer, other, replacing) {
            missing.push(format!("{} {why}", party.who));
            secret |= party.is_secret;
        }
    }
    if !missing.is_empty() {
        let who = several(&missing);
        return if secret && since.is_some() { Step::NoteUnready(who) } else { Step::WaitFor(who) };
    }
    match since {
        None => Step::NoteReady,
        Some(since) => match since.saturating_add(wait) {
            Ok(until) if now < until => Step::WaitUntil(until),
            Ok(_) | Err(_) => then,
        },
    }
}

/// Why a party is not ready for what comes next.
fn unready(party: &Party, issuer: &Fingerprint, other: &Fingerprint, replacing: bool) -> Option<String> {
    let seen = match &party.seen {
        Ok(seen) => seen,
        Err(why) => return Some(why.clone()),
    };
    if ![issuer, other].iter().all(|authority| seen.trusts.contains(*authority)) {
        return Some("does not trust both authorities yet".to_owned());
    }
    let foreign = replacing && seen.shows.iter().any(|shown| shown.as_ref() != Some(issuer));
    foreign.then(|| "does not show a certificate of the new authority yet".to_owned())
}

fn several(unready: &[String]) -> String {
    let named: Vec<&str> = unready.iter().take(NAMED).map(String::as_str).collect();
    let more = unready.len().saturating_sub(NAMED);
    let rest = if more == 0 { String::new() } else { format!("; and {more} more") };
    format!("{}{rest}", named.join("; "))
}

#[cfg(test)]
mod tests;
