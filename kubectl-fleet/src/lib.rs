//! The kubectl plugin of mysql-fleet: `kubectl fleet`.
//!
//! [`render`] is a pure function and is used as a library too; [`status`], [`request`] and [`force`] talk to a
//! cluster.

pub mod cli;
pub mod force;
pub mod render;
pub mod request;
pub mod status;
