//! A member's side of the federation: the shard that leads a namespace dials its hub, tells it of the namespace's
//! clusters, and does what the hub wants of them. `docs/federation.md` describes it.
//!
//! ```text
//! link ─► credentials ─► stream: hello, welcome, report ─► desired ─► work: plan (align) ─► apply ─► answer, report
//! (dials    (read at        (heartbeats, silence)            (latest     (pure)              (gated)
//!  again)    each dial)                                       wins)
//! ```
//!
//! It is off unless `--federation-endpoint` and `--federation-secret` are given.

mod align;
mod apply;
mod credentials;
mod endpoint;
mod link;
mod owners;
mod plan;
mod report;
mod state;
mod stream;
mod work;

pub use apply::FederationApplier;
pub use endpoint::{Endpoint, Settings};
pub use link::{Federation, LinkError};
pub use state::{LinkBoard, LinkState};
pub use work::Work;

#[cfg(test)]
mod tests;
