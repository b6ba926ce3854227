//! The authority of a tenant, against a real API server without nodes: unreadable, restored, and exchanged for another.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use fleet_api::{
    names,
    v1::{MySQLCluster, RequestOutcome},
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

#[path = "shards/world.rs"]
#[allow(dead_code, reason = "other targets use what this one does not")]
mod world;

use world::{World, end, orders, shard, until};

#[tokio::test]
async fn an_authority_that_cannot_be_read_is_said_and_holds_up_no_deletion() {
    let world = World::new().await;
    let secrets = world.api::<Secret>();
    let nonsense: Secret = serde_json::from_value(json!({
        "metadata": {
            "name": "shard-default-ca",
            "labels": { "app.kubernetes.io/managed-by": "mysql-fleet" }
        },
        "data": { "ca.crt": "bm9uc2Vuc2U=" }
    }))
    .unwrap();
    secrets.create(&PostParams::default(), &nonsense).await.unwrap();
    let _shard = shard(&world.server, "shard-a");
    world.api::<MySQLCluster>().create(&PostParams::default(), &orders()).await.unwrap();
    world.says("NoTenantKeys", "Secret shard-default-ca: ").await;
    world.deleted().await;

    world.api::<MySQLCluster>().create(&PostParams::default(), &orders()).await.unwrap();
    world.says("NoTenantKeys", "Secret shard-default-ca: ").await;
    secrets.delete("shard-default-ca", &DeleteParams::default()).await.unwrap();
    world.says("Applied", "").await;
}

#[tokio::test]
async fn an_authority_that_was_restored_without_its_labels_is_the_one_that_goes_on() {
    let world = World::new().await;
    end(shard(&world.server, "shard-a").leading(&world).await);
    let secrets = world.api::<Secret>();
    let made = secrets.get("shard-default-ca").await.unwrap();
    for name in ["shard-default-ca", "shard-default-client"] {
        secrets.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let restored =
        json!({ "metadata": { "name": "shard-default-ca" }, "type": "restored", "data": made.data });
    let client = json!({ "metadata": { "name": "shard-default-client" }, "type": "restored" });
    for object in [restored, client] {
        let object: Secret = serde_json::from_value(object).unwrap();
        secrets.create(&PostParams::default(), &object).await.unwrap();
    }

    let _shard = shard(&world.server, "shard-b");
    world.created().await;
    let tls = secrets.get("orders-tls").await.unwrap();
    assert_eq!(tls.data.unwrap()["ca.crt"], made.data.as_ref().unwrap()["ca.crt"]);
    until("the authority has its labels again", || async {
        let now = secrets.get("shard-default-ca").await.unwrap();
        assert!(now.data == made.data, "another authority was made");
        (now.labels() == made.labels()).then_some(())
    })
    .await;
    until("the certificate of another type is replaced", || async {
        let client = secrets.get_opt("shard-default-client").await.unwrap()?;
        (client.type_.as_deref() == Some("kubernetes.io/tls")).then_some(())
    })
    .await;
}

/// The authority's Secret, and what the Secrets with certificates hold.
struct Authorities {
    data: std::collections::BTreeMap<String, ByteString>,
    /// `ca.crt` and `tls.crt`.
    issued: Vec<(String, String)>,
}

impl Authorities {
    async fn read(secrets: &Api<Secret>) -> Self {
        let data = async |name: &str| secrets.get(name).await.unwrap().data.unwrap();
        let text = |value: &ByteString| String::from_utf8(value.0.clone()).unwrap();
        let mut issued = Vec::new();
        for name in ["orders-tls", "shard-default-tls", "shard-default-client"] {
            let data = data(name).await;
            issued.push((text(&data["ca.crt"]), text(&data["tls.crt"])));
        }
        Self { data: data("shard-default-ca").await, issued }
    }

    fn is_at(&self, stage: &str) -> bool {
        self.data.get("rotation").is_some_and(|now| now.0 == stage.as_bytes())
    }

    /// Whether everybody who can be seen is ready.
    fn is_ready(&self) -> bool {
        self.data.get("rotation-since").is_some_and(|since| !since.0.is_empty())
    }

    fn trusted(&self) -> Vec<usize> {
        self.issued.iter().map(|(ca, _)| ca.matches("BEGIN CERTIFICATE").count()).collect()
    }

    fn certificates(&self) -> Vec<&str> {
        self.issued.iter().map(|(_, cert)| cert.as_str()).collect()
    }
}

#[tokio::test]
async fn another_authority_comes_though_each_step_is_another_shards() {
    let world = World::new().await;
    let mut running = shard(&world.server, "shard-a");
    world.created().await;
    let (clusters, secrets) = (world.api::<MySQLCluster>(), world.api::<Secret>());
    let passwords = async || secrets.get("orders-writer").await.unwrap().data;
    let ask = async |value: &str| {
        let asked = json!({ "metadata": { "annotations": { names::ANNOTATION_ROTATE_AUTHORITY: value } } });
        clusters.patch("orders", &PatchParams::default(), &Patch::Merge(&asked)).await.unwrap();
    };
    let answered = async |outcome| {
        until("the answer", || async {
            let cluster = clusters.get("orders").await.unwrap();
            let pending = cluster.annotations().contains_key(names::ANNOTATION_ROTATE_AUTHORITY);
            let answers = cluster.status?.answered_requests;
            answers.into_iter().find(|answer| !pending && answer.outcome == outcome)
        })
        .await
    };
    let reaches = async |stage: &str| {
        until(&format!("everybody is ready in {stage}"), || async {
            let now = Authorities::read(&secrets).await;
            (now.is_at(stage) && now.is_ready()).then_some(now)
        })
        .await
    };
    let (before, password) = (Authorities::read(&secrets).await, passwords().await);

    ask("soon").await;
    let refused = answered(RequestOutcome::Refused).await;
    assert!(refused.message.contains("such as 24h"), "{refused:?}");
    assert!(Authorities::read(&secrets).await.data == before.data, "nothing is changed by it");

    ask("24h").await;
    let introducing = reaches("Introducing").await;
    assert_eq!(introducing.trusted(), [2, 2, 2]);
    assert_eq!(introducing.certificates(), before.certificates(), "nobody was issued anything");
    let asked =
        clusters.get("orders").await.unwrap().annotations()[names::ANNOTATION_ROTATE_AUTHORITY].clone();
    assert_eq!(asked, "24h begun");

    let mut stages = Vec::new();
    for (pod, stage) in [("shard-b", "Replacing"), ("shard-c", "Steady")] {
        end(running);
        // The wait is over.
        let long_ago = json!({ "data": { "rotation-since": ByteString(b"2026-01-01T00:00:00Z".to_vec()) } });
        secrets.patch("shard-default-ca", &PatchParams::default(), &Patch::Merge(&long_ago)).await.unwrap();
        running = shard(&world.server, pod);
        let now = match stage {
            "Replacing" => reaches(stage).await,
            _ => {
                until("the old one is trusted no more", || async {
                    let now = Authorities::read(&secrets).await;
                    (now.is_at(stage) && now.trusted() == [1, 1, 1]).then_some(now)
                })
                .await
            }
        };
        stages.push(now);
    }
    let [replacing, after] = stages.try_into().ok().unwrap();
    assert_eq!(replacing.trusted(), [2, 2, 2]);
    assert!(before.certificates().iter().all(|old| !replacing.certificates().contains(old)));
    assert!(
        replacing.data["ca.crt"] == introducing.data["next.crt"] && !replacing.data.contains_key("next.key")
    );
    assert_eq!(after.certificates(), replacing.certificates(), "nobody was issued anything");
    assert!(after.data["ca.crt"] == replacing.data["ca.crt"] && !after.data.contains_key("previous.crt"));
    assert!(after.data["seed"] == before.data["seed"] && passwords().await == password);
    assert_eq!(answered(RequestOutcome::Done).await.asked, "24h");
    drop(running);
}
