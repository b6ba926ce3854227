//! The my.cnf of each template: mysqld reads it at every start, also in a pod whose template is not the present one.
//!
//! A ConfigMap is named by the mark of its template, which is of all that is in it: another text is another ConfigMap.
//! So it is immutable, and nobody can change what a mysqld comes back with. It goes once nothing refers to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use fleet_api::{names, v1::MySQLCluster};
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec};
use kube::{Resource as _, ResourceExt as _};

use super::{Inputs, TemplateMark};
use crate::cluster::dereference::Children;

/// The volume of a pod with its my.cnf.
pub(super) const VOLUME: &str = "config";

/// The my.cnf keys of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MyCnf {
    /// The mark of the template.
    pub mark: TemplateMark,
    /// The keys and their values.
    pub mysqld: BTreeMap<String, String>,
}

/// The option file that mysqld gets.
pub(super) fn my_cnf(keys: &BTreeMap<String, String>) -> String {
    let mut text = String::from("[mysqld]\n");
    for (key, value) in keys {
        // Writing to a String can't fail.
        let _always_fits = writeln!(text, "{key} = {value}");
    }
    text
}

/// Those that have to be there: of the template in force, and of every other one that something refers to. The keys of
/// a template that is neither in force nor kept nor given up are not known any more: its ConfigMap is left as it is.
pub(super) fn configs(inputs: &Inputs<'_>) -> Vec<ConfigMap> {
    let name = inputs.name();
    let referred_to = referred_to(&name, &inputs.found.children);
    let own = config(inputs, &TemplateMark::of(inputs.cluster), &inputs.cluster.spec.mysqld);
    let others = inputs.others.iter().map(|keys| config(inputs, &keys.mark, &keys.mysqld));
    let others = others.filter(|other| other.metadata.name != own.metadata.name);
    let mut all: Vec<_> = others.filter(|other| referred_to.contains(&other.name_any())).collect();
    all.insert(0, own);
    all
}

fn config(inputs: &Inputs<'_>, mark: &TemplateMark, keys: &BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: inputs.metadata(names::config_map(&inputs.name(), mark.spec())),
        data: Some(BTreeMap::from([("my.cnf".to_owned(), my_cnf(keys))])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}

/// Those that nothing refers to. None while the StatefulSet's controller may still make a pod of a template before.
pub(super) fn unused(inputs: &Inputs<'_>) -> Vec<Arc<ConfigMap>> {
    let children = &inputs.found.children;
    let set = children.stateful_set.as_deref();
    let has_seen =
        set.and_then(|set| Some(set.status.as_ref()?.observed_generation == set.metadata.generation));
    if has_seen != Some(true) {
        return Vec::new();
    }
    let name = inputs.name();
    let mut used = referred_to(&name, children);
    used.insert(names::config_map(&name, TemplateMark::of(inputs.cluster).spec()));
    let is_ours = |config: &ConfigMap| {
        config.owner_references().iter().any(|owner| owner.kind == MySQLCluster::kind(&()))
            && config.metadata.deletion_timestamp.is_none()
    };
    let unused = children.configs.values().filter(|config| !used.contains(&config.name_any()));
    unused.filter(|config| is_ours(config)).map(Arc::clone).collect()
}

/// The names that pods, the StatefulSet as it is, and the templates that are kept refer to.
fn referred_to(name: &str, children: &Children) -> BTreeSet<String> {
    let pods = children.pods.values().filter_map(|pod| pod.spec.as_ref());
    let set = children.stateful_set.iter().filter_map(|set| set.spec.template.spec.as_ref());
    let mounted = pods.chain(set).filter_map(mounted).map(ToOwned::to_owned);
    let kept = children.revisions.keys().filter_map(|revision| {
        let mark = revision.strip_prefix(&names::template_revision(name, ""))?;
        Some(names::config_map(name, mark))
    });
    mounted.chain(kept).collect()
}

/// The name of the ConfigMap that mysqld of a pod gets its my.cnf from. Others that somebody gave to the pod are theirs.
pub fn mounted(pod: &PodSpec) -> Option<&str> {
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == VOLUME)?;
    Some(volume.config_map.as_ref()?.name.as_str())
}
