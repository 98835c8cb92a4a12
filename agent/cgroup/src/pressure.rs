//! Time that the tasks of a cgroup waited (PSI, `Documentation/accounting/psi.rst` of the kernel). v2 alone.

use podwarden_policy::settings::Controller;

use crate::{
    CgroupPath, Error, PsiResource, Result, Tree,
    io::{self, parse_u64},
};

/// How long the tasks of a cgroup, and of all below it, waited for a resource, since the cgroup was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// At least one task waited, nanoseconds.
    pub some_nanos: u64,
    /// All its tasks that were not idle waited at the same time, nanoseconds; `None` for the CPU before Linux 5.13.
    pub full_nanos: Option<u64>,
}

/// [`Waited`] by resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// A CPU, also one that a quota kept from them.
    pub cpu: Waited,
    /// Memory: reclaim, and pages that were read back.
    pub memory: Waited,
    /// Disks.
    pub io: Waited,
}

impl Tree {
    /// Whether pods' cgroups can have pressure at all: their memory controller is on v2. On other nodes the kernel
    /// counts it for what is in v2 cgroups, which need not be the pods' tasks.
    pub fn has_pressure(&self) -> bool {
        self.hierarchies().is_on_v2(Controller::Memory)
    }

    /// How long the tasks of a cgroup waited, as the kernel knows it now: reading these files makes the kernel add up what its
    /// CPUs have counted (`psi_show`, kernel/sched/psi.c). [`Error::NotFound`] also where the kernel runs without PSI,
    /// and where `cgroup.pressure` is 0.
    pub fn pressure(&self, cgroup: &CgroupPath) -> Result<Pressure> {
        let directory = self.path(Controller::Memory, cgroup)?;
        let of = |resource: PsiResource| {
            let file = directory.join(format!("{}.pressure", resource.as_str()));
            let text = io::read_text(&file)?;
            waited(text.as_bytes()).ok_or_else(|| Error::malformed(file, "a total for some"))
        };
        Ok(Pressure {
            cpu: of(PsiResource::Cpu)?,
            memory: of(PsiResource::Memory)?,
            io: of(PsiResource::Io)?,
        })
    }
}

fn waited(text: &[u8]) -> Option<Waited> {
    let nanos = |kind| total(text, kind)?.checked_mul(1000);
    Some(Waited {
        some_nanos: nanos(b"some ")?,
        full_nanos: nanos(b"full "),
    })
}

/// `total` of the line that begins with `kind`, microseconds.
pub(crate) fn total(text: &[u8], kind: &[u8]) -> Option<u64> {
    let mut lines = text.split(|b| *b == b'\n');
    let line = lines.find(|line| line.starts_with(kind))?;
    let mut fields = line.split(|b| *b == b' ');
    parse_u64(fields.find_map(|field| field.strip_prefix(b"total="))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_totals_are_found() {
        let text = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12345\n\
                     full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        let both = Waited {
            some_nanos: 12_345_000,
            full_nanos: Some(99_000),
        };
        assert_eq!(waited(text), Some(both));
        let line = text.split(|b| *b == b'\n').next().unwrap();
        let some = Waited {
            full_nanos: None,
            ..both
        };
        assert_eq!(waited(line), Some(some), "cpu.pressure before Linux 5.13");
    }

    #[test]
    fn without_a_total_nothing_is_known() {
        assert_eq!(waited(b""), None);
        assert_eq!(waited(b"full avg10=0.00 total=99\n"), None);
        assert_eq!(waited(b"some avg10=0.00\n"), None);
    }
}
