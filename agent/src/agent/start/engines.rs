//! Accounts and reactor, over the kernel programs.

use podwarden_cgroup::{MemoryReader, Tree};
use podwarden_policy::signal::Signal;

use super::{
    Site, StartError, process,
    programs::{self, Programs, Standby},
};
use crate::{
    accounting::{Accounting, index::Change},
    agent::arm,
    config::Config,
    kernel::{support::Profile, waits::Waits},
    reactor::{self, Reactor},
};

/// What runs once the cgroups exist.
pub(super) struct Engines {
    pub(super) accounting: Accounting,
    pub(super) reactor: Reactor,
    /// Waits of protected pods that are too long, where they are reported.
    pub(super) waits: Option<Waits>,
    pub(super) profile: Profile,
    /// The degradations of this node, one sentence each.
    pub(super) degradations: Vec<String>,
    /// The cgroups that are there.
    pub(super) changes: Vec<Change>,
}

impl Engines {
    pub(super) fn start(
        config: &Config,
        site: &Site,
        tree: &Tree,
        programs: Option<Standby>,
        reactor: Option<reactor::Prepared>,
    ) -> Result<Self, StartError> {
        let Programs {
            accounts: kernel,
            levels,
            waits,
            profile,
            mut degradations,
        } = programs::load(config, tree, programs)?;
        let kubepods = site.layout.path(&site.layout.kubepods);
        let (accounting, changes) =
            Accounting::start(kernel, tree, &kubepods).map_err(StartError::Accounting)?;
        let reactor = match reactor {
            Some(prepared) => prepared.start(levels)?,
            None => {
                process::release_unused_memory();
                Reactor::start(levels, config.reactor)?
            }
        };
        degradations.extend(degradations_of(config, tree, &reactor));
        degradations.sort();
        degradations.dedup();
        Ok(Self {
            accounting,
            reactor,
            waits,
            profile,
            degradations,
            changes,
        })
    }
}

/// What the reactor cannot do on this node.
fn degradations_of(config: &Config, tree: &Tree, reactor: &Reactor) -> Vec<String> {
    let mut lost = Vec::new();
    if config.reactor.real_time {
        lost.extend(reactor.realtime.degradations());
    }
    lost.extend(arm::pressure::degradations(&config.pressure));
    if let (Some(_), Err(error)) = (
        config.hard(Signal::MemoryAvailable),
        MemoryReader::open_node(tree.hierarchies()),
    ) {
        lost.push(format!(
            "memory.available counts for pods alone, not for all of the node ({error})"
        ));
    }
    lost.extend(reactor::reaping_degradation().map(str::to_owned));
    lost
}
