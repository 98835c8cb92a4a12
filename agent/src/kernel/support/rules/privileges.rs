//! What the capabilities of this process allow.

use rustix::thread::CapabilitySet;

use super::{super::KernelSupport, Level, Row, row};

/// Capability, name, what it enables, what is lost without it.
type Privilege = (CapabilitySet, &'static str, &'static str, &'static str);

/// CAP_SYS_ADMIN stands in for the first two (capabilities(7)).
const PRIVILEGES: [Privilege; 7] = [
    (
        CapabilitySet::BPF,
        "CAP_BPF",
        "loading kernel programs",
        "no kernel programs",
    ),
    (
        CapabilitySet::PERFMON,
        "CAP_PERFMON",
        "kernel programs that trace",
        "no kernel programs",
    ),
    (
        CapabilitySet::SYS_NICE,
        "CAP_SYS_NICE",
        "a real-time reactor",
        "the reactor waits behind other work on a busy node",
    ),
    (
        CapabilitySet::IPC_LOCK,
        "CAP_IPC_LOCK",
        "locked memory",
        "under memory pressure the reactor may wait for its own pages",
    ),
    (
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "lowering oom_score_adj, PSI windows of any length",
        "the kernel's OOM killer may choose the agent, and pressure.memory takes windows of 2s, 4s, ... \
         alone",
    ),
    (
        CapabilitySet::KILL,
        "CAP_KILL",
        "killing pods of other users",
        "pods of other users cannot be evicted on v1",
    ),
    (
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        "writing cgroups of other users",
        "delegated cgroups cannot be limited",
    ),
];

pub(super) fn rows(support: &KernelSupport) -> impl Iterator<Item = Row> {
    PRIVILEGES.iter().map(|(capability, name, enables, lost)| {
        let tracing = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let held = support.capabilities.map(|held| {
            let by_admin = tracing.contains(*capability) && held.contains(CapabilitySet::SYS_ADMIN);
            held.contains(*capability) || by_admin
        });
        row(name, held, enables, lost, Level::Degraded)
    })
}
