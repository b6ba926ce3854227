//! The hub of a federation: it keeps the MySQLClusters that MySQLClusterFederated objects want in several member
//! clusters, and what was last seen of them.
//!
//! Members dial, the hub never does. A reconcile is a pipeline: what is known of the object's members is looked up
//! ([`streams`]), one pure function decides ([`decide`]), and its answer is written: first the status, then what
//! each member shall have.

pub mod config;
pub mod decide;
pub mod federated;
pub mod keys;
pub mod member;
pub mod overrides;
pub mod run;
pub mod service;
pub mod stores;
pub mod streams;

#[cfg(test)]
mod tests;
