//! Control groups of the nodes, version 1 and 2.
//!
//! Each node has one group of its own in every hierarchy; its kubelet makes the pods' groups below. So the
//! processes of a node's containers are exactly those in its group, which is what makes `down` safe.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// How this machine mounts control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// One mount per controller, and maybe a unified mount without any, in which runc makes groups as well.
    V1(Vec<PathBuf>, Option<PathBuf>),
    /// One unified mount.
    V2(PathBuf),
}

/// The controllers kubelet wants.
const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

impl Hierarchy {
    /// Reads the mounts of this machine.
    pub fn detect() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("could not read /proc/self/mounts")?;
        Self::parse(&mounts)
    }

    fn parse(mounts: &str) -> Result<Self> {
        let mut v1 = Vec::new();
        let mut v2 = None;
        let mut found = Vec::new();
        for line in mounts.lines() {
            let mut fields = line.split_whitespace().skip(1);
            let (Some(path), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            match kind {
                "cgroup" => {
                    found.extend(options.split(',').map(str::to_owned));
                    v1.push(PathBuf::from(path));
                }
                "cgroup2" => v2 = Some(PathBuf::from(path)),
                _ => {}
            }
        }
        if v1.is_empty() {
            return v2.map(Self::V2).context("no cgroup file system is mounted at /sys/fs/cgroup");
        }
        let missing: Vec<&str> =
            NEEDED.into_iter().filter(|need| !found.iter().any(|has| has == need)).collect();
        if !missing.is_empty() {
            bail!("the controllers {} are not mounted (cgroup version 1)", missing.join(", "));
        }
        Ok(Self::V1(v1, v2))
    }

    /// Makes a group in every hierarchy, with the limits of its parent. Does nothing where it exists.
    pub fn create(&self, group: &str) -> Result<()> {
        match self {
            Self::V1(roots, _) => {
                for root in roots {
                    make(&root.join(group))?;
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        inherit(root, group, file)?;
                    }
                }
            }
            Self::V2(root) => {
                let available = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                let missing: Vec<&str> = NEEDED
                    .into_iter()
                    .filter(|need| !available.split_whitespace().any(|has| has == *need))
                    .collect();
                if !missing.is_empty() {
                    bail!("the controllers {} are not in {}", missing.join(", "), root.display());
                }
                // No more than what is needed: where one controller cannot be delegated, none of the list is.
                let wanted: Vec<String> = NEEDED
                    .into_iter()
                    .chain(available.split_whitespace().filter(|name| *name == "io"))
                    .map(|name| format!("+{name}"))
                    .collect();
                delegate(root, &wanted)?;
                make(&root.join(group))?;
                delegate(&root.join(group), &wanted)?;
            }
        }
        Ok(())
    }

    /// The processes in a group and all groups below it.
    pub fn processes(&self, group: &str) -> Vec<i32> {
        let root = match self {
            // Every process is in every hierarchy; a container's init is moved into all before it runs.
            Self::V1(roots, _) => roots.iter().find(|root| root.ends_with("pids")).or(roots.first()),
            Self::V2(root) => Some(root),
        };
        let mut pids = Vec::new();
        for folder in root.map(|root| tree(&root.join(group))).unwrap_or_default() {
            let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            pids.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
        pids
    }

    /// Thaws a group and all below it: a frozen process does not die, not even of SIGKILL (version 1).
    pub fn thaw(&self, group: &str) {
        for root in self.roots() {
            for folder in tree(&root.join(group)) {
                // Most folders have neither file; a group that is gone needs no thawing.
                let _ = write_existing(&folder.join("freezer.state"), "THAWED");
                let _ = write_existing(&folder.join("cgroup.freeze"), "0");
            }
        }
    }

    /// Removes a group and all below it from every hierarchy. They must hold no processes.
    pub fn remove(&self, group: &str) -> Result<()> {
        for root in self.roots() {
            for folder in tree(&root.join(group)) {
                fs::remove_dir(&folder)
                    .with_context(|| format!("could not remove the cgroup {}", folder.display()))?;
            }
        }
        Ok(())
    }

    /// The groups of this machine with a prefix.
    pub fn groups(&self, prefix: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .roots()
            .iter()
            .filter_map(|root| fs::read_dir(root).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn roots(&self) -> Vec<&PathBuf> {
        match self {
            Self::V1(roots, unified) => roots.iter().chain(unified).collect(),
            Self::V2(root) => vec![root],
        }
    }
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("could not make the cgroup {}", folder.display()))
}

/// Gives a new cpuset group its parent's processors: an empty one takes no process.
fn inherit(root: &Path, group: &str, file: &str) -> Result<()> {
    let own = root.join(group).join(file);
    if !fs::read_to_string(&own).is_ok_and(|now| now.trim().is_empty()) {
        return Ok(());
    }
    let parents = fs::read_to_string(root.join(file)).with_context(|| format!("could not read {file}"))?;
    fs::write(&own, parents.trim()).with_context(|| format!("could not write {}", own.display()))
}

fn delegate(folder: &Path, controllers: &[String]) -> Result<()> {
    let file = folder.join("cgroup.subtree_control");
    fs::write(&file, controllers.join(" ")).with_context(|| {
        format!(
            "could not write {}: if processes are in this group itself, move them to a group below it",
            file.display()
        )
    })
}

fn write_existing(file: &Path, value: &str) -> Result<()> {
    if file.exists() {
        fs::write(file, value)?;
    }
    Ok(())
}

/// A folder and all folders below it, deepest first.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(entries) = fs::read_dir(folder) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(tree(&entry.path()));
            }
        }
        found.push(folder.to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separate_controllers_are_version_one_even_beside_a_unified_mount() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert!(matches!(Hierarchy::parse(mounts), Ok(Hierarchy::V1(roots, Some(_))) if roots.len() == 4));
    }

    #[test]
    fn one_unified_mount_is_version_two() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(Hierarchy::parse(mounts).unwrap(), Hierarchy::V2("/sys/fs/cgroup".into()));
    }

    #[test]
    fn a_missing_controller_is_named() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuset,pids 0 0\n";
        assert!(Hierarchy::parse(mounts).unwrap_err().to_string().contains("memory"));
    }
}
