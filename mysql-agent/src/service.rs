//! AgentService: facts out, orders in, for the shard of the own namespace alone.

use std::{pin::Pin, sync::Arc};

use fleet_proto::agent::v1::{
    CloseRequest, CloseResponse, FollowRequest, FollowResponse, InstanceFacts, OpenRequest, OpenResponse,
    StartCloneRequest, StartCloneResponse, WatchInstanceRequest, WatchInstanceResponse,
    agent_service_server::AgentService,
};
use fleet_runtime::{grpc::require_role, tls::Role};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use crate::orders::{Orders, to_the_end};

/// The service of one instance.
#[derive(Clone, Debug)]
pub struct Service {
    namespace: String,
    orders: Arc<Orders>,
    facts: watch::Receiver<InstanceFacts>,
}

impl Service {
    /// A service that takes orders from the shard of `namespace`.
    pub fn new(namespace: String, orders: Arc<Orders>, facts: watch::Receiver<InstanceFacts>) -> Self {
        Self { namespace, orders, facts }
    }

    fn order<T>(&self, request: Request<T>) -> Result<(Arc<Orders>, T), Status> {
        require_role(&request, &self.namespace, &[Role::Shard])?;
        Ok((Arc::clone(&self.orders), request.into_inner()))
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    type WatchInstanceStream = Pin<Box<dyn Stream<Item = Result<WatchInstanceResponse, Status>> + Send>>;

    async fn watch_instance(
        &self,
        request: Request<WatchInstanceRequest>,
    ) -> Result<Response<Self::WatchInstanceStream>, Status> {
        require_role(&request, &self.namespace, &[Role::Shard])?;
        // A slow reader gets the latest facts, never a backlog. The stream ends with the observer.
        let facts = WatchStream::new(self.facts.clone());
        let stream = facts.map(|facts| Ok(WatchInstanceResponse { facts: Some(facts) }));
        Ok(Response::new(Box::pin(stream)))
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<FollowResponse>, Status> {
        let (orders, FollowRequest { term, source, acknowledge }) = self.order(request)?;
        to_the_end(orders.follow(term, source, acknowledge)).await?;
        Ok(Response::new(FollowResponse {}))
    }

    async fn open(&self, request: Request<OpenRequest>) -> Result<Response<OpenResponse>, Status> {
        let (orders, OpenRequest { term, required_acks }) = self.order(request)?;
        orders.open(term, required_acks).await?;
        Ok(Response::new(OpenResponse {}))
    }

    async fn close(&self, request: Request<CloseRequest>) -> Result<Response<CloseResponse>, Status> {
        let (orders, CloseRequest { term }) = self.order(request)?;
        to_the_end(orders.close(term)).await?;
        Ok(Response::new(CloseResponse {}))
    }

    async fn start_clone(
        &self,
        request: Request<StartCloneRequest>,
    ) -> Result<Response<StartCloneResponse>, Status> {
        let (orders, StartCloneRequest { term, donor, expendable_gtids }) = self.order(request)?;
        to_the_end(orders.start_clone(term, donor, expendable_gtids)).await?;
        Ok(Response::new(StartCloneResponse {}))
    }
}
