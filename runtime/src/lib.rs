//! What every controller of the fleet needs: a Lease and its gate, the one writer to the Kubernetes API,
//! the reconcile loop with its error classes, mutual TLS and gRPC, health, metrics, telemetry, shutdown.
//!
//! The modules are independent of what is controlled. A binary puts them together in its `main`:
//! [`tls::install_provider`], [`telemetry::init`], [`shutdown::on_signal`], then one
//! [`shutdown::Supervisor`] that owns every task.

pub mod apply;
mod backoff;
pub mod controller;
pub mod error;
pub mod grpc;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
