//! Whether a cgroup misses memory that was taken from it, from open files. v2 with PSI.

use std::path::{Path, PathBuf};

use podwarden_policy::{Bytes, settings::value};

use super::{STAT_BUFFER, V2_KEYS, find, page_cache, usage_file};
use crate::{
    CgroupPath, Controller, Error, Result, Tree,
    io::{self, Reread, parse_u64},
    pressure,
};

/// Counters of `memory.stat`, pages: of files and of anonymous memory.
const REFAULTS: [&[u8]; 2] = [b"workingset_refault_file", b"workingset_refault_anon"];
/// Two lines of at most 70 characters.
const PRESSURE_BUFFER: usize = 256;

/// What a cgroup and all below it hold and miss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ColdReading {
    /// Memory charged, bytes.
    pub usage: u64,
    /// Page cache that is not to be written first, bytes; up to 2 s old, as the counters of refaults.
    pub cache: u64,
    /// What `memory.min` and `memory.low` keep: the cgroup's own, or the sum of its children's where that is more,
    /// bytes. A child keeps no more than it uses.
    pub protected: u64,
    /// Time in which a task waited for memory, microseconds since the cgroup was made.
    pub stalled_micros: u64,
    /// Pages read back after they were reclaimed, since the cgroup was made.
    pub refaults: u64,
}

/// See [`ColdReading`]. The kernel keeps a removed cgroup's memory alive while this is open.
#[derive(Debug)]
pub struct ColdReader {
    directory: PathBuf,
    usage: Reread,
    stat: Reread,
    pressure: Reread,
}

impl ColdReader {
    /// Opens the files of a cgroup. [`Error::Unsupported`] on v1; [`Error::NotFound`] also without `memory.pressure` (a
    /// kernel without PSI).
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        if !tree.hierarchies().is_on_v2(Controller::Memory) {
            return Err(Error::Unsupported {
                what: "what a cgroup misses of its memory",
                reason: "the memory controller is on cgroup v1, which has no memory.pressure",
            });
        }
        let directory = tree.path(Controller::Memory, cgroup)?;
        let open = |name: &str| Reread::open(&directory.join(name));
        Ok(Self {
            usage: open(usage_file(true))?,
            stat: open("memory.stat")?,
            pressure: open("memory.pressure")?,
            directory,
        })
    }

    /// Reads all of it. `EOPNOTSUPP` where PSI is switched off.
    pub fn read(&self) -> Result<ColdReading> {
        let usage = self.usage.number()?;
        let mut buffer = [0_u8; STAT_BUFFER];
        let stat = self.stat.read_at(&mut buffer, 0)?;
        let cache = page_cache(stat, V2_KEYS).ok_or_else(|| self.stat.malformed("file pages"))?;
        let refaults = find(stat, REFAULTS).ok_or_else(|| self.stat.malformed("refaults"))?;
        let mut buffer = [0_u8; PRESSURE_BUFFER];
        let waits = self.pressure.read_at(&mut buffer, 0)?;
        Ok(ColdReading {
            usage,
            cache: cache.clean,
            protected: protected(&self.directory)?,
            stalled_micros: pressure::total(waits, b"some ")
                .ok_or_else(|| self.pressure.malformed("a line `some` with its total"))?,
            refaults: refaults[0].saturating_add(refaults[1]),
        })
    }
}

/// A target's own protection does not bind a reclaim that is asked of it (`mem_cgroup_unprotected`,
/// `include/linux/memcontrol.h`), and a child's `memory.low` binds it only while there is more to be had.
fn protected(directory: &Path) -> Result<u64> {
    let own = kept(directory)?;
    let mut below = 0_u64;
    for name in io::names_in(directory)? {
        let child = directory.join(name);
        if !child.join("memory.current").exists() {
            continue;
        }
        // A container that ends meanwhile keeps nothing.
        let kept = kept(&child).unwrap_or_default();
        if kept > 0 {
            let usage = io::read_text(&child.join("memory.current"));
            let usage = usage.ok().and_then(|text| parse_u64(text.as_bytes()));
            below = below.saturating_add(kept.min(usage.unwrap_or(u64::MAX)));
        }
    }
    Ok(own.max(below))
}

/// The larger of `memory.min` and `memory.low`.
fn kept(directory: &Path) -> Result<u64> {
    let of = |name: &str| {
        let path = directory.join(name);
        let text = io::read_text(&path)?;
        let limit = value::parse_limit(text.as_bytes())
            .ok_or_else(|| Error::malformed(path, "an amount or max"))?;
        Ok::<_, Error>(limit.bound().map_or(u64::MAX, Bytes::as_u64))
    };
    Ok(of("memory.min")?.max(of("memory.low")?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn protection_is_the_larger_of_a_pods_own_and_its_containers() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = |name: &str, min: &str, low: &str, usage: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in [
                ("memory.min", min),
                ("memory.low", low),
                ("memory.current", usage),
            ] {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
            path
        };
        let pod = cgroup("pod", "0", "100", "1000");
        cgroup("pod/a", "50", "0", "40");
        cgroup("pod/b", "0", "max", "30");
        assert_eq!(protected(&pod).unwrap(), 100, "the children keep 70");
        cgroup("pod/c", "0", "500", "400");
        assert_eq!(protected(&pod).unwrap(), 470);
    }
}
