//! What tests and tasks do with a Kubernetes cluster: connect, apply text, wait.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::{ApiResource, Scope};
use kube::{Client, Config};
use serde::Deserialize;
use tokio::io::AsyncReadExt;

use crate::wait;

/// The field manager of what we apply.
pub const MANAGER: &str = "mysql-fleet-xtask";

/// Chooses the cryptography of TLS for this process. May be called any number of times.
pub fn install_tls_provider() {
    // An error says that it was chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client as the current context of a kubeconfig file says.
pub async fn client_from_file(file: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(file)
        .with_context(|| format!("could not read the kubeconfig {}", file.display()))?;
    client(kubeconfig, KubeConfigOptions::default()).await
}

/// A client for a context of the user's own kubeconfig (`$KUBECONFIG`, else `~/.kube/config`).
pub async fn client_for_context(context: &str) -> Result<Client> {
    let kubeconfig =
        Kubeconfig::read().context("could not read your kubeconfig (KUBECONFIG, ~/.kube/config)")?;
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    client(kubeconfig, options).await.with_context(|| format!("could not use the context \"{context}\""))
}

async fn client(kubeconfig: Kubeconfig, options: KubeConfigOptions) -> Result<Client> {
    install_tls_provider();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    Ok(Client::try_from(config)?)
}

/// Succeeds when the API server says it is ready.
pub async fn ready(client: &Client) -> Result<()> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    let answer = client.request_text(request).await?;
    if answer == "ok" { Ok(()) } else { bail!("/readyz answered {answer}") }
}

/// Applies every document of a YAML text by server-side apply; `namespace` is for those that name none.
///
/// A kind that is not served yet is waited for, as a CustomResourceDefinition before it takes a moment.
pub async fn apply(client: &Client, text: &str, namespace: &str) -> Result<Vec<DynamicObject>> {
    let mut applied = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let value = serde_yaml_ng::Value::deserialize(document).context("the text to apply is not YAML")?;
        if value.is_null() {
            continue;
        }
        let object: DynamicObject =
            serde_yaml_ng::from_value(value).context("a document to apply is no Kubernetes object")?;
        applied.push(apply_object(client, &object, namespace).await?);
    }
    Ok(applied)
}

/// Applies one object by server-side apply.
pub async fn apply_object(client: &Client, object: &DynamicObject, namespace: &str) -> Result<DynamicObject> {
    let types = object.types.clone().context("an object to apply has no apiVersion and kind")?;
    let name =
        object.metadata.name.clone().with_context(|| format!("a {} to apply has no name", types.kind))?;
    let (resource, scope) = resolve(client, &types).await?;
    let api: Api<DynamicObject> = match scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or(namespace);
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object))
        .await
        .with_context(|| format!("could not apply {} {name}", types.kind))
}

async fn resolve(client: &Client, types: &TypeMeta) -> Result<(ApiResource, Scope)> {
    let kind = GroupVersionKind::try_from(types)?;
    let what = format!("the kind {} of {} to be served", types.kind, types.api_version);
    wait::until(what, Duration::from_secs(10), Duration::from_millis(100), || async {
        let (resource, capabilities) = kube::discovery::pinned_kind(client, &kind).await?;
        Ok((resource, capabilities.scope))
    })
    .await
}

/// Runs a program in a container and returns its standard output. Its failure is an error that says what it
/// wrote.
pub async fn exec(
    client: &Client,
    namespace: &str,
    pod: &str,
    container: &str,
    command: &[&str],
) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = AttachParams::default().container(container).stdin(false);
    let what = || format!("could not run {} in the pod {pod}", command.first().copied().unwrap_or_default());
    let mut attached = pods.exec(pod, command.iter().copied(), &parameters).await.with_context(what)?;
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let (mut out, mut err) = (attached.stdout(), attached.stderr());
    let read_out = async {
        match out.as_mut() {
            Some(stream) => stream.read_to_string(&mut stdout).await,
            None => Ok(0),
        }
    };
    let read_err = async {
        match err.as_mut() {
            Some(stream) => stream.read_to_string(&mut stderr).await,
            None => Ok(0),
        }
    };
    let status = attached.take_status();
    tokio::try_join!(read_out, read_err).with_context(what)?;
    let ended = match status {
        Some(status) => status.await,
        None => None,
    };
    match ended {
        Some(status) if status.status.as_deref() == Some("Success") => Ok(stdout),
        Some(status) => bail!("{}: {}: {}", what(), status.message.unwrap_or_default(), stderr.trim()),
        None => bail!("{}: the connection ended before the program: {}", what(), stderr.trim()),
    }
}

/// A table of resources as `kubectl get` prints it: the rows, each with its cells, below the headings.
pub async fn table(client: &Client, path: &str) -> Result<Vec<Vec<String>>> {
    let request = http::Request::get(path)
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())?;
    let table: serde_json::Value =
        client.request(request).await.with_context(|| format!("could not list {path}"))?;
    let list = |pointer: &str| {
        table.pointer(pointer).and_then(|value| value.as_array()).cloned().unwrap_or_default()
    };
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let headings = list("/columnDefinitions")
        .iter()
        .map(|column| column.get("name").map(text).unwrap_or_default())
        .collect();
    let rows = list("/rows").into_iter().map(|row| {
        row.get("cells")
            .and_then(|cells| cells.as_array())
            .map(|cells| cells.iter().map(text).collect())
            .unwrap_or_default()
    });
    Ok(std::iter::once(headings).chain(rows).collect())
}
