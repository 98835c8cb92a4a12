//! The listener for other machines: TLS, and clients that the API server knows and lets in.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::apiserver::World;
use super::{Case, Context, portable};
use crate::apiserver::Outage;
use crate::harness::{Options, eventually, http_get, https_get};

pub(super) const CASES: &[Case] = &[
    portable("secure_reviews", secure_reviews),
    portable("secure_certificate", secure_certificate),
];

/// An address that nothing has at the moment.
fn free() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.3:0")?;
    Ok(listener.local_addr()?)
}

fn world(context: &Context, address: SocketAddr, more: &str) -> Result<World> {
    let options = Options {
        // Shorter than the defaults: a right that is taken away is waited for.
        config: format!(
            "secureListen: {address}\nauthentication: {{webhook: {{cacheTTL: 10s}}}}\n\
             authorization: {{webhook: {{cacheAuthorizedTTL: 10s, cacheUnauthorizedTTL: 10s}}}}\n{more}"
        ),
        ..Options::default()
    };
    let mut world = World::with(context, options, |server| {
        let user = |name: &str| (format!("token-of-{name}"), name.to_owned());
        server.manners(|m| {
            m.clients.users = ["scraper", "other"].map(user).into();
            let may = |path: &str| ("scraper".to_owned(), path.to_owned());
            m.clients.may_get = ["/metrics", "/v1/node"].map(may).into();
        });
        Ok(())
    })?;
    world.ready(context)?;
    Ok(world)
}

const SCRAPER: Option<&str> = Some("token-of-scraper");

/// Health for all, metrics for whom the API server lets get them, and nothing while it says nothing.
fn secure_reviews(context: &Context) -> Result<()> {
    let address = free()?;
    let mut world = world(context, address, "")?;
    let status = |path: &str, token: Option<&str>| -> Result<u16> {
        Ok(https_get(address, path, token)?.0.status)
    };
    let other = Some("token-of-other");
    for (path, token, expected) in [
        ("/healthz", None, 200),
        ("/readyz", None, 200),
        ("/metrics", None, 401),
        ("/", None, 401),
        ("/v1/node", None, 401),
        ("/metrics", Some("token-of-none"), 401),
        ("/metrics", other, 403),
        // It may get the path, and the configuration does not offer it here.
        ("/v1/node", SCRAPER, 403),
        ("/v1/plan", SCRAPER, 403),
        ("/metrics", SCRAPER, 200),
    ] {
        let found = status(path, token)?;
        ensure!(found == expected, "GET {path} of {token:?}: {found}");
    }
    let (answer, _) = https_get(address, "/metrics", None)?;
    let head = answer.head.to_lowercase();
    ensure!(head.contains("www-authenticate: bearer"), "{head}");
    let (answer, _) = https_get(address, "/metrics", SCRAPER)?;
    let here = http_get(world.node.agent.socket(), "/metrics")?;
    for text in [answer.text(), here.text()] {
        ensure!(text.contains("\npodwarden_info{"), "no podwarden_info");
    }

    // What was answered holds for a while, and no longer.
    world.verbs();
    for _ in 0..20 {
        ensure!(status("/metrics", SCRAPER)? == 200, "it was let in before");
    }
    let asked = world.verbs();
    let reviews = ["tokenreviews", "subjectaccessreviews"].map(|kind| {
        let asked = asked.get(&format!("create {kind}"));
        asked.copied().unwrap_or_default()
    });
    // The answers may have been old enough once.
    ensure!(reviews.iter().all(|count| *count <= 1), "{asked:?}");
    world.server.manners(|m| m.clients.may_get.clear());
    eventually(world.node.limit(), || {
        let found = status("/metrics", SCRAPER)?;
        ensure!(found == 403, "a right that was taken away opens: {found}");
        Ok(())
    })?;

    // A client that has not been asked about: no answer is let in, and none is kept.
    let fresh = Some("token-of-fresh");
    world.server.manners(|m| {
        let (token, user) = ("token-of-fresh".to_owned(), "fresh".to_owned());
        m.clients.users.insert(token, user.clone());
        m.clients.may_get = [(user, "/metrics".to_owned())].into();
    });
    world.server.go_away(Outage::Refused)?;
    let found = status("/metrics", fresh)?;
    ensure!(found == 503, "the API server is away: {found}");
    ensure!(status("/healthz", None)? == 200, "health needs no review");
    let degraded = |is: bool| {
        eventually(world.node.limit(), || {
            let degraded = world.node.agent.node()?.degradations.join("\n");
            ensure!(degraded.contains("secureListen") == is, "{degraded}");
            Ok(())
        })
    };
    degraded(true)?;
    world.server.come_back()?;
    eventually(world.node.limit(), || {
        let found = status("/metrics", fresh)?;
        ensure!(found == 200, "the API server is back: {found}");
        Ok(())
    })?;
    degraded(false)?;
    crowd(&world, address)?;
    // In the clear there is nothing.
    let plain = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut bytes = Vec::new();
        // The end may be a reset.
        let _ = stream.read_to_end(&mut bytes);
        Ok(bytes)
    })?;
    ensure!(!plain.starts_with(b"HTTP"), "{plain:?}");
    world.node.finish()
}

/// Clients that begin no handshake, or stop in the middle of one, take no place for long and no memory.
fn crowd(world: &World, address: SocketAddr) -> Result<()> {
    let before = world.node.agent.rss()?;
    let mut silent = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(address)?;
        if number % 2 == 0 {
            // The head of a handshake record of 16 KiB, and nothing of what it promises.
            let _ = stream.write_all(&[0x16, 3, 1, 0x40, 0]);
        }
        silent.push(stream);
    }
    let (answer, _) = https_get(address, "/healthz", None)?;
    ensure!(answer.status == 200, "/healthz: {}", answer.status);
    let grown = world.node.agent.rss()?.saturating_sub(before);
    ensure!(grown < 4 << 20, "300 silent clients took {grown} bytes");
    Ok(())
}

/// The certificate of a mounted Secret is shown, and the next one once the kubelet has swapped the link.
fn secure_certificate(context: &Context) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (first, second) = (Made::new()?, Made::new()?);
    first.put(dir.path(), "first")?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let config = format!(
        "tlsCertFile: {}\ntlsPrivateKeyFile: {}\nlistenApi: true\n",
        file("tls.crt"),
        file("tls.key")
    );
    let address = free()?;
    let world = world(context, address, &config)?;
    let shows = |made: &Made| {
        eventually(world.node.limit(), || {
            let (answer, shown) = https_get(address, "/v1/node", SCRAPER)?;
            ensure!(answer.status == 200, "{}", answer.text());
            ensure!(shown == made.der, "another certificate is shown");
            Ok(())
        })
    };
    shows(&first).context("the first")?;
    second.put(dir.path(), "second")?;
    shows(&second).context("the second")?;
    fs::write(dir.path().join("second/tls.crt"), "no certificate")?;
    eventually(world.node.limit(), || {
        let degraded = world.node.agent.node()?.degradations.join("\n");
        ensure!(degraded.contains("tlsCertFile"), "{degraded}");
        Ok(())
    })?;
    shows(&second).context("the last good one stays")?;
    world.node.finish()
}

/// A certificate with its key.
struct Made {
    der: Vec<u8>,
    certificate: String,
    key: String,
}

impl Made {
    fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["node.example".to_owned()])?;
        Ok(Self {
            der: made.cert.der().to_vec(),
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        })
    }

    /// As the kubelet does it: a new directory, and a link that is renamed over the old one.
    fn put(&self, dir: &Path, name: &str) -> Result<()> {
        fs::create_dir(dir.join(name))?;
        fs::write(dir.join(name).join("tls.crt"), &self.certificate)?;
        fs::write(dir.join(name).join("tls.key"), &self.key)?;
        symlink(name, dir.join("..data_tmp"))?;
        fs::rename(dir.join("..data_tmp"), dir.join("..data"))?;
        for file in ["tls.crt", "tls.key"] {
            if !dir.join(file).exists() {
                symlink(Path::new("..data").join(file), dir.join(file))?;
            }
        }
        Ok(())
    }
}
