//! Loading images into the nodes of a cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use sha2::{Digest, Sha256};

use super::{Cluster, files};
use crate::command;
use crate::images::archive;
use crate::tools::Tools;

/// Loads an image archive into every node, except those that have this very archive.
pub async fn load(cluster: &Cluster, archive: &Path, tools: &Tools) -> Result<()> {
    let nodes = cluster.plan().each_node();
    try_join_all(nodes.map(|node| import(cluster, node, tools, archive))).await.map(drop)
}

/// Loads an image archive into one node, unless it has this very archive.
pub(super) async fn import(cluster: &Cluster, node: u8, tools: &Tools, file: &Path) -> Result<()> {
    let tag = archive::tag_of(file)?;
    let digest = fingerprint(file)?;
    let record = cluster.node_home(node).join("images.json");
    let mut known: BTreeMap<String, String> = fs::read_to_string(&record)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    if known.get(&tag) == Some(&digest) {
        let present = ctr(cluster, node, tools, &["images", "ls", "-q", &format!("name=={tag}")]).await?;
        if present.lines().any(|line| line == tag) {
            return Ok(());
        }
    }
    let path = file.display().to_string();
    ctr(cluster, node, tools, &["images", "import", &path])
        .await
        .with_context(|| format!("could not load {path} into {}", cluster.plan().node_name(node)))?;
    known.insert(tag, digest);
    files::write(&record, &serde_json::to_string(&known)?)
}

/// Succeeds when a node's containerd answers.
pub(super) async fn answers(cluster: &Cluster, node: u8, tools: &Tools) -> Result<()> {
    ctr(cluster, node, tools, &["version"]).await.map(drop)
}

/// Asks a node's containerd for something, about the containers and images of Kubernetes.
pub(crate) async fn ctr(cluster: &Cluster, node: u8, tools: &Tools, arguments: &[&str]) -> Result<String> {
    let mut ctr = command::command(tools.path("ctr")?);
    ctr.arg("--address").arg(cluster.containerd_socket(node)).args(["--namespace", "k8s.io"]).args(arguments);
    command::finish(&mut ctr).await
}

/// Tells one archive from another without reading hundreds of megabytes.
fn fingerprint(file: &Path) -> Result<String> {
    let metadata = fs::metadata(file).with_context(|| format!("could not read {}", file.display()))?;
    let modified = metadata.modified()?;
    let mut hash = Sha256::new();
    hash.update(format!("{}|{}|{modified:?}", file.display(), metadata.len()));
    Ok(hex::encode(hash.finalize()))
}
