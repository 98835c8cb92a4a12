//! What the whole node uses, as the kubelet counts it: the figures of the topmost cgroup.

use std::time::Instant;

use podwarden_cgroup::{Hierarchies, KernelCpu, MemoryReader};

use crate::{
    api::types::{NodeMemory, NodeUsageStats},
    base::clock,
};

/// Keeps the files open, and CPU time of the pass before.
#[derive(Debug)]
pub struct NodeUsage {
    files: Option<(KernelCpu, MemoryReader)>,
    last: Option<(Instant, u64)>,
}

impl NodeUsage {
    /// Without figures where the topmost cgroup cannot be seen, as in a cgroup namespace.
    pub fn open(hierarchies: &Hierarchies) -> Self {
        let memory = MemoryReader::open_node(hierarchies);
        let files = memory.and_then(|memory| Ok((KernelCpu::open_node(hierarchies)?, memory)));
        Self {
            files: files.ok(),
            last: None,
        }
    }

    /// Reads it; `capacity` is the node's memory, bytes.
    pub fn read(&mut self, capacity: u64) -> Option<NodeUsageStats> {
        let (cpu, memory) = self.files.as_ref()?;
        let (used, now) = (cpu.usage_nanos().ok()?, Instant::now());
        let (usage, stat) = (memory.usage().ok()?, memory.stat().ok()?);
        let last = self.last.replace((now, used));
        Some(NodeUsageStats {
            time: clock::now_text(),
            usage_nano_cores: last.and_then(|(then, before)| {
                let window = std::num::NonZero::new((now - then).as_nanos())?;
                let used = u128::from(used.saturating_sub(before));
                u64::try_from(used * 1_000_000_000 / window).ok()
            }),
            usage_core_nano_seconds: used,
            memory: NodeMemory {
                capacity_bytes: capacity,
                usage_bytes: usage,
                working_set_bytes: stat.working_set(usage),
                rss_bytes: stat.rss,
            },
        })
    }
}
