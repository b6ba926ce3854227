//! Who a certificate speaks for.

use std::{fmt, str::FromStr};

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const TENANT: &str = "spiffe://mysqlfleet.io/ns/";
const MEMBER: &str = "spiffe://mysqlfleet.io/member/";
const HUB: &str = "spiffe://mysqlfleet.io/hub";
const VIEWER: &str = "spiffe://mysqlfleet.io/federation/viewer";

/// What a holder of a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The shard manager of a namespace.
    Shard,
    /// The agent of a MySQL instance.
    Agent,
    /// A person or tool that asks a shard.
    Client,
}

impl Role {
    /// The role as it stands in a certificate.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shard => "shard",
            Self::Agent => "agent",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no role.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no role: shard, agent or client")]
pub struct InvalidRole(String);

impl FromStr for Role {
    type Err = InvalidRole;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Shard, Self::Agent, Self::Client]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| InvalidRole(text.to_owned()))
    }
}

/// Who a certificate speaks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Somebody of one namespace, within one Kubernetes cluster: `spiffe://mysqlfleet.io/ns/NAMESPACE/ROLE`.
    Tenant {
        /// Kubernetes namespace of the holder.
        namespace: String,
        /// What the holder is.
        role: Role,
    },
    /// The shard of one namespace of a member cluster, towards its hub:
    /// `spiffe://mysqlfleet.io/member/MEMBER/ns/NAMESPACE`.
    Member {
        /// Name of the MemberCluster.
        member: String,
        /// Kubernetes namespace that it speaks for.
        namespace: String,
    },
    /// A hub's federation controller: `spiffe://mysqlfleet.io/hub`.
    Hub,
    /// A person or tool that looks at a hub: `spiffe://mysqlfleet.io/federation/viewer`.
    Viewer,
}

impl Identity {
    /// The identity of a role in a namespace.
    pub fn new(namespace: impl Into<String>, role: Role) -> Self {
        Self::Tenant { namespace: namespace.into(), role }
    }

    /// The identity of the shard of a namespace of a member cluster.
    pub fn member(member: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self::Member { member: member.into(), namespace: namespace.into() }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant { namespace, role } => write!(f, "{TENANT}{namespace}/{role}"),
            Self::Member { member, namespace } => write!(f, "{MEMBER}{member}/ns/{namespace}"),
            Self::Hub => f.write_str(HUB),
            Self::Viewer => f.write_str(VIEWER),
        }
    }
}

/// The text is no identity.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no identity: spiffe://mysqlfleet.io/ns/NAMESPACE/ROLE, \
     spiffe://mysqlfleet.io/member/MEMBER/ns/NAMESPACE, spiffe://mysqlfleet.io/hub or \
     spiffe://mysqlfleet.io/federation/viewer"
)]
pub struct InvalidIdentity(String);

impl FromStr for Identity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let tenant = |rest: &str| {
            let (namespace, role) = rest.split_once('/').filter(|(namespace, _)| is_dns_label(namespace))?;
            Some(Self::new(namespace, role.parse().ok()?))
        };
        let member = |rest: &str| {
            let (member, namespace) = rest.split_once("/ns/")?;
            (is_dns_label(member) && is_dns_label(namespace)).then(|| Self::member(member, namespace))
        };
        let found = if text == HUB {
            Some(Self::Hub)
        } else if text == VIEWER {
            Some(Self::Viewer)
        } else {
            let of_tenant = text.strip_prefix(TENANT).and_then(tenant);
            of_tenant.or_else(|| text.strip_prefix(MEMBER).and_then(member))
        };
        found.ok_or_else(|| InvalidIdentity(text.to_owned()))
    }
}

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns the identity in a certificate (DER). A certificate with several URI names has none: which of
/// them is meant would be a guess.
pub fn identity_of(certificate: &[u8]) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let uri = uris.next()?;
    if uris.next().is_some() {
        return None;
    }
    uri.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_written() {
        for (identity, text) in [
            (Identity::new("tenant-a", Role::Shard), "spiffe://mysqlfleet.io/ns/tenant-a/shard"),
            (Identity::member("east", "tenant-a"), "spiffe://mysqlfleet.io/member/east/ns/tenant-a"),
            (Identity::Hub, "spiffe://mysqlfleet.io/hub"),
            (Identity::Viewer, "spiffe://mysqlfleet.io/federation/viewer"),
        ] {
            assert_eq!(identity.to_string(), text);
            assert_eq!(text.parse(), Ok(identity));
        }
    }

    #[test]
    fn anything_else_is_no_identity() {
        for text in [
            "",
            "spiffe://mysqlfleet.io/ns//shard",
            "spiffe://mysqlfleet.io/ns/tenant-a/root",
            "spiffe://mysqlfleet.io/ns/tenant-a/shard/",
            "spiffe://mysqlfleet.io/ns/Tenant/shard",
            "spiffe://mysqlfleet.io/ns/-a/shard",
            "spiffe://other.io/ns/tenant-a/shard",
            "SPIFFE://mysqlfleet.io/ns/tenant-a/shard",
            "spiffe://mysqlfleet.io/ns/tenant-a/hub",
            "spiffe://mysqlfleet.io/member/east/ns/",
            "spiffe://mysqlfleet.io/member//ns/tenant-a",
            "spiffe://mysqlfleet.io/member/east",
            "spiffe://mysqlfleet.io/member/east/ns/tenant-a/ns/tenant-b",
            "spiffe://mysqlfleet.io/hub/",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
