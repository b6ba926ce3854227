//! What every controller of the fleet needs: a Lease and its gate, the one writer to the Kubernetes API,
//! the reconcile loop with its error classes, mutual TLS and gRPC, health, metrics, telemetry, shutdown.
//!
//! The modules are independent of what is controlled. [`process::Process`] puts them together;
//! `examples/echopod` is the smallest complete controller made with it.

pub mod apply;
pub mod backoff;
pub mod conditions;
pub mod controller;
pub mod error;
pub mod events;
pub mod grpc;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod pods;
pub mod process;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
