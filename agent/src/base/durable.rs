//! Files that are complete or absent, whenever the agent or the machine ends.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

/// What a file is called while it is written: its name with this after it.
pub const DRAFT: &str = "new";

/// Replaces a file, or makes it; its directory is made if need be. Synced when it returns.
///
/// # Errors
/// What the system says; the file is then what it was.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(".");
    draft.push(DRAFT);
    let mut file = File::create(&draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(dir)?.sync_all()
}
