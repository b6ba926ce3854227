//! The shard against a real API server without nodes: what it makes, repairs, leaves alone and deletes.
//!
//! There are no pods here, so no cluster gets beyond `Bootstrapping`; what instances do is tested where
//! there are nodes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use fleet_api::{
    names,
    v1::{ConditionType, MySQLCluster, Phase, RequestOutcome},
};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Secret, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::NamespaceResourceScope,
};
use serde_json::json;
use tokio::time::{sleep, timeout};

#[path = "shards/world.rs"]
mod world;

use world::{LIMIT, Shard, World, end, orders, shard, until};

impl World {
    /// The name of the ConfigMap with the my.cnf of the StatefulSet's template.
    async fn config(&self) -> String {
        let template = self.api::<StatefulSet>().get("orders").await.unwrap().spec.template;
        let volumes = template.spec.unwrap().volumes.unwrap();
        volumes.into_iter().find_map(|volume| Some(volume.config_map?.name)).unwrap()
    }

    /// Waits until pods get this my.cnf.
    async fn has_my_cnf(&self, keys: &str) {
        let maps = self.api::<ConfigMap>();
        until("the my.cnf has what it has to", || async {
            let config = maps.get_opt(&self.config().await).await.unwrap()?;
            (config.data.unwrap()["my.cnf"] == format!("[mysqld]\n{keys}")).then_some(())
        })
        .await;
    }

    /// Deletes the object and waits until another one of the same name is there.
    async fn deleted_is_made_again<K>(&self, name: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api = self.api::<K>();
        let before = api.get(name).await.unwrap().uid();
        // No garbage collector runs here, which would have to finish an orphaning.
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        api.delete(name, &params).await.unwrap();
        until(&format!("{name} is made again"), || async {
            api.get_opt(name).await.unwrap().filter(|object| object.uid() != before).map(drop)
        })
        .await;
    }
}

#[tokio::test]
async fn children_are_made_repaired_and_left_alone_when_they_are_right() {
    let world = World::new().await;
    let shard = shard(&world.server, "shard-a");
    let cluster = world.created().await;
    let status = cluster.status.clone().unwrap();
    assert_eq!(status.phase, Some(Phase::Bootstrapping));
    assert_eq!(status.observed_generation, cluster.metadata.generation);
    assert_eq!(status.ready.as_deref(), Some("0/3"));

    for name in ["orders-replication", "orders-admin", "orders-writer", "orders-reader", "orders-tls"] {
        world.deleted_is_made_again::<Secret>(name).await;
    }
    for name in ["orders-instances", "orders-primary", "orders-replicas"] {
        world.deleted_is_made_again::<Service>(name).await;
    }
    for name in ["orders-primary", "orders-replicas"] {
        world.deleted_is_made_again::<EndpointSlice>(name).await;
    }
    world.deleted_is_made_again::<ConfigMap>(&world.config().await).await;
    world.deleted_is_made_again::<PodDisruptionBudget>("orders").await;
    world.deleted_is_made_again::<StatefulSet>("orders").await;
    nothing_is_written_for_three_reconciles(&shard).await;
}

#[tokio::test]
async fn edits_are_reverted() {
    let world = World::new().await;
    let _shard = shard(&world.server, "shard-a");
    world.created().await;
    let merge = |patch: serde_json::Value| Patch::Merge(patch);
    let params = PatchParams::default();

    let secrets = world.api::<Secret>();
    let writer = secrets.get("orders-writer").await.unwrap();
    secrets
        .patch("orders-writer", &params, &merge(json!({ "data": { "password": "bm9uc2Vuc2U=" } })))
        .await
        .unwrap();
    until("the password is the one before", || async {
        (secrets.get("orders-writer").await.unwrap().data == writer.data).then_some(())
    })
    .await;

    secrets
        .patch("orders-tls", &params, &merge(json!({ "data": { "tls.crt": "bm9uc2Vuc2U=" } })))
        .await
        .unwrap();
    until("the certificate is one again", || async {
        let data = secrets.get("orders-tls").await.unwrap().data.unwrap();
        data["tls.crt"].0.starts_with(b"-----BEGIN CERTIFICATE").then_some(())
    })
    .await;

    let maps = world.api::<ConfigMap>();
    let config = world.config().await;
    let edit = merge(json!({ "data": { "my.cnf": "[mysqld]\nserver_id=1" } }));
    let refusal = maps.patch(&config, &params, &edit).await.unwrap_err().to_string();
    assert!(refusal.contains("immutable"), "{refusal}");
    let edit = merge(json!({ "metadata": { "labels": { "app.kubernetes.io/name": "other" } } }));
    maps.patch(&config, &params, &edit).await.unwrap();
    until("the label is the one before", || async {
        (maps.get(&config).await.unwrap().labels()["app.kubernetes.io/name"] == "mysql").then_some(())
    })
    .await;
    maps.delete(&config, &DeleteParams::default()).await.unwrap();
    let mut other =
        ConfigMap { data: Some([("my.cnf".to_owned(), String::new())].into()), ..ConfigMap::default() };
    other.metadata.name = Some(config.clone());
    other.metadata.labels = Some(
        [(names::LABEL_MANAGED_BY, names::MANAGER), (names::LABEL_CLUSTER, "orders")]
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .into(),
    );
    // Whether it comes before or after the one that the shard makes again.
    let _there_already = maps.create(&PostParams::default(), &other).await;
    world.has_my_cnf("max_connections = 200\n").await;

    let sets = world.api::<StatefulSet>();
    sets.patch("orders", &params, &merge(json!({ "spec": { "replicas": 0 } }))).await.unwrap();
    until("the StatefulSet has three pods again", || async {
        (sets.get("orders").await.unwrap().spec.replicas == Some(3)).then_some(())
    })
    .await;

    let services = world.api::<Service>();
    services
        .patch("orders-primary", &params, &merge(json!({ "spec": { "selector": { "any": "pod" } } })))
        .await
        .unwrap();
    until("the Service of the primary selects nothing", || async {
        let service = services.get_opt("orders-primary").await.unwrap()?;
        service.spec?.selector.is_none().then_some(())
    })
    .await;

    let slices = world.api::<EndpointSlice>();
    let stray = json!({ "endpoints": [{ "addresses": ["192.0.2.1"], "conditions": { "ready": true } }] });
    slices.patch("orders-primary", &params, &merge(stray)).await.unwrap();
    until("no traffic goes to a stranger", || async {
        let endpoints = slices.get("orders-primary").await.unwrap().endpoints;
        endpoints.unwrap_or_default().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_change_of_the_spec_reaches_the_children_and_a_deletion_ends() {
    let world = World::new().await;
    let _shard = shard(&world.server, "shard-a");
    world.created().await;
    let clusters = world.api::<MySQLCluster>();
    let patch = json!({ "spec": { "mysqld": { "max_connections": "300" } } });
    clusters.patch("orders", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let (maps, before) = (world.api::<ConfigMap>(), world.config().await);
    world.has_my_cnf("max_connections = 300\n").await;
    assert!(maps.get_opt(&before).await.unwrap().is_some(), "a pod of the template before may yet be made");
    let sets = world.api::<StatefulSet>();
    let seen = sets.get("orders").await.unwrap().metadata.generation;
    let patch = json!({ "status": { "replicas": 0, "observedGeneration": seen } });
    sets.patch_status("orders", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    until("the my.cnf that no pod mounts is gone", || async {
        maps.get_opt(&before).await.unwrap().is_none().then_some(())
    })
    .await;

    world.deleted().await;
    assert!(world.api::<StatefulSet>().get_opt("orders").await.unwrap().is_none());
}

/// What was given up is in the status, and what to go back to is a revision: whoever leads builds from that one, until
/// the spec is another one.
#[tokio::test]
async fn what_was_given_up_is_not_built_until_the_spec_is_another_one() {
    let world = World::new().await;
    let _shard = shard(&world.server, "shard-a");
    world.created().await;
    let (clusters, sets) = (world.api::<MySQLCluster>(), world.api::<StatefulSet>());
    let mark = || async {
        let template = sets.get("orders").await.unwrap().spec.template.metadata.unwrap();
        template.annotations.unwrap()["mysqlfleet.io/spec-hash"].clone()
    };
    let wants = async |connections: &str| {
        let patch = Patch::Merge(json!({ "spec": { "mysqld": { "max_connections": connections } } }));
        clusters.patch("orders", &PatchParams::default(), &patch).await.unwrap();
    };
    let good = mark().await;
    let made = clusters.get("orders").await.unwrap();
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
        "metadata": {
            "name": names::template_revision("orders", &good),
            "labels": { names::LABEL_MANAGED_BY: names::MANAGER, names::LABEL_CLUSTER: "orders" },
            "ownerReferences": [{
                "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "name": "orders", "uid": made.uid().unwrap(),
                "controller": true
            }]
        },
        "data": {
            "version": made.spec.version, "image": made.spec.image, "resources": made.spec.resources,
            "mysqld": made.spec.mysqld, "durability": made.spec.durability
        }
    });
    let revision = serde_json::from_value(revision).unwrap();
    world.api::<ControllerRevision>().create(&PostParams::default(), &revision).await.unwrap();

    wants("300").await;
    world.has_my_cnf("max_connections = 300\n").await;
    let bad = until("the StatefulSet has another template", || async {
        Some(mark().await).filter(|mark| *mark != good)
    })
    .await;
    let given_up = json!({
        "template": bad, "progressDeadline": "10m", "instance": "orders-2", "reason": "it does not start",
        "since": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:10:00Z",
        "fields": ["spec.mysqld.max_connections"], "restored": good
    });
    let rollout = json!({ "state": "RollingBack", "template": good, "proved": [], "waitsFor": null, "givenUp": given_up });
    let patch = Patch::Merge(json!({ "status": { "rollout": rollout } }));
    clusters.patch_status("orders", &PatchParams::default(), &patch).await.unwrap();
    world.has_my_cnf("max_connections = 200\n").await;
    until("the StatefulSet has the template that has worked", || async {
        (mark().await == good).then_some(())
    })
    .await;
    until("the condition says so", || async {
        let status = clusters.get("orders").await.unwrap().status?;
        let condition = status.conditions.into_iter().find(|one| one.type_ == ConditionType::RolledBack)?;
        (condition.status == "True" && condition.message.contains("spec.mysqld.max_connections"))
            .then_some(())
    })
    .await;

    wants("100").await;
    world.has_my_cnf("max_connections = 100\n").await;
    until("nothing is given up any more", || async {
        let status = clusters.get("orders").await.unwrap().status?;
        status.rollout.is_none_or(|rollout| rollout.given_up.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_two_shards_one_leads_and_the_other_takes_over_at_once_when_it_ends() {
    let world = World::new().await;
    let first = shard(&world.server, "shard-a");
    let leases = world.api::<Lease>();
    let holder = || async {
        let lease = leases.get_opt("shard-default").await.unwrap()?;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    };
    until("the first shard leads", || async { holder().await.filter(|holder| holder == "shard-a") }).await;
    let _second = shard(&world.server, "shard-b");
    world.created().await;
    assert_eq!(holder().await.as_deref(), Some("shard-a"));

    end(first);
    until("the second shard leads", || async { holder().await.filter(|holder| holder == "shard-b") }).await;
    world.deleted_is_made_again::<Service>("orders-primary").await;
}

#[tokio::test]
async fn a_request_is_answered_once_told_and_taken_off() {
    let world = World::new().await;
    let _shard = shard(&world.server, "shard-a").leading(&world).await;
    world.created().await;
    let clusters = world.api::<MySQLCluster>();
    let mut answered = None;
    for (value, part) in
        [("invoices-1", "no pod of the cluster"), ("any", "Bootstrapping"), ("any", "Bootstrapping")]
    {
        let asked = json!({ "metadata": { "annotations": { names::ANNOTATION_SWITCHOVER: value } } });
        clusters.patch("orders", &PatchParams::default(), &Patch::Merge(&asked)).await.unwrap();
        let answer = until("the request is answered and taken off", || async {
            let cluster = clusters.get("orders").await.unwrap();
            let pending = cluster.annotations().contains_key(names::ANNOTATION_SWITCHOVER);
            cluster.status?.answered_requests.first().filter(|_| !pending).cloned()
        })
        .await;
        assert_ne!(Some(&answer), answered.as_ref(), "{value}");
        assert_eq!((answer.asked.as_str(), answer.outcome), (value, RequestOutcome::Refused));
        assert!(answer.message.contains(part), "{answer:?}");
        answered = Some(answer);
    }
    let events = world.api::<Event>();
    until("it is told", || async {
        let told = events.list(&ListParams::default()).await.unwrap().items;
        let refused = told.iter().filter(|event| event.reason.as_deref() == Some("SwitchoverRefused"));
        refused
            .filter_map(|event| event.message.as_deref())
            .find(|text| text.contains("invoices-1"))
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn what_somebody_else_has_made_is_left_alone_until_it_is_gone() {
    let world = World::new().await;
    let _shard = shard(&world.server, "shard-a");
    let secrets = world.api::<Secret>();
    let sets = world.api::<StatefulSet>();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": "orders-admin" }, "data": { "mine": "bWluZQ==" }
    }))
    .unwrap();
    let set: StatefulSet = serde_json::from_value(json!({
        "metadata": { "name": "orders" },
        "spec": {
            "serviceName": "mine",
            "selector": { "matchLabels": { "app": "mine" } },
            "template": {
                "metadata": { "labels": { "app": "mine" } },
                "spec": { "containers": [{ "name": "mine", "image": "mine:1" }] }
            }
        }
    }))
    .unwrap();
    let secret = secrets.create(&PostParams::default(), &secret).await.unwrap();
    let set = sets.create(&PostParams::default(), &set).await.unwrap();
    world.api::<MySQLCluster>().create(&PostParams::default(), &orders()).await.unwrap();

    world.says("NameTaken", "Secret default/orders-admin").await;
    let now = secrets.get("orders-admin").await.unwrap();
    assert_eq!(now.resource_version(), secret.resource_version());
    secrets.delete("orders-admin", &DeleteParams::default()).await.unwrap();
    world.says("NameTaken", "StatefulSet default/orders").await;
    assert_eq!(sets.get("orders").await.unwrap().resource_version(), set.resource_version());
    let background =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    sets.delete("orders", &background).await.unwrap();
    world.says("Applied", "").await;
}

#[tokio::test]
async fn a_child_without_its_labels_gets_them_back() {
    let world = World::new().await;
    let _shard = shard(&world.server, "shard-a");
    world.created().await;
    let secrets = world.api::<Secret>();
    let before = secrets.get("orders-admin").await.unwrap();
    let patch = json!({ "metadata": { "labels": null } });
    secrets.patch("orders-admin", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    until("the labels are there again", || async {
        let now = secrets.get("orders-admin").await.unwrap();
        (now.labels() == before.labels() && now.uid() == before.uid()).then_some(())
    })
    .await;
}

async fn nothing_is_written_for_three_reconciles(shard: &Shard) {
    let reconciles = |text: &str| sum(text, "controller_runtime_reconcile_total", |_| true);
    // The Lease is renewed by PUT; nothing else is written that way.
    let writes = |text: &str| {
        sum(text, "rest_client_requests_total", |line| {
            ["POST", "PATCH", "DELETE"].iter().any(|method| line.contains(&format!("method=\"{method}\"")))
        })
    };
    let quiet = async {
        let mut text = until("metrics", || metrics_of(&shard.metrics)).await;
        let (mut written, mut wanted) = (writes(&text), reconciles(&text) + 3.0);
        while reconciles(&text) < wanted {
            sleep(Duration::from_millis(100)).await;
            text = until("metrics", || metrics_of(&shard.metrics)).await;
            if writes(&text) > written {
                (written, wanted) = (writes(&text), reconciles(&text) + 3.0);
            }
        }
    };
    timeout(LIMIT, quiet).await.expect("three reconciles in a row that write nothing");
}

fn sum(text: &str, metric: &str, wanted: impl Fn(&str) -> bool) -> f64 {
    text.lines()
        .filter(|line| line.starts_with(metric) && wanted(line))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn metrics_of(address: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    text.contains("controller_runtime_reconcile_total").then_some(text)
}
