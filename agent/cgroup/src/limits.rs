//! Typed values of a cgroup: what podwarden writes and reads back.
//!
//! File names and formats are in [`v1`] and [`v2`]; here is which of the two a controller is on.
//! Every value is read again after it was written: a value that the kernel took and does not hold
//! is an error ([`Error::NotKept`]), what it documents to round is rounded before it is compared.

mod cpu;
mod hugetlb;
mod memory;
mod v1;
mod v2;

use std::path::PathBuf;

use crate::{CgroupPath, Controller, Error, Result, Tree, io};

pub use cpu::{CpuQuota, CpuShare};
pub use hugetlb::HugetlbLimits;
pub use memory::Reclaims;
pub(crate) use v1::MEMORY_UNLIMITED;

/// Bytes for `None`-able limits: the file's name by version.
pub(crate) const fn memory_limit_file(is_v2: bool) -> &'static str {
    if is_v2 {
        v2::MEMORY_LIMIT
    } else {
        v1::MEMORY_LIMIT
    }
}

/// A limit of either version: `Some(None)` is "no limit", `None` is not a limit at all.
pub(crate) fn parse_memory_limit(text: &[u8]) -> Option<Option<u64>> {
    if text.trim_ascii() == b"max" {
        return Some(None);
    }
    let bytes = io::parse_u64(text)?;
    Some((bytes < MEMORY_UNLIMITED).then_some(bytes))
}

impl Tree {
    /// Sets the highest number of tasks, or lifts it. Tasks that exist are not touched.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], what the kernel refuses; [`Error::NotKept`].
    pub fn set_pids_limit(&self, cgroup: &CgroupPath, tasks: Option<u64>) -> Result<()> {
        let file = self.file(Controller::Pids, cgroup, v2::PIDS_MAX)?;
        io::write_text(&file, &shown(tasks, v2::MAX))?;
        kept(file, tasks, self.pids_limit(cgroup)?, |n| shown(n, v2::MAX))
    }

    /// The highest number of tasks; `None` when there is no limit.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn pids_limit(&self, cgroup: &CgroupPath) -> Result<Option<u64>> {
        self.limit(Controller::Pids, cgroup, v2::PIDS_MAX)
    }

    fn is_v2(&self, controller: Controller) -> bool {
        self.hierarchies().is_on_v2(controller)
    }

    fn file(&self, controller: Controller, cgroup: &CgroupPath, name: &str) -> Result<PathBuf> {
        Ok(self.path(controller, cgroup)?.join(name))
    }

    fn number(&self, controller: Controller, cgroup: &CgroupPath, name: &str) -> Result<u64> {
        let file = self.file(controller, cgroup, name)?;
        io::parse_u64(io::read_text(&file)?.as_bytes())
            .ok_or_else(|| Error::malformed(file, "a number"))
    }

    fn limit(
        &self,
        controller: Controller,
        cgroup: &CgroupPath,
        name: &str,
    ) -> Result<Option<u64>> {
        let file = self.file(controller, cgroup, name)?;
        parse_memory_limit(io::read_text(&file)?.as_bytes())
            .ok_or_else(|| Error::malformed(file, "a limit or max"))
    }
}

/// A bound, or the word for none.
fn shown(value: Option<u64>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |v| v.to_string())
}

/// What lifts a limit of bytes.
const fn none(is_v2: bool) -> &'static str {
    if is_v2 { v2::MAX } else { v1::NO_LIMIT }
}

/// What the kernel makes of bytes (`page_counter_memparse`, `mm/page_counter.c`).
pub(crate) fn whole_pages(bytes: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    bytes - bytes.checked_rem(page).unwrap_or(0)
}

/// Compares what is in a file with what was written to it.
fn kept<T: PartialEq>(
    path: PathBuf,
    wanted: T,
    found: T,
    show: impl Fn(T) -> String,
) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::NotKept {
        path: path.into(),
        wanted: show(wanted),
        found: show(found),
    })
}

#[cfg(test)]
mod tests {
    use super::parse_memory_limit;

    #[test]
    fn limits_of_both_versions() {
        let cases: [(&[u8], Option<Option<u64>>); 7] = [
            (b"max\n", Some(None)),
            (b"9223372036854771712\n", Some(None)),
            (b"9223372036854710272\n", Some(None)),
            (b"1073741824\n", Some(Some(1 << 30))),
            (b"0\n", Some(Some(0))),
            (b"\n", None),
            (b"-1\n", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_memory_limit(text), want, "{text:?}");
        }
    }
}
