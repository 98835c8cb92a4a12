//! Certificates, keys and tokens of a cluster, and the kubeconfigs with them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;

use super::{ADDRESS, NODE, SERVICE};

/// The tokens, each with its user and the user's group.
const USERS: [(&str, &str, &str, &str); 2] = [
    ("admin", "token-of-admin", "admin", "system:masters"),
    (
        "kubelet",
        "token-of-kubelet",
        "system:node:",
        "system:nodes",
    ),
];

/// The directory with all of it.
#[derive(Debug)]
pub(super) struct Pki(PathBuf);

impl Pki {
    /// Makes it in `dir`, which is new.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir(dir).context("create the directory for certificates")?;
        let this = Self(dir.to_owned());
        let key = KeyPair::generate()?;
        let mut signer = named("podwarden-e2e", None, Vec::new())?;
        signer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        this.write("ca.crt", &signer.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(signer, key);
        let addresses = [ADDRESS, SERVICE, "127.0.0.1", "kubernetes"];
        let server = named(
            "kube-apiserver",
            None,
            addresses.map(str::to_owned).to_vec(),
        )?;
        this.sign("server", &server, &issuer)?;
        // With these rights the API server asks the kubelet for logs.
        let client = named("kube-apiserver", Some("system:masters"), Vec::new())?;
        this.sign("client", &client, &issuer)?;
        let accounts = KeyPair::generate()?;
        this.write("accounts.key", &accounts.serialize_pem())?;
        this.write("accounts.pub", &accounts.public_key_pem())?;
        let tokens = USERS.map(|(_, token, user, group)| {
            let user = if user.ends_with(':') {
                format!("{user}{NODE}")
            } else {
                user.to_owned()
            };
            format!("{token},{user},{user},{group}\n")
        });
        this.write("tokens.csv", &tokens.concat())?;
        for (name, token, ..) in USERS {
            this.kubeconfig(name, token)?;
        }
        Ok(this)
    }

    /// A file of it: `ca.crt`, `server.crt`, `server.key`, `client.crt`, `client.key`, `accounts.key`,
    /// `accounts.pub`, `tokens.csv`, `admin.conf`, `kubelet.conf`.
    pub(super) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.0.join(name), text).with_context(|| format!("write {name}"))
    }

    fn sign(
        &self,
        name: &str,
        params: &CertificateParams,
        issuer: &Issuer<'_, KeyPair>,
    ) -> Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, issuer)?;
        self.write(&format!("{name}.crt"), &certificate.pem())?;
        self.write(&format!("{name}.key"), &key.serialize_pem())
    }

    fn kubeconfig(&self, name: &str, token: &str) -> Result<()> {
        let cluster = json!({
            "server": format!("https://{SERVICE}:443"),
            "certificate-authority": self.file("ca.crt"),
        });
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "current-context": "e2e",
        });
        self.write(&format!("{name}.conf"), &text.to_string())
    }
}

fn named(name: &str, group: Option<&str>, addresses: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(addresses)?;
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    Ok(params)
}
