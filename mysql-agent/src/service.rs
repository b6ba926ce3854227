//! AgentService: facts out, orders in, for the shard of the own namespace alone.

use std::{pin::Pin, sync::Arc, time::Duration};

use fleet_proto::agent::v1::{
    AdoptRequest, AdoptResponse, CloseRequest, CloseResponse, FenceRequest, FenceResponse, FollowRequest,
    FollowResponse, InstanceFacts, OpenRequest, OpenResponse, StartCloneRequest, StartCloneResponse,
    WatchInstanceRequest, WatchInstanceResponse, agent_service_server::AgentService,
};
use fleet_runtime::{grpc::require_role, tls::Role};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use crate::{
    facts::Published,
    isolation::Watchers,
    orders::{Orders, to_the_end},
};

/// Facts older than this are not sent. The reader counts their age from when they reach it: those of an observer
/// that hangs would be new again with each of its connections.
const SENDABLE: Duration = Duration::from_secs(2);

/// The service of one instance.
#[derive(Clone, Debug)]
pub struct Service {
    namespace: String,
    orders: Arc<Orders>,
    facts: watch::Receiver<Published>,
    watchers: Watchers,
}

impl Service {
    /// A service that takes orders from the shard of `namespace`, and counts it in `watchers` while it watches.
    pub fn new(
        namespace: String,
        orders: Arc<Orders>,
        facts: watch::Receiver<Published>,
        watchers: Watchers,
    ) -> Self {
        Self { namespace, orders, facts, watchers }
    }

    fn order<T>(&self, request: Request<T>) -> Result<(Arc<Orders>, T), Status> {
        require_role(&request, &self.namespace, &[Role::Shard])?;
        Ok((Arc::clone(&self.orders), request.into_inner()))
    }
}

/// The facts as they come, without those that are old. A slow reader gets the latest, never a backlog. It ends with
/// the observer.
fn fresh(facts: watch::Receiver<Published>) -> impl Stream<Item = InstanceFacts> {
    WatchStream::new(facts).filter(|published| published.within(SENDABLE)).map(|published| published.facts)
}

#[tonic::async_trait]
impl AgentService for Service {
    type WatchInstanceStream = Pin<Box<dyn Stream<Item = Result<WatchInstanceResponse, Status>> + Send>>;

    async fn watch_instance(
        &self,
        request: Request<WatchInstanceRequest>,
    ) -> Result<Response<Self::WatchInstanceStream>, Status> {
        require_role(&request, &self.namespace, &[Role::Shard])?;
        let facts = fresh(self.facts.clone());
        let watching = self.watchers.join();
        let stream = facts.map(move |facts| {
            // Held by the stream, which is dropped with its connection.
            let _ = &watching;
            Ok(WatchInstanceResponse { facts: Some(facts) })
        });
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
        let (orders, StartCloneRequest { term, donor, expendable_gtids, archive_gtids }) =
            self.order(request)?;
        to_the_end(orders.start_clone(term, donor, expendable_gtids, archive_gtids)).await?;
        Ok(Response::new(StartCloneResponse {}))
    }

    async fn adopt(&self, request: Request<AdoptRequest>) -> Result<Response<AdoptResponse>, Status> {
        let (orders, AdoptRequest { term, gtids }) = self.order(request)?;
        to_the_end(orders.adopt(term, gtids)).await?;
        Ok(Response::new(AdoptResponse {}))
    }

    async fn fence(&self, request: Request<FenceRequest>) -> Result<Response<FenceResponse>, Status> {
        let (orders, FenceRequest { term }) = self.order(request)?;
        to_the_end(orders.fence(term)).await?;
        Ok(Response::new(FenceResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    fn published(pod: &str, age: Duration) -> Published {
        let at = Instant::now().checked_sub(age).unwrap();
        Published { facts: InstanceFacts { pod: pod.to_owned(), ..InstanceFacts::default() }, at }
    }

    #[tokio::test]
    async fn new_stream_waits_for_new_facts_when_the_last_are_old() {
        let (sender, receiver) = watch::channel(published("old", SENDABLE + Duration::from_millis(1)));
        let mut stream = Box::pin(fresh(receiver));
        assert!(timeout(Duration::ZERO, stream.next()).await.is_err());
        sender.send(published("new", Duration::ZERO)).unwrap();
        assert_eq!(stream.next().await.unwrap().pod, "new");
    }

    #[tokio::test]
    async fn new_stream_begins_with_the_last_facts_when_they_are_new() {
        let (_sender, receiver) = watch::channel(published("new", Duration::ZERO));
        assert_eq!(Box::pin(fresh(receiver)).next().await.unwrap().pod, "new");
    }
}
