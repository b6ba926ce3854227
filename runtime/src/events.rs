//! What people are told: events of `events.k8s.io/v1`, written beside everything else.
//!
//! The same event about the same object again is counted in a series instead of written anew (kube's recorder).

use std::{convert::Infallible, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
pub use kube::runtime::events::EventType;
use kube::{
    Client, Resource,
    runtime::events::{Event, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::lease::Gate;

/// How long the write of an event may take.
const LIMIT: Duration = Duration::from_secs(2);

/// How many events wait to be written at most. Those that come then are lost.
const WAITING: usize = 256;

/// The most bytes of a note that the API server takes (API reference, events.k8s.io/v1).
const NOTE: usize = 1024;

/// Takes events. Clones hand theirs to the same writer.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Told>,
}

/// Writes events, one after the other: who tells of something waits for none of them.
pub struct EventWriter {
    gate: Gate,
    recorder: Recorder,
    receiver: mpsc::Receiver<Told>,
}

/// An event, and the object that it is about.
struct Told {
    object: ObjectReference,
    event: Event,
}

/// Events that `controller`, in this pod, reports while the gate is open, and what writes them.
pub fn channel(client: Client, gate: Gate, controller: &str, pod: String) -> (Events, EventWriter) {
    let reporter = Reporter { controller: controller.to_owned(), instance: Some(pod) };
    let (sender, receiver) = mpsc::channel(WAITING);
    (Events { sender }, EventWriter { gate, recorder: Recorder::new(client, reporter), receiver })
}

impl Events {
    /// Tells of something, and does not wait until it is written. A note that is too long is cut.
    pub fn tell<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        type_: EventType,
        reason: &str,
        note: &str,
    ) {
        let note = note.get(..note.floor_char_boundary(NOTE)).unwrap_or_default();
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(refused) = self.sender.try_send(Told { object: object.object_ref(&()), event }) {
            let problem = refused.to_string();
            lost(&refused.into_inner(), &problem);
        }
    }
}

impl EventWriter {
    /// Writes what is handed to it, until the shutdown. An event that can't be written soon is lost, with a line
    /// in the log.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Infallible> {
        loop {
            let told = tokio::select! {
                told = self.receiver.recv() => told,
                () = shutdown.cancelled() => return Ok(()),
            };
            let Some(told) = told else {
                // Nobody leads any more.
                shutdown.cancelled().await;
                return Ok(());
            };
            self.write(&told).await;
        }
    }

    async fn write(&self, told: &Told) {
        if !self.gate.is_open() {
            return;
        }
        match timeout(LIMIT, self.recorder.publish(&told.event, &told.object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => lost(told, &error.to_string()),
            Err(_) => lost(told, &format!("no answer within {LIMIT:?}")),
        }
    }
}

fn lost(Told { object, event }: &Told, problem: &str) {
    let object = object.name.as_deref().unwrap_or_default();
    tracing::warn!(object, reason = event.reason, problem, "an event could not be written");
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::Value;
    use tokio::time::Instant;
    use tower_test::mock;

    use super::*;

    fn config_map() -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("orders".to_owned());
        object.metadata.namespace = Some("tenant-a".to_owned());
        object.metadata.uid = Some("u1".to_owned());
        object
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_written_in_turn_and_one_that_hangs_is_given_up() {
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "tenant-a");
        let (events, writer) = channel(client, Gate::always_open(), "mysqlfleet.io/test", "pod-0".to_owned());
        let shutdown = CancellationToken::new();
        let writer = tokio::spawn(writer.run(shutdown.clone()));
        events.tell(&config_map(), EventType::Normal, "First", "hangs");
        // A character of two bytes stands across the limit.
        let long = format!("{}é", "a".repeat(NOTE - 1));
        events.tell(&config_map(), EventType::Warning, "Second", &long);

        let begun = Instant::now();
        let (_first, _unanswered) = server.next_request().await.unwrap();
        let (second, answer) = server.next_request().await.unwrap();
        assert_eq!(begun.elapsed(), LIMIT, "the second waits for the first no longer");
        let sent = second.into_body().collect().await.unwrap().to_bytes();
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!((&sent["reason"], &sent["type"]), (&"Second".into(), &"Warning".into()));
        assert_eq!(sent["note"].as_str().unwrap(), "a".repeat(NOTE - 1));
        assert_eq!((&sent["regarding"]["uid"], &sent["reportingInstance"]), (&"u1".into(), &"pod-0".into()));
        answer.send_response(
            Response::builder().status(201).body(Body::from(sent.to_string().into_bytes())).unwrap(),
        );
        shutdown.cancel();
        writer.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_does_not_lead_tells_nothing() {
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let gate = Gate::closed(Duration::from_secs(10));
        let (events, writer) =
            channel(Client::new(service, "tenant-a"), gate, "mysqlfleet.io/test", "pod-0".to_owned());
        events.tell(&config_map(), EventType::Normal, "First", "");
        let shutdown = CancellationToken::new();
        let handle = tokio::spawn(writer.run(shutdown.clone()));
        while events.sender.capacity() < WAITING {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
        handle.await.unwrap().unwrap();
        assert!(server.next_request().await.is_none(), "a request was sent");
    }
}
