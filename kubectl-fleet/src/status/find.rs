//! Finds the pod of a shard or of a hub and connects to it, with nothing but access to the API server.

use std::{
    fmt::{self, Display},
    future::Future,
    time::Duration,
};

use fleet_api::names::{
    FEDERATION, HUB_VIEWER_SECRET, PORT_SHARD_GRPC, SHARD, shard_client_secret, shard_host, shard_lease,
};
use fleet_runtime::{
    grpc::channel_over,
    tls::{Identity, Material, ReloadingIdentity, Role},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Portforwarder},
};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Channel};

use super::StatusError;

/// Limit of one question to the API server.
const LIMIT: Duration = Duration::from_secs(15);

/// How long the node may take to say why a port can't be forwarded.
const REFUSAL: Duration = Duration::from_secs(1);

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The shard of a tenant namespace.
    Shard,
    /// The hub of a federation.
    Hub,
}

impl Server {
    /// The Secret with the client certificate for people.
    fn secret(self, namespace: &str) -> String {
        match self {
            Self::Shard => shard_client_secret(namespace),
            Self::Hub => HUB_VIEWER_SECRET.to_owned(),
        }
    }

    fn lease(self, namespace: &str) -> String {
        match self {
            Self::Shard => shard_lease(namespace),
            Self::Hub => FEDERATION.to_owned(),
        }
    }

    /// The Deployment, and the label of its pods.
    const fn app(self) -> &'static str {
        match self {
            Self::Shard => SHARD,
            Self::Hub => FEDERATION,
        }
    }

    fn host(self, namespace: &str) -> String {
        match self {
            Self::Shard => shard_host(namespace),
            Self::Hub => format!("{FEDERATION}.{namespace}.svc"),
        }
    }

    fn identity(self, namespace: &str) -> Identity {
        match self {
            Self::Shard => Identity::new(namespace, Role::Shard),
            Self::Hub => Identity::Hub,
        }
    }

    fn missing(self, namespace: &str) -> StatusError {
        let (namespace, secret) = (namespace.to_owned(), self.secret(namespace));
        match self {
            Self::Shard => StatusError::NoShard { namespace, secret },
            Self::Hub => StatusError::NoHub { namespace, secret },
        }
    }
}

impl Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shard => "shard",
            Self::Hub => "hub",
        })
    }
}

/// A connection to one pod.
pub(crate) struct Connection {
    pub(crate) pod: String,
    server: Server,
    pub(crate) channel: Channel,
    /// Carries the connection: it ends when this is dropped.
    _forwarder: Portforwarder,
}

impl Connection {
    pub(crate) fn call_failed(&self, status: &Status) -> StatusError {
        let message = match status.code() {
            Code::PermissionDenied => match self.server {
                Server::Shard => "it refuses the client certificate: the certificate is of another namespace",
                Server::Hub => "it refuses the client certificate: the certificate is not the viewer's",
            }
            .to_owned(),
            Code::Unavailable => format!("the connection has ended ({})", status.message()),
            code => format!("{} ({code:?})", status.message()),
        };
        StatusError::Call { pod: self.pod.clone(), message }
    }
}

/// Connects to the pod that leads, or to another one while nobody does.
pub(crate) async fn connect(
    client: &Client,
    namespace: &str,
    server: Server,
) -> Result<Connection, StatusError> {
    let identity = identity(client, namespace, server).await?;
    let pod = pod(client, namespace, server).await?;
    let failed = |message: String| StatusError::Connect { pod: pod.clone(), message };
    let action = format!("forward a port of pod {namespace}/{pod}");
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut forwarder = ask(action, pods.portforward(&pod, &[PORT_SHARD_GRPC])).await?;
    let stream = forwarder
        .take_stream(PORT_SHARD_GRPC)
        .ok_or_else(|| failed("the API server forwards no port".to_owned()))?;
    let refusal = forwarder.take_error(PORT_SHARD_GRPC);
    let (host, expected) = (server.host(namespace), server.identity(namespace));
    let channel = match channel_over(stream, &host, &identity, &expected).await {
        Ok(channel) => channel,
        Err(error) => {
            // The node's own words say more than the stream that has ended, and may come a little later.
            let words = match refusal {
                Some(refusal) => timeout(REFUSAL, refusal).await.ok().flatten(),
                None => None,
            };
            return Err(failed(words.unwrap_or_else(|| error.to_string())));
        }
    };
    Ok(Connection { pod, server, channel, _forwarder: forwarder })
}

/// The client certificate that was made for those who may read its Secret.
async fn identity(
    client: &Client,
    namespace: &str,
    server: Server,
) -> Result<ReloadingIdentity, StatusError> {
    let secret = server.secret(namespace);
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let found = ask(format!("read Secret {namespace}/{secret}"), secrets.get_opt(&secret)).await?;
    let Some(found) = found else {
        let namespaces = Api::<Namespace>::all(client.clone());
        // Whoever may not read Namespaces gets the other message, which fits as well.
        return Err(match ask("read the namespace".to_owned(), namespaces.get_opt(namespace)).await {
            Ok(None) => StatusError::NoNamespace(namespace.to_owned()),
            Ok(Some(_)) | Err(_) => server.missing(namespace),
        });
    };
    let unusable = |message: String| StatusError::BadSecret {
        server,
        namespace: namespace.to_owned(),
        secret: secret.clone(),
        message,
    };
    let data = found.data.unwrap_or_default();
    let read = |key: &str| {
        let bytes = data.get(key).ok_or_else(|| unusable(format!("it has no key {key}")))?;
        String::from_utf8(bytes.0.clone()).map_err(|_| unusable(format!("{key} is not text")))
    };
    let material = Material { ca: read("ca.crt")?, cert: read("tls.crt")?, key: read("tls.key")? };
    ReloadingIdentity::new(&material).map_err(|error| unusable(error.to_string()))
}

async fn pod(client: &Client, namespace: &str, server: Server) -> Result<String, StatusError> {
    let name = server.lease(namespace);
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    let lease = ask(format!("read Lease {namespace}/{name}"), leases.get_opt(&name)).await?;
    let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&format!("app.kubernetes.io/name={}", server.app()));
    let pods = ask(format!("list the pods in namespace {namespace}"), pods.list(&params)).await?;
    choose(&pods.items, &holder).ok_or_else(|| StatusError::NoPod {
        server,
        namespace: namespace.to_owned(),
        pods: describe(namespace, server, &pods.items),
    })
}

/// The holder of the Lease if it runs, else a ready pod.
fn choose(pods: &[Pod], holder: &str) -> Option<String> {
    let leader = pods.iter().find(|pod| pod.name_any() == holder && phase(pod) == "Running");
    leader.or_else(|| pods.iter().find(|pod| is_ready(pod))).map(ResourceExt::name_any)
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Unknown")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn describe(namespace: &str, server: Server, pods: &[Pod]) -> String {
    if pods.is_empty() {
        let app = server.app();
        return format!("there is none; see `kubectl -n {namespace} describe deployment {app}`");
    }
    let states: Vec<String> =
        pods.iter().map(|pod| format!("{} is {}, not ready", pod.name_any(), phase(pod))).collect();
    format!("{}; see `kubectl -n {namespace} describe pods`", states.join(", "))
}

pub(crate) async fn ask<T>(
    action: impl Into<String> + Display,
    question: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, StatusError> {
    match timeout(LIMIT, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 || status.code == 401 => {
            Err(StatusError::Forbidden { action: action.into(), message: status.message.clone() })
        }
        Ok(Err(source)) => Err(StatusError::Api { action: action.into(), source: source.into() }),
        Err(_) => {
            let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "the API server does not answer");
            Err(StatusError::Api {
                action: action.into(),
                source: Box::new(kube::Error::Service(late.into())),
            })
        }
    }
}

#[cfg(test)]
mod tests;
