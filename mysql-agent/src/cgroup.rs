//! The memory limit of the container, from cgroup v2 or v1.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// cgroup v1 says "no limit" by a number close to 2^63, rounded to pages.
const UNLIMITED: u64 = 1 << 60;

/// The memory limit in bytes that holds for this process, or `None` where there is none.
///
/// `root` is the root of the file system. Inside a container the cgroup's own files are at the mount's
/// root, outside at the path that /proc/self/cgroup names: the lowest limit on the way up counts.
pub fn memory_limit(root: &Path) -> Option<u64> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let v2 = limits(&mount, path_of(&membership, str::is_empty), "memory.max");
    let v1 = limits(
        &mount.join("memory"),
        path_of(&membership, |controllers| controllers.split(',').any(|name| name == "memory")),
        "memory.limit_in_bytes",
    );
    v2.into_iter().chain(v1).min()
}

/// The cgroup's path in the hierarchy that `wanted` picks by its controllers.
fn path_of(membership: &str, wanted: impl Fn(&str) -> bool) -> &str {
    membership
        .lines()
        .filter_map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>().try_into().ok())
        .find_map(|[controllers, path]: [&str; 2]| wanted(controllers).then_some(path))
        .unwrap_or("/")
}

fn limits(mount: &Path, path: &str, file: &str) -> Vec<u64> {
    let below: PathBuf = mount.join(path.trim_start_matches('/'));
    below
        .ancestors()
        .take_while(|dir| dir.starts_with(mount))
        .filter_map(|dir| fs::read_to_string(dir.join(file)).ok())
        .filter_map(|text| parse(&text))
        .collect()
}

fn parse(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn v2_limit_at_the_mount_of_a_container() {
        let dir = root(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "536870912\n")]);
        assert_eq!(memory_limit(dir.path()), Some(536_870_912));
    }

    #[test]
    fn v2_lowest_limit_on_the_way_up_counts() {
        let dir = root(&[
            ("proc/self/cgroup", "0::/pod/c\n"),
            ("sys/fs/cgroup/pod/memory.max", "1000\n"),
            ("sys/fs/cgroup/pod/c/memory.max", "max\n"),
        ]);
        assert_eq!(memory_limit(dir.path()), Some(1000));
    }

    #[test]
    fn v1_limit_at_the_mount_though_the_membership_names_the_host_path() {
        let dir = root(&[
            ("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/kubepods/pod1/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "734003200\n"),
        ]);
        assert_eq!(memory_limit(dir.path()), Some(734_003_200));
    }

    #[test]
    fn v1_without_limit() {
        let dir = root(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(memory_limit(dir.path()), None);
    }

    #[test]
    fn no_cgroup_at_all() {
        assert_eq!(memory_limit(root(&[]).path()), None);
    }
}
