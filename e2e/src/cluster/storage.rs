//! Objects that DNS and storage need in a cluster, and the storage driver's names.
//!
//! CoreDNS, the driver and its sidecars are processes of this machine in a node's network namespace: they
//! need no image and no roles.

use std::path::PathBuf;

use super::Cluster;

/// The name of the storage driver: a volume is an XFS file system in a file, so sizes are real.
pub const DRIVER: &str = "loop.csi.local";

/// The socket by which a node's kubelet finds the driver.
pub fn registration_socket(cluster: &Cluster, node: u8) -> PathBuf {
    cluster.node_home(node).join("kubelet/plugins_registry/loop-reg.sock")
}

/// The driver and the default StorageClass `loop`.
pub fn storage_objects() -> String {
    format!(
        r#"apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: {DRIVER}
spec:
  attachRequired: false
  podInfoOnMount: false
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: loop
  annotations:
    storageclass.kubernetes.io/is-default-class: "true"
provisioner: {DRIVER}
allowVolumeExpansion: true
reclaimPolicy: Delete
volumeBindingMode: WaitForFirstConsumer
"#
    )
}

/// The Service of CoreDNS, whose one endpoint is node 0. Both labels matter: the first binds the slice to
/// the Service, the second keeps the endpoint controllers off it.
pub fn dns_objects(cluster: &Cluster) -> String {
    let plan = cluster.plan();
    format!(
        r"apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
  labels:
    k8s-app: kube-dns
    kubernetes.io/name: CoreDNS
spec:
  clusterIP: {service}
  ports:
  - {{name: dns, port: 53, protocol: UDP, targetPort: 53}}
  - {{name: dns-tcp, port: 53, protocol: TCP, targetPort: 53}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns-host
  namespace: kube-system
  labels:
    kubernetes.io/service-name: kube-dns
    endpointslice.kubernetes.io/managed-by: host-process
addressType: IPv4
endpoints:
- addresses: [{node}]
  conditions: {{ready: true}}
ports:
- {{name: dns, port: 53, protocol: UDP}}
- {{name: dns-tcp, port: 53, protocol: TCP}}
",
        service = plan.dns_service_ip(),
        node = plan.node_ip(0),
    )
}
