//! The record in a Lease, and how long it has been seen unchanged.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::{LeaseConfig, LeaseView};

/// A Lease as it was last seen.
#[derive(Clone, Debug)]
pub(super) struct Record {
    lease: Lease,
    /// When its content was first seen.
    since: Instant,
}

impl Record {
    pub(super) fn new(lease: Lease, since: Instant) -> Self {
        Self { lease, since }
    }

    /// Takes what was read now, and keeps the time if the content is the same.
    ///
    /// The content is the spec alone: an annotation written by somebody is no sign of life.
    pub(super) fn observe(known: Option<Self>, lease: Lease, now: Instant) -> Self {
        let since = match known {
            Some(known) if known.lease.spec == lease.spec => known.since,
            _ => now,
        };
        Self { lease, since }
    }

    pub(super) fn holder(&self) -> Option<&str> {
        let holder = self.lease.spec.as_ref()?.holder_identity.as_deref()?;
        (!holder.is_empty()).then_some(holder)
    }

    /// When another may take the Lease. The longer of the holder's and our own lease duration counts.
    pub(super) fn expires(&self, lease_duration: Duration) -> Instant {
        let theirs = self
            .lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(Duration::ZERO, Duration::from_secs);
        self.since + theirs.max(lease_duration)
    }

    pub(super) fn view(&self) -> LeaseView {
        let spec = self.lease.spec.clone().unwrap_or_default();
        LeaseView {
            holder: self.holder().map(str::to_owned),
            transitions: spec.lease_transitions.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
            acquired_at: spec.acquire_time.map(|time| time.0),
            renewed_at: spec.renew_time.map(|time| time.0),
        }
    }

    /// The Lease renewed, or taken, by `config.identity`.
    pub(super) fn held(&self, config: &LeaseConfig, now: Timestamp) -> Lease {
        let mut lease = self.lease.clone();
        let mut spec = held(config, now);
        let old = lease.spec.take().unwrap_or_default();
        if old.holder_identity.as_deref() == Some(config.identity.as_str()) {
            spec.acquire_time = old.acquire_time.or(spec.acquire_time);
            spec.lease_transitions = old.lease_transitions;
        } else {
            spec.lease_transitions = Some(old.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        lease.spec = Some(spec);
        lease
    }

    /// The Lease given up: free at once.
    pub(super) fn released(&self, now: Timestamp) -> Lease {
        let mut lease = self.lease.clone();
        let transitions = lease.spec.take().and_then(|spec| spec.lease_transitions);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            lease_transitions: transitions,
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        });
        lease
    }
}

/// A Lease that did not exist, held by `config.identity`.
pub(super) fn created(config: &LeaseConfig, now: Timestamp) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            namespace: Some(config.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec { lease_transitions: Some(0), ..held(config, now) }),
    }
}

fn held(config: &LeaseConfig, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(config.identity.clone()),
        lease_duration_seconds: i32::try_from(config.lease_duration.as_secs()).ok(),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    }
}
