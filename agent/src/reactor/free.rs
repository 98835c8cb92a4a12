//! The node's free memory. Allocates nothing once it is open.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use podwarden_policy::Bytes;

const MEMINFO: &str = "/proc/meminfo";

/// Holds the first lines, where the two figures are (proc_meminfo(5)).
const BUFFER: usize = 256;

/// `/proc/meminfo`, open.
#[derive(Debug)]
pub struct FreeMemory(File);

impl FreeMemory {
    pub fn open() -> io::Result<Self> {
        Self::at(Path::new(MEMINFO))
    }

    pub(super) fn at(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// `MemFree` and `MemTotal`; `None` when they cannot be read.
    pub(super) fn read(&self) -> Option<(Bytes, Bytes)> {
        let mut buffer = [0; BUFFER];
        let length = self.0.read_at(&mut buffer, 0).ok()?;
        let text = str::from_utf8(buffer.get(..length)?).ok()?;
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
            kib.checked_mul(1024).map(Bytes)
        };
        Some((of("MemFree:")?, of("MemTotal:")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_less_free_than_in_all() {
        let (free, total) = FreeMemory::open().unwrap().read().unwrap();
        assert!(free < total && total > Bytes::mebi(64), "{free} of {total}");
    }

    #[test]
    fn a_missing_figure_is_not_zero() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meminfo");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            FreeMemory::at(&path).unwrap().read()
        };
        assert_eq!(
            read("MemTotal: 4 kB\nMemFree: 1 kB\n"),
            Some((Bytes(1024), Bytes(4096)))
        );
        assert_eq!(read("MemTotal: 4 kB\n"), None);
        assert_eq!(read("MemTotal: 4 kB\nMemFree: many\n"), None);
    }
}
