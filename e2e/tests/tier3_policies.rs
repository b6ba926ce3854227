//! The admission policies on a real API server: every case of `policies/cases`, and that each depends on its policy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{
    apiserver::{self, ApiServer},
    command::Owned,
    kubernetes, paths,
    policies::{self, Case, Operation, Verdict},
    wait,
};
use fleet_api::{
    names,
    v1::{ConditionType, MySQLCluster},
};
use http_body_util::BodyExt as _;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::StatefulSet,
        core::v1::{Namespace, Secret},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    client::Body,
    core::DynamicObject,
};
use kubectl_fleet::render::{RenderOptions, render};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

/// A case in a namespace of its own.
struct Staged {
    policy: &'static str,
    case: Case,
    namespace: String,
}

/// What the API server made of a request.
#[derive(Debug)]
struct Answer {
    code: u16,
    text: String,
    warnings: String,
}

impl Answer {
    /// Whether it is what the case says, for its reason.
    fn is(&self, staged: &Staged) -> bool {
        let Staged { case, policy, .. } = staged;
        let says =
            |text: &str| text.contains(&case.message) && text.contains(&format!("mysql-fleet-{policy}"));
        let done = (200..300).contains(&self.code);
        match case.verdict {
            Verdict::Allow => self.is_let_through(),
            Verdict::Warn => done && says(&self.warnings),
            Verdict::Deny => self.code == 422 && says(&self.text),
        }
    }

    /// Whether it was done and no policy of ours had anything to say.
    fn is_let_through(&self) -> bool {
        (200..300).contains(&self.code) && !self.warnings.contains("mysql-fleet-")
    }
}

/// An API server with our resources, on which everybody who is known may do everything.
async fn server() -> (ApiServer, Client) {
    let server = apiserver::start().await.unwrap();
    let client = server.client().await.unwrap();
    for crd in fleet_api::crds() {
        kubernetes::apply(&client, &serde_yaml_ng::to_string(&crd).unwrap(), "default").await.unwrap();
    }
    let clusters = Api::<MySQLCluster>::all(client.clone());
    let list = || async { Ok(clusters.list(&ListParams::default()).await.map(drop)?) };
    wait::until("MySQLCluster to be served", LIMIT, Duration::from_millis(50), list).await.unwrap();
    (server, client)
}

async fn install(client: &Client, policy: &str) {
    kubernetes::apply(client, &policies::admission(policy).unwrap(), "default").await.unwrap();
}

async fn namespace(client: &Client, name: &str, labels: &Value) {
    let object =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    kubernetes::apply(client, &object.to_string(), name).await.unwrap();
}

/// Makes the namespaces of all cases, and what is there before each: no policy is installed yet.
async fn stage(client: &Client) -> Vec<Staged> {
    let mut all = Vec::new();
    for policy in policies::POLICIES {
        for (index, case) in policies::cases(policy).unwrap().into_iter().enumerate() {
            let staged = Staged { policy, case, namespace: format!("{policy}-{index}") };
            namespace(client, &staged.namespace, &json!(staged.case.namespace_labels)).await;
            if let Some(old) = &staged.case.old_object {
                kubernetes::apply(client, &old.to_string(), &staged.namespace).await.unwrap();
            }
            all.push(staged);
        }
    }
    all
}

/// Makes the request of a case, as a dry run: admission is the same, and the case can be tried again.
async fn request(client: &Client, staged: &Staged) -> Answer {
    let Staged { case, namespace, .. } = staged;
    let object = case.object.as_ref().or(case.old_object.as_ref()).unwrap();
    let dynamic: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let kind = kube::core::GroupVersionKind::try_from(&dynamic.types.clone().unwrap()).unwrap();
    let (resource, capabilities) = kube::discovery::pinned_kind(client, &kind).await.unwrap();
    let within = match capabilities.scope {
        kube::discovery::Scope::Cluster => None,
        kube::discovery::Scope::Namespaced => Some(namespace.as_str()),
    };
    let collection = <DynamicObject as kube::Resource>::url_path(&resource, within);
    let path = format!("{collection}/{}", dynamic.name_any());
    let (method, path, body) = match case.operation {
        Operation::Create => ("POST", collection, object.clone()),
        Operation::Delete => ("DELETE", path, Value::Null),
        Operation::Update => {
            let get = http::Request::get(&path).body(Vec::new()).unwrap();
            let live: Value = client.request(get).await.unwrap();
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            ("PUT", path, object)
        }
    };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder()
        .method(method)
        .uri(format!("{path}?dryRun=All"))
        .header("Content-Type", "application/json")
        .header("Impersonate-User", case.user(namespace))
        .header("Impersonate-Group", "system:masters")
        .body(Body::from(body))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    Answer { code, text: String::from_utf8_lossy(&text).into_owned(), warnings }
}

/// Waits until the API server judges by what it was told last: it learns of policies a moment later.
async fn until(client: &Client, staged: &Staged, wanted: impl Fn(&Answer) -> bool) {
    let what = format!("{}: {}", staged.policy, staged.case.name);
    wait::until(what, LIMIT, Duration::from_millis(50), || async {
        let answer = request(client, staged).await;
        anyhow::ensure!(wanted(&answer), "{answer:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn every_case_has_its_verdict_and_loses_it_without_its_policy() {
    let (_server, client) = server().await;
    let all = stage(&client).await;
    for policy in policies::POLICIES {
        install(&client, policy).await;
    }
    // Every binding and policy has reached the server once all that is not allowed is not. The other cases are judged
    // after that: a policy that is not there yet would let them through as well.
    for staged in all.iter().filter(|staged| staged.case.verdict != Verdict::Allow) {
        until(&client, staged, |answer| answer.is(staged)).await;
    }
    for staged in &all {
        let answer = request(&client, staged).await;
        assert!(answer.is(staged), "{}: {}: {answer:?}", staged.policy, staged.case.name);
    }
    for policy in policies::POLICIES {
        let of_policy = |staged: &&Staged| staged.policy == policy && staged.case.verdict != Verdict::Allow;
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
        for binding in bindings.list(&ListParams::default()).await.unwrap() {
            if binding.spec.policy_name == format!("mysql-fleet-{policy}") {
                bindings.delete(&binding.name_any(), &DeleteParams::default()).await.unwrap();
            }
        }
        Api::<ValidatingAdmissionPolicy>::all(client.clone())
            .delete(&format!("mysql-fleet-{policy}"), &DeleteParams::default())
            .await
            .unwrap();
        assert!(all.iter().any(|staged| of_policy(&staged)), "{policy} refuses nothing");
        for staged in all.iter().filter(of_policy) {
            until(&client, staged, Answer::is_let_through).await;
        }
    }
}

/// The MySQL pods that the shard makes are those that their NetworkPolicy selects, and it closes none of their ports.
async fn ports_are_open(client: &Client, namespace: &str) {
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), namespace);
    let policy = policies.get("mysql-fleet-instances").await.unwrap().spec.unwrap();
    let set = Api::<StatefulSet>::namespaced(client.clone(), namespace).get("orders").await.unwrap();
    let labels = set.spec.template.metadata.unwrap().labels.unwrap();
    let selected = policy.pod_selector.unwrap_or_default().match_labels.unwrap();
    assert!(selected.iter().all(|(key, value)| labels.get(key) == Some(value)), "{selected:?} {labels:?}");
    let rules = policy.ingress.unwrap();
    let ports = rules.iter().flat_map(|rule| rule.ports.iter().flatten());
    let open: BTreeSet<i32> = ports
        .map(|port| match port.port {
            Some(IntOrString::Int(number)) => number,
            ref other => panic!("{other:?} is no number"),
        })
        .collect();
    let pod = set.spec.template.spec.unwrap();
    let ports = pod.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let served = ports.map(|port| port.container_port).collect();
    assert_eq!(open, served);
}

#[tokio::test]
async fn a_shard_works_under_all_policies_with_its_role_alone() {
    const TENANT: &str = "tenant-a";
    let (server, client) = server().await;
    namespace(&client, TENANT, &json!({"mysqlfleet.io/environment": "production"})).await;
    for policy in policies::POLICIES {
        install(&client, policy).await;
    }
    let image = format!("registry.example/mysql-fleet@sha256:{}", "a".repeat(64));
    let options = RenderOptions { network_policies: true, ..RenderOptions::new(TENANT, &image) };
    for object in render(&options) {
        if ["ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"]
            .contains(&object["kind"].as_str().unwrap())
        {
            kubernetes::apply(&client, &object.to_string(), TENANT).await.unwrap();
        }
    }
    let [metrics, health, grpc] = [(); 3]
        .map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .map(|listener| listener.local_addr().unwrap().to_string());
    let account = format!("system:serviceaccount:{TENANT}:{}", names::SHARD);
    let _shard = Owned(
        Command::new(paths::program("shard-manager"))
            .env("KUBECONFIG", server.kubeconfig_as(&account).unwrap())
            .args(["--namespace", TENANT, "--pod-name", "shard-a", "--agent-image", &image])
            .args(["--metrics-addr", &metrics, "--health-addr", &health, "--grpc-addr", &grpc])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let cluster = json!({
        "apiVersion": "mysqlfleet.io/v1", "kind": "MySQLCluster", "metadata": {"name": "orders"},
        "spec": {
            "version": "9.7", "storage": {"size": "1Gi"}, "image": image,
            "resources": {"limits": {"memory": "1Gi"}},
        },
    });
    kubernetes::apply(&client, &cluster.to_string(), TENANT).await.unwrap();
    let clusters = Api::<MySQLCluster>::namespaced(client.clone(), TENANT);
    wait::until("the children to be made", LIMIT, Duration::from_millis(100), || async {
        let status = clusters.get("orders").await?.status.unwrap_or_default();
        let said = status.conditions.into_iter().find(|it| it.type_ == ConditionType::ReconcileSucceeded);
        anyhow::ensure!(said.as_ref().is_some_and(|it| it.reason == "Applied"), "{said:?}");
        Ok(())
    })
    .await
    .unwrap();

    ports_are_open(&client, TENANT).await;

    // A person is refused what the shard has just done.
    let secrets = Api::<Secret>::namespaced(client.clone(), TENANT);
    let edit = json!({"data": {"password": "b25l"}});
    wait::until("a person to be refused", LIMIT, Duration::from_millis(50), || async {
        let edited = secrets.patch("orders-writer", &PatchParams::default(), &Patch::Merge(&edit)).await;
        let refused = edited.err().map(|error| error.to_string()).unwrap_or_default();
        anyhow::ensure!(refused.contains("mysql-fleet-secrets"), "{refused:?}");
        Ok(())
    })
    .await
    .unwrap();

    clusters.delete("orders", &DeleteParams::default()).await.unwrap();
    wait::until("the cluster to be gone", LIMIT, Duration::from_millis(100), || async {
        let left = clusters.get_opt("orders").await?;
        anyhow::ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(Api::<Namespace>::all(client).get(TENANT).await.is_ok());
}
