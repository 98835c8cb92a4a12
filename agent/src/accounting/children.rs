//! Listing cgroups.

use std::{fs, os::unix::fs::DirEntryExt, path::Path};

use podwarden_cgroup::{CgroupPath, Tree};

use super::AccountingError;

/// The cgroups directly below `cgroup` with their ids; none when it is gone. Any other failure is an error:
/// what is not listed passes for removed.
pub(super) fn children(
    tree: &Tree,
    cgroup: &CgroupPath,
) -> Result<Vec<(String, u64)>, AccountingError> {
    let path = tree.identity_path(cgroup).map_err(AccountingError::Tree)?;
    list(&path).or_else(|source| {
        let gone = matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
        if gone {
            Ok(Vec::new())
        } else {
            Err(AccountingError::List { path, source })
        }
    })
}

fn list(path: &Path) -> std::io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        // kernfs lists the inode number, which is the cgroup's id, with the name.
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.ino()));
        }
    }
    Ok(found)
}
