//! The list of an image's parts, as SPDX 2.3 in JSON: crates from Cargo.lock, libraries from Debian's packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use xtask::{cmd, image};

use crate::sources;

/// The agent's own entry.
const AGENT: &str = "SPDXRef-podwarden";

/// Writes the list for the image with this digest.
pub(super) fn write(
    root: &Path,
    agent: &Path,
    digest: &str,
    created: &str,
    to: &Path,
) -> Result<()> {
    let mut parts = crates(root)?;
    parts.extend(packages(agent)?);
    let text = serde_json::to_string_pretty(&document(&parts, digest, created))?;
    fs::write(to, text).with_context(|| format!("write {}", to.display()))
}

/// Something that the image holds and that others make.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// Of a package URL: `cargo`, `deb/debian`.
    kind: &'static str,
    name: String,
    version: String,
    /// An SPDX expression, where one is known.
    licence: Option<String>,
    /// SHA-256 of what was downloaded.
    checksum: Option<String>,
}

fn document(parts: &BTreeSet<Part>, digest: &str, created: &str) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let mut packages = vec![json!({
        "SPDXID": AGENT,
        "name": "podwarden",
        "versionInfo": version,
        "downloadLocation": format!("git+{}", env!("CARGO_PKG_REPOSITORY")),
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": env!("CARGO_PKG_LICENSE"),
        "copyrightText": "NOASSERTION",
    })];
    let mut relationships = vec![json!({
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": AGENT,
    })];
    for part in parts {
        packages.push(part.package());
        relationships.push(json!({
            "spdxElementId": AGENT,
            "relationshipType": if part.kind == "cargo" { "CONTAINS" } else { "DYNAMIC_LINK" },
            "relatedSpdxElement": part.id(),
        }));
    }
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("podwarden-{version}"),
        // The same for the same image alone, as the specification asks.
        "documentNamespace": format!("{}/spdx/{}", env!("CARGO_PKG_REPOSITORY"), digest.replace(':', "-")),
        "creationInfo": {"created": created, "creators": ["Tool: podwarden-xtask"]},
        "packages": packages,
        "relationships": relationships,
    })
}

impl Part {
    /// Letters, digits, dots and dashes are all that an id may have.
    fn id(&self) -> String {
        let text = format!("{}-{}-{}", self.kind, self.name, self.version);
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '.';
        format!("SPDXRef-{}", text.replace(|c| !allowed(c), "-"))
    }

    fn package(&self) -> Value {
        let url = format!(
            "pkg:{}/{}@{}",
            self.kind,
            self.name,
            self.version.replace('+', "%2B")
        );
        let mut package = json!({
            "SPDXID": self.id(),
            "name": self.name,
            "versionInfo": self.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": self.licence.as_deref().unwrap_or("NOASSERTION"),
            "copyrightText": "NOASSERTION",
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": url,
            }],
        });
        if let Some(checksum) = &self.checksum {
            package["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": checksum}]);
        }
        package
    }
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// The crates that are in the agent: what its features switch on, and nothing that only builds or tests it.
fn crates(root: &Path) -> Result<BTreeSet<Part>> {
    let lock: Lock = sources::toml(&root.join("Cargo.lock"))?;
    let checksums: BTreeMap<_, _> = (lock.package.into_iter())
        .map(|locked| ((locked.name, locked.version), locked.checksum))
        .collect();
    let args = ["--package", "podwarden", "--edges", "normal"];
    let lines = cmd::cargo_tree(root, "{p}\t{l}", &args)?;
    (lines.iter())
        .filter_map(|line| part(line, &checksums).transpose())
        .collect()
}

/// A line of `cargo tree`: `name vVERSION (what it is)`, a tab, the licence. Our own crates are the agent.
fn part(
    line: &str,
    checksums: &BTreeMap<(String, String), Option<String>>,
) -> Result<Option<Part>> {
    let (package, licence) = line.split_once('\t').unwrap_or((line, ""));
    let mut words = package.split(' ');
    let (name, version) = (words.next(), words.next());
    let (name, version) = name
        .zip(version.and_then(|version| version.strip_prefix('v')))
        .with_context(|| format!("`cargo tree` prints {line:?}"))?;
    let checksum = checksums.get(&(name.to_owned(), version.to_owned()));
    let Some(checksum) = checksum.cloned().flatten() else {
        return Ok(None);
    };
    Ok(Some(Part {
        kind: "cargo",
        name: name.to_owned(),
        version: version.to_owned(),
        // crates.io still has some of the time before expressions.
        licence: (!licence.is_empty()).then(|| licence.replace('/', " OR ")),
        checksum: Some(checksum),
    }))
}

/// Debian's packages of the libraries that the agent is linked to.
fn packages(agent: &Path) -> Result<BTreeSet<Part>> {
    let libraries = image::libraries(agent)?;
    libraries.iter().map(|library| package(library)).collect()
}

fn package(library: &Path) -> Result<Part> {
    // dpkg knows a file by the path that it was installed to, and /lib is a link to /usr/lib.
    let name = library.file_name().context("a library has a name")?;
    let real = library.parent().context("a library at the root")?;
    let real = fs::canonicalize(real)?.join(name);
    let spelled = [library.to_owned(), real];
    let found = spelled.iter().find_map(|path| {
        let mut dpkg = Command::new("dpkg-query");
        let printed = cmd::capture(dpkg.arg("--search").arg(path)).ok()?;
        let (package, _) = printed.split_once(": ")?;
        Some(package.to_owned())
    });
    let package = found.with_context(|| format!("no Debian package has {}", library.display()))?;
    let mut dpkg = Command::new("dpkg-query");
    let version = cmd::capture(dpkg.args(["--show", "--showformat", "${Version}", &package]))?;
    ensure!(!version.is_empty(), "{package} has no version");
    let (name, _) = package.split_once(':').unwrap_or((&package, ""));
    Ok(Part {
        kind: "deb/debian",
        name: name.to_owned(),
        version,
        licence: None,
        checksum: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_agent_has_every_crate_with_licence_and_checksum() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let parts = crates(root).unwrap();
        for name in ["aya", "tokio", "kube"] {
            let part = parts.iter().find(|part| part.name == name).unwrap();
            assert!(
                part.licence.is_some() && part.checksum.is_some(),
                "{part:?}"
            );
        }
        // It tests the agent and is not in it; podwarden's own crates are the agent.
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        assert!(!names.contains(&"proptest"), "{names:?}");
        assert!(!names.contains(&"podwarden-policy"), "{names:?}");
        for part in &parts {
            let licence = part.licence.as_deref().unwrap_or_default();
            assert!(spdx::Expression::parse(licence).is_ok(), "{part:?}");
        }
    }

    #[test]
    fn libraries_are_known_by_the_packages_that_have_them() {
        if cmd::find("dpkg-query").is_none() {
            return;
        }
        let parts = packages(&std::env::current_exe().unwrap()).unwrap();
        let libc = parts.iter().find(|part| part.name == "libc6").unwrap();
        assert!(
            libc.version.starts_with(|c: char| c.is_ascii_digit()),
            "{libc:?}"
        );
    }

    #[test]
    fn each_part_stands_in_the_document_once_by_an_id_that_spdx_allows() {
        let part = |kind, name: &str, version: &str| Part {
            kind,
            name: name.to_owned(),
            version: version.to_owned(),
            licence: None,
            checksum: Some("ab".repeat(32)),
        };
        let parts = BTreeSet::from([
            part("cargo", "serde_json", "1.0.1+b"),
            part("cargo", "serde_json", "2.0.0"),
            part("deb/debian", "libc6", "2.36-9"),
        ]);
        let document = document(&parts, "sha256:ab", "2026-01-02T03:04:05Z");
        let ids = document["packages"].as_array().unwrap().iter();
        let ids: Vec<_> = ids
            .map(|package| package["SPDXID"].as_str().unwrap())
            .collect();
        assert_eq!(
            ids,
            [
                "SPDXRef-podwarden",
                "SPDXRef-cargo-serde-json-1.0.1-b",
                "SPDXRef-cargo-serde-json-2.0.0",
                "SPDXRef-deb-debian-libc6-2.36-9",
            ]
        );
        let related: Vec<_> = document["relationships"]
            .as_array()
            .unwrap()
            .iter()
            .collect();
        assert_eq!(related.len(), ids.len());
        for (relationship, id) in related.into_iter().zip(ids) {
            assert_eq!(relationship["relatedSpdxElement"], *id);
        }
        let url = &document["packages"][1]["externalRefs"][0]["referenceLocator"];
        assert_eq!(url, "pkg:cargo/serde_json@1.0.1%2Bb");
    }
}
