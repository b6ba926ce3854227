//! Local clusters, images, scenarios and benchmarks of mysql-fleet.
//!
//! [`cluster`] brings up real Kubernetes clusters on one machine: every node has its own network namespace,
//! kubelet and containerd, every cluster its own control plane. [`tools`] builds the programs they run from
//! pinned Go modules, [`images`] makes the container images without a container engine, and [`apiserver`]
//! starts a bare API server for tests that need nothing else.

pub mod apiserver;
pub mod bench;
pub mod chaos;
pub mod cluster;
pub mod command;
pub mod demo;
pub mod host;
pub mod images;
pub mod kubernetes;
pub mod paths;
pub mod policies;
pub mod progress;
pub mod registry;
pub mod roles;
pub mod scenario;
pub mod tenant;
pub mod tools;
pub mod wait;
pub mod workload;
