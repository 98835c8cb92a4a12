//! What deny.toml says of licences, banned crates and sources, for a machine without cargo-deny, which takes
//! minutes to build. cargo-deny itself reads more of the file, such as versions that stand in twice.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;
use spdx::{Expression, ParseMode};
use xtask::cmd;

use crate::sources;

/// The part of deny.toml that is checked here.
#[derive(Debug, Deserialize)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

/// Fails with one line for each dependency that deny.toml does not let in.
pub(crate) fn check(root: &Path) -> Result<()> {
    let rules: Rules = sources::toml(&root.join("deny.toml"))?;
    let mut args = vec!["--workspace", "--edges", "normal,build,dev"];
    for target in &rules.graph.targets {
        args.extend(["--target", target]);
    }
    // Unlike `cargo metadata` it leaves out what no feature switches on.
    let packages = cmd::cargo_tree(root, "{p};{l}", &args)?;
    let problems: Vec<String> = (packages.iter())
        .filter_map(|package| rules.problem(package))
        .collect();
    ensure!(
        problems.is_empty(),
        "deny.toml does not let in:\n{}",
        problems.join("\n")
    );
    Ok(())
}

impl Rules {
    /// What is wrong with a line of `cargo tree`: package, source unless it is crates.io, and licence.
    fn problem(&self, line: &str) -> Option<String> {
        let (package, license) = line.split_once(';').unwrap_or((line, ""));
        let mut words = package.split(' ').filter(|word| *word != "(proc-macro)");
        let (name, version) = (words.next()?, words.next().unwrap_or_default());
        let banned = self.bans.deny.iter().find(|banned| banned.name == name);
        let why = match (words.next(), banned) {
            // Our own.
            (Some(source), _) if source.starts_with("(/") => return None,
            (Some(source), _) => format!("from {source}"),
            (None, Some(Banned { reason, .. })) => format!("banned: {reason}"),
            (None, None) if self.allows(name, license) => return None,
            (None, None) => format!("licence {license:?}"),
        };
        Some(format!("  {name} {version}: {why}"))
    }

    /// False as well for what is no licence expression.
    fn allows(&self, name: &str, license: &str) -> bool {
        let exceptions = (self.licenses.exceptions.iter()).filter(|e| e.name == *name);
        let allowed: Vec<&String> = (self.licenses.allow.iter())
            .chain(exceptions.flat_map(|exception| &exception.allow))
            .collect();
        let is_allowed =
            |wanted: &spdx::LicenseReq| allowed.iter().any(|one| **one == wanted.to_string());
        Expression::parse_mode(license, ParseMode::LAX).is_ok_and(|e| e.evaluate(is_allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rules_do_not_let_in_is_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(root.join("deny.toml")).unwrap();
        let rules: Rules = toml_edit::de::from_str(&text).unwrap();
        let of = |name: &str, license: &str| rules.problem(&format!("{name} v1.0.0;{license}"));
        for license in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert_eq!(of("one", license), None, "{license}");
        }
        for license in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "", "Public Domain"] {
            let problem = of("one", license).unwrap();
            assert_eq!(problem, format!("  one v1.0.0: licence {license:?}"));
        }
        assert_eq!(of("btf-rs", "LGPL-2.1-or-later"), None);
        assert!(of("other", "LGPL-2.1-or-later").is_some());
        assert_eq!(rules.problem("ours v1.0.0 (/src/ours);"), None);
        assert_eq!(rules.problem("macros v1.0.0 (proc-macro);MIT"), None);
        let elsewhere = rules.problem("one v1.0.0 (https://forge.example/one#abc);MIT");
        assert!(elsewhere.unwrap().contains("from (https://"));
        assert!(of("openssl-sys", "MIT").unwrap().contains("banned"));
    }
}
