//! Tasks with local clusters and images.

use std::path::Path;

use anyhow::{Context, Result};
use e2e::cluster::{self, Cluster, parse_target};
use e2e::images::{fleet, mysql};
use e2e::progress::Progress;
use e2e::tools::Tools;

pub(crate) async fn up(names: &[String], nodes: Option<u8>) -> Result<()> {
    let clusters = cluster::up::up(names, nodes, &Progress::default()).await?;
    for cluster in clusters {
        println!("export KUBECONFIG={}  # {}", cluster.kubeconfig().display(), cluster.plan().name);
    }
    Ok(())
}

pub(crate) async fn down(names: &[String], all: bool, keep: bool) -> Result<()> {
    let progress = Progress::default();
    let names = if all { cluster::down::known()? } else { names.to_vec() };
    for name in names {
        cluster::down::down(&name, keep, &progress).await?;
    }
    Ok(())
}

pub(crate) async fn ls() -> Result<()> {
    let clusters = cluster::list()?;
    if clusters.is_empty() {
        println!("there is no local cluster: `cargo xtask up NAME` makes one");
        return Ok(());
    }
    println!("{:<20} {:>5}  {:<8} {:<26} KUBECONFIG", "NAME", "NODES", "STATE", "API SERVER");
    for cluster in clusters {
        let state = if cluster.is_ready().await { "ready" } else { "down" };
        let plan = cluster.plan();
        println!(
            "{:<20} {:>5}  {:<8} {:<26} {}",
            plan.name,
            plan.nodes,
            state,
            plan.api_url(),
            cluster.kubeconfig().display()
        );
    }
    Ok(())
}

pub(crate) fn kubeconfig(name: &str, print: bool) -> Result<()> {
    let file = Cluster::open(name)?.kubeconfig();
    if print {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        print!("{text}");
    } else {
        println!("{}", file.display());
    }
    Ok(())
}

pub(crate) async fn load(file: &Path, names: &[String]) -> Result<()> {
    let file = std::path::absolute(file)?;
    let progress = Progress::default();
    let clusters = names.iter().map(|name| Cluster::open(name)).collect::<Result<Vec<_>>>()?;
    let tools = Tools::of(&["containerd"], &progress).await?;
    for cluster in clusters {
        let what = format!("load {} into {}", file.display(), cluster.plan().name);
        progress.run(what, cluster::load::load(&cluster, &file, &tools)).await?;
    }
    Ok(())
}

pub(crate) async fn cut(target: &str) -> Result<()> {
    let (name, node) = parse_target(target)?;
    Cluster::open(name)?.cut(node).await
}

pub(crate) async fn heal(target: &str) -> Result<()> {
    let (name, node) = parse_target(target)?;
    Cluster::open(name)?.heal(node).await
}

pub(crate) async fn images(profile: fleet::Profile) -> Result<()> {
    let progress = Progress::default();
    let mysql = mysql::mysql(&progress).await?.image;
    let fleet = fleet::fleet(profile, &progress).await?.image;
    for image in [mysql, fleet] {
        println!("{}  {}", image.reference, image.archive.display());
    }
    Ok(())
}
