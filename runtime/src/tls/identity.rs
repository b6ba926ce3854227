//! Who a certificate speaks for.

use std::{fmt, str::FromStr};

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const PREFIX: &str = "spiffe://mysqlfleet.io/ns/";

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

/// Who a certificate speaks for, written `spiffe://mysqlfleet.io/ns/<namespace>/<role>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Kubernetes namespace of the holder.
    pub namespace: String,
    /// What the holder is.
    pub role: Role,
}

impl Identity {
    /// The identity of a role in a namespace.
    pub fn new(namespace: impl Into<String>, role: Role) -> Self {
        Self { namespace: namespace.into(), role }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.namespace, self.role)
    }
}

/// The text is no identity.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no identity: spiffe://mysqlfleet.io/ns/NAMESPACE/ROLE")]
pub struct InvalidIdentity(String);

impl FromStr for Identity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(namespace, _)| is_dns_label(namespace))
            .and_then(|(namespace, role)| Some(Self::new(namespace, role.parse().ok()?)))
            .ok_or_else(|| InvalidIdentity(text.to_owned()))
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
        let identity = Identity::new("tenant-a", Role::Shard);
        assert_eq!(identity.to_string(), "spiffe://mysqlfleet.io/ns/tenant-a/shard");
        assert_eq!(identity.to_string().parse(), Ok(identity));
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
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
