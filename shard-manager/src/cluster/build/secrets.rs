//! The Secrets of a cluster.

use std::{collections::BTreeMap, time::Duration};

use fleet_api::names::{self, UserRole};
use fleet_runtime::tls::{CertificateRequest, Identity, Role, TlsError};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::ResourceExt as _;

use super::Inputs;
use crate::tenant::{certificate, tls_data};

/// Life of an instance's certificate; it is renewed after two thirds of it.
const VALIDITY: Duration = Duration::from_hours(90 * 24);

/// One Secret for each account, with a password that is a function of the tenant's seed.
pub(super) fn users(inputs: &Inputs<'_>) -> Vec<Secret> {
    let uid = inputs.cluster.uid().unwrap_or_default();
    let secret = |role: UserRole| {
        let mut metadata = inputs.metadata(names::user_secret(&inputs.name(), role));
        metadata.labels.get_or_insert_default().insert(names::LABEL_ROLE.to_owned(), role.to_string());
        let data = [("username", role.username()), ("password", inputs.found.keys.seed.password(&uid, role))];
        Secret {
            metadata,
            type_: Some("kubernetes.io/basic-auth".to_owned()),
            data: Some(
                data.into_iter()
                    .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
                    .collect::<BTreeMap<_, _>>(),
            ),
            ..Secret::default()
        }
    };
    UserRole::ALL.map(secret).into()
}

/// The certificate of all instances: for clients by the names of the Services, for replication by the
/// instances' own names, for the shard by the agents' identity.
pub(super) fn tls(inputs: &Inputs<'_>) -> Result<Secret, TlsError> {
    let name = inputs.name();
    let request = CertificateRequest {
        common_name: format!("mysql {name}"),
        dns_names: dns_names(&name, inputs.namespace),
        identity: Some(Identity::new(inputs.namespace, Role::Agent)),
        validity: VALIDITY,
    };
    let live = inputs.found.children.tls.as_deref();
    let keys = &inputs.found.keys;
    let material = certificate(&keys.authority, &keys.bundle(), &request, live, inputs.now)?;
    Ok(Secret {
        metadata: inputs.metadata(names::tls_secret(&name)),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(tls_data(&material)),
        ..Secret::default()
    })
}

fn dns_names(cluster: &str, namespace: &str) -> Vec<String> {
    let mut dns_names = vec![
        format!("*.{}.{namespace}.svc", names::instances_service(cluster)),
        format!("*.{}.{namespace}.svc.cluster.local", names::instances_service(cluster)),
    ];
    for service in [names::primary_service(cluster), names::replicas_service(cluster)] {
        for suffix in [
            "",
            &format!(".{namespace}"),
            &format!(".{namespace}.svc"),
            &format!(".{namespace}.svc.cluster.local"),
        ] {
            dns_names.push(format!("{service}{suffix}"));
        }
    }
    dns_names
}
