//! The EchoPod controller, as a program of its own, against a real API server: the example of `fleet-runtime`.
//!
//! There are no nodes, so no pod is ever ready.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{
    apiserver::{self, ApiServer},
    command::Owned,
    kubernetes, paths, wait,
};
use echopod::api::EchoPod;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod, events::v1::Event};
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Limit of everything that is waited for.
const LIMIT: Duration = Duration::from_secs(40);
const NAMESPACE: &str = "default";

/// A process of the controller, ended with the test.
struct Process {
    child: Owned,
    health: String,
    metrics: String,
}

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the exit code.
    async fn ended(&mut self) -> Option<i32> {
        until("the process ends", async || self.child.0.try_wait().unwrap()).await.code()
    }
}

/// Waits until the check gives something.
async fn until<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    wait::found(what, LIMIT, check).await.unwrap()
}

struct World {
    client: Client,
    server: ApiServer,
}

impl World {
    async fn new(server: ApiServer) -> Self {
        let client = server.client().await.unwrap();
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        });
        let crd = serde_yaml_ng::to_string(&EchoPod::crd()).unwrap();
        let deploy = paths::checkout().join("examples/echopod/deploy/echopod.yaml");
        for text in [namespace.to_string(), crd, std::fs::read_to_string(deploy).unwrap()] {
            kubernetes::apply(&client, &text, NAMESPACE).await.unwrap();
        }
        let world = Self { client, server };
        let echoes = world.api::<EchoPod>();
        until("the CRD is served", async || echoes.list(&ListParams::default()).await.ok()).await;
        world
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Starts a process with the rights of an account of the namespace.
    fn start(&self, pod: &str, account: &str) -> Process {
        let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let kubeconfig = self.server.kubeconfig_as(&user).unwrap();
        let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [metrics, health] = listeners.map(|listener| listener.local_addr().unwrap().to_string());
        let child = command(kubeconfig)
            .args(["--namespace", NAMESPACE, "--pod-name", pod, "--lease-duration", "3"])
            .args(["--metrics-addr", &metrics, "--health-addr", &health])
            .spawn()
            .unwrap();
        Process { child: Owned(child), health, metrics }
    }

    async fn create(&self, spec: Value) -> Result<EchoPod, kube::Error> {
        let echo = json!({
            "apiVersion": "examples.mysqlfleet.io/v1", "kind": "EchoPod", "metadata": {"name": "hello"}, "spec": spec,
        });
        let apply = PatchParams::apply("test").force();
        self.api::<EchoPod>().patch("hello", &apply, &Patch::Apply(&echo)).await
    }

    /// Waits until the pods that are not ending are these, each with its message; returns their UIDs.
    async fn pods(&self, wanted: &[(&str, &str)]) -> BTreeMap<String, String> {
        let api = self.api::<Pod>();
        let wanted: BTreeSet<(String, String)> =
            wanted.iter().map(|(name, message)| ((*name).to_owned(), (*message).to_owned())).collect();
        until(&format!("the pods are {wanted:?}"), async || {
            let pods = api.list(&ListParams::default()).await.unwrap().items;
            let says =
                |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].env.as_ref().unwrap()[0].value.clone();
            let found: BTreeSet<(String, String)> =
                pods.iter().map(|pod| (pod.name_any(), says(pod).unwrap_or_default())).collect();
            (found == wanted).then(|| pods.iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect())
        })
        .await
    }

    async fn holder(&self) -> Option<String> {
        let lease = self.api::<Lease>().get_opt("echopod").await.unwrap()?;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    }
}

fn command(kubeconfig: PathBuf) -> Command {
    let mut command = Command::new(paths::program("echopod"));
    command.env("KUBECONFIG", kubeconfig).env_remove("FLEET_NAMESPACE").env_remove("FLEET_POD_NAME");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The body of an HTTP answer, with its status line.
async fn get(address: &str, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    Some(text)
}

#[tokio::test]
async fn pods_follow_the_spec_and_come_back_when_they_are_deleted() {
    let world = World::new(apiserver::start().await.unwrap()).await;
    let mut process = world.start("echopod-0", "echopod");
    for replicas in [0, 11] {
        let refused =
            world.create(json!({"replicas": replicas, "message": "hi"})).await.unwrap_err().to_string();
        assert!(refused.contains("spec.replicas"), "{refused}");
    }
    world.create(json!({"replicas": 2, "message": "hi"})).await.unwrap();
    let before = world.pods(&[("hello-0", "hi"), ("hello-1", "hi")]).await;

    let pods = world.api::<Pod>();
    let pod = pods.get("hello-0").await.unwrap();
    assert_eq!(pod.labels()["created-by"], "echopod");
    assert!(pod.labels()["examples.mysqlfleet.io/created-at"].parse::<i64>().unwrap() > 1_700_000_000);
    assert_eq!(pod.owner_references()[0].kind, "EchoPod");

    pods.delete("hello-1", &DeleteParams::default()).await.unwrap();
    until("the pod is made again", async || {
        let pod = pods.get_opt("hello-1").await.unwrap()?;
        (pod.uid().as_ref() != before.get("hello-1")).then_some(())
    })
    .await;
    assert_eq!(
        pods.get("hello-0").await.unwrap().uid().as_ref(),
        before.get("hello-0"),
        "another was touched"
    );

    let echoes = world.api::<EchoPod>();
    let scale = json!({"spec": {"replicas": 4}});
    echoes.patch_scale("hello", &PatchParams::default(), &Patch::Merge(&scale)).await.unwrap();
    let four =
        world.pods(&[("hello-0", "hi"), ("hello-1", "hi"), ("hello-2", "hi"), ("hello-3", "hi")]).await;
    world.create(json!({"replicas": 1, "message": "hi"})).await.unwrap();
    let one = world.pods(&[("hello-0", "hi")]).await;
    assert_eq!(one.get("hello-0"), four.get("hello-0"), "the wrong ones went");
    world.create(json!({"replicas": 1, "message": "it costs $(X)"})).await.unwrap();
    world.pods(&[("hello-0", "it costs $$(X)")]).await;

    let settled = until("the status is that of the spec", async || {
        let echo = echoes.get("hello").await.unwrap();
        let status = echo.status.clone()?;
        (Some(status.observed_generation) == echo.metadata.generation && status.replicas == 1)
            .then_some(status)
    })
    .await;
    assert_eq!(settled.ready, "0/1");
    let scale = echoes.get_scale("hello").await.unwrap();
    let selected = ListParams::default().labels(&scale.status.unwrap().selector.unwrap());
    assert_eq!(pods.list(&selected).await.unwrap().items.len(), 1);
    let path = format!("/apis/examples.mysqlfleet.io/v1/namespaces/{NAMESPACE}/echopods");
    let rows = kubernetes::table(&world.client, &path).await.unwrap();
    assert_eq!(rows[0][..3], ["Name", "Ready", "Message"]);
    assert_eq!(rows[1][..3], ["hello", "0/1", "it costs $(X)"]);
    let events = world.api::<Event>();
    until("it is told", async || {
        let told = events.list(&ListParams::default()).await.unwrap().items;
        told.iter().any(|event| event.reason.as_deref() == Some("PodMade")).then_some(())
    })
    .await;

    let ready = get(&process.health, "/readyz?verbose").await.unwrap();
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("[+]shutdown ok"), "{ready}");
    let metrics = get(&process.metrics, "/metrics").await.unwrap();
    for wanted in [
        "controller_runtime_reconcile_total{controller=\"echopod\",result=\"success\"}",
        "leader_election_master_status{name=\"echopod\"} 1",
    ] {
        assert!(metrics.contains(wanted), "{wanted} is not in:\n{metrics}");
    }
    process.signal(Signal::SIGTERM);
    assert_eq!(process.ended().await, Some(0));
    assert_eq!(world.holder().await, None, "the Lease was not given up");
}

#[tokio::test]
async fn of_two_processes_one_leads_and_the_other_takes_over_at_once_when_it_ends() {
    let world = World::new(apiserver::start().await.unwrap()).await;
    let mut first = world.start("echopod-0", "echopod");
    until("the first leads", async || world.holder().await).await;
    let second = world.start("echopod-1", "echopod");
    until("the second is there", async || get(&second.health, "/readyz").await).await;
    world.create(json!({"replicas": 1, "message": "hi"})).await.unwrap();
    world.pods(&[("hello-0", "hi")]).await;
    let leads = async |process: &Process| {
        let metrics = get(&process.metrics, "/metrics").await?;
        Some(metrics.contains("leader_election_master_status{name=\"echopod\"} 1"))
    };
    assert_eq!((leads(&first).await, leads(&second).await), (Some(true), Some(false)));
    first.signal(Signal::SIGTERM);
    assert_eq!(first.ended().await, Some(0));
    until("the second leads", async || world.holder().await.filter(|holder| holder == "echopod-1")).await;
    world.create(json!({"replicas": 2, "message": "hi"})).await.unwrap();
    world.pods(&[("hello-0", "hi"), ("hello-1", "hi")]).await;
}

#[tokio::test]
async fn what_is_wrong_with_the_flags_is_said_once_and_ends_with_2() {
    let server = apiserver::start().await.unwrap();
    let good = ["--metrics-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0"];
    for (arguments, words) in [
        (&["--pod-name=a"][..], &["--namespace"][..]),
        (&["--pod-name=a", "--namespace=A"], &["--namespace", "'A'"]),
        (&["--pod-name=a", "--namespace=default", "--concurrency=0"], &["--concurrency", "'0'"]),
        (&["--pod-name=a", "--namespace=default", "--lease-duration=2"], &["--lease-duration", "2"]),
        (&["--pod-name=a", "--namespace=nowhere"], &["--namespace nowhere", "create it"]),
    ] {
        let mut command = command(server.kubeconfig());
        command.args(arguments).args(good).stderr(Stdio::piped());
        let output = tokio::process::Command::from(command).kill_on_drop(true).output();
        let output = timeout(LIMIT, output).await.expect("it runs on").unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for word in words {
            assert!(said.contains(word), "{word} is not in: {said}");
        }
    }
}

/// What the audit log is to hold: the writes of the contenders, with what the API server made of them.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: RequestResponse
    verbs: [create, update, patch]
    resources:
      - {group: coordination.k8s.io, resources: [leases]}
      - {group: '', resources: [pods]}
      - {group: examples.mysqlfleet.io, resources: [echopods/status]}
  - level: None
";

/// The writes that the API server has carried out, by revision of etcd: who wrote, and whom a Lease names then.
/// A write that changes nothing is not among them: its answer has the revision of an earlier one.
fn history(server: &ApiServer) -> BTreeMap<u64, (String, Option<String>)> {
    let mut events = server.audited().unwrap();
    events.retain(|event| event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300));
    events.retain(|event| event["requestURI"].as_str().is_some_and(|uri| !uri.contains("dryRun")));
    events.sort_by_key(|event| event["requestReceivedTimestamp"].as_str().unwrap().to_owned());
    let mut history = BTreeMap::new();
    for event in events {
        let answer = &event["responseObject"];
        let Some(writer) = event["impersonatedUser"]["username"].as_str() else { continue };
        let writer = writer.rsplit(':').next().unwrap().to_owned();
        let revision = answer["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let holder = answer["spec"]["holderIdentity"].as_str().map(str::to_owned);
        history.entry(revision).or_insert((writer, holder));
    }
    history
}

/// Five processes, of which the leader is stopped in the midst of its work again and again, until another leads. When
/// it goes on it believes for a moment that nothing has happened.
#[tokio::test]
async fn of_five_processes_that_are_stopped_and_go_on_no_two_ever_write() {
    const ROUNDS: usize = 5;
    let world = World::new(apiserver::start_audited(AUDIT).await.unwrap()).await;
    let all = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "contenders"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "echopod"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": format!("system:serviceaccounts:{NAMESPACE}")}],
    });
    kubernetes::apply(&world.client, &all.to_string(), NAMESPACE).await.unwrap();
    let name = |index: usize| format!("contender-{index}");
    let mut processes: Vec<Process> = (0..5).map(|index| world.start(&name(index), &name(index))).collect();
    let leading = async |not: Option<usize>| {
        let holder = world.holder().await?;
        (0..5).find(|index| name(*index) == holder && Some(*index) != not)
    };

    // Somebody always wants something else.
    let work = async {
        for count in 0_u64.. {
            let message = format!("message {count}");
            world.create(json!({"replicas": 1 + count % 10, "message": message})).await.unwrap();
            let echoes = world.api::<EchoPod>();
            // It has been taken up, by whoever leads: or nobody does just now.
            let taken = until("it is taken up", async || {
                let echo = echoes.get("hello").await.unwrap();
                (Some(echo.status?.observed_generation) == echo.metadata.generation).then_some(())
            });
            taken.await;
        }
    };
    // Waits until so many more changes have been taken up.
    let progress = async |changes: usize| {
        let echoes = world.api::<EchoPod>();
        let taken =
            async || echoes.get_opt("hello").await.unwrap()?.status.map(|status| status.observed_generation);
        let wanted = until("a first change", taken).await + i64::try_from(changes).unwrap();
        until("changes are taken up", async || taken().await.filter(|now| *now >= wanted)).await;
    };
    let stops = async {
        for round in 0..ROUNDS {
            let leader = until("somebody leads", async || leading(None).await).await;
            // Not at the same moment of its work each time.
            progress(2 + round).await;
            processes[leader].signal(Signal::SIGSTOP);
            until("another leads", async || leading(Some(leader)).await).await;
            progress(1).await;
            processes[leader].signal(Signal::SIGCONT);
            assert_eq!(processes[leader].ended().await, Some(1), "it has lost its Lease and goes on");
            processes[leader] = world.start(&name(leader), &name(leader));
        }
    };
    tokio::select! {
        () = work => unreachable!("there is always more"),
        () = stops => {}
    }

    let (mut holder, mut writes, mut holders) = (None, 0, BTreeSet::new());
    for (revision, (writer, taken)) in history(&world.server) {
        if let Some(taken) = taken {
            assert_eq!(writer, taken, "revision {revision}: the Lease in the name of another");
            holders.insert(taken.clone());
            holder = Some(taken);
        } else {
            assert_eq!(
                holder.as_ref(),
                Some(&writer),
                "revision {revision}: written by one that did not hold it"
            );
            writes += 1;
        }
    }
    assert!(holders.len() > 1 && writes > 5 * ROUNDS, "too little happened: {writes} writes of {holders:?}");
}
