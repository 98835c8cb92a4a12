//! What the next agent would go on with, below `stateDir`: only on request, because undelivered eviction status is
//! among it.

use std::{fs, io, path::Path};

use super::{Item, Place, Step};

pub(super) const STEP: Step = Step {
    name: "state",
    about: "the checkpoint of pods, undelivered eviction status, and what mid pods are predicted to leave (with --state)",
    run,
};

/// What agents put there, of this version and of 0.1.0.
const NAMES: [&str; 4] = ["pods.json", "eviction-status", "marks", "prediction.json"];

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let Some(dir) = place.state_dir.as_ref().filter(|_| place.state) else {
        return Ok(Vec::new());
    };
    let paths = NAMES.iter().map(|name| dir.join(name));
    let there = paths.filter(|path| path.symlink_metadata().is_ok());
    let item = |path: std::path::PathBuf| {
        let what = path.display().to_string();
        let removed = if place.dry_run { Ok(()) } else { remove(&path) };
        match removed {
            Ok(()) => Item::gone(what),
            Err(error) => Item::stays(what, error.to_string()),
        }
    };
    Ok(there.map(item).collect())
}

/// Follows no link.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata()?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}
