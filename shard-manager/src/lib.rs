//! The manager of one tenant namespace's MySQL clusters.
//!
//! It lists, watches and writes in its own namespace alone. Of two processes that manage the same
//! namespace, the one that holds the Lease acts; both answer questions.

pub mod agents;
pub mod cluster;
pub mod config;
pub mod federation;
mod labels;
pub mod run;
pub mod service;
pub mod stores;
pub mod tenant;
