//! Which CPUs a cgroup may run on.

use std::{collections::BTreeSet, fmt, path::PathBuf};

use crate::{CgroupPath, Controller, Error, Result, Tree, io, tree::sub_directories};

/// More CPUs than the kernel can have (`CONFIG_NR_CPUS`).
const MOST: u32 = 8192;

/// A list of CPUs such as `0-3,8` (`Documentation/admin-guide/cputopology.rst` of the kernel).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(pub BTreeSet<u32>);

impl CpuList {
    /// Reads a list; an empty text has no CPU. `None` where it is no list.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut all = BTreeSet::new();
        for range in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= MOST {
                return None;
            }
            all.extend(first..=last);
        }
        Some(Self(all))
    }
}

/// As the kernel takes it.
impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl Tree {
    /// The CPUs that were written to a cgroup; empty on v2 where it takes those of its parent. [`Error::NotFound`] also
    /// on v2 where its parent does not delegate the cpuset controller.
    pub fn cpus(&self, cgroup: &CgroupPath) -> Result<CpuList> {
        read(self.cpuset_file(cgroup, "cpuset.cpus")?)
    }

    /// The CPUs that a cgroup's tasks may run on: those written that are online and its parent's.
    pub fn effective_cpus(&self, cgroup: &CgroupPath) -> Result<CpuList> {
        let name = match self.hierarchies().is_on_v2(Controller::CpuSet) {
            true => "cpuset.cpus.effective",
            false => "cpuset.effective_cpus",
        };
        read(self.cpuset_file(cgroup, name)?)
    }

    /// Sets the CPUs of a cgroup; an empty list on v2 for those of its parent. What the kernel refuses: on v1 `EBUSY`
    /// where a child has others, `EACCES` where the parent does not have them, `EINVAL` for one that is offline; on v2
    /// kernels such as 6.12 `ENOSPC` for an empty list while processes are below the cgroup.
    pub fn set_cpus(&self, cgroup: &CgroupPath, cpus: &CpuList) -> Result<()> {
        // A write without a byte does not reach the kernel.
        io::write_text(
            &self.cpuset_file(cgroup, "cpuset.cpus")?,
            &format!("{cpus}\n"),
        )
    }

    /// The cgroups directly below one in the cpuset hierarchy.
    pub fn cpuset_children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>> {
        let names = sub_directories(&self.path(Controller::CpuSet, cgroup)?)?;
        Ok(names.iter().map(|(name, _)| cgroup.child(name)).collect())
    }

    /// True where a cgroup's CPUs have to be among its parent's (v1): the order of writes matters.
    pub fn cpus_are_nested(&self) -> bool {
        !self.hierarchies().is_on_v2(Controller::CpuSet)
    }

    fn cpuset_file(&self, cgroup: &CgroupPath, name: &str) -> Result<PathBuf> {
        Ok(self.path(Controller::CpuSet, cgroup)?.join(name))
    }
}

fn read(file: PathBuf) -> Result<CpuList> {
    CpuList::parse(&io::read_text(&file)?).ok_or_else(|| Error::malformed(file, "a list of CPUs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_as_it_is_written() {
        let list = |text| CpuList::parse(text).map(|list| list.to_string());
        for text in ["", "0", "0-1", "0-3,8", "0,2,4-6"] {
            assert_eq!(list(text).as_deref(), Some(text));
        }
        assert_eq!(list("3,2,1\n").as_deref(), Some("1-3"));
        for text in ["a", "1-", "3-1", "0-8192", "4294967295", "0,,1"] {
            assert_eq!(list(text), None, "{text}");
        }
    }
}
