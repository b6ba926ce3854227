use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{sync::Mutex, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tower_test::mock;

use super::*;

mod model;

/// An API server that holds one Lease, with its versions, on the paused clock of the test.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    lease: Option<Value>,
    version: u64,
    /// Requests so far: method, and when.
    requests: Vec<(String, Instant)>,
    /// While set, requests get no answer.
    silent: bool,
    /// While set, requests get this status.
    broken: Option<u16>,
    /// How long answers are under way.
    late: Duration,
}

impl Server {
    fn client(&self) -> Client {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let server = self.clone();
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some((request, send)) = handle.next_request().await {
                let answer = server.answer(request).await;
                let late = server.0.lock().await.late;
                tokio::time::sleep(late).await;
                match answer {
                    Some((code, body)) => send.send_response(
                        Response::builder()
                            .status(code)
                            .body(Body::from(body.to_string().into_bytes()))
                            .unwrap(),
                    ),
                    None => unanswered.push(send),
                }
            }
        });
        Client::new(service, "tenant-a")
    }

    async fn answer(&self, request: Request<Body>) -> Option<(u16, Value)> {
        let (parts, body) = request.into_parts();
        let sent: Value =
            serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        let mut stored = self.0.lock().await;
        stored.requests.push((parts.method.to_string(), Instant::now()));
        if stored.silent {
            return None;
        }
        if let Some(code) = stored.broken {
            return Some(failure(code));
        }
        Some(match (parts.method.as_str(), stored.lease.clone()) {
            ("GET", Some(lease)) => (200, lease),
            ("GET" | "PUT", None) => failure(404),
            ("POST", Some(_)) => failure(409),
            ("POST", None) => (201, stored.put(sent)),
            ("PUT", Some(lease)) => {
                if sent["metadata"]["resourceVersion"] == lease["metadata"]["resourceVersion"] {
                    (200, stored.put(sent))
                } else {
                    failure(409)
                }
            }
            _ => failure(405),
        })
    }

    /// Writes the Lease as another candidate would.
    async fn hold(&self, holder: &str, renewed: &str) {
        let spec = json!({
            "holderIdentity": holder, "leaseDurationSeconds": 30, "leaseTransitions": 4,
            "acquireTime": renewed, "renewTime": renewed,
        });
        self.0.lock().await.put(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "shard-tenant-a", "namespace": "tenant-a"}, "spec": spec,
        }));
    }

    async fn lease(&self) -> Object {
        serde_json::from_value(self.0.lock().await.lease.clone().unwrap()).unwrap()
    }

    async fn holder(&self) -> String {
        self.lease().await.spec.unwrap().holder_identity.unwrap()
    }
}

impl Stored {
    fn put(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}

fn failure(code: u16) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let kind = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure"});
    let mut status = json!({"message": "scripted", "reason": reason, "code": code});
    status.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
    (code, status)
}

struct Candidate {
    gate: Gate,
    state: tokio::sync::watch::Receiver<LeaseState>,
    work_stopped: CancellationToken,
    task: JoinHandle<Result<(), LeaseError>>,
}

fn start(server: &Server, identity: &str) -> Candidate {
    let config = LeaseConfig::new("tenant-a", "shard-tenant-a", identity);
    let lease = Lease::new(server.client(), config).unwrap();
    let work_stopped = CancellationToken::new();
    Candidate {
        gate: lease.gate(),
        state: lease.state(),
        task: tokio::spawn(lease.run(work_stopped.clone())),
        work_stopped,
    }
}

impl Candidate {
    async fn leads(&mut self) {
        let leader = self.state.wait_for(|state| matches!(state, LeaseState::Leader(_)));
        tokio::time::timeout(LONG, leader).await.expect("never became the leader").unwrap();
    }
}

const LONG: Duration = Duration::from_mins(5);

#[tokio::test(start_paused = true)]
async fn a_lease_that_does_not_exist_is_made_and_kept() {
    let server = Server::default();
    let mut candidate = start(&server, "a");
    assert!(!candidate.gate.is_open());
    candidate.leads().await;
    assert_eq!(candidate.gate.check(), Ok(()));
    tokio::time::sleep(LONG).await;
    assert!(candidate.gate.is_open());
    let spec = server.lease().await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(30), Some(0)));
    let requests = server.0.lock().await.requests.clone();
    let renewals = requests.iter().skip(2);
    assert!(renewals.clone().all(|(method, _)| method == "PUT"), "a renewal reads nothing first");
    assert!((28..=30).contains(&renewals.count()), "one renewal each retry period");
}

#[tokio::test(start_paused = true)]
async fn anothers_lease_is_taken_after_a_full_duration_whatever_its_clock_says() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let server = Server::default();
        server.hold("b", renewed).await;
        let started = Instant::now();
        let mut candidate = start(&server, "a");
        candidate.leads().await;
        let waited = started.elapsed();
        assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(31), "{waited:?}");
        let LeaseState::Leader(view) = candidate.state.borrow().clone() else { panic!("not the leader") };
        assert_eq!((view.holder.as_deref(), view.transitions), (Some("a"), 5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_is_never_taken() {
    let server = Server::default();
    let mut first = start(&server, "a");
    first.leads().await;
    let second = start(&server, "b");
    tokio::time::sleep(LONG).await;
    assert!(first.gate.is_open() && !second.gate.is_open());
    let LeaseState::Follower(view) = second.state.borrow().clone() else { panic!("not a follower") };
    assert_eq!(view.holder.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn of_two_that_try_at_the_same_time_one_wins() {
    let server = Server::default();
    server.hold("", "2026-01-01T00:00:00.000000Z").await;
    let candidates = [start(&server, "a"), start(&server, "b"), start(&server, "c")];
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(candidates.iter().filter(|candidate| candidate.gate.is_open()).count() <= 1);
    }
    assert_eq!(candidates.iter().filter(|candidate| candidate.gate.is_open()).count(), 1);
    assert_eq!(server.lease().await.spec.unwrap().lease_transitions, Some(5));
}

#[tokio::test(start_paused = true)]
async fn the_gate_closes_before_another_can_take_over() {
    for (silent, broken) in [(true, None), (false, Some(500))] {
        let server = Server::default();
        let mut first = start(&server, "a");
        first.leads().await;
        tokio::time::sleep(Duration::from_secs(45)).await;
        // From here on the first is cut off, and the second sees the last record.
        let other = Server::default();
        *other.0.lock().await =
            Stored { lease: server.0.lock().await.lease.clone(), version: 1000, ..Stored::default() };
        {
            let mut stored = server.0.lock().await;
            (stored.silent, stored.broken) = (silent, broken);
        }
        let mut second = start(&other, "b");
        let mut closed = None;
        let started = Instant::now();
        while !second.gate.is_open() {
            if closed.is_none() && !first.gate.is_open() {
                closed = Some(started.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        second.leads().await;
        let closed = closed.expect("the first gate was open when the second opened");
        let margin = started.elapsed().checked_sub(closed).unwrap();
        assert!(margin >= first.gate.write_timeout(), "{margin:?}");
        let error = first.task.await.unwrap().unwrap_err().to_string();
        assert!(
            error.starts_with("lost Lease tenant-a/shard-tenant-a: it could not be renewed for 20 s"),
            "{error}"
        );
        assert_eq!(*first.state.borrow(), LeaseState::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn the_gate_counts_from_the_sending_of_a_renewal() {
    let server = Server::default();
    let mut candidate = start(&server, "a");
    candidate.leads().await;
    server.0.lock().await.late = Duration::from_secs(4);
    tokio::time::sleep(Duration::from_secs(35)).await;
    let sent = {
        let mut stored = server.0.lock().await;
        stored.silent = true;
        stored.requests.last().unwrap().1
    };
    assert!(candidate.gate.is_open() && sent.elapsed() >= Duration::from_secs(4), "the answer has not come");
    while candidate.gate.is_open() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let closed = sent.elapsed();
    assert!(closed > Duration::from_secs(19) && closed <= Duration::from_secs(20), "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn the_gate_closes_even_if_no_task_runs() {
    let server = Server::default();
    let mut candidate = start(&server, "a");
    candidate.leads().await;
    candidate.task.abort();
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert!(candidate.gate.is_open());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(candidate.gate.check(), Err(GateClosed));
}

#[tokio::test(start_paused = true)]
async fn a_short_failure_of_the_api_server_costs_nothing() {
    let server = Server::default();
    let mut candidate = start(&server, "a");
    candidate.leads().await;
    for _ in 0..5 {
        server.0.lock().await.silent = true;
        tokio::time::sleep(Duration::from_secs(7)).await;
        server.0.lock().await.silent = false;
        tokio::time::sleep(Duration::from_secs(13)).await;
        assert!(candidate.gate.is_open());
    }
    assert_eq!(server.lease().await.spec.unwrap().lease_transitions, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_took_is_lost_at_once() {
    let server = Server::default();
    let mut candidate = start(&server, "a");
    candidate.leads().await;
    server.hold("b", "2026-01-01T00:00:00.000000Z").await;
    let error = candidate.task.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "lost Lease tenant-a/shard-tenant-a: it is held by b");
    assert!(!candidate.gate.is_open());
    assert_eq!(server.holder().await, "b");
}

#[tokio::test(start_paused = true)]
async fn an_annotation_on_the_lease_disturbs_nobody() {
    let server = Server::default();
    let mut candidate = start(&server, "a");
    candidate.leads().await;
    {
        let mut stored = server.0.lock().await;
        let mut lease = stored.lease.clone().unwrap();
        lease["metadata"]["annotations"] = json!({"note": "kept"});
        stored.put(lease);
    }
    tokio::time::sleep(LONG).await;
    assert!(candidate.gate.is_open());
    let annotations = server.lease().await.metadata.annotations.unwrap();
    assert_eq!(annotations.get("note").map(String::as_str), Some("kept"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_not_taken_while_its_holder_may_work() {
    let server = Server::default();
    server.hold("b", "2026-01-01T00:00:00.000000Z").await;
    let started = Instant::now();
    let mut candidate = start(&server, "a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.0.lock().await.lease = None;
    candidate.leads().await;
    assert!(started.elapsed() >= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn it_is_released_when_the_work_has_stopped_and_taken_without_waiting() {
    let server = Server::default();
    let mut first = start(&server, "a");
    first.leads().await;
    let mut second = start(&server, "b");
    tokio::time::sleep(Duration::from_secs(35)).await;
    first.work_stopped.cancel();
    first.task.await.unwrap().unwrap();
    assert!(!first.gate.is_open());
    assert_eq!(server.holder().await, "");
    let released = Instant::now();
    second.leads().await;
    assert!(released.elapsed() <= Duration::from_secs(12), "{:?}", released.elapsed());
    assert_eq!(server.lease().await.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_follower_ends_without_touching_the_lease() {
    let server = Server::default();
    server.hold("b", "2026-01-01T00:00:00.000000Z").await;
    let candidate = start(&server, "a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    candidate.work_stopped.cancel();
    candidate.task.await.unwrap().unwrap();
    assert_eq!(server.holder().await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_again_under_its_name_goes_on_at_once() {
    let server = Server::default();
    server.hold("a", "2026-01-01T00:00:00.000000Z").await;
    let started = Instant::now();
    let mut candidate = start(&server, "a");
    candidate.leads().await;
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(server.lease().await.spec.unwrap().lease_transitions, Some(4));
}

#[test]
fn times_that_make_no_sense_are_refused() {
    let good = || LeaseConfig::new("tenant-a", "shard-tenant-a", "a");
    good().check().unwrap();
    let seconds = Duration::from_secs;
    for wrong in [
        LeaseConfig { identity: String::new(), ..good() },
        LeaseConfig { lease_duration: seconds(20), ..good() },
        LeaseConfig { lease_duration: Duration::from_millis(30_500), ..good() },
        LeaseConfig { retry_period: seconds(17), ..good() },
        LeaseConfig { retry_period: Duration::ZERO, ..good() },
        LeaseConfig { lease_duration: seconds(1 << 40), ..good() },
    ] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}
