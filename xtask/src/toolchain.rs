//! Which compiler builds the kernel programs.
//!
//! `-Zbuild-std=core` compiles `core` from source, so it takes a toolchain that carries rust-src.
//! The pinned one does where rustup can add the component; Debian's `rustc-web` with `rust-web-src`
//! is a second one, for machines that reach no rustup server.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cmd;

/// A toolchain with the source of `core`.
#[derive(Debug, Clone)]
pub struct Toolchain {
    sysroot: PathBuf,
    /// What `rustc --version` prints.
    pub version: String,
}

impl Toolchain {
    /// Its compiler.
    pub fn rustc(&self) -> PathBuf {
        self.sysroot.join("bin/rustc")
    }

    /// `cargo VERB` with it, for a target whose parts of the standard library it builds from source.
    pub fn cargo(&self, verb: &str, target: &str, parts: &str) -> Command {
        let mut cargo = cmd::cargo();
        cargo
            .args([verb, "--quiet", "--target", target])
            .arg(format!("-Zbuild-std={parts}"))
            .env("RUSTC", self.rustc())
            // Lets a stable compiler build them.
            .env("RUSTC_BOOTSTRAP", "1")
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo
    }

    /// Its linter, where it has one: a linter works with the compiler it was built with only.
    pub fn clippy_driver(&self) -> Option<PathBuf> {
        Some(self.sysroot.join("bin/clippy-driver")).filter(|file| file.is_file())
    }

    /// Whether it came as Debian's package.
    pub fn is_debian(&self) -> bool {
        self.sysroot == Path::new("/usr")
    }
}

/// The first toolchain that has rust-src and is no older than the workspace's `rust-version`:
/// the pinned one, then rustup's others, then the system's.
pub fn find() -> Option<Toolchain> {
    let mut sysroots: Vec<PathBuf> = Vec::new();
    if let Ok(text) = cmd::capture(Command::new("rustc").args(["--print", "sysroot"])) {
        sysroots.push(PathBuf::from(text.trim()));
    }
    sysroots.extend(rustup_toolchains());
    sysroots.push(PathBuf::from("/usr"));
    sysroots
        .into_iter()
        .filter(|dir| has_source(dir))
        .find_map(|sysroot| {
            let version = version(&sysroot).ok()?;
            recent(&version).then_some(Toolchain { sysroot, version })
        })
}

/// As [`find`], with what to do where there is none.
pub fn require() -> Result<Toolchain> {
    find().context(
        "no toolchain has the source of core: run `cargo xtask setup`, \
         or `rustup component add rust-src`",
    )
}

fn rustup_toolchains() -> Vec<PathBuf> {
    let list = cmd::capture(Command::new("rustup").args(["toolchain", "list", "--verbose"]));
    // A line is `NAME [(default)] PATH`.
    list.unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

fn has_source(sysroot: &Path) -> bool {
    sysroot.join("bin/rustc").is_file()
        && sysroot
            .join("lib/rustlib/src/rust/library/core/Cargo.toml")
            .is_file()
}

fn version(sysroot: &Path) -> Result<String> {
    let text = cmd::capture(Command::new(sysroot.join("bin/rustc")).arg("--version"))
        .with_context(|| format!("ask {} for its version", sysroot.display()))?;
    Ok(text.trim().to_owned())
}

/// Whether `rustc X.Y.Z …` is at least the workspace's `rust-version`.
fn recent(version: &str) -> bool {
    numbers(version.split_whitespace().nth(1).unwrap_or_default())
        >= numbers(env!("CARGO_PKG_RUST_VERSION"))
}

/// Major and minor of `1.95` or `1.95.0-nightly`.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::{numbers, recent};

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(numbers("1.95"), (1, 95));
        assert_eq!(numbers("1.100.0-nightly"), (1, 100));
        assert!(numbers("1.100.0") > numbers("1.95"));
    }

    #[test]
    fn an_older_compiler_is_no_candidate() {
        assert!(!recent("rustc 1.85.0 (4d91de4e4 2025-02-17)"));
        assert!(recent(
            "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)"
        ));
        assert!(!recent("no version at all"));
    }
}
