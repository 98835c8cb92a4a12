//! The kernel programs with the maps that the accounts are read from.

use std::path::Path;

use aya::maps::{MapData, RingBuf};
use podwarden_abi::{Account, Figure, NO_SLOT, Tracked};
use tokio::io::{Interest, unix::AsyncFd};

use super::AccountingError;
use crate::{
    accounting::index::{AccountReader, AccountStore},
    base::error,
    kernel::{
        accounts::{Accounts, FoldTarget, Parent},
        loader::Programs,
        walk::Walker,
    },
};

/// The kernel programs with their figures.
pub struct KernelSide {
    programs: Programs,
    pub(super) accounts: Accounts,
    pub(super) telemetry: AsyncFd<RingBuf<MapData>>,
    walker: Option<Walker>,
}

/// Without kernel programs there are no figures, only a tree.
impl AccountReader for Option<KernelSide> {
    fn read(&self, slot: u32) -> Option<Account> {
        self.as_ref()?.accounts.read(slot)
    }

    fn folded(&self, target: FoldTarget) -> Account {
        let kernel = self.as_ref();
        kernel.map_or_else(Account::default, |kernel| kernel.accounts.folded(target))
    }
}

impl AccountStore for Option<KernelSide> {
    fn fold(&mut self, id: u64, own: Option<u32>, target: FoldTarget) {
        if let Some(kernel) = self {
            kernel.accounts.fold(id, own, target);
        }
    }
}

impl KernelSide {
    /// From what [`crate::kernel::loader::Prepared::attach`] gave; call it inside a tokio runtime.
    pub fn new(
        programs: Programs,
        accounts: Accounts,
        telemetry: RingBuf<MapData>,
        walker: Option<Walker>,
    ) -> Result<Self, AccountingError> {
        // SAFETY: the map's descriptor is owned by the ring and stays the same.
        let telemetry = unsafe { AsyncFd::register_with_interest(telemetry, Interest::READABLE) };
        Ok(Self {
            programs,
            accounts,
            telemetry: telemetry.map_err(|e| AccountingError::Ring(e.into()))?,
            walker,
        })
    }

    /// Reads every cgroup in one pass, where this kernel can.
    pub fn walker(&self) -> Option<&Walker> {
        self.walker.as_ref()
    }

    /// Whether the programs count this figure.
    pub fn counts(&self, figure: Figure) -> bool {
        self.programs.counts(figure)
    }

    /// Lets cgroups inside containers do without entries in the table, where the level of kubepods, whose directory is
    /// `kubepods`, can be known.
    pub(super) fn begin_at(&mut self, kubepods: &Path) -> Result<(), AccountingError> {
        let Some(walker) = &self.walker else {
            return Ok(());
        };
        match walker.level(kubepods) {
            Ok(Some(level)) => self.accounts.begin_at(level)?,
            Ok(None) => {}
            Err(error) => {
                let error = error::chain(&error);
                tracing::warn!(error, "each cgroup inside a container takes an entry");
            }
        }
        Ok(())
    }

    pub(super) fn flush_cpu(&mut self, cpu: u32) {
        if let Err(error) = self.programs.flush(cpu) {
            // A CPU that went offline has nothing running.
            tracing::debug!(%error, cpu, "flushing a CPU");
        }
    }
}

/// Puts a cgroup in scope of the kernel programs, if there are any.
pub(super) fn track(
    kernel: &mut Option<KernelSide>,
    id: u64,
    parent: Parent,
    depth: u16,
) -> Tracked {
    let Some(kernel) = kernel else {
        return Tracked {
            slot: NO_SLOT,
            depth,
            own: 0,
            parent: parent.id,
        };
    };
    kernel.accounts.track(id, parent, depth)
}
