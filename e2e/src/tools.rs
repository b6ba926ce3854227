//! The programs that local clusters run, built from the Go modules pinned in `tools/`.
//!
//! A build is kept in the cache under a name that has the hash of all it depends on: the module's files, the
//! flags and the version of Go. Builds are atomic (a folder is renamed into place) and exclusive (file lock),
//! so that an interrupted or a concurrent build never leaves half a result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::progress::{Progress, Step};
use crate::{command, paths, wait};

/// One folder of `tools/`: a Go module and the commands it pins.
struct Module {
    folder: &'static str,
    commands: &'static [(&'static str, &'static str)],
    tags: &'static str,
    ldflags: &'static str,
    /// runc alone needs C, for libseccomp.
    cgo: bool,
}

const KUBERNETES_FLAGS: &str = "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 \
-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 \
-X k8s.io/client-go/pkg/version.gitVersion=v1.37.2";

const SMALL: &str = "-s -w";

const MODULES: [Module; 9] = [
    Module {
        folder: "etcd",
        commands: &[("etcd", "go.etcd.io/etcd/server/v3")],
        tags: "",
        ldflags: SMALL,
        cgo: false,
    },
    Module {
        folder: "kubernetes",
        commands: &[
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
        tags: "",
        ldflags: KUBERNETES_FLAGS,
        cgo: false,
    },
    Module {
        folder: "containerd",
        commands: &[
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            ("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
            ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
        tags: "no_btrfs no_devmapper no_zfs no_aufs",
        ldflags: SMALL,
        cgo: false,
    },
    Module {
        folder: "runc",
        commands: &[("runc", "github.com/opencontainers/runc")],
        tags: "seccomp",
        ldflags: SMALL,
        cgo: true,
    },
    Module {
        folder: "coredns",
        commands: &[("coredns", "github.com/coredns/coredns")],
        tags: "",
        ldflags: SMALL,
        cgo: false,
    },
    Module {
        folder: "provisioner",
        commands: &[(
            "csi-provisioner",
            "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
        )],
        tags: "",
        ldflags: SMALL,
        cgo: false,
    },
    Module {
        folder: "resizer",
        commands: &[("csi-resizer", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer")],
        tags: "",
        ldflags: SMALL,
        cgo: false,
    },
    Module { folder: "loopcsi", commands: &[("loopcsi", ".")], tags: "", ldflags: SMALL, cgo: false },
    Module {
        folder: "registry",
        commands: &[("registry", "github.com/distribution/distribution/v3/cmd/registry")],
        tags: "",
        ldflags: SMALL,
        cgo: false,
    },
];

/// What a bare API server needs.
pub const API_SERVER: [&str; 2] = ["etcd", "kubernetes"];

/// What local clusters need.
pub const CLUSTERS: [&str; 8] =
    ["etcd", "kubernetes", "containerd", "runc", "coredns", "provisioner", "resizer", "loopcsi"];

/// A registry of images, for tests.
pub const REGISTRY: [&str; 1] = ["registry"];

/// The built programs by name.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    programs: BTreeMap<&'static str, PathBuf>,
}

impl Tools {
    /// Builds the named modules that are not in the cache.
    pub async fn of(folders: &[&str], progress: &Progress) -> Result<Self> {
        let go = Go::find().await?;
        let mut tools = Self::default();
        for module in MODULES.iter().filter(|module| folders.contains(&module.folder)) {
            let bin = module.build(&go, progress).await?;
            for (name, _) in module.commands {
                tools.programs.insert(name, bin.join(name));
            }
        }
        Ok(tools)
    }

    /// The path of a program.
    pub fn path(&self, name: &str) -> Result<&Path> {
        self.programs.get(name).map(PathBuf::as_path).with_context(|| {
            format!("the program {name} was not built: it belongs to a module that was not asked for")
        })
    }

    /// A `PATH` with all programs first.
    pub fn search_path(&self) -> String {
        let mut folders: Vec<String> = self
            .programs
            .values()
            .filter_map(|program| program.parent())
            .map(|folder| folder.display().to_string())
            .collect();
        folders.dedup();
        folders.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
        folders.join(":")
    }
}

/// The Go toolchain found on this machine.
struct Go {
    program: PathBuf,
    version: String,
}

impl Go {
    async fn find() -> Result<Self> {
        let program = command::find("go")
            .or_else(|| command::find("/usr/local/go/bin/go"))
            .context("Go is missing: install Go 1.26 or newer (https://go.dev/dl) and put it on PATH; Kubernetes is built with it")?;
        let mut ask = command::command(&program);
        ask.args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local");
        let version = command::finish(&mut ask).await?.trim().to_owned();
        Ok(Self { program, version })
    }

    /// Fails unless this toolchain is at least what a go.mod file asks for.
    fn check(&self, go_mod: &str, module: &str) -> Result<()> {
        let wanted = go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26").trim();
        let found = self.version.strip_prefix("go").unwrap_or(&self.version);
        if release(found) < release(wanted) {
            bail!(
                "{} is Go {found}, but tools/{module} needs Go {wanted} or newer: install it from https://go.dev/dl",
                self.program.display()
            );
        }
        Ok(())
    }
}

/// The numbers of a version of Go, so that they compare: `1.26.8` is `[1, 26, 8]`.
fn release(version: &str) -> Vec<u32> {
    version
        .split(['.', '-', ' '])
        .map_while(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok())
        .collect()
}

impl Module {
    fn source(&self) -> PathBuf {
        paths::checkout().join("tools").join(self.folder)
    }

    /// The hash of all that decides how the programs come out.
    fn key(&self, go: &Go) -> Result<String> {
        let source = self.source();
        let mut files: Vec<PathBuf> = fs::read_dir(&source)
            .with_context(|| format!("could not read {}", source.display()))?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "go" || end == "mod" || end == "sum"))
            .collect();
        files.sort();
        let mut hash = Sha256::new();
        for file in files {
            hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            hash.update(fs::read(&file).with_context(|| format!("could not read {}", file.display()))?);
        }
        hash.update(format!("{}|{}|{}|{}", self.tags, self.ldflags, self.cgo, go.version));
        Ok(hex::encode(hash.finalize()).chars().take(16).collect())
    }

    async fn build(&self, go: &Go, progress: &Progress) -> Result<PathBuf> {
        let store = paths::cache()?.join("tools");
        let folder = store.join(format!("{}-{}", self.folder, self.key(go)?));
        let bin = folder.join("bin");
        if bin.is_dir() {
            return Ok(bin);
        }
        fs::create_dir_all(&store).with_context(|| format!("could not make {}", store.display()))?;
        let step = progress.step(format!("build {} with Go", self.folder));
        let lock = exclusive(&store.join(format!("{}.lock", self.folder))).await?;
        if !bin.is_dir() {
            self.remove_drafts(&store)?;
            let draft = tempfile::Builder::new()
                .prefix(&format!(".{}-", self.folder))
                .tempdir_in(&store)
                .with_context(|| format!("could not make a folder in {}", store.display()))?;
            self.compile(go, &draft.path().join("bin"), &store.join(format!("{}.log", self.folder)), &step)
                .await?;
            // Mode 0700 of a temporary folder would hide the programs from other users.
            fs::create_dir_all(&folder)?;
            fs::rename(draft.path().join("bin"), &bin)
                .with_context(|| format!("could not move the programs to {}", bin.display()))?;
        }
        drop(lock);
        step.done();
        Ok(bin)
    }

    /// Removes what a build that was killed left behind. Only called under the module's lock.
    fn remove_drafts(&self, store: &Path) -> Result<()> {
        let prefix = format!(".{}-", self.folder);
        for entry in fs::read_dir(store).with_context(|| format!("could not read {}", store.display()))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_dir_all(entry.path())
                    .with_context(|| format!("could not remove {}", entry.path().display()))?;
            }
        }
        Ok(())
    }

    async fn compile(&self, go: &Go, bin: &Path, log: &Path, step: &Step) -> Result<()> {
        let source = self.source();
        let go_mod = fs::read_to_string(source.join("go.mod"))
            .with_context(|| format!("could not read {}/go.mod", source.display()))?;
        go.check(&go_mod, self.folder)?;
        let mut output = File::create(log).with_context(|| format!("could not write {}", log.display()))?;
        for (name, package) in self.commands {
            step.detail(name);
            let mut build = command::command(&go.program);
            build
                .current_dir(&source)
                .args([
                    "build",
                    "-trimpath",
                    "-buildvcs=false",
                    "-tags",
                    self.tags,
                    "-ldflags",
                    self.ldflags,
                    "-o",
                ])
                .arg(bin.join(name))
                .arg(package)
                .env("CGO_ENABLED", if self.cgo { "1" } else { "0" })
                .env("GOTOOLCHAIN", "local")
                .env("GOWORK", "off")
                .stdout(Stdio::from(output.try_clone()?))
                .stderr(Stdio::from(output.try_clone()?));
            let shown = command::show(&build);
            std::io::Write::write_all(&mut output, format!("$ {shown}\n").as_bytes())?;
            let status = build.status().await.with_context(|| format!("could not start `{shown}`"))?;
            if !status.success() {
                bail!("building {name} in tools/{} failed ({status}); {}", self.folder, wait::tail(log, 30));
            }
        }
        Ok(())
    }
}

/// Takes an exclusive lock on a file, waiting for whoever holds it; the lock ends when the file is dropped.
pub async fn exclusive(path: &Path) -> Result<File> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || {
        let file =
            File::create(&path).with_context(|| format!("could not make the lock {}", path.display()))?;
        file.lock().with_context(|| format!("could not lock {}", path.display()))?;
        Ok(file)
    })
    .await
    .context("the task that waits for a lock was stopped")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_releases_compare_by_number() {
        assert!(release("1.26.10") > release("1.26.8"));
        assert!(release("1.26.0") > release("1.26"));
        assert!(release("1.25.9") < release("1.26"));
        assert_eq!(release("1.27rc1"), [1, 27]);
    }

    #[test]
    fn every_folder_of_tools_is_a_module_here() {
        let mut folders: Vec<String> = fs::read_dir(paths::checkout().join("tools"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        folders.sort();
        let mut known: Vec<&str> = MODULES.iter().map(|module| module.folder).collect();
        known.sort_unstable();
        assert_eq!(folders, known);
    }
}
