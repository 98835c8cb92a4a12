//! The workspace's own files, read as text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;

/// One file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root it was found from.
    pub(crate) path: PathBuf,
    /// What it holds.
    pub(crate) text: String,
}

/// A TOML file's value.
pub(crate) fn toml<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let named = || format!("read {}", file.display());
    let text = fs::read_to_string(file).with_context(named)?;
    toml_edit::de::from_str(&text).with_context(named)
}

/// The extension of Rust files.
pub(crate) const RUST: &[&str] = &["rs"];

/// Every file with one of these extensions below `root/dir` in the order of its path, without what builds
/// leave there.
pub(crate) fn below(root: &Path, dir: &str, extensions: &[&str]) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    collect(root, Path::new(dir), extensions, &mut found)?;
    found.sort_by(|a: &Source, b| a.path.cmp(&b.path));
    Ok(found)
}

fn collect(root: &Path, dir: &Path, extensions: &[&str], found: &mut Vec<Source>) -> Result<()> {
    let full = root.join(dir);
    let entries = fs::read_dir(&full).with_context(|| format!("list {}", full.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("list {}", full.display()))?;
        let path = dir.join(entry.file_name());
        if entry.path().is_dir() {
            if entry.file_name() != "target" {
                collect(root, &path, extensions, found)?;
            }
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|one| extension == *one))
        {
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("read {}", entry.path().display()))?;
            found.push(Source { path, text });
        }
    }
    Ok(())
}
