//! CPU shares and quota.

use podwarden_policy::limits::CpuMax;
use rustix::io::Errno;

use super::{kept, v1, v2};
use crate::{CgroupPath, Controller, Error, Result, Tree, io};

/// The CPU share of a cgroup as its file holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuShare {
    /// v1 `cpu.shares`, 2 to 262144.
    Shares(u64),
    /// v2 `cpu.weight`, 1 to 10000.
    Weight(u64),
}

impl CpuShare {
    /// The number in the file.
    const fn number(self) -> u64 {
        match self {
            Self::Shares(number) | Self::Weight(number) => number,
        }
    }
}

/// How much CPU time a cgroup may use: `quota_us` in every `period_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time in a period; at least 1000.
    pub quota_us: u64,
    /// The period in microseconds, 1000 to 1000000.
    pub period_us: u64,
}

impl CpuQuota {
    /// The quota of a limit; `None` for none.
    pub fn of(max: CpuMax) -> Option<Self> {
        let period_us = max.period_us;
        max.quota_us.bound().map(|quota_us| Self {
            quota_us,
            period_us,
        })
    }
}

impl Tree {
    /// Sets the CPU share, in v1 shares (2 to 262144, 1024 for one CPU). On v2 the weight that the
    /// kubelet would write for them is written.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], what the kernel refuses; [`Error::NotKept`],
    /// also for shares that v1 brings into its range.
    pub fn set_cpu_shares(&self, cgroup: &CgroupPath, shares: u64) -> Result<()> {
        let (name, wanted) = if self.is_v2(Controller::Cpu) {
            (v2::CPU_WEIGHT, v2::weight(shares))
        } else {
            (v1::CPU_SHARES, shares)
        };
        let file = self.file(Controller::Cpu, cgroup, name)?;
        io::write_text(&file, &wanted.to_string())?;
        let found = self.cpu_share(cgroup)?.number();
        kept(file, wanted, found, |number| number.to_string())
    }

    /// The CPU share in force, in the unit of the hierarchy: several shares have the same weight.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`], [`Error::Malformed`].
    pub fn cpu_share(&self, cgroup: &CgroupPath) -> Result<CpuShare> {
        if self.is_v2(Controller::Cpu) {
            self.number(Controller::Cpu, cgroup, v2::CPU_WEIGHT)
                .map(CpuShare::Weight)
        } else {
            self.number(Controller::Cpu, cgroup, v1::CPU_SHARES)
                .map(CpuShare::Shares)
        }
    }

    /// Sets or lifts the CPU quota.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoController`]; `EINVAL` for values out of range and, on v1,
    /// for more than the parent's quota; [`Error::NotKept`].
    pub fn set_cpu_quota(&self, cgroup: &CgroupPath, quota: Option<CpuQuota>) -> Result<()> {
        let file = if self.is_v2(Controller::Cpu) {
            let file = self.file(Controller::Cpu, cgroup, v2::CPU_MAX)?;
            io::write_text(&file, &v2::cpu_max(quota))?;
            file
        } else {
            self.set_v1_quota(cgroup, quota)?;
            self.file(Controller::Cpu, cgroup, v1::CPU_QUOTA)?
        };
        kept(file, quota, self.cpu_quota(cgroup)?, v2::cpu_max)
    }

    fn set_v1_quota(&self, cgroup: &CgroupPath, quota: Option<CpuQuota>) -> Result<()> {
        let quota_file = self.file(Controller::Cpu, cgroup, v1::CPU_QUOTA)?;
        let Some(CpuQuota {
            quota_us,
            period_us,
        }) = quota
        else {
            return io::write_text(&quota_file, v1::NO_LIMIT);
        };
        let period_file = self.file(Controller::Cpu, cgroup, v1::CPU_PERIOD)?;
        let write_quota = || io::write_text(&quota_file, &quota_us.to_string());
        let write_period = || io::write_text(&period_file, &period_us.to_string());
        // A period that stays is not written: whoever watches the file would see a change, and do so
        // again and again while the quota is refused.
        if self.number(Controller::Cpu, cgroup, v1::CPU_PERIOD)? == period_us {
            return write_quota();
        }
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
    pub fn cpu_quota(&self, cgroup: &CgroupPath) -> Result<Option<CpuQuota>> {
        if self.is_v2(Controller::Cpu) {
            let file = self.file(Controller::Cpu, cgroup, v2::CPU_MAX)?;
            let text = io::read_text(&file)?;
            return v2::parse_cpu_max(&text)
                .ok_or_else(|| Error::malformed(file, "a quota and a period"));
        }
        let file = self.file(Controller::Cpu, cgroup, v1::CPU_QUOTA)?;
        let text = io::read_text(&file)?;
        if text.trim_ascii() == v1::NO_LIMIT {
            return Ok(None);
        }
        let quota_us = io::parse_u64(text.as_bytes())
            .ok_or_else(|| Error::malformed(file, "a quota or -1"))?;
        let period_us = self.number(Controller::Cpu, cgroup, v1::CPU_PERIOD)?;
        Ok(Some(CpuQuota {
            quota_us,
            period_us,
        }))
    }
}
