//! Why a pod does not run, in words for people.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

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

/// Why the pod does not run; `None` where it does, or is on its way.
pub fn of(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| {
            format!("not scheduled: {}", condition.message.as_deref().unwrap_or("no reason is given"))
        });
    unscheduled.or_else(|| {
        containers(pod)
            .find_map(waiting)
            .map(|(container, reason, message)| format!("container {container} waits: {reason}: {message}"))
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
    fn a_missing_storage_class_is_told_in_the_schedulers_words() {
        let pod = pod(&serde_json::json!({ "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "storageclass.storage.k8s.io \"nope\" not found"
        }]}));
        assert_eq!(of(&pod).unwrap(), "not scheduled: storageclass.storage.k8s.io \"nope\" not found");
    }

    #[test]
    fn an_image_that_is_not_there_is_named_and_the_template_is_unusable() {
        let pod = pod(&serde_json::json!({ "containerStatuses": [{
            "name": "mysqld", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image x" } }
        }]}));
        assert_eq!(of(&pod).unwrap(), "container mysqld waits: ImagePullBackOff: Back-off pulling image x");
        assert!(template_unusable(&pod));
    }

    #[test]
    fn a_pod_on_its_way_has_no_problem() {
        let pod = pod(&serde_json::json!({ "containerStatuses": [{
            "name": "mysqld", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "PodInitializing" } }
        }]}));
        assert_eq!(of(&pod), None);
        assert!(!template_unusable(&pod));
    }
}
