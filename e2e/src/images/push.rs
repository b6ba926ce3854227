//! Pushing our image to a registry, for clusters that are not local.

use anyhow::{Context, Result, bail};
use docker_credential::{CredentialRetrievalError, DockerCredential};
use http::HeaderValue;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};

use super::Image;
use super::archive;
use crate::kubernetes::install_tls_provider;

/// The name under which Docker keeps what its own registry wants.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Pushes an image; returns its name in the registry, which is `HOST[:PORT][/PATH]` as in the name of an image.
///
/// What is there already is not sent again. Registries of this machine are spoken to without TLS, as containerd
/// does; who we are to others is what `docker login` or `podman login` has kept.
pub async fn push(image: &Image, registry: &str) -> Result<String> {
    let (_, name) = image.reference.split_once('/').context("an image reference has a registry")?;
    let target = named(name, registry)?;
    send(image, &target)
        .await
        .with_context(|| format!("could not push our image to {target} (--image-registry {registry})"))?;
    Ok(target.whole())
}

/// Fails unless images can be named in a registry.
pub fn check(registry: &str) -> Result<()> {
    named("mysql-fleet:tag", registry).map(drop)
}

/// The image's name in a registry.
fn named(name: &str, registry: &str) -> Result<Reference> {
    let whole = format!("{}/{name}", registry.trim_end_matches('/'));
    whole.parse().ok().filter(|_| !registry.contains("://")).with_context(|| {
        format!(
            "--image-registry {registry} is no place for an image: it is HOST[:PORT][/PATH], as localhost:5001"
        )
    })
}

async fn send(image: &Image, target: &Reference) -> Result<()> {
    install_tls_provider();
    let host = target.resolve_registry();
    let plain = if is_local(host) { vec![host.to_owned()] } else { Vec::new() };
    let client = Client::try_from(ClientConfig {
        protocol: ClientProtocol::HttpsExcept(plain),
        // One request for each blob: not every registry takes chunks.
        use_monolithic_push: true,
        connect_timeout: Some(std::time::Duration::from_secs(10)),
        ..ClientConfig::default()
    })?;
    client.auth(target, &credential(host)?, RegistryOperation::Push).await?;
    let content = archive::content(&image.archive)?;
    for (digest, blob) in content.blobs {
        // Where it can't be asked for, it is sent.
        if !client.blob_exists(target, &digest).await.unwrap_or(false) {
            client.push_blob(target, blob, &digest).await?;
        }
    }
    let kind = HeaderValue::from_static(archive::MANIFEST_TYPE);
    client.push_manifest_raw(target, content.manifest, kind).await?;
    Ok(())
}

/// Whether a registry is this machine's own.
fn is_local(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.ends_with(".localhost") || name.starts_with("127.") || name == "[::1]"
}

/// Who we are to a registry.
fn credential(host: &str) -> Result<RegistryAuth> {
    let server = if host == "index.docker.io" { DOCKER_HUB } else { host };
    for kept in [docker_credential::get_credential, docker_credential::get_podman_credential] {
        match kept(server) {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                return Ok(RegistryAuth::Basic(user, password));
            }
            Ok(DockerCredential::IdentityToken(_)) => bail!(
                "what was kept at the login to {host} is an identity token, which is of no use here: log in with \
                 a password or an access token"
            ),
            Err(
                CredentialRetrievalError::NoCredentialConfigured
                | CredentialRetrievalError::ConfigNotFound
                | CredentialRetrievalError::ConfigReadError,
            ) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("could not read who you are at {host}"));
            }
        }
    }
    Ok(RegistryAuth::Anonymous)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::Bytes;
    use axum::extract::{Query, State};
    use axum::http::{Method, StatusCode, Uri, header};
    use axum::response::{IntoResponse, Response};
    use tokio::net::TcpListener;

    use super::*;
    use crate::images::archive::{Layer, Settings, content, write};

    /// What a registry has been sent: blobs and manifests by path, and how many requests wrote.
    #[derive(Default)]
    struct Sent {
        stored: BTreeMap<String, Vec<u8>>,
        writes: u32,
    }

    type Shared = Arc<Mutex<Sent>>;

    /// As much of a registry (distribution-spec 1.1) as a push asks for. As real ones, it refuses a blob that has
    /// another digest, and a manifest whose blobs it lacks.
    async fn registry() -> (String, Shared) {
        let shared = Shared::default();
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        (place, shared)
    }

    async fn answer(
        State(shared): State<Shared>,
        Query(query): Query<BTreeMap<String, String>>,
        method: Method,
        uri: Uri,
        body: Bytes,
    ) -> Response {
        const NAME: &str = "/v2/team/mysql-fleet";
        let mut sent = shared.lock().unwrap();
        let path = uri.path();
        let created = |at: String| (StatusCode::CREATED, [(header::LOCATION, at)]).into_response();
        match method {
            Method::GET if path == "/v2/" => StatusCode::OK.into_response(),
            Method::HEAD if sent.stored.contains_key(path) => StatusCode::OK.into_response(),
            Method::POST if path == format!("{NAME}/blobs/uploads/") => {
                let at = format!("{NAME}/blobs/uploads/1");
                (StatusCode::ACCEPTED, [(header::LOCATION, at)]).into_response()
            }
            Method::PUT if path == format!("{NAME}/blobs/uploads/1") => {
                sent.writes += 1;
                let digest = query.get("digest").cloned().unwrap_or_default();
                if digest != digest_of(&body) {
                    return (StatusCode::BAD_REQUEST, "another digest").into_response();
                }
                let at = format!("{NAME}/blobs/{digest}");
                sent.stored.insert(at.clone(), body.into());
                created(at)
            }
            Method::PUT if path.starts_with(&format!("{NAME}/manifests/")) => {
                sent.writes += 1;
                let manifest: serde_json::Value = serde_json::from_slice(&body).unwrap();
                for pointer in ["/config/digest", "/layers/0/digest"] {
                    let digest = manifest.pointer(pointer).unwrap().as_str().unwrap();
                    if !sent.stored.contains_key(&format!("{NAME}/blobs/{digest}")) {
                        return (StatusCode::BAD_REQUEST, "a blob is missing").into_response();
                    }
                }
                sent.stored.insert(path.to_owned(), body.into());
                created(path.to_owned())
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }

    fn digest_of(bytes: &[u8]) -> String {
        use sha2::{Digest, Sha256};
        format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
    }

    fn sample(folder: &Path) -> Image {
        let layer = folder.join("layer.tar");
        let mut writer = Layer::new(File::create(&layer).unwrap());
        writer.file("hello", 0o755, 5, &b"hello"[..]).unwrap();
        let (digest, size) = writer.finish().unwrap();
        let (archive, reference) = (folder.join("image.tar"), "localhost/mysql-fleet:abc".to_owned());
        write(&archive, &reference, &Settings::default(), &layer, &digest, size).unwrap();
        Image { reference, archive }
    }

    #[tokio::test]
    async fn a_registry_gets_the_image_as_it_is_in_the_archive_and_each_blob_once() {
        let folder = tempfile::tempdir().unwrap();
        let image = sample(folder.path());
        let (place, shared) = registry().await;
        let name = push(&image, &format!("{place}/team/")).await.unwrap();
        assert_eq!(name, format!("{place}/team/mysql-fleet:abc"));
        let manifest = content(&image.archive).unwrap().manifest;
        {
            let sent = shared.lock().unwrap();
            assert_eq!(sent.stored["/v2/team/mysql-fleet/manifests/abc"], manifest);
            assert_eq!(sent.writes, 3);
        }
        push(&image, &format!("{place}/team")).await.unwrap();
        assert_eq!(shared.lock().unwrap().writes, 4, "only the manifest is sent again");
    }

    #[tokio::test]
    async fn a_registry_that_is_wrong_is_named_with_the_flag() {
        let folder = tempfile::tempdir().unwrap();
        let image = sample(folder.path());
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let (place, _shared) = registry().await;
        for (registry, part) in [
            (format!("https://{place}"), "HOST[:PORT]"),
            ("A B".to_owned(), "HOST[:PORT]"),
            (unused, "refused"),
            (format!("{place}/nobody"), "404"),
        ] {
            let error = format!("{:#}", push(&image, &registry).await.unwrap_err());
            for part in ["--image-registry", &registry, part] {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }

    #[test]
    fn only_registries_of_this_machine_are_spoken_to_without_tls() {
        for host in ["localhost:5001", "localhost", "127.0.0.1:80", "k3d-x.localhost:5000", "[::1]:5000"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["ghcr.io", "localhost.example:5000", "registry:5000", "index.docker.io"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
