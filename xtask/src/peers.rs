//! The peer daemons of the benchmarks, from Debian's packages.
//!
//! They are unpacked, not installed: an installed one would be started by its package, and watch the
//! whole machine from then on.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use xtask::apt::{self, Lists};
use xtask::cmd;
use xtask::paths::Workspace;
use xtask::step::step;

/// What takes nothing beyond libc and Python.
const PACKAGES: &[&str] = &["earlyoom", "nohang"];

/// Where they are, below a root of their own; fetched when this is the first time.
pub(crate) fn fetch(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace.peers().join("root");
    let complete = root.with_file_name("complete");
    if complete.is_file() {
        return Ok(root);
    }
    let suite = apt::debian_release().context(
        "the other daemons are Debian's packages, and this is not Debian: measure podwarden alone \
         with --peers none",
    )?;
    ensure!(
        cmd::find("python3").is_some(),
        "nohang takes python3, which is missing: apt-get install python3"
    );
    step(&format!("fetch {}", PACKAGES.join(" and ")), || {
        let lists = Lists::of_suites(&workspace.peers().join("apt"), &[&suite])?;
        lists.update(&workspace.logs().join("apt-peers.log"))?;
        lists.unpack(PACKAGES, &root, &workspace.logs().join("peers.log"))?;
        // Last: without it what was interrupted half-way is fetched anew.
        fs::write(&complete, "").with_context(|| format!("write {}", complete.display()))
    })?;
    Ok(root)
}
