//! Services, and the EndpointSlices that say where traffic goes.
//!
//! Only the headless Service has a selector. The other two get their endpoints from the shard alone: with
//! no label round trip through another controller, traffic moves in one write, and never to a pod that is
//! merely ready.

use fleet_api::names;
use fleet_topology::InstanceId;
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service, ServicePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::Inputs;
use crate::labels;

const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) fn services(inputs: &Inputs<'_>) -> Vec<Service> {
    let name = inputs.name();
    let mysql = || ServicePort {
        name: Some("mysql".to_owned()),
        port: i32::from(names::PORT_MYSQL),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(i32::from(names::PORT_MYSQL))),
        ..ServicePort::default()
    };
    let agent = ServicePort {
        name: Some("agent".to_owned()),
        port: i32::from(names::PORT_AGENT),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(i32::from(names::PORT_AGENT))),
        ..ServicePort::default()
    };
    let instances = Service {
        metadata: inputs.metadata(names::instances_service(&name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            // Instances find one another before any of them is ready.
            publish_not_ready_addresses: Some(true),
            selector: Some(labels::selector(&name)),
            ports: Some(vec![mysql(), agent]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    let without_selector = |service: String| Service {
        metadata: inputs.metadata(service),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            ports: Some(vec![mysql()]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    vec![
        instances,
        without_selector(names::primary_service(&name)),
        without_selector(names::replicas_service(&name)),
    ]
}

pub(super) fn slices(inputs: &Inputs<'_>) -> Vec<EndpointSlice> {
    let name = inputs.name();
    let primary: Vec<InstanceId> = inputs.traffic.primary.into_iter().collect();
    vec![
        slice(inputs, names::primary_service(&name), &primary),
        slice(inputs, names::replicas_service(&name), &inputs.traffic.replicas),
    ]
}

fn slice(inputs: &Inputs<'_>, service: String, instances: &[InstanceId]) -> EndpointSlice {
    let pods = instances.iter().filter_map(|id| inputs.found.children.pods.get(&id.0));
    let endpoints: Vec<Endpoint> = pods.filter_map(|pod| endpoint(pod)).collect();
    let v6 = endpoints.iter().flat_map(|endpoint| &endpoint.addresses).any(|address| address.contains(':'));
    let mut metadata = inputs.metadata(service.clone());
    metadata.labels.get_or_insert_default().extend([
        ("kubernetes.io/service-name".to_owned(), service),
        ("endpointslice.kubernetes.io/managed-by".to_owned(), names::MANAGER.to_owned()),
    ]);
    EndpointSlice {
        metadata,
        address_type: if v6 { "IPv6" } else { "IPv4" }.to_owned(),
        endpoints: Some(endpoints),
        ports: Some(vec![EndpointPort {
            name: Some("mysql".to_owned()),
            port: Some(i32::from(names::PORT_MYSQL)),
            protocol: Some("TCP".to_owned()),
            app_protocol: None,
        }]),
    }
}

fn endpoint(pod: &Pod) -> Option<Endpoint> {
    let address = pod.status.as_ref()?.pod_ip.clone()?;
    Some(Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        }),
        node_name: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        zone: pod.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE).cloned()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}
