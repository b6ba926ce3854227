//! `kubectl fleet member`: what a hub gives to its members.

use std::{
    io::{self, Write},
    time::Duration,
};

use fleet_api::names::HUB_CA_SECRET;
use fleet_runtime::tls::{Authority, CertificateRequest, Identity, TlsError};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client};

use crate::status::{ShardOptions, StatusError, client, find::ask};

/// Life of a member's certificate; its shard asks for a new one after two thirds of it.
const VALIDITY: Duration = Duration::from_hours(90 * 24);

/// What to issue, and by which hub.
#[derive(Clone, Debug)]
pub struct CertificateOptions {
    /// Name of the MemberCluster, a DNS label.
    pub member: String,
    /// Namespace of the member that the certificate speaks for.
    pub namespace: String,
    /// Name of the Secret that is printed.
    pub secret: String,
    /// The hub's Kubernetes cluster, and the namespace of its controller.
    pub hub: ShardOptions,
}

/// No certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The hub's cluster can't be asked.
    #[error(transparent)]
    Hub(#[from] StatusError),
    /// The Secret does not hold what it should.
    #[error("Secret {namespace}/{HUB_CA_SECRET} can't be used: {message}")]
    BadAuthority {
        /// The hub's namespace.
        namespace: String,
        /// What is wrong.
        message: String,
    },
    /// The certificate can't be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The Secret can't be written as YAML.
    #[error("can't write the Secret as YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The output can't be written.
    #[error("can't write to the standard output: {0}")]
    Output(#[from] io::Error),
}

impl MemberError {
    /// Whether an argument has to be changed.
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Hub(error) => error.is_usage(),
            Self::BadAuthority { .. } | Self::Tls(_) | Self::Yaml(_) | Self::Output(_) => false,
        }
    }
}

/// Issues a certificate by the hub's authority and prints it as a Secret, for `kubectl apply -f -` in the member. The
/// authority's key stays where the caller has read it from.
pub async fn certificate(options: &CertificateOptions, output: &mut impl Write) -> Result<(), MemberError> {
    let (client, hub) = client(&options.hub).await?;
    let authority = authority(&client, &hub).await?;
    let secret = issue(&authority, options, Timestamp::now())?;
    let text = serde_yaml_ng::to_string(&secret)?;
    match output.write_all(format!("---\n{text}").as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

async fn authority(client: &Client, namespace: &str) -> Result<Authority, MemberError> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let action = format!("read Secret {namespace}/{HUB_CA_SECRET}");
    let found = ask(action, secrets.get_opt(HUB_CA_SECRET)).await?;
    let missing = || StatusError::NoHub { namespace: namespace.to_owned(), secret: HUB_CA_SECRET.to_owned() };
    let data = found.ok_or_else(missing)?.data.unwrap_or_default();
    let bad = |message: String| MemberError::BadAuthority { namespace: namespace.to_owned(), message };
    let text = |key: &str| {
        let bytes = data.get(key).ok_or_else(|| bad(format!("{key} is missing")))?;
        String::from_utf8(bytes.0.clone()).map_err(|_| bad(format!("{key} is not PEM")))
    };
    Authority::from_pem(&text("ca.crt")?, &text("ca.key")?).map_err(|error| bad(error.to_string()))
}

fn issue(authority: &Authority, options: &CertificateOptions, now: Timestamp) -> Result<Secret, TlsError> {
    let CertificateOptions { member, namespace, secret, hub: _ } = options;
    let request = CertificateRequest {
        common_name: format!("member {member} {namespace}"),
        dns_names: Vec::new(),
        identity: Some(Identity::member(member, namespace)),
        validity: VALIDITY,
    };
    let issued = authority.issue(&request, now)?;
    let parts =
        [("ca.crt", authority.cert_pem().to_owned()), ("tls.crt", issued.cert), ("tls.key", issued.key)];
    let mut object = Secret {
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(parts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).into()),
        ..Secret::default()
    };
    object.metadata.name = Some(secret.clone());
    object.metadata.namespace = Some(namespace.clone());
    Ok(object)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fleet_runtime::tls::{Material, install_provider};
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower_test::mock;

    use super::*;

    fn options() -> CertificateOptions {
        CertificateOptions {
            member: "east".to_owned(),
            namespace: "tenant-a".to_owned(),
            secret: "hub".to_owned(),
            hub: ShardOptions::default(),
        }
    }

    fn made() -> Authority {
        install_provider();
        Authority::generate("hub", Timestamp::now()).unwrap()
    }

    /// A hub with this Secret.
    async fn read(data: Option<BTreeMap<String, ByteString>>) -> Result<Authority, MemberError> {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let answer = async move {
            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(request.uri().path(), "/api/v1/namespaces/fleet/secrets/mysql-fleet-hub-ca");
            let (code, body) = match data {
                Some(data) => {
                    let secret = Secret { data: Some(data), ..Secret::default() };
                    (200, serde_json::to_value(secret).unwrap())
                }
                None => (
                    404,
                    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "no"}),
                ),
            };
            let body = Body::from(body.to_string().into_bytes());
            send.send_response(Response::builder().status(code).body(body).unwrap());
        };
        let client = Client::new(service, "fleet");
        tokio::join!(authority(&client, "fleet"), answer).0
    }

    fn data(authority: &Authority) -> BTreeMap<String, ByteString> {
        [("ca.crt", authority.cert_pem()), ("ca.key", authority.key_pem())]
            .map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())))
            .into()
    }

    #[tokio::test]
    async fn the_certificate_speaks_for_one_namespace_of_the_member_and_the_key_stays() {
        let authority = read(Some(data(&made()))).await.unwrap();
        let now = Timestamp::now();
        let secret = issue(&authority, &options(), now).unwrap();
        assert_eq!(secret.metadata.namespace.as_deref(), Some("tenant-a"));
        let parts = secret.data.unwrap();
        assert_eq!(parts.keys().collect::<Vec<_>>(), ["ca.crt", "tls.crt", "tls.key"]);
        let text = |key: &str| String::from_utf8(parts[key].0.clone()).unwrap();
        let material = Material { ca: text("ca.crt"), cert: text("tls.crt"), key: text("tls.key") };
        let facts = material.certificate().unwrap();
        assert_eq!(facts.identity, Some(Identity::member("east", "tenant-a")));
        assert!(facts.not_after > now + Duration::from_hours(89 * 24));
        assert!(parts.values().all(|part| part.0 != authority.key_pem().as_bytes()));
    }

    #[tokio::test]
    async fn each_fault_of_the_hub_is_named() {
        let missing = read(None).await.unwrap_err();
        assert!(missing.is_usage() && missing.to_string().contains("--hub-namespace"), "{missing}");
        let mut half = data(&made());
        half.remove("ca.key");
        let error = read(Some(half)).await.unwrap_err().to_string();
        assert!(error.contains("fleet/mysql-fleet-hub-ca") && error.contains("ca.key is missing"), "{error}");
        let mut odd = data(&made());
        odd.insert("ca.key".to_owned(), ByteString(b"nonsense".to_vec()));
        assert!(read(Some(odd)).await.unwrap_err().to_string().contains("ca.key can't be used"));
    }
}
