//! A layer: directories, files and links, by their paths in the image.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tar::{Builder, EntryType, Header};

/// Every entry's time. The files' own would make two images of the same contents differ.
const TIME: u64 = 0;

#[derive(Debug, Clone)]
enum Entry {
    Directory,
    File(PathBuf),
    Link(PathBuf),
}

/// What a layer adds to the image; all of it belongs to root.
#[derive(Debug, Clone, Default)]
pub struct Layer(BTreeMap<PathBuf, (Entry, u32)>);

impl Layer {
    /// An empty directory, as one to mount on.
    pub fn directory(&mut self, path: impl AsRef<Path>, mode: u32) -> &mut Self {
        self.entry(path.as_ref(), Entry::Directory, mode)
    }

    /// A file with the contents that `from` has when the image is written.
    pub fn file(
        &mut self,
        path: impl AsRef<Path>,
        from: impl Into<PathBuf>,
        mode: u32,
    ) -> &mut Self {
        self.entry(path.as_ref(), Entry::File(from.into()), mode)
    }

    /// A symbolic link.
    pub fn link(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) -> &mut Self {
        self.entry(path.as_ref(), Entry::Link(target.into()), 0o777)
    }

    fn entry(&mut self, path: &Path, entry: Entry, mode: u32) -> &mut Self {
        let path = path.strip_prefix("/").unwrap_or(path);
        let parents = path.ancestors().skip(1);
        for parent in parents.filter(|parent| !parent.as_os_str().is_empty()) {
            let parent = self.0.entry(parent.to_owned());
            parent.or_insert((Entry::Directory, 0o755));
        }
        self.0.insert(path.to_owned(), (entry, mode));
        self
    }

    /// The layer as a tar, in the order of its paths.
    pub(super) fn tar(&self) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, (entry, mode)) in &self.0 {
            append(&mut tar, path, entry, *mode).with_context(|| match entry {
                Entry::File(from) => format!("add {} from {}", path.display(), from.display()),
                _ => format!("add {}", path.display()),
            })?;
        }
        Ok(tar.into_inner()?)
    }
}

fn append(tar: &mut Builder<Vec<u8>>, path: &Path, entry: &Entry, mode: u32) -> Result<()> {
    match entry {
        Entry::Directory => {
            tar.append_data(
                &mut header(EntryType::Directory, mode, 0),
                path,
                [].as_slice(),
            )?;
        }
        Entry::File(from) => {
            let file = File::open(from)?;
            let size = file.metadata()?.len();
            tar.append_data(&mut header(EntryType::Regular, mode, size), path, file)?;
        }
        Entry::Link(target) => {
            tar.append_link(&mut header(EntryType::Symlink, mode, 0), path, target)?;
        }
    }
    Ok(())
}

/// A header that says nothing of the machine that wrote it; the path and the checksum come with the data.
pub(super) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(TIME);
    header.set_uid(0);
    header.set_gid(0);
    header
}
