//! The certificates of a cluster.
//!
//! Each identity is one PEM file with key and certificate, written by a rename: an interrupted run leaves no
//! key without its certificate. What exists is kept.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::plan::Plan;

/// The folder of a cluster's certificates.
#[derive(Debug, Clone)]
pub struct Pki {
    folder: PathBuf,
}

/// Who a certificate is for.
struct Identity<'a> {
    file: &'a str,
    user: &'a str,
    group: Option<&'a str>,
    names: Vec<SanType>,
}

impl Pki {
    /// Makes what is missing of the cluster's certificates.
    pub fn ensure(folder: &Path, plan: &Plan) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
        let pki = Self { folder: folder.to_owned() };
        pki.ensure_authority(&plan.name)?;
        pki.ensure_service_account_key()?;
        let issuer = pki.issuer()?;
        let mut server_names =
            addresses(&[plan.node_ip(0).into(), IpAddr::from([127, 0, 0, 1]), plan.api_service_ip().into()]);
        for name in ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
            server_names.push(SanType::DnsName(name.try_into()?));
        }
        let none = Vec::new();
        let mut identities = vec![
            Identity { file: "apiserver", user: "kube-apiserver", group: None, names: server_names },
            admin("admin", none.clone()),
            // A group of all rights spares the account per controller, and a second at each start.
            admin("controller-manager", none.clone()),
            Identity { file: "scheduler", user: "system:kube-scheduler", group: None, names: none.clone() },
            Identity { file: "proxy", user: "system:kube-proxy", group: None, names: none },
        ];
        let nodes: Vec<(String, String, IpAddr)> = plan
            .each_node()
            .map(|node| {
                let name = plan.node_name(node);
                (format!("kubelet-{node}"), format!("system:node:{name}"), plan.node_ip(node).into())
            })
            .collect();
        for (file, user, address) in &nodes {
            identities.push(Identity {
                file,
                user,
                group: Some("system:nodes"),
                names: addresses(&[*address]),
            });
        }
        for identity in identities {
            pki.ensure_identity(&issuer, &identity)?;
        }
        Ok(pki)
    }

    /// A bare API server's certificates: itself on 127.0.0.1, and an administrator.
    pub fn ensure_bare(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
        let pki = Self { folder: folder.to_owned() };
        pki.ensure_authority("bare")?;
        pki.ensure_service_account_key()?;
        let issuer = pki.issuer()?;
        let server = Identity {
            file: "apiserver",
            user: "kube-apiserver",
            group: None,
            names: addresses(&[IpAddr::from([127, 0, 0, 1])]),
        };
        pki.ensure_identity(&issuer, &server)?;
        pki.ensure_identity(&issuer, &admin("admin", Vec::new()))?;
        Ok(pki)
    }

    /// The certificate everyone trusts.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The key that signs certificates.
    pub fn authority_key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }

    /// The key that signs the tokens of service accounts.
    pub fn service_account_key(&self) -> PathBuf {
        self.folder.join("sa.key")
    }

    /// The key that proves such tokens: the API server takes no private key of this kind for it.
    pub fn service_account_public_key(&self) -> PathBuf {
        self.folder.join("sa.pub")
    }

    /// The file that holds the key and the certificate of an identity.
    pub fn identity(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>> {
        let key = KeyPair::from_pem(&read(&self.authority_key())?)?;
        Ok(Issuer::from_ca_cert_pem(&read(&self.authority())?, key)?)
    }

    fn ensure_authority(&self, name: &str) -> Result<()> {
        // The key is written first, so a certificate always has its key.
        if self.authority().exists() {
            return Ok(());
        }
        let key = KeyPair::generate()?;
        let mut params = params(&format!("{name} local cluster"))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?;
        write(&self.authority_key(), &key.serialize_pem())?;
        write(&self.authority(), &certificate.pem())
    }

    fn ensure_service_account_key(&self) -> Result<()> {
        if self.service_account_public_key().exists() {
            return Ok(());
        }
        let key = KeyPair::generate()?;
        write(&self.service_account_key(), &key.serialize_pem())?;
        write(&self.service_account_public_key(), &key.public_key_pem())
    }

    fn ensure_identity(&self, issuer: &Issuer<'_, KeyPair>, identity: &Identity<'_>) -> Result<()> {
        let file = self.identity(identity.file);
        if file.exists() {
            return Ok(());
        }
        let key = KeyPair::generate()?;
        let mut params = params(identity.user)?;
        if let Some(group) = identity.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.subject_alt_names.clone_from(&identity.names);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, issuer)?;
        write(&file, &format!("{}{}", certificate.pem(), key.serialize_pem()))
    }
}

fn admin(file: &str, names: Vec<SanType>) -> Identity<'_> {
    Identity { file, user: file, group: Some("system:masters"), names }
}

fn addresses(list: &[IpAddr]) -> Vec<SanType> {
    list.iter().copied().map(SanType::IpAddress).collect()
}

fn params(name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2120, 1, 1);
    Ok(params)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    super::files::write_private(file, text)
}
