//! The workspace's own Rust files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// One file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root it was found from.
    pub(crate) path: PathBuf,
    /// What it holds.
    pub(crate) text: String,
}

/// Every `*.rs` below `root/dir` in the order of its path, without what builds leave there.
pub(crate) fn below(root: &Path, dir: &str) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    collect(root, Path::new(dir), &mut found)?;
    found.sort_by(|a: &Source, b| a.path.cmp(&b.path));
    Ok(found)
}

fn collect(root: &Path, dir: &Path, found: &mut Vec<Source>) -> Result<()> {
    let full = root.join(dir);
    let entries = fs::read_dir(&full).with_context(|| format!("list {}", full.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("list {}", full.display()))?;
        let path = dir.join(entry.file_name());
        if entry.path().is_dir() {
            if entry.file_name() != "target" {
                collect(root, &path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("read {}", entry.path().display()))?;
            found.push(Source { path, text });
        }
    }
    Ok(())
}
