//! `kubectl fleet status`: finds the shard of a namespace, asks it, and prints what it says.

pub(crate) mod find;
pub(crate) mod table;
pub mod view;

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

pub use find::Server;
use fleet_proto::shard::v1::{
    GetShardStatusRequest, ShardStatus, WatchShardStatusRequest, shard_service_client::ShardServiceClient,
};
use fleet_runtime::grpc::MAX_MESSAGE_BYTES;
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::Serialize;
use view::ShardStatusView;

/// Limit of one question.
pub(crate) const ASK: Duration = Duration::from_secs(15);
/// Pause before a watch that has ended is begun again: the shard's pods are being exchanged.
pub(crate) const AGAIN: Duration = Duration::from_secs(2);
/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// What to show, and of which shard.
#[derive(Clone, Debug)]
pub struct StatusOptions {
    /// Which shard.
    pub shard: ShardOptions,
    /// Form of the output.
    pub format: Format,
    /// Whether to go on.
    pub watch: bool,
}

/// Which shard to ask.
#[derive(Clone, Debug, Default)]
pub struct ShardOptions {
    /// The tenant namespace; without it the one of the kubeconfig's context.
    pub namespace: Option<String>,
    /// Context of the kubeconfig.
    pub context: Option<String>,
    /// Path of the kubeconfig.
    pub kubeconfig: Option<PathBuf>,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table,
    /// JSON with the field names of the `.proto` file in lowerCamelCase; one document per change.
    Json,
    /// The same as YAML, with `---` before each document.
    Yaml,
}

/// The shard can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The kubeconfig, or the context, can't be used.
    #[error("{what} can't be used: {source}")]
    Kubeconfig {
        /// The flag with its value, or the default.
        what: String,
        /// Why.
        source: KubeconfigError,
    },
    /// There is neither a kubeconfig nor an account of a pod.
    #[error("no Kubernetes cluster is configured: {0}; name one with --kubeconfig or $KUBECONFIG")]
    NoCluster(#[source] kube::config::InferConfigError),
    /// The namespace does not exist.
    #[error("namespace {0} does not exist: name another one with --namespace, or make it")]
    NoNamespace(String),
    /// The namespace has no shard, or it has not yet started.
    #[error(
        "namespace {namespace} has no shard: Secret {secret} does not exist. Deploy one with \
         `kubectl fleet shard render {namespace} --image IMAGE | kubectl apply -f -`; a shard that was deployed just \
         now makes the Secret when it leads"
    )]
    NoShard {
        /// The namespace.
        namespace: String,
        /// The Secret that a shard makes.
        secret: String,
    },
    /// The namespace has no hub, or it has not yet started.
    #[error(
        "namespace {namespace} has no hub: Secret {secret} does not exist. Name the hub's namespace with \
         --hub-namespace, and its cluster with --context or --kubeconfig; a hub that was deployed just now makes the \
         Secret when it leads"
    )]
    NoHub {
        /// The namespace.
        namespace: String,
        /// The Secret that a hub makes.
        secret: String,
    },
    /// The Secret does not hold what it should.
    #[error("Secret {namespace}/{secret} can't be used: {message}. The {server} repairs it when it leads")]
    BadSecret {
        /// Whose it is.
        server: find::Server,
        /// The namespace.
        namespace: String,
        /// The Secret.
        secret: String,
        /// What is wrong.
        message: String,
    },
    /// No pod can be asked.
    #[error("no pod of the {server} in namespace {namespace} can be asked: {pods}")]
    NoPod {
        /// Who is asked.
        server: find::Server,
        /// The namespace.
        namespace: String,
        /// The pods and their states.
        pods: String,
    },
    /// The user may not do it.
    #[error("you may not {action}: {message}")]
    Forbidden {
        /// What was tried.
        action: String,
        /// What the API server says.
        message: String,
    },
    /// The API server refuses, or can't be reached.
    #[error("can't {action}: {}", with_cause(source.as_ref()))]
    Api {
        /// What was tried.
        action: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// The pod can't be talked to.
    #[error("can't talk to pod {pod}: {message}")]
    Connect {
        /// The pod.
        pod: String,
        /// Why.
        message: String,
    },
    /// The shard gives no answer.
    #[error("pod {pod} does not answer: {message}")]
    Call {
        /// The pod.
        pod: String,
        /// Why.
        message: String,
    },
    /// The state can't be printed.
    #[error("can't print the state: {0}")]
    Output(#[from] io::Error),
}

/// An error with what is at the bottom of it, which alone says that a connection was refused, or a name not found.
fn with_cause(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let cause = std::iter::successors(error.source(), |error| error.source()).last();
    match cause.map(ToString::to_string).filter(|cause| !text.contains(cause.as_str())) {
        Some(cause) => format!("{text}: {cause}"),
        None => text,
    }
}

impl StatusError {
    /// Whether an argument has to be changed.
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Kubeconfig { .. } | Self::NoCluster(_) | Self::NoNamespace(_) | Self::NoHub { .. }
        )
    }

    /// Whether the same question may be answered a little later, once the shard was found before.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self, Self::NoPod { .. } | Self::Connect { .. } | Self::Call { .. })
    }
}

/// A client, and the namespace to ask: the given one, or that of the kubeconfig's context.
pub(crate) async fn client(shard: &ShardOptions) -> Result<(Client, String), StatusError> {
    let ShardOptions { namespace, context, kubeconfig } = shard;
    let config = config(context.as_ref(), kubeconfig.as_ref()).await?;
    let namespace = namespace.as_ref().unwrap_or(&config.default_namespace).clone();
    let client = Client::try_from(config).map_err(|source| StatusError::Api {
        action: "set up the client".to_owned(),
        source: source.into(),
    })?;
    Ok((client, namespace))
}

/// Shows the state of a shard, once or until interrupted.
pub async fn run(options: &StatusOptions, output: &mut (impl Write + IsTerminal)) -> Result<(), StatusError> {
    let (client, namespace) = client(&options.shard).await?;
    if !options.watch {
        let status = ask(&client, &namespace).await?;
        return print(&status, options.format, output);
    }
    let mut shown = false;
    loop {
        match watch(&client, &namespace, options.format, output, &mut shown).await {
            Ok(()) => return Ok(()),
            Err(error) if shown && error.may_pass() => eprintln!("{error}; trying again"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The configuration of a kubeconfig and a context, or what kubectl would use.
pub(crate) async fn config(
    context: Option<&String>,
    kubeconfig: Option<&PathBuf>,
) -> Result<Config, StatusError> {
    let choice = KubeConfigOptions { context: context.cloned(), ..KubeConfigOptions::default() };
    if let Some(path) = kubeconfig {
        let unusable =
            |source| StatusError::Kubeconfig { what: format!("--kubeconfig {}", path.display()), source };
        let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
        return Config::from_custom_kubeconfig(kubeconfig, &choice).await.map_err(unusable);
    }
    if let Some(context) = context {
        return Config::from_kubeconfig(&choice)
            .await
            .map_err(|source| StatusError::Kubeconfig { what: format!("--context {context}"), source });
    }
    Config::infer().await.map_err(StatusError::NoCluster)
}

/// Asks a shard for its state, once.
pub(crate) async fn ask(client: &Client, namespace: &str) -> Result<ShardStatus, StatusError> {
    let shard = find::connect(client, namespace, Server::Shard).await?;
    let mut service =
        ShardServiceClient::new(shard.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut request = tonic::Request::new(GetShardStatusRequest {});
    request.set_timeout(ASK);
    let answer = service.get_shard_status(request).await.map_err(|status| shard.call_failed(&status))?;
    answer.into_inner().status.ok_or_else(|| StatusError::Call {
        pod: shard.pod.clone(),
        message: "its answer holds no state".to_owned(),
    })
}

/// Shows states until the output is closed (fine) or the stream ends (why).
async fn watch(
    client: &Client,
    namespace: &str,
    format: Format,
    output: &mut (impl Write + IsTerminal),
    shown: &mut bool,
) -> Result<(), StatusError> {
    let shard = find::connect(client, namespace, Server::Shard).await?;
    let mut service =
        ShardServiceClient::new(shard.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let stream = service.watch_shard_status(WatchShardStatusRequest {}).await;
    let mut stream = stream.map_err(|status| shard.call_failed(&status))?.into_inner();
    loop {
        let message = stream.message().await.map_err(|status| shard.call_failed(&status))?;
        let Some(message) = message else {
            return Err(StatusError::Call {
                pod: shard.pod.clone(),
                message: "it has ended the stream".to_owned(),
            });
        };
        let Some(status) = message.status else { continue };
        separate(format, *shown, output)?;
        *shown = true;
        match print(&status, format, output) {
            Err(StatusError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            printed => printed?,
        }
    }
}

/// What stands between two tables: a clear terminal, or a line in a file.
pub(crate) fn separate(
    format: Format,
    shown: bool,
    output: &mut (impl Write + IsTerminal),
) -> io::Result<()> {
    if format == Format::Table && shown {
        output.write_all(if output.is_terminal() { CLEAR.as_bytes() } else { b"\n" })?;
    }
    Ok(())
}

fn print(status: &ShardStatus, format: Format, output: &mut impl Write) -> Result<(), StatusError> {
    let view = ShardStatusView::from(status);
    write_as(format, &view, || table::table(status, Timestamp::now()), output)
}

/// Writes a state in the form that was asked for.
pub(crate) fn write_as(
    format: Format,
    view: &impl Serialize,
    table: impl FnOnce() -> String,
    output: &mut impl Write,
) -> Result<(), StatusError> {
    let text = match format {
        Format::Table => table(),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(view).map_err(io::Error::other)?),
        Format::Yaml => format!("---\n{}", serde_yaml_ng::to_string(view).map_err(io::Error::other)?),
    };
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}
