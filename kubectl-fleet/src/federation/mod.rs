//! `kubectl fleet federation status`: finds the hub, asks it, and prints what it knows of the members and of the
//! federated clusters.

mod tree;
pub mod view;

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal, Write},
};

use fleet_proto::federation::v1::{
    FederationStatus, GetFederationStatusRequest, WatchFederationStatusRequest,
    federation_service_client::FederationServiceClient,
};
use fleet_runtime::grpc::MAX_MESSAGE_BYTES;
use kube::Client;
use view::FederationStatusView;

use crate::status::{
    AGAIN, ASK, Format, Server, ShardOptions, StatusError, client,
    find::{self, Connection},
    separate, write_as,
};

/// What to show, and of which hub.
#[derive(Clone, Debug)]
pub struct FederationStatusOptions {
    /// The hub's Kubernetes cluster, and the namespace of its controller.
    pub hub: ShardOptions,
    /// What to show of it.
    pub selection: Selection,
    /// Form of the output.
    pub format: Format,
    /// Whether to go on.
    pub watch: bool,
}

/// Which federated clusters to show: all of the hub's where nothing is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those of this namespace.
    pub namespace: Option<String>,
    /// Those of this name.
    pub cluster: Option<String>,
}

/// The federation can't be shown.
#[derive(Debug, thiserror::Error)]
pub enum FederationError {
    /// The hub can't be asked.
    #[error(transparent)]
    Hub(#[from] StatusError),
    /// The hub has no such federated cluster.
    #[error("the hub has no MySQLClusterFederated {wanted}; it has {there}")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// What there is.
        there: String,
    },
    /// The state can't be printed.
    #[error("can't print the state: {0}")]
    Output(#[from] io::Error),
}

impl FederationError {
    /// Whether an argument has to be changed.
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Hub(error) => error.is_usage(),
            Self::Unknown { .. } => true,
            Self::Output(_) => false,
        }
    }

    /// Whether the same question may be answered a little later, once the hub was found before.
    const fn may_pass(&self) -> bool {
        matches!(self, Self::Hub(error) if error.may_pass())
    }
}

/// Shows the state of a federation, once or until interrupted.
pub async fn status(
    options: &FederationStatusOptions,
    output: &mut (impl Write + IsTerminal),
) -> Result<(), FederationError> {
    let (client, hub) = client(&options.hub).await?;
    if !options.watch {
        return print(&ask(&client, &hub).await?, &hub, options, output);
    }
    let mut shown = false;
    loop {
        match watch(&client, &hub, options, output, &mut shown).await {
            Ok(()) => return Ok(()),
            Err(error) if shown && error.may_pass() => eprintln!("{error}; trying again"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn ask(client: &Client, hub: &str) -> Result<FederationStatus, StatusError> {
    let connection = find::connect(client, hub, Server::Hub).await?;
    let mut service =
        FederationServiceClient::new(connection.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut request = tonic::Request::new(GetFederationStatusRequest {});
    request.set_timeout(ASK);
    let answer = service.get_federation_status(request).await;
    let answer = answer.map_err(|status| connection.call_failed(&status))?.into_inner();
    answer.status.ok_or_else(|| over(&connection, "its answer holds no state"))
}

/// Shows states until the output is closed (fine) or the stream ends (why).
async fn watch(
    client: &Client,
    hub: &str,
    options: &FederationStatusOptions,
    output: &mut (impl Write + IsTerminal),
    shown: &mut bool,
) -> Result<(), FederationError> {
    let connection = find::connect(client, hub, Server::Hub).await?;
    let mut service =
        FederationServiceClient::new(connection.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let stream = service.watch_federation_status(WatchFederationStatusRequest {}).await;
    let mut stream = stream.map_err(|status| connection.call_failed(&status))?.into_inner();
    loop {
        let message = stream.message().await.map_err(|status| connection.call_failed(&status))?;
        let message = message.ok_or_else(|| over(&connection, "it has ended the stream"))?;
        let Some(status) = message.status else { continue };
        separate(options.format, *shown, output)?;
        *shown = true;
        match print(&status, hub, options, output) {
            Err(FederationError::Hub(StatusError::Output(error)))
                if error.kind() == io::ErrorKind::BrokenPipe =>
            {
                return Ok(());
            }
            printed => printed?,
        }
    }
}

fn over(connection: &Connection, message: &str) -> StatusError {
    StatusError::Call { pod: connection.pod.clone(), message: message.to_owned() }
}

fn print(
    status: &FederationStatus,
    hub: &str,
    options: &FederationStatusOptions,
    output: &mut impl Write,
) -> Result<(), FederationError> {
    let status = select(status, &options.selection)?;
    let view = FederationStatusView::from(&status);
    Ok(write_as(options.format, &view, || tree::text(&view, hub), output)?)
}

/// What is asked for: the federated clusters, and the members that they have to do with. Without a selection it is
/// all of it, also members that have no cluster.
fn select(status: &FederationStatus, selection: &Selection) -> Result<FederationStatus, FederationError> {
    let Selection { namespace, cluster } = selection;
    if namespace.is_none() && cluster.is_none() {
        return Ok(status.clone());
    }
    let mut chosen = status.clone();
    chosen.clusters.retain(|found| {
        namespace.as_ref().is_none_or(|namespace| *namespace == found.namespace)
            && cluster.as_ref().is_none_or(|cluster| *cluster == found.name)
    });
    if chosen.clusters.is_empty() {
        let wanted = match (namespace, cluster) {
            (Some(namespace), Some(cluster)) => format!("{namespace}/{cluster}"),
            (None, Some(cluster)) => cluster.clone(),
            (namespace, None) => format!("in namespace {}", namespace.clone().unwrap_or_default()),
        };
        let there: Vec<String> =
            status.clusters.iter().map(|found| format!("{}/{}", found.namespace, found.name)).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Err(FederationError::Unknown { wanted, there });
    }
    let members = chosen.clusters.iter().flat_map(|found| &found.members);
    let members: BTreeSet<String> = members.map(|placed| placed.member.clone()).collect();
    chosen.members.retain(|member| members.contains(&member.name));
    Ok(chosen)
}

#[cfg(test)]
mod tests;
