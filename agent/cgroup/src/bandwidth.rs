//! A cgroup's CPU bandwidth: how often it was throttled, its quota and its burst.

use std::{
    io::Write as _,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use podwarden_policy::{
    limits::{CpuMax, Limit},
    settings::{Controller, Setting, Value, Version, table::CPU_QUOTA},
};

use crate::{
    CgroupPath, Error, Result, Tree,
    io::{self, Reread, parse_u64},
    tree::directory_id,
};

/// How often a cgroup reached its quota, since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which its tasks ran.
    pub periods: u64,
    /// Of these the periods at whose end tasks were throttled.
    pub throttled_periods: u64,
    /// How long its tasks were throttled, summed over CPUs, nanoseconds. A CPU's part is added when it is
    /// not throttled any more.
    pub throttled_nanos: u64,
}

/// Reads [`Throttling`] again and again; allocates nothing after it is open.
#[derive(Debug)]
pub struct ThrottleReader {
    file: Reread,
    version: Version,
}

impl ThrottleReader {
    /// Opens `cpu.stat` in the CPU controller's hierarchy.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let directory = tree.path(Controller::Cpu, cgroup)?;
        Ok(Self {
            file: Reread::open(&directory.join("cpu.stat"))?,
            version: tree.version_of(Controller::Cpu),
        })
    }

    /// The figures now. A kernel without CFS bandwidth gives [`Error::Malformed`].
    pub fn read(&self) -> Result<Throttling> {
        let mut buffer = [0_u8; 1024];
        let text = self.file.read_at(&mut buffer, 0)?;
        parse(text, self.version).ok_or_else(|| self.file.malformed("nr_throttled"))
    }
}

fn parse(text: &[u8], version: Version) -> Option<Throttling> {
    let field = |name: &[u8]| {
        let mut lines = text.split(|byte| *byte == b'\n');
        lines.find_map(|line| parse_u64(line.strip_prefix(name)?.strip_prefix(b" ")?))
    };
    let throttled_nanos = match version {
        Version::V1 => field(b"throttled_time")?,
        Version::V2 => field(b"throttled_usec")?.checked_mul(1000)?,
    };
    Some(Throttling {
        periods: field(b"nr_periods")?,
        throttled_periods: field(b"nr_throttled")?,
        throttled_nanos,
    })
}

/// Sets a cgroup's quota again and again; a write that the kernel takes allocates nothing.
#[derive(Debug)]
pub struct QuotaWriter {
    quota: OwnedFd,
    path: Arc<Path>,
    /// v1 has a file of its own for the period; `None` on v2.
    period: Option<Period>,
}

#[derive(Debug)]
struct Period {
    file: OwnedFd,
    path: Arc<Path>,
    us: u64,
}

impl QuotaWriter {
    /// Opens the files in the CPU controller's hierarchy.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let directory = tree.path(Controller::Cpu, cgroup)?;
        let open = |name: &str| -> Result<(OwnedFd, Arc<Path>)> {
            let path = directory.join(name);
            Ok((io::open_write(&path)?, path.into()))
        };
        let (name, period) = match tree.version_of(Controller::Cpu) {
            Version::V2 => ("cpu.max", None),
            Version::V1 => {
                let (file, path) = open("cpu.cfs_period_us")?;
                // Without a quota the period counts for nothing, but it is there.
                let us = io::read_text(&path)?;
                let us = parse_u64(us.as_bytes())
                    .ok_or_else(|| Error::malformed(Arc::clone(&path), "a number"))?;
                ("cpu.cfs_quota_us", Some(Period { file, path, us }))
            }
        };
        let (quota, path) = open(name)?;
        Ok(Self {
            quota,
            path,
            period,
        })
    }

    /// Sets quota and period. On v1 the kernel refuses a quota below a child's (`EINVAL`).
    pub fn set(&mut self, max: CpuMax) -> Result<()> {
        let mut buffer = [0_u8; 48];
        let mut rest = &mut buffer[..];
        // Two numbers of at most 20 digits fit.
        let _ = match (&self.period, max.quota_us) {
            (None, Limit::At(quota)) => write!(rest, "{quota} {}", max.period_us),
            (None, Limit::Unlimited) => write!(rest, "max {}", max.period_us),
            (Some(_), Limit::At(quota)) => write!(rest, "{quota}"),
            (Some(_), Limit::Unlimited) => write!(rest, "-1"),
        };
        let left = rest.len();
        let text = &buffer[..buffer.len() - left];
        let quota = || {
            io::write_fd(&self.quota, text)
                .map_err(|e| Error::os("write", Arc::clone(&self.path), e))
        };
        let Some(period) = &mut self.period else {
            return quota();
        };
        if period.us == max.period_us {
            return quota();
        }
        // Of quota and period the one first that leaves the cgroup no less than before: none of its children's
        // quotas is then above it meanwhile.
        if period.us > max.period_us {
            period.set(max.period_us)?;
            return quota();
        }
        quota()?;
        period.set(max.period_us)
    }
}

impl Period {
    fn set(&mut self, us: u64) -> Result<()> {
        let mut buffer = [0_u8; 10];
        let text = io::decimal(u32::try_from(us).unwrap_or(u32::MAX), &mut buffer);
        io::write_fd(&self.file, text)
            .map_err(|e| Error::os("write", Arc::clone(&self.path), e))?;
        self.us = us;
        Ok(())
    }
}

impl Tree {
    /// The kernel's id of a cgroup in the CPU controller's hierarchy; on v2 the same as [`Tree::id`].
    pub fn cpu_id(&self, cgroup: &CgroupPath) -> Result<u64> {
        directory_id(&self.path(Controller::Cpu, cgroup)?)
    }

    /// The quota and period of a cgroup.
    pub fn cpu_max(&self, cgroup: &CgroupPath) -> Result<CpuMax> {
        match self.value(cgroup, &CPU_QUOTA)? {
            Value::CpuMax(max) => Ok(max),
            _ => Err(Error::malformed(
                self.burst_file(cgroup)?,
                "a quota and a period",
            )),
        }
    }

    /// Sets the quota and period of a cgroup.
    pub fn set_cpu_max(&self, cgroup: &CgroupPath, max: CpuMax) -> Result<()> {
        self.write(cgroup, &Setting::CpuMax(max))
    }

    /// The burst of a cgroup, microseconds: unused quota that a period may carry over. [`Error::NotFound`] also before
    /// Linux 5.14.
    pub fn cpu_burst(&self, cgroup: &CgroupPath) -> Result<u64> {
        let file = self.burst_file(cgroup)?;
        let text = io::read_text(&file)?;
        parse_u64(text.as_bytes()).ok_or_else(|| Error::malformed(file, "a number"))
    }

    /// Sets the burst of a cgroup, microseconds. The kernel refuses one above the quota (`EINVAL`).
    pub fn set_cpu_burst(&self, cgroup: &CgroupPath, burst_us: u64) -> Result<()> {
        io::write_text(&self.burst_file(cgroup)?, &burst_us.to_string())
    }

    fn burst_file(&self, cgroup: &CgroupPath) -> Result<PathBuf> {
        let name = match self.version_of(Controller::Cpu) {
            Version::V1 => "cpu.cfs_burst_us",
            Version::V2 => "cpu.max.burst",
        };
        Ok(self.path(Controller::Cpu, cgroup)?.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cpu_stat() {
        let v1 = b"nr_periods 10\nnr_throttled 3\nthrottled_time 2500\nnr_bursts 1\nburst_time 7\n";
        let v2 = b"usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 2\nnr_bursts 0\n";
        let figures = |throttled_nanos| {
            Some(Throttling {
                periods: 10,
                throttled_periods: 3,
                throttled_nanos,
            })
        };
        assert_eq!(parse(v1, Version::V1), figures(2500));
        assert_eq!(parse(v2, Version::V2), figures(2000));
        assert_eq!(
            parse(b"usage_usec 5\n", Version::V2),
            None,
            "no cpu controller"
        );
    }
}
