//! The kubectl plugin of mysql-fleet: `kubectl fleet`.
//!
//! [`render`] is a pure function and is used as a library too; [`status`], [`request`], [`force`], [`federation`]
//! and [`member`] talk to a cluster.

pub mod cli;
pub mod federation;
pub mod force;
pub mod member;
mod network;
pub mod render;
pub mod request;
pub mod status;
