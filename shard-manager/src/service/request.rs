//! Requests of people that come by gRPC: they get onto the cluster's object, and are answered from there like those
//! that are put on it by hand.

use fleet_api::{
    names,
    v1::{MySQLCluster, RequestKind},
};
use fleet_proto::shard::v1::RequestForcePrimaryRequest;
use fleet_runtime::apply::{Applier, ApplyError};
use fleet_topology::{Force, Rebuild, Wish};
use kube::{Api, ResourceExt as _};
use tonic::Status;

use crate::cluster::requests::{self, ANY};

/// How often a request is tried whose cluster was changed at the same time.
const ATTEMPTS: usize = 5;

/// Takes requests.
#[derive(Clone)]
pub struct Requester {
    /// The clusters, past the cache.
    pub clusters: Api<MySQLCluster>,
    /// The only writer.
    pub applier: Applier,
}

/// Refuses what the leader alone does, and says who leads.
pub(super) fn of_leader(pod: &str, leads: Result<(), Option<String>>) -> Result<(), Status> {
    leads.map_err(|holder| {
        let whom =
            holder.map_or_else(|| "nobody leads now: try again".to_owned(), |holder| format!("ask {holder}"));
        Status::unavailable(format!("{pod} does not lead the shard; {whom}"))
    })
}

impl Requester {
    /// Asks for another primary of a cluster: the pod `to`, or any if that is empty.
    pub(super) async fn switchover(&self, cluster: &str, to: &str) -> Result<(), Status> {
        let value = if to.is_empty() { ANY } else { to };
        if !matches!(requests::parse(cluster, value), Ok(Wish::Any | Wish::To(_))) {
            return Err(Status::invalid_argument(format!("{}, or none", no_pod("to", cluster, value))));
        }
        self.ask(cluster, RequestKind::Switchover, value).await
    }

    /// Asks for an instance of a cluster to be rebuilt.
    pub(super) async fn rebuild(&self, cluster: &str, pod: &str) -> Result<(), Status> {
        if !matches!(requests::parse_rebuild(cluster, pod), Ok(Rebuild { begun: false, .. })) {
            return Err(Status::invalid_argument(no_pod("pod", cluster, pod)));
        }
        self.ask(cluster, RequestKind::Rebuild, pod).await
    }

    /// Asks for an instance of a cluster to be released with transactions that it holds.
    pub(super) async fn release(&self, cluster: &str, pod: &str, gtids: &str) -> Result<(), Status> {
        if names::ordinal(cluster, pod).is_none() {
            return Err(Status::invalid_argument(no_pod("pod", cluster, pod)));
        }
        let value = requests::release(pod, gtids);
        requests::parse_release(cluster, &value).map_err(|_| {
            Status::invalid_argument(format!(
                "gtids is {gtids:?}, which names no transactions: write them as the message of {pod} in the status does"
            ))
        })?;
        self.ask(cluster, RequestKind::Release, &value).await
    }

    /// Asks for an instance of a cluster to be made the primary at the price of data. Whoever asks says that this is
    /// accepted, and names the cluster twice.
    pub(super) async fn force_primary(&self, asked: &RequestForcePrimaryRequest) -> Result<(), Status> {
        let RequestForcePrimaryRequest { cluster, pod, accept_data_loss, confirm } = asked;
        let value = requests::force(pod);
        let refusal = if !matches!(requests::parse_force(cluster, &value), Ok(Force { begun: None, .. })) {
            no_pod("pod", cluster, pod)
        } else if !accept_data_loss {
            format!(
                "accept_data_loss is false, and commits that were acknowledged and {pod} does not hold are lost by what \
                 is asked for: set it if they may be"
            )
        } else if confirm != cluster {
            format!(
                "confirm is {confirm:?}, which is not the name of the cluster that loses data: {cluster:?}"
            )
        } else {
            return self.ask(cluster, RequestKind::ForcePrimary, &value).await;
        };
        Err(Status::invalid_argument(refusal))
    }

    async fn ask(&self, name: &str, kind: RequestKind, value: &str) -> Result<(), Status> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let found = self.clusters.get_opt(name).await.map_err(|error| {
                Status::unavailable(format!("the MySQLCluster {name} can't be read: {error}"))
            })?;
            let cluster = found.ok_or_else(|| {
                Status::not_found(format!("there is no MySQLCluster {name} in this namespace"))
            })?;
            if let Some(reason) = takes_none(&cluster, kind) {
                return Err(Status::failed_precondition(reason));
            }
            match requests::ask(&self.applier, &cluster, kind, value).await {
                Ok(_) => {
                    tracing::info!(cluster = name, value, "{} was asked for", requests::annotation(kind));
                    return Ok(());
                }
                Err(error) if error.is_conflict() && attempts < ATTEMPTS => {}
                Err(error @ ApplyError::GateClosed { .. }) => {
                    return Err(Status::unavailable(error.to_string()));
                }
                Err(error) => return Err(Status::unavailable(format!("the request was not made: {error}"))),
            }
        }
    }
}

fn no_pod(field: &str, cluster: &str, value: &str) -> String {
    let example = names::pod(cluster, 1);
    format!("{field} is {value:?}, which is no pod of the cluster {cluster:?}: name one, such as {example}")
}

/// Why a cluster takes no request of a kind now.
fn takes_none(cluster: &MySQLCluster, kind: RequestKind) -> Option<String> {
    let name = cluster.name_any();
    if cluster.metadata.deletion_timestamp.is_some() {
        return Some(format!("{name} is being deleted"));
    }
    if cluster.spec.paused.reconcile {
        return Some(format!("nothing of {name} is changed while spec.paused.reconcile is true"));
    }
    let annotation = requests::annotation(kind);
    let pending = cluster.annotations().get(annotation)?;
    Some(format!(
        "another request is under way for {name}: {annotation} is {pending:?}; ask again when it is answered, or take \
         the annotation off"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fleet_runtime::lease::Gate;
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use tonic::Code;
    use tower_test::mock;

    use super::*;

    fn orders(more: &Value) -> Value {
        let mut orders = json!({
            "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster",
            "metadata": {"name": "orders", "namespace": "tenant-a", "resourceVersion": "7"},
            "spec": {"version": "9.7", "storage": {"size": "1Gi"}},
        });
        json_patch_merge(&mut orders, more);
        orders
    }

    fn json_patch_merge(object: &mut Value, more: &Value) {
        match (object, more) {
            (Value::Object(object), Value::Object(more)) => {
                for (key, value) in more {
                    json_patch_merge(object.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (object, more) => *object = more.clone(),
        }
    }

    /// What is answered to a request for another primary.
    async fn asked(to: &str, answers: Vec<(u16, Value)>) -> (Result<(), Status>, Value) {
        served(answers, async |requester: &Requester| requester.switchover("orders", to).await).await
    }

    /// What is answered to a request, if the API server gives these answers one by one; and the last body sent.
    async fn served(
        answers: Vec<(u16, Value)>,
        ask: impl AsyncFnOnce(&Requester) -> Result<(), Status>,
    ) -> (Result<(), Status>, Value) {
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "tenant-a");
        let requester = Requester {
            clusters: Api::namespaced(client.clone(), "tenant-a"),
            applier: Applier::new(client, Gate::always_open()),
        };
        let serve = async {
            let mut last = Value::Null;
            for (code, answer) in answers {
                let next = tokio::time::timeout(Duration::from_secs(5), server.next_request());
                let (request, send) = next.await.expect("no request was sent").unwrap();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                last = serde_json::from_slice(&body).unwrap_or_default();
                let body = Body::from(answer.to_string().into_bytes());
                send.send_response(Response::builder().status(code).body(body).unwrap());
            }
            last
        };
        tokio::join!(ask(&requester), serve)
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}),
        )
    }

    #[tokio::test]
    async fn a_request_gets_onto_the_cluster_though_that_changes_meanwhile() {
        for (to, value) in [("", "any"), ("orders-2", "orders-2")] {
            let found = (200, orders(&json!({})));
            let answers = vec![found.clone(), failure(409, "Conflict"), found.clone(), found];
            let (result, sent) = asked(to, answers).await;
            result.unwrap();
            assert_eq!(sent["metadata"]["annotations"], json!({"mysqlfleet.io/switchover": value}));
            assert_eq!(sent["metadata"]["resourceVersion"], "7");
        }
    }

    #[tokio::test]
    async fn a_request_that_can_not_be_taken_is_refused_with_its_code_and_reason() {
        let pending =
            json!({"metadata": {"annotations": {"mysqlfleet.io/switchover": "orders-1 in term 4"}}});
        let paused = json!({"spec": {"paused": {"reconcile": true}}});
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (to, answer, code, part) in [
            ("orders-1", Some(failure(404, "NotFound")), Code::NotFound, "no MySQLCluster orders"),
            ("orders-1", Some((200, orders(&pending))), Code::FailedPrecondition, "orders-1 in term 4"),
            ("orders-1", Some((200, orders(&paused))), Code::FailedPrecondition, "spec.paused.reconcile"),
            ("orders-1", Some((200, orders(&deleted))), Code::FailedPrecondition, "being deleted"),
            ("orders-1", Some(failure(500, "InternalError")), Code::Unavailable, "can't be read"),
            ("invoices-1", None, Code::InvalidArgument, "invoices-1"),
            ("orders-1 in term 4", None, Code::InvalidArgument, "such as orders-1"),
        ] {
            let (result, _) = asked(to, answer.into_iter().collect()).await;
            let status = result.unwrap_err();
            assert_eq!(status.code(), code, "{status:?}");
            assert!(status.message().contains(part), "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_primary_is_forced_only_for_whoever_accepts_the_loss_and_names_the_cluster_twice() {
        let found = || (200, orders(&json!({})));
        let ask = |pod: &str, accept_data_loss, confirm: &str| RequestForcePrimaryRequest {
            cluster: "orders".to_owned(),
            pod: pod.to_owned(),
            accept_data_loss,
            confirm: confirm.to_owned(),
        };
        let (result, sent) = served(vec![found(), found()], async |requester: &Requester| {
            requester.force_primary(&ask("orders-2", true, "orders")).await
        })
        .await;
        result.unwrap();
        let annotation = json!({"mysqlfleet.io/force-primary": "orders-2 accept-data-loss"});
        assert_eq!(sent["metadata"]["annotations"], annotation);
        for (asked, part) in [
            (ask("orders-2", false, "orders"), "accept_data_loss is false"),
            (ask("orders-2", true, ""), "confirm is \"\""),
            (ask("orders-2", true, "Orders"), "confirm is \"Orders\""),
            (ask("invoices-2", true, "orders"), "such as orders-1"),
            (ask("orders-2 accept-data-loss", true, "orders"), "no pod of the cluster"),
            (ask("", true, "orders"), "no pod of the cluster"),
        ] {
            // Nothing is sent: nobody would answer.
            let (result, _) =
                served(Vec::new(), async |requester: &Requester| requester.force_primary(&asked).await).await;
            let status = result.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            assert!(status.message().contains(part), "{status:?}");
        }
        let pending = json!({"metadata": {"annotations": {
            "mysqlfleet.io/force-primary": "orders-1 accept-data-loss in term 4"
        }}});
        let (result, _) = served(vec![(200, orders(&pending))], async |requester: &Requester| {
            requester.force_primary(&ask("orders-2", true, "orders")).await
        })
        .await;
        assert_eq!(result.unwrap_err().code(), Code::FailedPrecondition);
    }

    #[test]
    fn a_pod_that_does_not_lead_says_who_does() {
        of_leader("a", Ok(())).unwrap();
        for (holder, part) in [(Some("shard-b".to_owned()), "ask shard-b"), (None, "nobody leads")] {
            let status = of_leader("a", Err(holder)).unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains(part), "{status:?}");
        }
    }
}
