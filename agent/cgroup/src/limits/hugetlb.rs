//! Limits of huge pages, one for each page size.

use std::{collections::BTreeMap, path::PathBuf};

use super::{kept, none, parse_memory_limit, shown, v1, v2};
use crate::{CgroupPath, Controller, Error, Result, Tree, io};

const PREFIX: &str = "hugetlb.";
/// Counts huge pages when they are reserved, not when they are touched; since Linux 5.7.
const RESERVED: &str = ".rsvd";

/// Page size in bytes to limit in bytes; `None` for no limit.
pub type HugetlbLimits = BTreeMap<u64, Option<u64>>;

impl Tree {
    /// Sets the limit of huge pages of one size, both in bytes, or lifts it; the kernel rounds it
    /// down to whole huge pages. Pages in use and pages reserved get the same limit, as the
    /// kubelet's library gives them (`hugetlb.go` of opencontainers/cgroups).
    ///
    /// # Errors
    /// [`Error::NotFound`], also for a size that this kernel does not have;
    /// [`Error::NoController`]; what the kernel refuses; [`Error::NotKept`].
    pub fn set_hugetlb_limit(
        &self,
        cgroup: &CgroupPath,
        page_size: u64,
        bytes: Option<u64>,
    ) -> Result<()> {
        let text = shown(bytes, none(self.is_v2(Controller::HugeTlb)));
        let wanted = bytes.map(|b| b.checked_rem(page_size).map_or(b, |rest| b - rest));
        for kind in ["", RESERVED] {
            let file = self.hugetlb_file(cgroup, page_size, kind)?;
            match io::write_text(&file, &text) {
                Err(error) if kind == RESERVED && error.is_gone() => continue,
                written => written?,
            }
            let found = read(&file)?;
            kept(file, wanted, found, |b| shown(b, v2::MAX))?;
        }
        Ok(())
    }

    /// The limits of every page size that this kernel has.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn hugetlb_limits(&self, cgroup: &CgroupPath) -> Result<HugetlbLimits> {
        let directory = self.path(Controller::HugeTlb, cgroup)?;
        let suffix = self.hugetlb_suffix();
        let mut limits = HugetlbLimits::new();
        for name in io::names_in(&directory)? {
            let size = name
                .strip_prefix(PREFIX)
                .and_then(|n| n.strip_suffix(suffix));
            // `<size>.rsvd` is no size.
            if let Some(size) = size.and_then(parse_size) {
                limits.insert(size, read(&directory.join(&name))?);
            }
        }
        Ok(limits)
    }

    fn hugetlb_suffix(&self) -> &'static str {
        if self.is_v2(Controller::HugeTlb) {
            v2::HUGETLB_LIMIT
        } else {
            v1::HUGETLB_LIMIT
        }
    }

    fn hugetlb_file(&self, cgroup: &CgroupPath, page_size: u64, kind: &str) -> Result<PathBuf> {
        let name = format!(
            "{PREFIX}{}{kind}{}",
            size_name(page_size),
            self.hugetlb_suffix()
        );
        self.file(Controller::HugeTlb, cgroup, &name)
    }
}

fn read(file: &std::path::Path) -> Result<Option<u64>> {
    parse_memory_limit(io::read_text(file)?.as_bytes())
        .ok_or_else(|| Error::malformed(file, "a limit or max"))
}

const UNITS: [(u64, &str); 3] = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];

/// `2MB`, as file names have it (`mem_fmt`, `mm/hugetlb_cgroup.c`).
fn size_name(bytes: u64) -> String {
    let (unit, name) = UNITS
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or(UNITS[2]);
    format!("{}{name}", bytes / unit)
}

fn parse_size(name: &str) -> Option<u64> {
    UNITS.into_iter().find_map(|(unit, suffix)| {
        let number = io::parse_u64(name.strip_suffix(suffix)?.as_bytes())?;
        number.checked_mul(unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_named_as_the_kernel_names_them() {
        let sizes = [
            (16 << 10, "16KB"),
            (2 << 20, "2MB"),
            (512 << 20, "512MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ];
        for (bytes, name) in sizes {
            assert_eq!(size_name(bytes), name);
            assert_eq!(parse_size(name), Some(bytes));
        }
        for other in ["", "2", "MB", "2MB.rsvd", "2mb"] {
            assert_eq!(parse_size(other), None, "{other}");
        }
    }
}
