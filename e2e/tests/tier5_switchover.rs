//! Another primary in every way in which one is asked for, under load: no acknowledged write is lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::scenario::Stage;
use e2e::tenant::Tenant;
use e2e::wait;
use e2e::workload::{Clients, Verdict, Workload, outage, reaches};
use fleet_api::names::{self, UserRole};
use fleet_api::v1::{AnsweredRequest, ConditionType, MySQLCluster, RequestOutcome};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

const NAMESPACE: &str = "tenant-s";
const ORDERS: &str = "orders";
const LONG: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(20);
const CLIENTS: u32 = 8;

/// A Healthy cluster of three instances with clients at work, and what is to be told of them at the end.
struct Scene {
    stage: Stage,
    tenant: Tenant,
    workload: Workload,
    /// Each change of the primary: how, and from when to when.
    changes: Vec<(&'static str, Instant, Instant)>,
}

impl Scene {
    async fn set() -> Self {
        let stage = Stage::set().await.unwrap();
        let tenant = stage.tenant(NAMESPACE).await.unwrap();
        tenant.apply(ORDERS, &tenant.spec(json!({}))).await.unwrap();
        tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
        let workload =
            Workload::start_with(&stage.cluster, &tenant, ORDERS, &Clients::paced(CLIENTS)).await.unwrap();
        let scene = Self { stage, tenant, workload, changes: Vec::new() };
        scene.writes_go_on().await;
        scene
    }

    async fn cluster(&self) -> MySQLCluster {
        self.tenant.clusters().get(ORDERS).await.unwrap()
    }

    async fn primary(&self) -> String {
        self.cluster().await.status.unwrap().primary.unwrap()
    }

    async fn replicas(&self) -> Vec<String> {
        let primary = self.primary().await;
        (0..3).map(|ordinal| names::pod(ORDERS, ordinal)).filter(|pod| *pod != primary).collect()
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.tenant.client.clone(), NAMESPACE)
    }

    /// Waits until the clients write to the primary.
    async fn writes_go_on(&self) {
        reaches(&self.tenant, ORDERS, &self.primary().await, SOON).await.unwrap();
    }

    /// Puts the annotation on the cluster, and returns the answer.
    async fn annotated(&self, value: &str) -> AnsweredRequest {
        let before = answer(&self.cluster().await);
        let patch = json!({"metadata": {"annotations": {names::ANNOTATION_SWITCHOVER: value}}});
        let clusters = self.tenant.clusters();
        clusters.patch(ORDERS, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        wait::until(format!("an answer to {value}"), SOON, OFTEN, || async {
            let cluster = clusters.get(ORDERS).await?;
            let pending = cluster.annotations().get(names::ANNOTATION_SWITCHOVER);
            ensure!(pending.is_none(), "it is asked for: {pending:?}; {:?}", cluster.status);
            let now = answer(&cluster);
            ensure!(now.is_some() && now != before, "there is no new answer: {now:?}");
            Ok(now.unwrap())
        })
        .await
        .unwrap()
    }

    /// What the plugin prints, or why it fails.
    async fn plugin(&self, to: Option<&str>) -> Result<String> {
        let mut switchover = e2e::command::command(self.stage.programs.program("kubectl-fleet"));
        switchover.args(["switchover", ORDERS, "--namespace", NAMESPACE, "--timeout", "30s"]);
        switchover.arg("--kubeconfig").arg(self.stage.cluster.kubeconfig());
        if let Some(to) = to {
            switchover.args(["--to", to]);
        }
        e2e::command::finish(&mut switchover).await
    }

    /// Makes another instance the primary, waits until all is well again, and returns it.
    async fn change(&mut self, how: &'static str, ask: impl AsyncFnOnce(&Self, &str)) -> String {
        let old = self.primary().await;
        let since = Instant::now();
        ask(self, &old).await;
        let status = self.tenant.another_primary(ORDERS, &old, LONG).await.unwrap().status.unwrap();
        assert!(status.planned, "{how}: it was a failover: {status:?}");
        self.writes_go_on().await;
        self.changes.push((how, since, Instant::now()));
        self.tenant.wait_for(ORDERS, ConditionType::Healthy, "True", LONG).await.unwrap();
        status.primary.unwrap()
    }

    async fn is_told(&self, reason: &str, part: &str) {
        let events: Api<Event> = Api::namespaced(self.tenant.client.clone(), NAMESPACE);
        let told = || async {
            let found = events.list(&ListParams::default()).await?.items;
            let of_reason = found.iter().filter(|event| event.reason.as_deref() == Some(reason));
            let notes: Vec<_> = of_reason.filter_map(|event| event.message.clone()).collect();
            ensure!(notes.iter().any(|note| note.contains(part)), "{notes:?}");
            Ok(())
        };
        wait::until(format!("an event {reason} with {part}"), SOON, OFTEN, told).await.unwrap();
    }

    /// Ends the clients and judges what they were told.
    async fn judge(self) {
        let primary = self.primary().await;
        let writes = self.workload.stop().await.unwrap();
        for pod in self.tenant.instances(ORDERS).await.unwrap().keys() {
            let verdict = Verdict::once_applied(&writes, &self.tenant, ORDERS, pod, SOON).await.unwrap();
            assert!(verdict.is_clean(), "{pod}: {verdict}");
            if *pod == primary {
                println!("{} acknowledged, {} unknown, none lost", verdict.acknowledged, verdict.unknown);
            }
        }
        for (how, since, until) in self.changes {
            let gap = outage(&writes, since, until).as_secs_f64();
            println!("{how}: no acknowledged write for {gap:.2} s");
        }
    }
}

fn answer(cluster: &MySQLCluster) -> Option<AnsweredRequest> {
    cluster.status.as_ref()?.answered_requests.first().cloned()
}

#[tokio::test]
async fn another_primary_is_asked_for_in_every_way() {
    let mut scene = Scene::set().await;

    scene
        .change("annotation", async |scene: &Scene, _: &str| {
            let answer = scene.annotated("any").await;
            assert_eq!(answer.outcome, RequestOutcome::Done, "{answer:?}");
            scene.is_told("SwitchoverDone", &answer.message).await;
        })
        .await;

    let to = scene.replicas().await.remove(0);
    let primary = scene
        .change("kubectl fleet switchover", async |scene: &Scene, _: &str| {
            let printed = scene.plugin(Some(&to)).await.unwrap();
            println!("{printed}");
            assert!(printed.contains(&format!("{to} is the primary and takes writes")), "{printed}");
        })
        .await;
    assert_eq!(primary, to);

    refusals(&scene).await;

    scene
        .change("deletion of the pod", async |scene: &Scene, primary: &str| {
            scene.pods().delete(primary, &DeleteParams::default()).await.unwrap();
        })
        .await;

    scene
        .change("eviction of the pod", async |scene: &Scene, primary: &str| {
            scene.pods().evict(primary, &EvictParams::default()).await.unwrap();
            // Of the instances that are left nobody may be evicted. (The client would try that again until somebody may.)
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(scene.tenant.client.clone(), NAMESPACE);
            let budget = budgets.get(ORDERS).await.unwrap().status.unwrap();
            assert_eq!(budget.disruptions_allowed, Some(0), "{budget:?}");
        })
        .await;
    scene.judge().await;
}

/// Requests that change nothing, each with its reason.
async fn refusals(scene: &Scene) {
    let before = scene.cluster().await.status.unwrap();
    let nonsense = scene.annotated("invoices-1").await;
    assert_eq!(nonsense.outcome, RequestOutcome::Refused);
    assert!(nonsense.message.contains("invoices-1") && nonsense.message.contains("or any"), "{nonsense:?}");
    scene.is_told("SwitchoverRefused", "invoices-1").await;

    let absent = format!("{:#}", scene.plugin(Some("orders-7")).await.unwrap_err());
    assert!(absent.contains("there is no such instance") && absent.contains("exit status: 1"), "{absent}");
    let unreadable = format!("{:#}", scene.plugin(Some("seven")).await.unwrap_err());
    assert!(unreadable.contains("\"seven\""), "{unreadable}");

    // A reader holds up the applier of a replica.
    let late = scene.replicas().await.remove(0);
    let host = names::instance_host(NAMESPACE, ORDERS, &late);
    let lock = "LOCK TABLES workload.writes READ; DO SLEEP(8)";
    let held = scene.tenant.sql(ORDERS, &late, &host, UserRole::Admin, lock);
    let asked = async {
        let behind = "SELECT TIMESTAMPDIFF(SECOND, MIN(APPLYING_TRANSACTION_ORIGINAL_COMMIT_TIMESTAMP), NOW()) > 2 \
            FROM performance_schema.replication_applier_status_by_worker WHERE APPLYING_TRANSACTION <> ''";
        wait::until(format!("{late} to be behind"), SOON, OFTEN, || async {
            let lags = scene.tenant.sql(ORDERS, &late, &host, UserRole::Admin, behind).await?;
            ensure!(lags == "1", "{lags}");
            Ok(())
        })
        .await
        .unwrap();
        scene.annotated(&late).await
    };
    let (held, lagging) = tokio::join!(held, asked);
    held.unwrap();
    assert_eq!(lagging.outcome, RequestOutcome::Refused, "{lagging:?}");
    assert!(lagging.message.contains(&format!("{late} is behind")), "{lagging:?}");
    let after = scene.cluster().await.status.unwrap();
    assert_eq!((after.term, after.primary), (before.term, before.primary));
}
