//! What is kept of a template that has worked.

use fleet_api::names;
use k8s_openapi::{api::apps::v1::ControllerRevision, apimachinery::pkg::runtime::RawExtension};

use super::{Inputs, TemplateMark};
use crate::cluster::rollout::{Template, newest};

/// The revision of the template that all instances are in sync with; `None` where it is the one that is kept already,
/// or a pod does not say which template it is of.
pub(super) fn proved_template(inputs: &Inputs<'_>) -> Option<ControllerRevision> {
    let cluster = inputs.cluster;
    let children = &inputs.found.children;
    let mark = TemplateMark::of(cluster);
    let wanted = 0..u32::try_from(cluster.spec.replicas).unwrap_or_default();
    let is_of = |ordinal| children.pods.get(&ordinal).is_some_and(|pod| mark.is_of(&pod.metadata));
    if !inputs.works || !wanted.into_iter().all(is_of) {
        return None;
    }
    let name = names::template_revision(&inputs.name(), mark.spec());
    let newest = newest(cluster, children);
    if newest.is_some_and(|kept| kept.metadata.name.as_deref() == Some(name.as_str())) {
        return None;
    }
    // What was read from JSON can be written as JSON.
    let data = serde_json::to_value(Template::of(&cluster.spec)).ok()?;
    Some(ControllerRevision {
        metadata: inputs.metadata(name),
        data: RawExtension(data),
        revision: Some(newest.and_then(|kept| kept.revision).map_or(1, |kept| kept.saturating_add(1))),
    })
}
