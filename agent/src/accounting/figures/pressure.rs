//! How long the tasks of a cgroup waited (PSI): from the kernel's pass, from files where there is none.

use podwarden_abi::Pressed;
use podwarden_cgroup::{CgroupPath, Tree, Waited};

use super::{kept::Kept, seldom::Seldom};
use crate::{
    accounting::walked::{Walked, WalkedPressure},
    api::types::{PressureStats, WaitedStats},
};

/// The files are read each 2 s: the totals of the kernel's pass may be as old.
#[derive(Debug, Default)]
pub(super) struct Pressures(pub(super) Seldom<2>);

impl Pressures {
    /// Of one cgroup, from `kept` where there is no pass of the kernel's and the files are not read now; `None` where the
    /// kernel does not count it.
    pub(super) fn of(
        &self,
        walked: &mut Walked,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<PressureStats> {
        if !tree.has_pressure() {
            return None;
        }
        let pressure = match walked.pressure(tree, path, &mut kept.places) {
            WalkedPressure::Counted(record) => {
                return Some(PressureStats {
                    cpu: of_record(record.waited(Pressed::Cpu)),
                    memory: of_record(record.waited(Pressed::Memory)),
                    io: of_record(record.waited(Pressed::Io)),
                });
            }
            WalkedPressure::NotCounted => return None,
            WalkedPressure::NoRecord => {
                if self.0.is_due() && !path.is_root() {
                    kept.pressure = tree.pressure(path).ok();
                }
                kept.pressure?
            }
        };
        Some(PressureStats {
            cpu: of_file(pressure.cpu),
            memory: of_file(pressure.memory),
            io: of_file(pressure.io),
        })
    }
}

fn of_record([some, full]: [u64; 2]) -> WaitedStats {
    WaitedStats {
        some_nano_seconds: some,
        full_nano_seconds: Some(full),
    }
}

fn of_file(waited: Waited) -> WaitedStats {
    WaitedStats {
        some_nano_seconds: waited.some_nanos,
        full_nano_seconds: waited.full_nanos,
    }
}
