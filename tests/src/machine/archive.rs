//! A newc archive that is being written (kernel
//! `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Seek as _, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cpio::newc::{Builder, ModeFileType, trailer};

/// The mode of what is not copied with its own.
const MODE: u32 = 0o755;
/// What an archive after another one is aligned to, at least.
const ALIGNMENT: u64 = 4;

/// See the module.
pub(super) struct Archive {
    out: BufWriter<File>,
    path: PathBuf,
    /// Directories that it has; a file's parents must come before it.
    made: BTreeSet<PathBuf>,
    /// The last inode number given out: equal ones would be taken for hard links.
    inode: u32,
}

impl Archive {
    /// Begins a new file.
    pub(super) fn create(path: &Path) -> Result<Self> {
        xtask::cmd::create_parent(path)?;
        let out = File::create(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self::of(out, path))
    }

    /// Begins an archive after the one that the file holds. The kernel unpacks both, and what the
    /// second one holds replaces what is there; a directory that is there stays as it is, but one in
    /// place of a symbolic link replaces the link.
    pub(super) fn after(path: &Path) -> Result<Self> {
        let open = || {
            let mut out = File::options().write(true).open(path)?;
            let end = out.seek(SeekFrom::End(0))?;
            out.set_len(end.next_multiple_of(ALIGNMENT))?;
            out.seek(SeekFrom::End(0))?;
            Ok::<_, std::io::Error>(out)
        };
        let out = open().with_context(|| format!("extend {}", path.display()))?;
        Ok(Self::of(out, path))
    }

    fn of(out: File, path: &Path) -> Self {
        Self {
            out: BufWriter::new(out),
            path: path.to_path_buf(),
            made: BTreeSet::new(),
            inode: 0,
        }
    }

    /// Adds a directory and those above it.
    pub(super) fn directories(&mut self, dir: &Path) -> Result<()> {
        let mut ancestors: Vec<&Path> = dir.ancestors().collect();
        ancestors.reverse();
        for dir in ancestors
            .into_iter()
            .filter(|dir| !dir.as_os_str().is_empty())
        {
            if self.made.insert(dir.to_path_buf()) {
                self.entry(&dir.to_string_lossy(), ModeFileType::Directory, MODE, &[])?;
            }
        }
        Ok(())
    }

    /// Adds a program.
    pub(super) fn file(&mut self, source: &Path, name: &Path) -> Result<()> {
        let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        self.bytes(&name.to_string_lossy(), &bytes)
    }

    /// Adds a file that holds `bytes`.
    pub(super) fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.directories(Path::new(name).parent().unwrap_or(Path::new("")))?;
        self.entry(name, ModeFileType::Regular, MODE, bytes)
    }

    /// Adds a symbolic link.
    pub(super) fn symlink(&mut self, name: &str, target: &str) -> Result<()> {
        self.entry(name, ModeFileType::Symlink, MODE, target.as_bytes())
    }

    /// Adds what is below `root`, with its modes and owned by root; of `emptied`, paths relative to
    /// `root`, only the directories themselves. Sockets, pipes and devices are left out.
    pub(super) fn tree(&mut self, root: &Path, emptied: &[&str]) -> Result<()> {
        self.below(root, Path::new(""), emptied)
    }

    fn below(&mut self, root: &Path, dir: &Path, emptied: &[&str]) -> Result<()> {
        let full = root.join(dir);
        let mut entries = fs::read_dir(&full)
            .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
            .with_context(|| format!("list {}", full.display()))?;
        // The same tree makes the same archive.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (source, path) = (entry.path(), dir.join(entry.file_name()));
            let name = path.to_string_lossy();
            let failed = || format!("read {}", source.display());
            let metadata = entry.metadata().with_context(failed)?;
            let mode = metadata.permissions().mode() & 0o7777;
            if metadata.is_symlink() {
                let target = fs::read_link(&source).with_context(failed)?;
                self.symlink(&name, &target.to_string_lossy())?;
            } else if metadata.is_dir() {
                self.entry(&name, ModeFileType::Directory, mode, &[])?;
                if !emptied.contains(&&*name) {
                    self.below(root, &path, emptied)?;
                }
            } else if metadata.is_file() {
                let bytes = fs::read(&source).with_context(failed)?;
                self.entry(&name, ModeFileType::Regular, mode, &bytes)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, mode: u32, bytes: &[u8]) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(bytes.len()).with_context(|| format!("{name} is too large"))?;
        let mut writer = Builder::new(name)
            .ino(self.inode)
            .mode(mode)
            .set_mode_file_type(kind)
            .write(&mut self.out, size);
        writer
            .write_all(bytes)
            .and_then(|()| writer.finish().map(drop))
            .with_context(|| format!("write {name} to {}", self.path.display()))
    }

    /// Ends it.
    pub(super) fn finish(self) -> Result<()> {
        trailer(self.out)
            .and_then(|mut out| out.flush())
            .with_context(|| format!("write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use cpio::newc::Reader;

    use super::*;

    /// Names, modes and contents of the archives in a file, one after the other.
    fn unpacked(path: &Path) -> Vec<(String, u32, Vec<u8>)> {
        let mut file = File::open(path).unwrap();
        let end = file.metadata().unwrap().len();
        let mut found = Vec::new();
        while file.stream_position().unwrap() + ALIGNMENT < end {
            let mut reader = Reader::new(file).unwrap();
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            let entry = reader.entry();
            found.push((entry.name().to_owned(), entry.mode() & 0o7777, bytes));
            file = reader.finish().unwrap();
        }
        found
    }

    #[test]
    fn a_tree_and_an_archive_after_it() {
        let dir = std::env::temp_dir().join(format!("podwarden-archive-{}", std::process::id()));
        let root = dir.join("root");
        fs::create_dir_all(root.join("kept")).unwrap();
        fs::create_dir_all(root.join("emptied/below")).unwrap();
        fs::write(root.join("kept/file"), "abc").unwrap();
        fs::set_permissions(root.join("kept/file"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("kept", root.join("link")).unwrap();
        let path = dir.join("archive.cpio");

        let mut archive = Archive::create(&path).unwrap();
        archive.tree(&root, &["emptied"]).unwrap();
        archive.finish().unwrap();
        let mut archive = Archive::after(&path).unwrap();
        archive.bytes("later/odd", b"12345").unwrap();
        archive.finish().unwrap();

        let found = unpacked(&path);
        fs::remove_dir_all(&dir).unwrap();
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        let expected = [
            "emptied",
            "kept",
            "kept/file",
            "link",
            "TRAILER!!!",
            "later",
            "later/odd",
            "TRAILER!!!",
        ];
        assert_eq!(names, expected);
        assert_eq!(found[2].1, 0o640);
        assert_eq!(found[2].2, b"abc");
        assert_eq!(found[3].2, b"kept");
        assert_eq!(found[6].2, b"12345");
    }
}
