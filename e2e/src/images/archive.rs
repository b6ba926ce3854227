//! Image archives that come out the same for the same content.
//!
//! An archive is an OCI image layout (image-spec 1.1) with the `manifest.json` of `docker save` beside it, so
//! that containerd, Docker, Podman and skopeo all read it. Layers are not compressed: they are loaded on the
//! machine that made them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The media type of the manifests we write.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// What runs in the image.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `uid:gid`.
    pub user: String,
    /// The program and its arguments.
    pub entrypoint: Vec<String>,
    /// `NAME=value` each.
    pub environment: Vec<String>,
}

/// Writes the files of a layer; owner, time and order are the caller's or fixed, never the machine's.
pub struct Layer<W: Write> {
    tar: Builder<Hashing<W>>,
}

impl<W: Write> Layer<W> {
    /// A layer that is written to `output`.
    pub fn new(output: W) -> Self {
        Self { tar: Builder::new(Hashing { output, hash: Sha256::new(), bytes: 0 }) }
    }

    /// Adds a folder.
    pub fn folder(&mut self, path: &str, mode: u32, owner: u64) -> Result<()> {
        let mut header = header(EntryType::Directory, mode, owner, 0);
        self.tar.append_data(&mut header, path, io::empty()).with_context(|| format!("could not add {path}"))
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, size: u64, content: impl Read) -> Result<()> {
        let mut header = header(EntryType::Regular, mode, 0, size);
        self.tar.append_data(&mut header, path, content).with_context(|| format!("could not add {path}"))
    }

    /// Adds an entry of another archive under its own name, with the time fixed.
    pub fn copy<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<()> {
        let path = entry.path()?.into_owned();
        let mut header = Header::new_gnu();
        header.set_entry_type(entry.header().entry_type());
        header.set_mode(entry.header().mode()?);
        header.set_uid(entry.header().uid()?);
        header.set_gid(entry.header().gid()?);
        header.set_mtime(0);
        let shown = path.display().to_string();
        if let Some(target) = entry.link_name()?.map(std::borrow::Cow::into_owned) {
            header.set_size(0);
            self.tar.append_link(&mut header, &path, &target)
        } else {
            header.set_size(entry.header().size()?);
            self.tar.append_data(&mut header, &path, entry)
        }
        .with_context(|| format!("could not add {shown}"))
    }

    /// Ends the layer: its digest (64 hexadecimal digits) and its size.
    pub fn finish(self) -> Result<(String, u64)> {
        let mut hashing = self.tar.into_inner().context("could not end the layer")?;
        hashing.output.flush().context("could not write the layer")?;
        Ok((hex::encode(hashing.hash.finalize()), hashing.bytes))
    }
}

/// Writes an archive with one layer, by a rename.
pub fn write(
    archive: &Path,
    reference: &str,
    settings: &Settings,
    layer: &Path,
    digest: &str,
    size: u64,
) -> Result<()> {
    let config = json!({
        "architecture": architecture()?,
        "os": "linux",
        "config": {
            "User": settings.user,
            "Entrypoint": settings.entrypoint,
            "Env": settings.environment,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    })
    .to_string();
    let config_digest = sha256(config.as_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": format!("sha256:{config_digest}"),
            "size": config.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": format!("sha256:{digest}"),
            "size": size,
        }],
    })
    .to_string();
    let manifest_digest = sha256(manifest.as_bytes());
    let tag = reference.rsplit_once(':').map(|(_, tag)| tag).context("an image reference needs a tag")?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": MANIFEST_TYPE,
            "digest": format!("sha256:{manifest_digest}"),
            "size": manifest.len(),
            "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag},
        }],
    })
    .to_string();
    let docker = json!([{
        "Config": format!("blobs/sha256/{config_digest}"),
        "RepoTags": [reference],
        "Layers": [format!("blobs/sha256/{digest}")],
    }])
    .to_string();

    let draft = archive.with_added_extension("new");
    let file = File::create(&draft).with_context(|| format!("could not write {}", draft.display()))?;
    let mut tar = Builder::new(BufWriter::new(file));
    // manifest.json first: it is what `tag_of` looks for.
    let texts = [
        ("manifest.json".to_owned(), docker),
        ("index.json".to_owned(), index),
        ("oci-layout".to_owned(), r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
        (format!("blobs/sha256/{config_digest}"), config),
        (format!("blobs/sha256/{manifest_digest}"), manifest),
    ];
    for (path, text) in &texts {
        let mut header = header(EntryType::Regular, 0o644, 0, text.len() as u64);
        tar.append_data(&mut header, path, text.as_bytes())?;
    }
    let content = File::open(layer).with_context(|| format!("could not read {}", layer.display()))?;
    let mut header = header(EntryType::Regular, 0o644, 0, size);
    tar.append_data(&mut header, format!("blobs/sha256/{digest}"), BufReader::new(content))?;
    tar.into_inner()?.flush()?;
    std::fs::rename(&draft, archive).with_context(|| format!("could not write {}", archive.display()))
}

/// The name of the image in an archive.
pub fn tag_of(archive: &Path) -> Result<String> {
    let file =
        File::open(archive).with_context(|| format!("could not read the image {}", archive.display()))?;
    // The reasons that a tar reader gives for what is no tar file tell nobody anything.
    find_tag(file).ok().with_context(|| {
        format!(
            "{} is no image archive (OCI layout or `docker save`, not compressed) with a name",
            archive.display()
        )
    })
}

fn find_tag(file: impl Read + Seek) -> Result<String> {
    let mut tar = tar::Archive::new(file);
    for entry in tar.entries_with_seek()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let pointers: &[&str] = match path.trim_start_matches("./") {
            "manifest.json" => &["/0/RepoTags/0"],
            "index.json" => &[
                "/manifests/0/annotations/io.containerd.image.name",
                "/manifests/0/annotations/org.opencontainers.image.ref.name",
            ],
            _ => continue,
        };
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        let value: Value = serde_json::from_str(&text)?;
        if let Some(tag) = pointers.iter().find_map(|pointer| value.pointer(pointer)?.as_str()) {
            return Ok(tag.to_owned());
        }
    }
    bail!("neither manifest.json nor index.json names it")
}

/// What a registry keeps of an image.
#[derive(Debug)]
pub struct Content {
    /// The manifest, byte for byte.
    pub manifest: Vec<u8>,
    /// All that the manifest names, by digest (`sha256:` and 64 hexadecimal digits).
    pub blobs: BTreeMap<String, Vec<u8>>,
}

/// Reads an archive that [`write`] made.
pub fn content(archive: &Path) -> Result<Content> {
    let unread = || format!("could not read the image {}", archive.display());
    let mut tar = tar::Archive::new(BufReader::new(File::open(archive).with_context(unread)?));
    let (mut blobs, mut index) = (BTreeMap::new(), Value::Null);
    for entry in tar.entries().with_context(unread)? {
        let mut entry = entry.with_context(unread)?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).with_context(unread)?;
        if path == "index.json" {
            index = serde_json::from_slice(&bytes).with_context(unread)?;
        } else if let Some(digest) = path.strip_prefix("blobs/sha256/") {
            blobs.insert(format!("sha256:{digest}"), bytes);
        }
    }
    let manifest = index
        .pointer("/manifests/0/digest")
        .and_then(Value::as_str)
        .and_then(|digest| blobs.remove(digest))
        .with_context(|| format!("{} has no manifest", archive.display()))?;
    Ok(Content { manifest, blobs })
}

/// The name OCI has for this machine's architecture.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("images are made on x86_64 and aarch64 only, not on {other}"),
    }
}

fn header(kind: EntryType, mode: u32, owner: u64, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_size(size);
    header.set_mtime(0);
    header
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Counts and hashes what passes through.
struct Hashing<W> {
    output: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(folder: &Path, name: &str) -> Vec<u8> {
        let layer = folder.join(format!("{name}.layer"));
        let mut writer = Layer::new(File::create(&layer).unwrap());
        writer.folder("data/", 0o755, 999).unwrap();
        writer.file("hello", 0o755, 5, &b"hello"[..]).unwrap();
        let (digest, size) = writer.finish().unwrap();
        let archive = folder.join(format!("{name}.tar"));
        write(&archive, "localhost/sample:1", &Settings::default(), &layer, &digest, size).unwrap();
        assert_eq!(tag_of(&archive).unwrap(), "localhost/sample:1");
        std::fs::read(archive).unwrap()
    }

    #[test]
    fn the_same_content_gives_the_same_archive() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(sample(folder.path(), "one"), sample(folder.path(), "two"));
    }

    #[test]
    fn a_file_that_is_no_archive_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        std::fs::write(&file, "not a tar file").unwrap();
        assert!(tag_of(&file).unwrap_err().to_string().contains("no image archive"));
    }
}
