//! Container images, made by our own code without a container engine.

use std::path::PathBuf;

pub mod archive;
pub mod fleet;
pub mod mysql;
pub mod pause;
pub mod push;

/// An image in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The full name with its tag.
    pub reference: String,
    /// The archive: an OCI layout that is a Docker archive as well.
    pub archive: PathBuf,
}
