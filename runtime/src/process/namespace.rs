//! Whether the namespace is there, asked with the rights that a controller of it has.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::sleep;

/// How long to wait before an API server that can't be reached is asked again.
const AGAIN: Duration = Duration::from_secs(2);

/// The namespace can't be managed.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// It does not exist.
    #[error("--namespace {0}: there is no such namespace: create it, or name another one")]
    Missing(String),
    /// The credentials have no rights in it.
    #[error("--namespace {namespace}: {message}. {advice}")]
    Forbidden {
        /// The namespace.
        namespace: String,
        /// What the API server says.
        message: String,
        /// Where the rights come from.
        advice: String,
    },
}

/// Waits until the API server answers, and says whether the namespace is there.
///
/// Who works for one namespace may not read Namespaces: asked for is the dry run of a Lease, which it may make.
pub(super) async fn wait(client: &Client, namespace: &str, advice: &str) -> Result<(), NamespaceError> {
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    let probe = Lease {
        metadata: ObjectMeta { generate_name: Some("probe-".to_owned()), ..ObjectMeta::default() },
        spec: None,
    };
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut complaint = String::new();
    loop {
        match leases.create(&dry_run, &probe).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(NamespaceError::Missing(namespace.to_owned()));
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
                return Err(NamespaceError::Forbidden {
                    namespace: namespace.to_owned(),
                    message: status.message,
                    advice: advice.to_owned(),
                });
            }
            Err(error) => {
                let text = error.to_string();
                if text != complaint {
                    tracing::warn!(error = text, "the API server does not answer; it is asked again");
                    complaint = text;
                }
                sleep(AGAIN).await;
            }
        }
    }
}
