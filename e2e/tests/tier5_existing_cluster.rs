//! The demonstration in a cluster that somebody has, with a registry that it pulls from.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use e2e::cluster::{Cluster, down, up};
use e2e::images::{mysql, push};
use e2e::progress::Progress;
use e2e::registry::Registry;
use e2e::{command, demo, kubernetes, paths};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

/// A cluster of its own: once kubelet has pulled an image, it asks for credentials also where it was loaded.
const CLUSTER: &str = "t-existing";

async fn demonstrate(cluster: &Cluster, arguments: &[&str]) -> Result<String, anyhow::Error> {
    let mut xtask = command::command(paths::program("xtask"));
    xtask.env("KUBECONFIG", cluster.kubeconfig()).current_dir(paths::checkout());
    command::finish(xtask.arg("demo").args(arguments)).await
}

/// The images of the containers of the demonstration's pods.
async fn images(client: &Client) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), demo::NAMESPACE);
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let specs = pods.into_iter().filter_map(|pod| pod.spec);
    specs.flat_map(|spec| spec.containers).filter_map(|container| container.image).collect()
}

#[tokio::test]
async fn the_demonstration_runs_in_a_cluster_of_a_context_and_leaves_it_as_it_was() {
    let progress = Progress::default();
    let cluster = up::up(&[CLUSTER.to_owned()], None, &progress).await.unwrap().remove(0);
    let registry = Registry::start(&cluster).await.unwrap();
    let place = registry.place();
    let mysql = mysql::mysql(&progress).await.unwrap();
    push::push(&mysql.image, place).await.unwrap();
    let client = kubernetes::client_from_file(&cluster.kubeconfig()).await.unwrap();
    let config = kube::config::Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
    let context = config.current_context.unwrap();

    let in_it = ["--context", &context];
    let mysql_image = format!("{place}/mysql:{{version}}");
    let images_from = ["--image-registry", place, "--mysql-image", &mysql_image];
    let whole = [&in_it[..], &images_from, &["--mysql-version", &mysql.version]].concat();
    for _again in 0..2 {
        let said = demonstrate(&cluster, &whole).await.unwrap();
        assert!(said.contains(demo::ORDERS) && said.contains("Healthy"), "{said}");
    }
    let pulled = images(&client).await;
    assert!(pulled.len() > 3 && pulled.iter().all(|image| image.starts_with(place)), "{pulled:?}");

    demonstrate(&cluster, &[&in_it[..], &["--down"]].concat()).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    assert!(namespaces.get_opt(demo::NAMESPACE).await.unwrap().is_none());
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    assert!(crds.get_opt("mysqlclusters.mysqlfleet.io").await.unwrap().is_some());

    let name = demo::NAMESPACE;
    let others = serde_json::json!({"metadata": {"name": name, "labels": {"team": "a"}}});
    namespaces.create(&PostParams::default(), &serde_json::from_value(others).unwrap()).await.unwrap();
    for arguments in [&whole[..], &[&in_it[..], &["--down"]].concat()] {
        let error = demonstrate(&cluster, arguments).await.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("left alone"), "{error}");
    }
    down::down(CLUSTER, false, &progress).await.unwrap();
}
