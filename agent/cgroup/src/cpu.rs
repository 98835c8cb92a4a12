//! The kernel's own CPU accounting of a cgroup.

use crate::{
    CgroupPath, Controller, Error, Hierarchies, Result, Tree,
    io::{Reread, parse_u64},
};

/// CPU time as the kernel counts it, to compare ours with. Reading allocates nothing.
#[derive(Debug)]
pub struct KernelCpu(Source);

#[derive(Debug)]
enum Source {
    /// v1 `cpuacct.usage`, nanoseconds.
    Nanoseconds(Reread),
    /// v2 `cpu.stat`, field `usage_usec`; there without the cpu controller too.
    CpuStat(Reread),
}

impl KernelCpu {
    /// Opens `cpuacct.usage` where that controller is mounted, else `cpu.stat` of v2.
    pub fn open(tree: &Tree, cgroup: &CgroupPath) -> Result<Self> {
        let source = match tree.path(Controller::CpuAcct, cgroup) {
            Ok(directory) => Source::Nanoseconds(Reread::open(&directory.join("cpuacct.usage"))?),
            Err(Error::NoController { .. }) if tree.hierarchies().v2_mount.is_some() => {
                let directory = tree.v2_path(cgroup)?;
                Source::CpuStat(Reread::open(&directory.join("cpu.stat"))?)
            }
            Err(error) => return Err(error),
        };
        Ok(Self(source))
    }

    /// Opens the file of the topmost cgroup, for what the whole node uses. Before Linux 5.10 it has no `cpu.stat`
    /// ([`Error::NotFound`]).
    pub fn open_node(hierarchies: &Hierarchies) -> Result<Self> {
        let source = match (
            hierarchies.mount_of(Controller::CpuAcct),
            &hierarchies.v2_mount,
        ) {
            (Ok(mount), _) => Source::Nanoseconds(Reread::open(&mount.join("cpuacct.usage"))?),
            (Err(_), Some(mount)) => Source::CpuStat(Reread::open(&mount.join("cpu.stat"))?),
            (Err(error), None) => return Err(error),
        };
        Ok(Self(source))
    }

    /// CPU time of the cgroup and all below it since it was made, in nanoseconds; on v2 the kernel
    /// gives whole microseconds.
    pub fn usage_nanos(&self) -> Result<u64> {
        match &self.0 {
            Source::Nanoseconds(file) => file.number(),
            Source::CpuStat(file) => {
                let mut buffer = [0_u8; 1024];
                let text = file.read_at(&mut buffer, 0)?;
                usage_usec(text)
                    .and_then(|us| us.checked_mul(1000))
                    .ok_or_else(|| file.malformed("usage_usec"))
            }
        }
    }
}

fn usage_usec(text: &[u8]) -> Option<u64> {
    text.split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"usage_usec "))
        .and_then(parse_u64)
}

#[cfg(test)]
mod tests {
    use super::usage_usec;

    #[test]
    fn usage_is_found() {
        let text = b"usage_usec 1234\nuser_usec 1000\nsystem_usec 234\nnice_usec 0\n";
        assert_eq!(usage_usec(text), Some(1234));
        assert_eq!(usage_usec(b"user_usec 1000\n"), None);
    }
}
