//! Files that are complete or absent, whenever the agent or the machine ends.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// A state file is smaller; what is larger was written by another program.
const MOST: u64 = 256 << 20;

/// Reads a state file; `None` where there is none. A link is not followed. One above 256 MiB is an
/// error.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut open = File::options();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match open.read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MOST + 1).read_to_end(&mut text)?;
    match text.len() as u64 {
        ..=MOST => Ok(Some(text)),
        _ => Err(io::Error::other("larger than any state file")),
    }
}

/// What a file is called while it is written: its name with this after it.
pub const UNFINISHED: &str = "new";

/// Replaces a file, or makes it, for its owner alone; its directory is made if need be, for its owner alone as
/// well. Links are not followed. Synced when it returns. After an error it is what it was.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".");
    unfinished.push(UNFINISHED);
    // Of a process that was killed, or a link that leads elsewhere.
    remove(Path::new(&unfinished))?;
    let mut new = File::options();
    let mut file = new
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(dir)?.sync_all()
}

/// Removes a file where there is one.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn files_are_their_owners_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state/deep/pods.json");
        let elsewhere = home.path().join("elsewhere");
        fs::write(&elsewhere, "precious").unwrap();
        replace(&path, b"1").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        // In the place of what is written next, and of what is read.
        symlink(&elsewhere, path.with_extension("json.new")).unwrap();
        replace(&path, b"2").unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"2");
        assert_eq!(fs::read(&elsewhere).unwrap(), b"precious");
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        remove(&path).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(read(&path).is_err());
    }
}
