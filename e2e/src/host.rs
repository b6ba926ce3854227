//! What a machine must have before local clusters can run on it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::progress::Progress;
use crate::{command, paths, tools};

/// What to do on a machine that cannot run local clusters.
pub const ALTERNATIVE: &str = "use a cluster that exists (kind, k3d, any) instead: \
`cargo xtask demo --context NAME --image-registry REGISTRY`";

/// A file that proves a Debian package is there.
struct Package {
    name: &'static str,
    proof: &'static str,
}

const CLUSTER_PACKAGES: [Package; 10] = [
    Package { name: "iproute2", proof: "ip" },
    Package { name: "iptables", proof: "iptables" },
    Package { name: "conntrack", proof: "conntrack" },
    Package { name: "util-linux", proof: "nsenter" },
    Package { name: "mount", proof: "losetup" },
    Package { name: "xfsprogs", proof: "mkfs.xfs" },
    Package { name: "containernetworking-plugins", proof: "/usr/lib/cni/bridge" },
    Package { name: "gcc", proof: "gcc" },
    Package { name: "libc6-dev", proof: "/usr/include/stdio.h" },
    Package { name: "pkg-config", proof: "pkg-config" },
];

/// runc needs it at build time; its place depends on the architecture, so the header is the proof.
const SECCOMP: Package = Package { name: "libseccomp-dev", proof: "/usr/include/seccomp.h" };

const IMAGE_PACKAGES: [Package; 3] = [
    Package { name: "mmdebstrap", proof: "mmdebstrap" },
    Package { name: "gcc", proof: "gcc" },
    Package { name: "libc6-dev", proof: "/usr/include/stdio.h" },
];

/// Fails, naming all that is missing, unless this machine can run local clusters.
pub fn require_clusters() -> Result<()> {
    let mut missing = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        missing
            .push("root rights (network namespaces, mounts and cgroups are made): run it as root".to_owned());
    }
    if !Path::new("/proc/self/ns/net").exists() {
        missing.push("network namespaces (kernel option CONFIG_NET_NS)".to_owned());
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for name in ["overlay", "xfs"] {
        let known = filesystems.lines().any(|line| line.split_whitespace().last() == Some(name));
        // A module that is not loaded yet is not in the list; the kernel loads it at the first mount.
        if !known && !has_module(name) {
            missing.push(format!("the file system {name} in the kernel"));
        }
    }
    if !Path::new("/dev/loop-control").exists() {
        missing.push("loop devices (/dev/loop-control)".to_owned());
    }
    if let Err(error) = crate::cluster::cgroups::Hierarchy::detect() {
        missing.push(format!("control groups: {error:#}"));
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "local clusters cannot run on this machine; missing:\n  - {}\n{ALTERNATIVE}",
        missing.join("\n  - ")
    );
}

/// Fails unless this process is root's.
pub fn require_root(what: &str) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    bail!("{what} need root rights: run them as root");
}

fn has_module(name: &str) -> bool {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let index = format!("/lib/modules/{}/modules.dep", release.trim());
    fs::read_to_string(index).is_ok_and(|list| list.contains(&format!("/{name}.ko")))
}

/// Installs the Debian packages that clusters and their tools need and that are not there.
pub async fn ensure_cluster_packages(progress: &Progress) -> Result<()> {
    ensure(CLUSTER_PACKAGES.iter().chain([&SECCOMP]), progress).await
}

/// Installs the Debian packages that making images needs and that are not there.
pub async fn ensure_image_packages(progress: &Progress) -> Result<()> {
    ensure(IMAGE_PACKAGES.iter(), progress).await
}

async fn ensure(packages: impl Iterator<Item = &Package>, progress: &Progress) -> Result<()> {
    let missing: Vec<&str> = packages
        .filter(|package| command::find(package.proof).is_none())
        .map(|package| package.name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if command::find("apt-get").is_none() || !nix::unistd::geteuid().is_root() {
        bail!(
            "these Debian packages (or what they hold) are missing: {list}; install them, or {ALTERNATIVE}"
        );
    }
    let step = progress.step(format!("install {list}"));
    let cache = paths::cache()?;
    fs::create_dir_all(&cache).with_context(|| format!("could not make {}", cache.display()))?;
    let lock = tools::exclusive(&cache.join("apt.lock")).await?;
    apt(&["update", "-q"]).await?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(&missing);
    apt(&arguments).await.with_context(|| format!("could not install {list}"))?;
    drop(lock);
    step.done();
    Ok(())
}

async fn apt(arguments: &[&str]) -> Result<()> {
    let mut apt = command::command("apt-get");
    apt.args(["-o", "DPkg::Lock::Timeout=300"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command::finish(&mut apt).await.map(drop)
}
