//! ShardService: what people and programs can ask a shard.

mod request;
mod state;

use std::pin::Pin;

use fleet_proto::shard::v1::{
    GetShardStatusRequest, GetShardStatusResponse, ListClustersRequest, ListClustersResponse,
    RequestForcePrimaryRequest, RequestForcePrimaryResponse, RequestRebuildRequest, RequestRebuildResponse,
    RequestReleaseRequest, RequestReleaseResponse, RequestSwitchoverRequest, RequestSwitchoverResponse,
    WatchShardStatusRequest, WatchShardStatusResponse, shard_service_server::ShardService,
};
use fleet_runtime::{
    grpc::{Peer, require_role},
    tls::Role,
};
use futures::{Stream, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub use request::Requester;
pub use state::ShardState;

/// Who may ask.
pub const ALLOWED: &[Role] = &[Role::Client, Role::Shard];
/// The most clusters of one page.
const PAGE: usize = 500;

/// Answers for one pod of a shard.
#[derive(Clone)]
pub struct Service {
    /// What is told.
    pub state: ShardState,
    /// Takes requests.
    pub requester: Requester,
    /// Ends the streams.
    pub shutdown: CancellationToken,
}

#[tonic::async_trait]
impl ShardService for Service {
    async fn get_shard_status(
        &self,
        request: Request<GetShardStatusRequest>,
    ) -> Result<Response<GetShardStatusResponse>, Status> {
        require_role(&request, self.state.namespace(), ALLOWED)?;
        Ok(Response::new(GetShardStatusResponse { status: Some(self.state.status()) }))
    }

    type WatchShardStatusStream =
        Pin<Box<dyn Stream<Item = Result<WatchShardStatusResponse, Status>> + Send>>;

    async fn watch_shard_status(
        &self,
        request: Request<WatchShardStatusRequest>,
    ) -> Result<Response<Self::WatchShardStatusStream>, Status> {
        require_role(&request, self.state.namespace(), ALLOWED)?;
        // The next state is taken when the reader asks for it: one that is slow gets the latest.
        let states = stream::unfold(self.state.changes(), |mut changes| async move {
            let status = changes.next().await?;
            Some((Ok(WatchShardStatusResponse { status: Some(status) }), changes))
        });
        Ok(Response::new(states.take_until(self.shutdown.clone().cancelled_owned()).boxed()))
    }

    async fn list_clusters(
        &self,
        request: Request<ListClustersRequest>,
    ) -> Result<Response<ListClustersResponse>, Status> {
        require_role(&request, self.state.namespace(), ALLOWED)?;
        let ListClustersRequest { page_size, page_token } = request.into_inner();
        let size = match usize::try_from(page_size) {
            Ok(0) => PAGE,
            Ok(size) => size.min(PAGE),
            Err(_) => {
                return Err(Status::invalid_argument(format!(
                    "page_size is {page_size}: it must be 0, for {PAGE}, or more"
                )));
            }
        };
        // The token is the name of the last cluster of the page before.
        let mut summaries = self.state.summaries().into_iter().filter(|summary| summary.name > page_token);
        let clusters: Vec<_> = summaries.by_ref().take(size).collect();
        let more = summaries.next().is_some();
        let next_page_token =
            clusters.last().filter(|_| more).map(|last| last.name.clone()).unwrap_or_default();
        Ok(Response::new(ListClustersResponse { clusters, next_page_token }))
    }

    async fn request_switchover(
        &self,
        request: Request<RequestSwitchoverRequest>,
    ) -> Result<Response<RequestSwitchoverResponse>, Status> {
        require_role(&request, self.state.namespace(), ALLOWED)?;
        request::of_leader(self.state.pod(), self.state.leads())?;
        let RequestSwitchoverRequest { cluster, to } = request.into_inner();
        self.requester.switchover(&cluster, &to).await?;
        Ok(Response::new(RequestSwitchoverResponse {}))
    }

    async fn request_rebuild(
        &self,
        request: Request<RequestRebuildRequest>,
    ) -> Result<Response<RequestRebuildResponse>, Status> {
        require_role(&request, self.state.namespace(), ALLOWED)?;
        request::of_leader(self.state.pod(), self.state.leads())?;
        let RequestRebuildRequest { cluster, pod } = request.into_inner();
        self.requester.rebuild(&cluster, &pod).await?;
        Ok(Response::new(RequestRebuildResponse {}))
    }

    async fn request_release(
        &self,
        request: Request<RequestReleaseRequest>,
    ) -> Result<Response<RequestReleaseResponse>, Status> {
        require_role(&request, self.state.namespace(), ALLOWED)?;
        request::of_leader(self.state.pod(), self.state.leads())?;
        let RequestReleaseRequest { cluster, pod, gtids } = request.into_inner();
        self.requester.release(&cluster, &pod, &gtids).await?;
        Ok(Response::new(RequestReleaseResponse {}))
    }

    async fn request_force_primary(
        &self,
        request: Request<RequestForcePrimaryRequest>,
    ) -> Result<Response<RequestForcePrimaryResponse>, Status> {
        let identity = require_role(&request, self.state.namespace(), ALLOWED)?;
        request::of_leader(self.state.pod(), self.state.leads())?;
        let address = request.extensions().get::<Peer>().and_then(|peer| peer.address);
        let asked = request.into_inner();
        self.requester.force_primary(&asked).await?;
        let RequestForcePrimaryRequest { cluster, pod, .. } = asked;
        tracing::warn!(cluster, pod, %identity, ?address, "a primary is to be forced, and data may be lost by it");
        Ok(Response::new(RequestForcePrimaryResponse {}))
    }
}
