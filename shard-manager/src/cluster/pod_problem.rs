//! Why a pod does not run, in words for people.

use k8s_openapi::api::core::v1::{ContainerStatus, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

/// Reasons with which kubelet waits for nothing but an image or a configuration that can be used: such a
/// container has never run with this template and does not run until the template or the image changes.
const UNUSABLE: [&str; 6] = [
    "ErrImagePull",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// Why the pod, which has this volume claim, does not run; `None` where it does, or is on its way.
///
/// A shard may not read StorageClasses, so one that does not exist is told by the claim that waits for it.
pub fn of(pod: &Pod, claim: Option<&PersistentVolumeClaim>) -> Option<String> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| {
            let reason = condition.message.as_deref().unwrap_or("no reason is given");
            let claim = claim.and_then(waits_for).map(|waits| format!("; {waits}")).unwrap_or_default();
            format!("not scheduled: {reason}{claim}")
        });
    unscheduled.or_else(|| {
        containers(pod)
            .find_map(waiting)
            .map(|(container, reason, message)| format!("container {container} waits: {reason}: {message}"))
    })
}

/// The phase of a volume claim: Pending, Bound or Lost.
pub fn claim_phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// What a claim without a volume waits for.
fn waits_for(claim: &PersistentVolumeClaim) -> Option<String> {
    let pending = claim_phase(claim) == Some("Pending");
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    pending.then(|| {
        let name = claim.name_any();
        class.map_or_else(
            || format!("PersistentVolumeClaim {name} has no volume yet and no StorageClass: is there a default one?"),
            |class| format!("PersistentVolumeClaim {name} has no volume yet: is there a StorageClass {class}?"),
        )
    })
}

/// Whether a container of the pod can't run as its template is.
pub fn template_unusable(pod: &Pod) -> bool {
    containers(pod).filter_map(waiting).any(|(_, reason, _)| UNUSABLE.contains(&reason))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

/// What a container waits for, where that is more than its turn.
fn waiting(container: &ContainerStatus) -> Option<(&str, &str, &str)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    (!matches!(reason, "PodInitializing" | "ContainerCreating"))
        .then(|| (container.name.as_str(), reason, waiting.message.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({ "status": status })).unwrap()
    }

    #[test]
    fn a_missing_storage_class_is_named_with_the_claim_that_waits_for_it() {
        let pod = pod(&serde_json::json!({ "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "pod has unbound immediate PersistentVolumeClaims"
        }]}));
        let claim = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "data-orders-0" },
            "spec": { "storageClassName": "nope" },
            "status": { "phase": "Pending" }
        }))
        .unwrap();
        assert_eq!(
            of(&pod, Some(&claim)).unwrap(),
            "not scheduled: pod has unbound immediate PersistentVolumeClaims; PersistentVolumeClaim data-orders-0 has no \
             volume yet: is there a StorageClass nope?"
        );
    }

    #[test]
    fn an_image_that_is_not_there_is_named_and_the_template_is_unusable() {
        let pod = pod(&serde_json::json!({ "containerStatuses": [{
            "name": "mysqld", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image x" } }
        }]}));
        assert_eq!(
            of(&pod, None).unwrap(),
            "container mysqld waits: ImagePullBackOff: Back-off pulling image x"
        );
        assert!(template_unusable(&pod));
    }

    #[test]
    fn a_pod_on_its_way_has_no_problem() {
        let pod = pod(&serde_json::json!({ "containerStatuses": [{
            "name": "mysqld", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "PodInitializing" } }
        }]}));
        assert_eq!(of(&pod, None), None);
        assert!(!template_unusable(&pod));
    }
}
