//! A MySQL image for local use, from Debian's packages.
//!
//! Debian unstable has MySQL 9.7; its index is allowed to be out of date, as its signature still proves where
//! it comes from. What neither mysqld nor a person at its prompt needs is left out.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::Image;
use super::archive::{self, Layer, Settings};
use crate::progress::Progress;
use crate::{command, host, paths, tools};

/// The series that is tested.
const SERIES: &str = "9.7.";
const MIRROR: &str = "http://deb.debian.org/debian";
const SUITE: &str = "sid";
const PACKAGES: &str = "base-files,coreutils,dash,mysql-client-core,mysql-server-core";

/// The user mysqld runs as in our pods.
const MYSQL_USER: u64 = 999;

/// Left out: all that begins like this.
const LEFT_OUT: [&str; 13] = [
    "boot/",
    "dev/",
    "etc/apt/",
    "proc/",
    "sys/",
    "usr/lib/x86_64-linux-gnu/gconv/",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/share/bug/",
    "usr/share/doc/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/man/",
    "usr/share/perl",
];

/// The programs of MySQL that stay; the others are linked statically and large.
const KEPT_PROGRAMS: [&str; 4] = ["mysql", "mysqladmin", "mysqlbinlog", "mysqldump"];

/// Files that a root file system should have and that no package brings.
const EXTRA: [(&str, &str); 3] = [
    ("etc/group", "root:x:0:\nmysql:x:999:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nmysql:x:999:999:MySQL:/var/lib/mysql:/bin/sh\n"),
];

/// What is in the cache.
#[derive(Debug, Clone)]
pub struct Mysql {
    /// The image.
    pub image: Image,
    /// The same files unpacked, for tests that run mysqld by chroot without Kubernetes.
    pub rootfs: PathBuf,
    /// The version, as `9.7.4`.
    pub version: String,
}

/// The MySQL image and its unpacked files, made if they are not in the cache. Making needs root and a Debian.
pub async fn mysql(progress: &Progress) -> Result<Mysql> {
    let store = paths::cache()?.join("images");
    let recipe = format!(
        "{SUITE} {PACKAGES} {LEFT_OUT:?} {KEPT_PROGRAMS:?} {EXTRA:?} {MYSQL_USER} {}",
        std::env::consts::ARCH
    );
    let key: String = hex::encode(Sha256::digest(recipe)).chars().take(16).collect();
    let folder = store.join(format!("mysql-{key}"));
    if !folder.is_dir() {
        if !nix::unistd::geteuid().is_root() {
            bail!(
                "making the MySQL image needs root rights (a root file system is unpacked): run it as root"
            );
        }
        host::ensure_image_packages(progress).await?;
        fs::create_dir_all(&store).with_context(|| format!("could not make {}", store.display()))?;
        let step = progress.step(format!("make the MySQL image from Debian {SUITE}"));
        let lock = tools::exclusive(&store.join("mysql.lock")).await?;
        if !folder.is_dir() {
            let draft = tempfile::Builder::new().prefix(".mysql-").tempdir_in(&store)?;
            make(draft.path()).await?;
            fs::rename(draft.path(), &folder)
                .with_context(|| format!("could not write {}", folder.display()))?;
        }
        drop(lock);
        step.done();
    }
    opened(&folder)
}

/// The unpacked MySQL root file system, made if it is not in the cache.
pub async fn mysql_rootfs(progress: &Progress) -> Result<PathBuf> {
    Ok(mysql(progress).await?.rootfs)
}

fn opened(folder: &Path) -> Result<Mysql> {
    let archive = folder.join("image.tar");
    let reference = archive::tag_of(&archive)?;
    let version = reference.rsplit_once(':').map(|(_, tag)| tag.to_owned()).unwrap_or_default();
    Ok(Mysql { image: Image { reference, archive }, rootfs: folder.join("rootfs"), version })
}

async fn make(folder: &Path) -> Result<()> {
    let packed = folder.join("debian.tar");
    let mut debian = command::command("mmdebstrap");
    debian
        .args(["--quiet", "--mode=root", "--variant=extract", &format!("--include={PACKAGES}")])
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .arg("--aptopt=Acquire::Retries \"3\"")
        .arg(SUITE)
        .arg(&packed)
        .arg(MIRROR)
        // It sorts the archive by name and sets the times to this.
        .env("SOURCE_DATE_EPOCH", "0");
    command::finish(&mut debian).await.context("could not make a root file system with MySQL")?;

    let layer = folder.join("layer.tar");
    let (from, to) = (packed.clone(), layer.clone());
    let (digest, size) = tokio::task::spawn_blocking(move || strip(&from, &to))
        .await
        .context("the packing task was stopped")??;
    let rootfs = folder.join("rootfs");
    fs::create_dir(&rootfs)?;
    let unpack = ["--extract", "--numeric-owner", "--same-permissions", "--file"];
    let mut tar = command::command("tar");
    tar.args(unpack).arg(&layer).arg("--directory").arg(&rootfs);
    command::finish(&mut tar).await?;
    let version = version(&rootfs).await?;
    if !version.starts_with(SERIES) {
        bail!(
            "Debian {SUITE} now has MySQL {version}, not {SERIES}x: the local image and its tests need a review"
        );
    }
    let settings = Settings {
        user: format!("{MYSQL_USER}:{MYSQL_USER}"),
        entrypoint: vec!["/usr/sbin/mysqld".into()],
        environment: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".into()],
    };
    let reference = format!("localhost/mysql:{version}");
    archive::write(&folder.join("image.tar"), &reference, &settings, &layer, &digest, size)?;
    fs::remove_file(packed)?;
    fs::remove_file(layer)?;
    Ok(())
}

/// Copies what is kept of an archive, in its order, and adds what is missing.
fn strip(from: &Path, to: &Path) -> Result<(String, u64)> {
    let mut source = tar::Archive::new(BufReader::new(File::open(from)?));
    let mut layer = Layer::new(BufWriter::new(File::create(to)?));
    for entry in source.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        if kept(&path) {
            layer.copy(&mut entry)?;
        }
    }
    for (path, text) in EXTRA {
        layer.file(path, 0o644, text.len() as u64, text.as_bytes())?;
    }
    for path in ["run/mysqld/", "var/lib/mysql/", "fleet/"] {
        layer.folder(path, 0o755, MYSQL_USER)?;
    }
    layer.finish()
}

fn kept(path: &str) -> bool {
    if EXTRA.iter().any(|(extra, _)| *extra == path) || path.is_empty() {
        return false;
    }
    if LEFT_OUT.iter().any(|prefix| path.starts_with(prefix) && path != *prefix) {
        return false;
    }
    match path.strip_prefix("usr/bin/") {
        Some(name)
            if name.starts_with("my") || name == "perror" || name == "ibd2sdi" || name == "innochecksum" =>
        {
            KEPT_PROGRAMS.contains(&name)
        }
        Some(name) => !name.starts_with("perl"),
        None => true,
    }
}

async fn version(rootfs: &Path) -> Result<String> {
    let said =
        command::run("chroot", [rootfs.as_os_str(), "/usr/sbin/mysqld".as_ref(), "--version".as_ref()])
            .await?;
    // "/usr/sbin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))"
    let mut words = said.split_whitespace().skip_while(|word| *word != "Ver").skip(1);
    let full = words.next().with_context(|| format!("mysqld --version answered {said}"))?;
    Ok(full.split('-').next().unwrap_or(full).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_and_its_client_stay_and_manuals_go() {
        for path in ["usr/sbin/mysqld", "usr/bin/mysql", "usr/bin/ls", "usr/share/doc/", "dev/"] {
            assert!(kept(path), "{path}");
        }
        for path in
            ["usr/share/man/man1/mysql.1.gz", "usr/bin/mysqlslap", "usr/bin/perl", "dev/null", "etc/passwd"]
        {
            assert!(!kept(path), "{path}");
        }
    }
}
