//! A registry of images for tests: the same one, under the same name, for this machine and for a node of a
//! local cluster, as the local registries of kind and k3d are.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::apiserver::free_ports;
use crate::cluster::Cluster;
use crate::command::Owned;
use crate::progress::Progress;
use crate::tools::{self, Tools};
use crate::wait;

/// A running registry, ended and removed when this is dropped.
#[derive(Debug)]
pub struct Registry {
    place: String,
    _processes: [Owned; 2],
    _folder: tempfile::TempDir,
}

impl Registry {
    /// Starts an empty registry for this machine and the first node of a cluster.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let tools = Tools::of(&tools::REGISTRY, &Progress::default()).await?;
        let program = tools.path("registry")?;
        let folder = tempfile::Builder::new().prefix("registry-").tempdir()?;
        let [port] = free_ports()?;
        let settings = json!({
            "version": 0.1,
            "log": {"accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": folder.path().join("images")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        let config = folder.path().join("config.yml");
        std::fs::write(&config, settings.to_string())?;

        // A node's 127.0.0.1 is its own: it has a process of its own over the same files.
        let mut on_node = Command::new("ip");
        on_node.args(["netns", "exec", &cluster.plan().namespace(0)]).arg(program);
        let here = serve(Command::new(program), &config, &folder.path().join("here.log")).await?;
        let there = serve(on_node, &config, &folder.path().join("node.log")).await?;
        Ok(Self { place: format!("localhost:{port}"), _processes: [here, there], _folder: folder })
    }

    /// Its name, on this machine and on the node: `HOST:PORT`.
    pub fn place(&self) -> &str {
        &self.place
    }
}

async fn serve(mut command: Command, config: &Path, log: &Path) -> Result<Owned> {
    let file = File::create(log).with_context(|| format!("could not write {}", log.display()))?;
    command.arg("serve").arg(config).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let process = Owned(command.spawn().context("could not start the registry")?);
    wait::until("the registry", Duration::from_secs(20), Duration::from_millis(50), || async {
        if std::fs::read_to_string(log)?.contains("listening on") {
            return Ok(());
        }
        bail!("{}", wait::tail(log, 5))
    })
    .await?;
    Ok(process)
}
