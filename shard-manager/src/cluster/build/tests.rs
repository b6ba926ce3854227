use std::{collections::BTreeMap, sync::Arc};

use fleet_api::names;
use serde_json::json;

use super::*;
use crate::{
    cluster::dereference::Children,
    config::PullPolicy,
    tenant::{Keys, Seed},
};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn cluster(spec: &serde_json::Value) -> MySQLCluster {
    serde_json::from_value(json!({
        "apiVersion": "mysqlfleet.io/v1",
        "kind": "MySQLCluster",
        "metadata": { "name": "orders", "namespace": "tenant-a", "uid": "5f1c", "generation": 1 },
        "spec": spec
    }))
    .unwrap()
}

fn keys() -> Arc<Keys> {
    let mut keys = Keys::generate("tenant-a", now()).unwrap();
    keys.seed = Seed::from_bytes(&[7; 32]).unwrap();
    Arc::new(keys)
}

fn images() -> Images {
    Images {
        agent: "registry.example/mysql-fleet:1".to_owned(),
        mysql: "registry.example/mysql:{version}".to_owned(),
        pull_policy: PullPolicy::IfNotPresent,
    }
}

fn built(
    spec: &serde_json::Value,
    children: Children,
    traffic: &Traffic,
) -> Result<Resources<Prepared>, BuildError> {
    build(&Inputs {
        cluster: &cluster(spec),
        namespace: "tenant-a",
        others: &[],
        found: &Dereferenced { keys: keys(), children },
        traffic,
        pods: 3,
        works: false,
        images: &images(),
        now: now(),
    })
}

fn pods() -> BTreeMap<u32, Arc<k8s_openapi::api::core::v1::Pod>> {
    (0..3)
        .map(|ordinal| {
            let pod = serde_json::from_value(json!({
                "metadata": { "name": format!("orders-{ordinal}"), "namespace": "tenant-a", "uid": format!("pod-{ordinal}") },
                "spec": { "nodeName": "node-1", "containers": [] },
                "status": { "podIP": format!("10.0.0.{ordinal}") }
            }))
            .unwrap();
            (ordinal, Arc::new(pod))
        })
        .collect()
}

#[test]
fn a_small_spec_makes_all_children() {
    let traffic = Traffic { primary: Some(InstanceId(0)), replicas: vec![InstanceId(1), InstanceId(2)] };
    let children = Children { pods: pods(), ..Children::default() };
    let spec = json!({
        "version": "9.7",
        "storage": { "size": "1Gi" },
        "resources": { "limits": { "memory": "1Gi" } },
        "mysqld": { "max_connections": "200" }
    });
    let Resources { configs, users, tls, services, slices, disruption_budget, stateful_set, .. } =
        built(&spec, children, &traffic).unwrap();
    insta::assert_yaml_snapshot!("configs", configs);
    insta::assert_yaml_snapshot!("users", users);
    insta::assert_yaml_snapshot!("services", services);
    insta::assert_yaml_snapshot!("slices", slices);
    insta::assert_yaml_snapshot!("disruption_budget", disruption_budget);
    insta::assert_yaml_snapshot!("stateful_set", stateful_set);
    let keys: Vec<String> = tls.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["ca.crt", "tls.crt", "tls.key"]);
}

#[test]
fn one_instance_has_no_disruption_budget() {
    let spec = json!({ "replicas": 1, "version": "9.7", "storage": { "size": "1Gi" } });
    assert!(built(&spec, Children::default(), &Traffic::default()).unwrap().disruption_budget.is_none());
}

#[test]
fn a_key_that_the_operator_owns_is_refused_though_the_api_server_let_it_through() {
    let spec =
        json!({ "version": "9.7", "storage": { "size": "1Gi" }, "mysqld": { "super_read_only": "OFF" } });
    let text = built(&spec, Children::default(), &Traffic::default()).unwrap_err().to_string();
    assert!(text.contains("spec.mysqld") && text.contains("super_read_only"), "{text}");
}

#[test]
fn a_good_certificate_is_kept_and_an_edited_one_is_made_anew() {
    let keys = keys();
    let make = |live: Option<&Secret>| {
        build(&Inputs {
            cluster: &cluster(&json!({ "version": "9.7", "storage": { "size": "1Gi" } })),
            namespace: "tenant-a",
            others: &[],
            found: &Dereferenced {
                keys: Arc::clone(&keys),
                children: Children { tls: live.cloned().map(Arc::new), ..Children::default() },
            },
            traffic: &Traffic::default(),
            pods: 3,
            works: false,
            images: &images(),
            now: now(),
        })
        .unwrap()
        .tls
    };
    let first = make(None);
    assert_eq!(make(Some(&first)), first);
    let mut edited = first.clone();
    edited.data.as_mut().unwrap().insert("tls.key".to_owned(), k8s_openapi::ByteString(b"nonsense".to_vec()));
    let repaired = make(Some(&edited));
    assert_ne!(repaired, edited);
    assert_ne!(repaired.data, first.data);
}

#[test]
fn a_claim_template_that_exists_is_kept_though_the_size_has_grown() {
    let old = built(
        &json!({ "version": "9.7", "storage": { "size": "1Gi" } }),
        Children::default(),
        &Traffic::default(),
    )
    .unwrap()
    .stateful_set;
    let children = Children { stateful_set: Some(Arc::new(old.clone())), ..Children::default() };
    let new =
        built(&json!({ "version": "9.7", "storage": { "size": "2Gi" } }), children, &Traffic::default())
            .unwrap()
            .stateful_set;
    assert_eq!(new.spec.volume_claim_templates, old.spec.volume_claim_templates);
}

fn template(spec: &serde_json::Value, images: &Images) -> ObjectMeta {
    let built = build(&Inputs {
        cluster: &cluster(spec),
        namespace: "tenant-a",
        others: &[],
        found: &Dereferenced { keys: keys(), children: Children::default() },
        traffic: &Traffic::default(),
        pods: 3,
        works: false,
        images,
        now: now(),
    });
    built.unwrap().stateful_set.spec.template.metadata.unwrap()
}

#[test]
fn other_images_of_the_operator_make_no_pod_outdated() {
    let spec = json!({ "version": "9.7", "storage": { "size": "1Gi" } });
    let upgraded = Images {
        agent: "registry.example/mysql-fleet:2".to_owned(),
        mysql: "mirror.example/mysql:{version}".to_owned(),
        pull_policy: PullPolicy::Always,
    };
    assert_eq!(template(&spec, &images()), template(&spec, &upgraded));
}

#[test]
fn whatever_of_the_spec_is_in_a_pod_makes_pods_outdated() {
    let spec = json!({ "version": "9.7", "storage": { "size": "1Gi" } });
    let old = template(&spec, &images());
    let with = |key: &str, value: serde_json::Value| {
        let mut spec = spec.clone();
        spec[key] = value;
        TemplateMark::of(&cluster(&spec))
    };
    for (key, value) in [
        ("version", json!("9.8")),
        ("image", json!("registry.example/other:1")),
        ("resources", json!({ "limits": { "memory": "2Gi" } })),
        ("mysqld", json!({ "max_connections": "200" })),
        ("durability", json!("Relaxed")),
    ] {
        assert!(with(key, value).is_missing_from(&old), "{key}");
    }
    for (key, value) in
        [("replicas", json!(5)), ("storage", json!({ "size": "2Gi" })), ("offline", json!(true))]
    {
        assert!(!with(key, value).is_missing_from(&old), "{key}");
    }
}

#[test]
fn a_pod_of_a_release_without_the_mark_is_told_by_its_keys() {
    let spec = json!({ "version": "9.7", "storage": { "size": "1Gi" } });
    let mut old = template(&spec, &images());
    old.annotations.as_mut().unwrap().remove("mysqlfleet.io/spec-hash");
    assert!(!TemplateMark::of(&cluster(&spec)).is_missing_from(&old));
    let other =
        json!({ "version": "9.7", "storage": { "size": "1Gi" }, "mysqld": { "max_connections": "9" } });
    assert!(TemplateMark::of(&cluster(&other)).is_missing_from(&old));
}

#[test]
fn a_template_is_kept_once_it_works_and_all_pods_say_that_they_are_of_it() {
    let spec = json!({ "version": "9.7", "image": "registry.example/good:1", "storage": { "size": "1Gi" } });
    let mark = TemplateMark::of(&cluster(&spec)).spec().to_owned();
    let pods = |mark: &str| -> BTreeMap<u32, Arc<k8s_openapi::api::core::v1::Pod>> {
        let marked = |pod: &k8s_openapi::api::core::v1::Pod| {
            let mut pod = pod.clone();
            pod.annotations_mut().insert("mysqlfleet.io/spec-hash".to_owned(), mark.to_owned());
            Arc::new(pod)
        };
        pods().into_iter().map(|(ordinal, pod)| (ordinal, marked(&pod))).collect()
    };
    let kept = |works: bool, children: Children| {
        let built = build(&Inputs {
            cluster: &cluster(&spec),
            namespace: "tenant-a",
            others: &[],
            found: &Dereferenced { keys: keys(), children },
            traffic: &Traffic::default(),
            pods: 3,
            works,
            images: &images(),
            now: now(),
        });
        built.unwrap().proved_template
    };
    let revision = kept(true, Children { pods: pods(&mark), ..Children::default() }).unwrap();
    assert_eq!((revision.name_any(), revision.revision), (format!("orders-template-{mark}"), Some(1)));
    assert_eq!(revision.owner_references()[0].uid, "5f1c");
    let data = &revision.data.0;
    assert_eq!(data["image"], "registry.example/good:1");
    assert!(kept(false, Children { pods: pods(&mark), ..Children::default() }).is_none());
    assert!(kept(true, Children { pods: pods("before"), ..Children::default() }).is_none());
    assert!(kept(true, Children::default()).is_none(), "a pod that is not seen says nothing");

    let with = |kept: ControllerRevision| Children {
        pods: pods(&mark),
        revisions: BTreeMap::from([(kept.name_any(), Arc::new(kept))]),
        ..Children::default()
    };
    assert!(kept(true, with(revision.clone())).is_none(), "it is kept already");
    let mut before = revision;
    (before.metadata.name, before.revision) = (Some("orders-template-before".to_owned()), Some(4));
    assert_eq!(kept(true, with(before)).unwrap().revision, Some(5), "newer than the one before");
}

fn keys_of(spec: &serde_json::Value) -> MyCnf {
    let cluster = cluster(spec);
    MyCnf { mark: TemplateMark::of(&cluster), mysqld: cluster.spec.mysqld }
}

fn spec_with(connections: &str) -> serde_json::Value {
    json!({ "version": "9.7", "storage": { "size": "1Gi" }, "mysqld": { "max_connections": connections } })
}

fn config_name(connections: &str) -> String {
    names::config_map("orders", keys_of(&spec_with(connections)).mark.spec())
}

/// Of the template with 300 connections while those with 100 and 200 are known; who refers to which is in `children`.
fn configs(children: Children) -> (BTreeMap<String, String>, Vec<String>) {
    let built = build(&Inputs {
        cluster: &cluster(&spec_with("300")),
        namespace: "tenant-a",
        others: &[keys_of(&spec_with("100")), keys_of(&spec_with("200"))],
        found: &Dereferenced { keys: keys(), children },
        traffic: &Traffic::default(),
        pods: 3,
        works: false,
        images: &images(),
        now: now(),
    })
    .unwrap();
    let text = |config: ConfigMap| (config.name_any(), config.data.unwrap().remove("my.cnf").unwrap());
    let unused = built.unused_configs.iter().map(|config| config.name_any()).collect();
    (built.configs.into_iter().map(text).collect(), unused)
}

fn text(connections: &str) -> (String, String) {
    (config_name(connections), format!("[mysqld]\nmax_connections = {connections}\n"))
}

fn pod_that_mounts(config: &str) -> Arc<k8s_openapi::api::core::v1::Pod> {
    let volume = json!({ "name": "config", "configMap": { "name": config } });
    let pod =
        json!({ "metadata": { "name": "orders-0" }, "spec": { "containers": [], "volumes": [volume] } });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn set_that_mounts(config: &str, observed: i64) -> Arc<StatefulSet> {
    let volume = json!({ "name": "config", "configMap": { "name": config } });
    let template = json!({ "spec": { "containers": [], "volumes": [volume] } });
    let set = json!({
        "metadata": { "name": "orders", "generation": 2 },
        "spec": { "selector": {}, "serviceName": "orders", "template": template },
        "status": { "replicas": 1, "observedGeneration": observed }
    });
    Arc::new(serde_json::from_value(set).unwrap())
}

fn config_of(name: &str, owner: &str) -> (String, Arc<ConfigMap>) {
    let owner = json!({ "apiVersion": "v1", "kind": owner, "name": "orders", "uid": "5f1c" });
    let config = json!({ "metadata": { "name": name, "ownerReferences": [owner] } });
    (name.to_owned(), Arc::new(serde_json::from_value(config).unwrap()))
}

#[test]
fn a_pod_keeps_the_my_cnf_of_its_own_template() {
    assert_eq!(configs(Children::default()).0, BTreeMap::from([text("300")]));
    let pods = BTreeMap::from([(0, pod_that_mounts(&config_name("100")))]);
    let (configs_then, _) = configs(Children { pods, ..Children::default() });
    assert_eq!(configs_then, BTreeMap::from([text("100"), text("300")]));
    let name = names::template_revision("orders", keys_of(&spec_with("200")).mark.spec());
    let revisions = BTreeMap::from([(name, Arc::new(ControllerRevision::default()))]);
    let (configs_then, _) = configs(Children { revisions, ..Children::default() });
    assert_eq!(configs_then, BTreeMap::from([text("200"), text("300")]), "what there is to go back to");
}

#[test]
fn a_my_cnf_goes_once_nothing_refers_to_it() {
    let known = ["100", "200", "300"].map(config_name);
    let found = |observed: i64, mounts: &str| Children {
        configs: known.iter().map(|name| config_of(name, "MySQLCluster")).collect(),
        pods: BTreeMap::from([(0, pod_that_mounts(&known[0]))]),
        stateful_set: Some(set_that_mounts(mounts, observed)),
        ..Children::default()
    };
    assert_eq!(configs(found(2, &known[2])).1, [known[1].clone()]);
    assert!(configs(found(1, &known[2])).1.is_empty(), "a pod of the template before may yet be made");
    assert!(configs(found(2, &known[1])).1.is_empty(), "the set is not written yet");
    let mut children = found(2, &known[2]);
    children.stateful_set = None;
    assert!(configs(children).1.is_empty());
    let mut children = found(2, &known[2]);
    children.configs.extend([config_of("orders-config", "MySQLCluster"), config_of("notes", "Tool")]);
    assert_eq!(configs(children).1, ["orders-config".to_owned(), known[1].clone()]);
    let mut children = found(2, &known[2]);
    let name = names::template_revision("orders", keys_of(&spec_with("200")).mark.spec());
    children.revisions.insert(name, Arc::new(ControllerRevision::default()));
    assert!(configs(children).1.is_empty(), "it is what there is to go back to");
}
