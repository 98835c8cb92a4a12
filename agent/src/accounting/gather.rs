//! All accounts of a sampling pass, read at once.

use podwarden_abi::Account;

use super::{Accounting, KernelSide, index::AccountReader};
use crate::kernel::accounts::FoldTarget;

/// What [`Accounting::gather`] has read.
#[derive(Clone, Copy)]
pub struct Gathered<'a>(&'a Option<KernelSide>);

impl AccountReader for Gathered<'_> {
    fn read(&self, slot: u32) -> Option<Account> {
        self.0.as_ref()?.accounts.gathered(slot)
    }

    fn folded(&self, target: FoldTarget) -> Account {
        self.0.folded(target)
    }
}

impl Accounting {
    /// Accounts what is running up to the kernel's last tick, and reads all accounts for [`Accounting::gathered`].
    pub fn gather(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            for cpu in kernel.accounts.busy_cpus().unwrap_or_default() {
                kernel.flush_cpu(cpu);
            }
            kernel.accounts.gather(&self.index.own_slots());
        }
    }

    /// The figures of the last [`Accounting::gather`].
    pub fn gathered(&self) -> Gathered<'_> {
        Gathered(&self.kernel)
    }
}
