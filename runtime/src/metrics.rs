//! Metrics for Prometheus (OpenMetrics), by the names that dashboards of Kubernetes controllers know.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock, atomic::AtomicU64},
    task::{Context, Poll},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::{FutureExt, future::BoxFuture};
use hyper::{Request, http};
use kube::client::{Body, ClientBuilder};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tower::{Layer, Service};

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

type Requests = Family<RequestLabels, Counter<u64, AtomicU64>>;

/// The metrics of a process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
    requests: Requests,
    leader: Family<LeaseLabels, Gauge>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The metrics that every process of the fleet has.
    pub fn new() -> Self {
        let (requests, leader) = (Requests::default(), Family::default());
        let mut registry = Registry::default();
        registry.register(
            "rest_client_requests",
            "Requests to the Kubernetes API, by status code and method",
            requests.clone(),
        );
        registry.register(
            "leader_election_master_status",
            "Whether this process holds the Lease of the name: 1 or 0",
            leader.clone(),
        );
        Self { registry: Arc::new(RwLock::new(registry)), requests, leader }
    }

    /// Registers more metrics.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets whether this process holds a Lease.
    pub fn set_leader(&self, lease: &str, leader: bool) {
        let labels = LeaseLabels { name: lease.to_owned() };
        self.leader.get_or_create(&labels).set(i64::from(leader));
    }

    /// Counts the requests of a Kubernetes client, for `ClientBuilder::with_layer`.
    pub fn client_layer(&self) -> RestClientLayer {
        RestClientLayer { requests: self.requests.clone() }
    }

    /// A Kubernetes client whose requests are counted, and which repeats none by itself: kube's own
    /// retries can take minutes, and each caller here has a deadline and a queue that tries again.
    pub fn kube_client(&self, mut config: kube::Config) -> Result<kube::Client, kube::Error> {
        config.default_retry = false;
        Ok(ClientBuilder::try_from(config)?.with_layer(&self.client_layer()).build())
    }

    /// The route `/metrics`.
    pub fn router(&self) -> Router {
        Router::new().route("/metrics", get(metrics)).with_state(self.clone())
    }

    /// All metrics as OpenMetrics text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.read().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}

async fn metrics(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE, CONTENT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("can't encode: {error}\n")).into_response(),
    }
}

/// Counts requests as `rest_client_requests_total`.
#[derive(Clone, Debug)]
pub struct RestClientLayer {
    requests: Requests,
}

impl<S> Layer<S> for RestClientLayer {
    type Service = RestClient<S>;

    fn layer(&self, inner: S) -> RestClient<S> {
        RestClient { inner, requests: self.requests.clone() }
    }
}

/// The service that [`RestClientLayer`] makes.
#[derive(Clone, Debug)]
pub struct RestClient<S> {
    inner: S,
    requests: Requests,
}

impl<S, B> Service<Request<Body>> for RestClient<S>
where
    S: Service<Request<Body>, Response = http::Response<B>>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().to_string();
        let requests = self.requests.clone();
        self.inner
            .call(request)
            .inspect(move |result| {
                let code = match result {
                    Ok(response) => response.status().as_str().to_owned(),
                    Err(_) => "<error>".to_owned(),
                };
                requests.get_or_create(&RequestLabels { code, method }).inc();
            })
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, Client};
    use tower::ServiceBuilder;
    use tower_test::mock;

    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_code_and_method() {
        let metrics = Metrics::new();
        let (service, mut server) = mock::pair::<Request<Body>, http::Response<Body>>();
        let client =
            Client::new(ServiceBuilder::new().layer(metrics.client_layer()).service(service), "default");
        let answer = tokio::spawn(async move {
            let (_, send) = server.next_request().await.unwrap();
            send.send_response(http::Response::builder().status(404).body(Body::empty()).unwrap());
        });
        Api::<ConfigMap>::default_namespaced(client).get("none").await.unwrap_err();
        answer.await.unwrap();
        metrics.set_leader("shard-tenant-a", true);
        let text = metrics.encode().unwrap();
        assert!(text.contains("rest_client_requests_total{code=\"404\",method=\"GET\"} 1\n"), "{text}");
        assert!(text.contains("leader_election_master_status{name=\"shard-tenant-a\"} 1\n"), "{text}");
    }
}
