//! Stamps in a shared file mapping: the writer may be killed at any instruction and what it had
//! stamped until then is still there to read.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// How many stamps a file holds.
const CAPACITY: usize = 32 * 1024;
/// How many stamps there are.
const COUNT: usize = 0;
/// Bytes touched, page by page.
const TOUCHED: usize = 1;
/// Not 0 once the writer is ready to begin.
const READY: usize = 2;
/// Not 0 once it may.
const GO: usize = 3;
/// The words above, before the stamps.
const HEADER: usize = 4;
/// The header, then `CAPACITY` pairs.
const WORDS: usize = HEADER + 2 * CAPACITY;
const BYTES: usize = WORDS * size_of::<u64>();

/// One step of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub nanos: u64,
    /// Bytes touched so far.
    pub bytes: u64,
}

/// The mapping.
#[derive(Debug)]
pub struct Stamps {
    words: NonNull<AtomicU64>,
}

impl Stamps {
    /// Makes the file. Its pages are touched here, so that no pod is charged for them.
    pub fn create(path: &Path) -> Result<Self> {
        std::fs::write(path, vec![0; BYTES])
            .with_context(|| format!("write {}", path.display()))?;
        Self::open(path)
    }

    /// Maps a file that [`Stamps::create`] has made.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        ensure!(
            file.metadata()?.len() == BYTES as u64,
            "{} is no stamp file",
            path.display()
        );
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing; its length is
        // the file's.
        let address = unsafe {
            mmap(
                None,
                NonZeroUsize::new(BYTES).context("a mapping of nothing")?,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
        }
        .with_context(|| format!("map {}", path.display()))?;
        Ok(Self {
            words: address.cast(),
        })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `WORDS` long and lives as long as `self`; other
        // processes write it too, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), WORDS) }
    }

    /// Appends a stamp; one writer only. Stamps beyond the capacity are dropped.
    pub fn push(&self, stamp: Stamp) {
        let words = self.words();
        let count = words[COUNT].load(Ordering::Relaxed);
        let at = HEADER + 2 * usize::try_from(count).unwrap_or(usize::MAX / 4);
        if at + 1 < words.len() {
            words[at].store(stamp.nanos, Ordering::Relaxed);
            words[at + 1].store(stamp.bytes, Ordering::Relaxed);
            words[COUNT].store(count + 1, Ordering::Release);
        }
    }

    /// Notes how much is touched, between two stamps as well.
    pub fn touched(&self, bytes: u64) {
        self.words()[TOUCHED].store(bytes, Ordering::Release);
    }

    /// The last that was noted, bytes.
    pub fn last_touched(&self) -> u64 {
        self.words()[TOUCHED].load(Ordering::Acquire)
    }

    /// Says that the writer is ready to begin.
    pub fn set_ready(&self) {
        self.words()[READY].store(1, Ordering::Release);
    }

    /// Whether the writer has said so.
    pub fn is_ready(&self) -> bool {
        self.words()[READY].load(Ordering::Acquire) != 0
    }

    /// Lets the writer begin.
    pub fn let_go(&self) {
        self.words()[GO].store(1, Ordering::Release);
    }

    /// Whether it may begin.
    pub fn may_go(&self) -> bool {
        self.words()[GO].load(Ordering::Acquire) != 0
    }

    /// All stamps so far.
    pub fn read(&self) -> Vec<Stamp> {
        let words = self.words();
        let count = usize::try_from(words[COUNT].load(Ordering::Acquire)).unwrap_or(CAPACITY);
        words[HEADER..]
            .chunks_exact(2)
            .take(count)
            .map(|pair| Stamp {
                nanos: pair[0].load(Ordering::Relaxed),
                bytes: pair[1].load(Ordering::Relaxed),
            })
            .collect()
    }
}

impl Drop for Stamps {
    fn drop(&mut self) {
        // SAFETY: `open` mapped exactly this range, and `words` hands out no longer-lived reference.
        // A failure leaves the mapping in place, which the end of the process undoes.
        let _ = unsafe { munmap(self.words.cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_pushes_another_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stamps");
        let reader = Stamps::create(&path).unwrap();
        let writer = Stamps::open(&path).unwrap();
        assert_eq!(reader.read(), []);
        let stamps = [
            Stamp {
                nanos: 5,
                bytes: 10,
            },
            Stamp {
                nanos: 6,
                bytes: 20,
            },
        ];
        for stamp in stamps {
            writer.push(stamp);
        }
        assert_eq!(reader.read(), stamps);
    }

    #[test]
    fn both_sides_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stamps");
        let reader = Stamps::create(&path).unwrap();
        let writer = Stamps::open(&path).unwrap();
        assert!(!reader.is_ready() && !writer.may_go());
        writer.set_ready();
        assert!(reader.is_ready() && !writer.may_go());
        reader.let_go();
        assert!(writer.may_go());
        writer.touched(4096);
        assert_eq!(reader.last_touched(), 4096);
        assert_eq!(reader.read(), [], "no stamp");
    }

    #[test]
    fn a_full_file_drops_what_follows() {
        let dir = tempfile::tempdir().unwrap();
        let stamps = Stamps::create(&dir.path().join("stamps")).unwrap();
        for nanos in 0..CAPACITY as u64 + 3 {
            stamps.push(Stamp { nanos, bytes: 0 });
        }
        assert_eq!(stamps.read().len(), CAPACITY);
        assert_eq!(stamps.read().last().unwrap().nanos, CAPACITY as u64 - 1);
    }

    #[test]
    fn another_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short");
        std::fs::write(&path, b"short").unwrap();
        assert!(Stamps::open(&path).is_err());
    }
}
