//! Labels of everything that the shard makes.

use std::collections::BTreeMap;

use fleet_api::names;

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Labels of what belongs to the shard itself.
pub fn shard() -> BTreeMap<String, String> {
    labels([("app.kubernetes.io/name", names::SHARD), (names::LABEL_MANAGED_BY, names::MANAGER)])
}

/// Labels that select the pods of a cluster.
pub fn selector(cluster: &str) -> BTreeMap<String, String> {
    labels([("app.kubernetes.io/name", "mysql"), (names::LABEL_CLUSTER, cluster)])
}

/// Labels of what belongs to a cluster.
pub fn cluster(cluster: &str) -> BTreeMap<String, String> {
    let mut all = selector(cluster);
    all.extend(labels([
        ("app.kubernetes.io/instance", cluster),
        ("app.kubernetes.io/component", "mysqld"),
        (names::LABEL_MANAGED_BY, names::MANAGER),
    ]));
    all
}
