//! Pushing our image to a registry, for clusters that are not local.

use anyhow::{Context, Result, bail};

use super::Image;
use crate::command;

/// Pushes an image with whatever tool for it is installed; returns its name in the registry.
pub async fn push(image: &Image, registry: &str) -> Result<String> {
    let (_, name) = image.reference.split_once('/').context("an image reference has a registry")?;
    let target = format!("{}/{name}", registry.trim_end_matches('/'));
    let archive = image.archive.display();
    if command::find("skopeo").is_some() {
        let (from, to) = (format!("docker-archive:{archive}"), format!("docker://{target}"));
        command::run("skopeo", ["copy", &from, &to]).await?;
        return Ok(target);
    }
    for engine in ["docker", "podman"] {
        if command::find(engine).is_some() {
            let file = archive.to_string();
            command::run(engine, ["load", "--input", &file]).await?;
            command::run(engine, ["tag", &image.reference, &target]).await?;
            command::run(engine, ["push", &target]).await?;
            return Ok(target);
        }
    }
    bail!(
        "nothing to push an image with: install skopeo, docker or podman, or push {archive} to {registry} yourself \
         as {name}"
    );
}
