//! Typed values of a cgroup: what podwarden writes and reads back.
//!
//! File names and formats are in [`v1`] and [`v2`]; here is which of the two a controller is on.

mod v1;
mod v2;

use std::path::PathBuf;

use rustix::io::Errno;

use crate::{Controller, Error, Result, Tree, io};

/// The CPU share of a cgroup as its file holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuShare {
    /// v1 `cpu.shares`, 2 to 262144.
    Shares(u64),
    /// v2 `cpu.weight`, 1 to 10000.
    Weight(u64),
}

/// How much CPU time a cgroup may use: `quota_us` in every `period_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time in a period; at least 1000.
    pub quota_us: u64,
    /// The period in microseconds, 1000 to 1000000.
    pub period_us: u64,
}

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
    Some((bytes < v1::MEMORY_UNLIMITED).then_some(bytes))
}

impl Tree {
    /// Sets the CPU share, in v1 shares (2 to 262144, 1024 for one CPU). On v2 the weight that the
    /// kubelet would write for them is written.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], what the kernel refuses.
    pub fn set_cpu_shares(&self, rel: &str, shares: u64) -> Result<()> {
        let file = |name| self.file(Controller::Cpu, rel, name);
        if self.is_v2(Controller::Cpu) {
            let weight = v2::weight(shares);
            io::write_text(&file(v2::CPU_WEIGHT)?, &weight.to_string())
        } else {
            io::write_text(&file(v1::CPU_SHARES)?, &shares.to_string())
        }
    }

    /// The CPU share in force, in the unit of the hierarchy: several shares have the same weight.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn cpu_share(&self, rel: &str) -> Result<CpuShare> {
        if self.is_v2(Controller::Cpu) {
            self.number(Controller::Cpu, rel, v2::CPU_WEIGHT)
                .map(CpuShare::Weight)
        } else {
            self.number(Controller::Cpu, rel, v1::CPU_SHARES)
                .map(CpuShare::Shares)
        }
    }

    /// Sets or lifts the CPU quota.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`]; `EINVAL` for values out of range and, on v1,
    /// for more than the parent's quota.
    pub fn set_cpu_quota(&self, rel: &str, quota: Option<CpuQuota>) -> Result<()> {
        if self.is_v2(Controller::Cpu) {
            let file = self.file(Controller::Cpu, rel, v2::CPU_MAX)?;
            return io::write_text(&file, &v2::cpu_max(quota));
        }
        let quota_file = self.file(Controller::Cpu, rel, v1::CPU_QUOTA)?;
        let Some(CpuQuota {
            quota_us,
            period_us,
        }) = quota
        else {
            return io::write_text(&quota_file, "-1");
        };
        let period_file = self.file(Controller::Cpu, rel, v1::CPU_PERIOD)?;
        let write_quota = || io::write_text(&quota_file, &quota_us.to_string());
        let write_period = || io::write_text(&period_file, &period_us.to_string());
        match write_period() {
            // The new period may be refused together with the old quota: then the quota goes first.
            Err(error) if error.errno() == Some(Errno::INVAL) => {
                write_quota()?;
                write_period()
            }
            Err(error) => Err(error),
            Ok(()) => write_quota(),
        }
    }

    /// The CPU quota in force; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn cpu_quota(&self, rel: &str) -> Result<Option<CpuQuota>> {
        if self.is_v2(Controller::Cpu) {
            let file = self.file(Controller::Cpu, rel, v2::CPU_MAX)?;
            let text = io::read_text(&file)?;
            return v2::parse_cpu_max(&text)
                .ok_or_else(|| Error::malformed(file, "a quota and a period"));
        }
        let file = self.file(Controller::Cpu, rel, v1::CPU_QUOTA)?;
        let text = io::read_text(&file)?;
        if text.trim_ascii() == "-1" {
            return Ok(None);
        }
        let quota_us = io::parse_u64(text.as_bytes())
            .ok_or_else(|| Error::malformed(file, "a quota or -1"))?;
        let period_us = self.number(Controller::Cpu, rel, v1::CPU_PERIOD)?;
        Ok(Some(CpuQuota {
            quota_us,
            period_us,
        }))
    }

    /// Sets the memory limit in bytes, or lifts it; the kernel rounds it down to whole pages.
    ///
    /// A limit below usage is dangerous: v1 reclaims and answers `EBUSY` when that is not enough,
    /// v2 takes the limit and kills processes in the cgroup until usage is below it. It is the
    /// caller who keeps the limit above usage.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`]; `EBUSY` as said.
    pub fn set_memory_limit(&self, rel: &str, bytes: Option<u64>) -> Result<()> {
        let is_v2 = self.is_v2(Controller::Memory);
        let file = self.file(Controller::Memory, rel, memory_limit_file(is_v2))?;
        let none = if is_v2 { v2::MAX } else { v1::NO_LIMIT };
        io::write_text(&file, &or_none(bytes, none))
    }

    /// The memory limit of this cgroup itself, in bytes; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn memory_limit(&self, rel: &str) -> Result<Option<u64>> {
        let name = memory_limit_file(self.is_v2(Controller::Memory));
        self.limit(Controller::Memory, rel, name)
    }

    /// Sets the highest number of tasks, or lifts it. Tasks that exist are not touched.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], what the kernel refuses.
    pub fn set_pids_limit(&self, rel: &str, tasks: Option<u64>) -> Result<()> {
        let file = self.file(Controller::Pids, rel, v2::PIDS_MAX)?;
        io::write_text(&file, &or_none(tasks, v2::MAX))
    }

    /// The highest number of tasks; `None` when there is no limit.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn pids_limit(&self, rel: &str) -> Result<Option<u64>> {
        self.limit(Controller::Pids, rel, v2::PIDS_MAX)
    }

    fn is_v2(&self, controller: Controller) -> bool {
        self.hierarchies().is_on_v2(controller)
    }

    fn file(&self, controller: Controller, rel: &str, name: &str) -> Result<PathBuf> {
        Ok(self.path(controller, rel)?.join(name))
    }

    fn number(&self, controller: Controller, rel: &str, name: &str) -> Result<u64> {
        let file = self.file(controller, rel, name)?;
        io::parse_u64(io::read_text(&file)?.as_bytes())
            .ok_or_else(|| Error::malformed(file, "a number"))
    }

    fn limit(&self, controller: Controller, rel: &str, name: &str) -> Result<Option<u64>> {
        let file = self.file(controller, rel, name)?;
        parse_memory_limit(io::read_text(&file)?.as_bytes())
            .ok_or_else(|| Error::malformed(file, "a limit or max"))
    }
}

fn or_none(value: Option<u64>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |v| v.to_string())
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
