//! The agent with a real mysqld 9.7, driven over gRPC as a shard does.
//!
//! Needs root (for chroot) and FLEET_MYSQLD_ROOTFS, a folder with a MySQL root file system. FLEET_AGENT_BINARY
//! names another agent than the one cargo built, such as the static one.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod adopting;
mod cloning;
mod cluster;
mod facts;
mod gtids;
mod harness;
mod isolation;
mod leaving;
mod process;
mod replication;
mod server;
mod sessions;
mod tls;
mod unacknowledged;
mod unfinished;
