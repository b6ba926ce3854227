//! Every name that two parts of the fleet must agree on.

use std::fmt;

/// API group of all resources.
pub const GROUP: &str = "mysqlfleet.io";
/// Field manager of everything the fleet applies, and the value of the managed-by label.
pub const MANAGER: &str = "mysql-fleet";
/// Field manager of what a member's shard applies for its hub. It declares the hub's fields of a spec, and nothing else.
pub const FEDERATION_MANAGER: &str = "mysqlfleet.io/federation";
/// Finalizer of a MySQLCluster: added before its first child, removed last.
pub const FINALIZER: &str = "mysqlfleet.io/cluster";
/// Finalizer of a MySQLClusterFederated: added before anything is sent, removed once no member has to delete anything.
pub const FINALIZER_FEDERATED: &str = "mysqlfleet.io/federated";
/// Label that says who makes and keeps an object.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label that names the cluster an object belongs to.
pub const LABEL_CLUSTER: &str = "mysqlfleet.io/cluster";
/// Label that holds the role an EndpointSlice serves, or a Secret belongs to.
pub const LABEL_ROLE: &str = "mysqlfleet.io/role";
/// Annotation that holds the UID of the MySQLCluster a volume claim was made for.
pub const ANNOTATION_CLUSTER_UID: &str = "mysqlfleet.io/cluster-uid";
/// Annotation of a MySQLCluster in a member that holds the UID of the hub's MySQLClusterFederated it was made for.
pub const ANNOTATION_FEDERATED_UID: &str = "mysqlfleet.io/federated-uid";
/// Annotation of a MySQLCluster that asks for another primary: a pod of the cluster, or `any`. The shard takes it
/// off once that is done or refused.
pub const ANNOTATION_SWITCHOVER: &str = "mysqlfleet.io/switchover";
/// Annotation of a MySQLCluster that gives up what a pod of it holds and the primary does not: its data are replaced
/// by a copy. The shard takes it off once that is done or refused.
pub const ANNOTATION_REBUILD: &str = "mysqlfleet.io/rebuild";
/// Annotation of a MySQLCluster that keeps what a pod of it holds and the primary does not: the pod, and those
/// transactions. The shard takes it off once that is done or refused.
pub const ANNOTATION_RELEASE: &str = "mysqlfleet.io/release";
/// Annotation of a MySQLCluster that makes a pod of it the primary though the failover is blocked: the pod, and that the
/// loss of data is accepted. The shard takes it off once that is done or refused.
pub const ANNOTATION_FORCE_PRIMARY: &str = "mysqlfleet.io/force-primary";
/// Annotation of a MySQLCluster that asks for another certificate authority of its tenant: how long clients have at each
/// step to learn of it, such as `24h`. The shard takes it off once that is done or refused.
pub const ANNOTATION_ROTATE_AUTHORITY: &str = "mysqlfleet.io/rotate-authority";

/// Port of MySQL's protocol.
pub const PORT_MYSQL: u16 = 3306;
/// Port of mysqld's administrative interface, for its agent alone.
pub const PORT_MYSQL_ADMIN: u16 = 33062;
/// Port of an agent's gRPC services.
pub const PORT_AGENT: u16 = 9443;
/// Port of an agent's probes and metrics.
pub const PORT_AGENT_HEALTH: u16 = 8081;
/// Port of a shard's gRPC services.
pub const PORT_SHARD_GRPC: u16 = 9443;
/// Port of a shard's probes.
pub const PORT_SHARD_HEALTH: u16 = 8081;
/// Port of a shard's metrics.
pub const PORT_SHARD_METRICS: u16 = 8080;

/// Name of a shard's Deployment, ServiceAccount, Role, RoleBinding and Service.
pub const SHARD: &str = "shard-manager";

/// Name of a hub's Deployment, ServiceAccount, Lease and Service.
pub const FEDERATION: &str = "federation-controller";
/// Name of the Secret with the certificate authority of a hub.
pub const HUB_CA_SECRET: &str = "mysql-fleet-hub-ca";
/// Name of the Secret with the server certificate of a hub.
pub const HUB_TLS_SECRET: &str = "mysql-fleet-hub-tls";
/// Name of the Secret with the client certificate for people who look at a hub.
pub const HUB_VIEWER_SECRET: &str = "mysql-fleet-hub-viewer";

/// The MySQL accounts that a cluster gives to people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UserRole {
    /// Replication between instances, and the copying of their data.
    Replication,
    /// A person who administers the databases.
    Admin,
    /// A program that reads and writes.
    Writer,
    /// A program that reads.
    Reader,
}

impl UserRole {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Replication, Self::Admin, Self::Writer, Self::Reader];

    /// The role in lower case: the suffix of its Secret and of its user name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replication => "replication",
            Self::Admin => "admin",
            Self::Writer => "writer",
            Self::Reader => "reader",
        }
    }

    /// Name of the MySQL account.
    pub fn username(self) -> String {
        format!("fleet_{}", self.as_str())
    }
}

impl fmt::Display for UserRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Name of the headless Service that gives each instance its DNS name.
pub fn instances_service(cluster: &str) -> String {
    format!("{cluster}-instances")
}

/// Name of the ControllerRevision that keeps a template which has worked, by its mark.
pub fn template_revision(cluster: &str, mark: &str) -> String {
    format!("{cluster}-template-{mark}")
}

/// Name of the Service, and of the EndpointSlice, that lead to the primary.
pub fn primary_service(cluster: &str) -> String {
    format!("{cluster}-primary")
}

/// Name of the Service, and of the EndpointSlice, that lead to the replicas.
pub fn replicas_service(cluster: &str) -> String {
    format!("{cluster}-replicas")
}

/// Name of the ConfigMap with the user's my.cnf keys, by the mark of their template.
pub fn config_map(cluster: &str, mark: &str) -> String {
    format!("{cluster}-config-{mark}")
}

/// Name of the Secret with the certificate of a cluster's instances.
pub fn tls_secret(cluster: &str) -> String {
    format!("{cluster}-tls")
}

/// Name of the Secret with the account of a role.
pub fn user_secret(cluster: &str, role: UserRole) -> String {
    format!("{cluster}-{role}")
}

/// Name of the pod of an instance.
pub fn pod(cluster: &str, ordinal: u32) -> String {
    format!("{cluster}-{ordinal}")
}

/// Name of the volume claim of an instance.
pub fn volume_claim(cluster: &str, ordinal: u32) -> String {
    format!("data-{cluster}-{ordinal}")
}

/// DNS name of an instance, which is also a name in its certificate.
pub fn instance_host(namespace: &str, cluster: &str, pod: &str) -> String {
    format!("{pod}.{}.{namespace}.svc", instances_service(cluster))
}

/// Ordinal of a pod or volume claim of a cluster, by its name.
pub fn ordinal(prefix: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?.strip_prefix('-')?;
    if digits.is_empty()
        || (digits.len() > 1 && digits.starts_with('0'))
        || !digits.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    digits.parse().ok()
}

/// Name of the Lease of a shard.
pub fn shard_lease(namespace: &str) -> String {
    format!("shard-{namespace}")
}

/// Name of the Secret with the certificate authority of a shard.
pub fn shard_ca_secret(namespace: &str) -> String {
    format!("shard-{namespace}-ca")
}

/// Name of the Secret with the server certificate of a shard.
pub fn shard_tls_secret(namespace: &str) -> String {
    format!("shard-{namespace}-tls")
}

/// Name of the Secret with the client certificate for people who query a shard.
pub fn shard_client_secret(namespace: &str) -> String {
    format!("shard-{namespace}-client")
}

/// DNS name of a shard's Service, which is also a name in its server certificate.
pub fn shard_host(namespace: &str) -> String {
    format!("{SHARD}.{namespace}.svc")
}

#[cfg(test)]
mod tests {
    use super::ordinal;

    #[test]
    fn ordinals_are_read_from_names_of_this_cluster_alone() {
        assert_eq!(ordinal("orders", "orders-0"), Some(0));
        assert_eq!(ordinal("orders", "orders-12"), Some(12));
        assert_eq!(ordinal("data-orders", "data-orders-2"), Some(2));
        for other in ["orders", "orders-", "orders-01", "orders-x", "orders-2-1", "invoices-0", "orders-+1"] {
            assert_eq!(ordinal("orders", other), None, "{other}");
        }
    }
}
