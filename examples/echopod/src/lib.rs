//! The smallest complete controller on `fleet-runtime`. `docs/writing-a-controller.md` builds it step by step.

pub mod api;
pub mod plan;
pub mod reconcile;

#[cfg(test)]
mod tests;
