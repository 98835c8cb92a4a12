//! Reads the figures of one cgroup, from the kernel's pass or from its files.

use podwarden_abi::Account;
use podwarden_cgroup::{CgroupPath, KernelCpu, MemoryReader, ThrottleReader, Tree};

use super::{
    Pass, Sampler,
    kept::Kept,
    parts::{memory_stats, throttling, walked_memory},
};
use crate::api::types::{CpuStats, MemoryStats, ThrottlingStats};

impl Sampler {
    /// CPU time of a cgroup by its file, nanoseconds, where that is the source.
    pub(super) fn file_cpu(&mut self, tree: &Tree, path: &CgroupPath) -> Option<u64> {
        let readers = self.cpu.as_mut()?;
        if !readers.contains_key(path) {
            readers.insert(path.to_owned(), KernelCpu::open(tree, path).ok()?);
        }
        let used = readers.get(path)?.usage_nanos().ok();
        if used.is_none() {
            readers.remove(path);
        }
        used
    }

    /// CPU figures; the rate is over the time since the last pass: up to that one nothing was used where it did not
    /// read this cgroup.
    pub(super) fn cpu(&self, pass: &Pass, kept: &mut Kept, account: &Account) -> CpuStats {
        let rate = kept.used.and_then(|(then, ns)| {
            let then = self.last_pass.map_or(then, |last| last.max(then));
            let window = u64::try_from(pass.now.duration_since(then).as_nanos()).ok()?;
            let used = account.cpu_ns.saturating_sub(ns);
            let nano_cores = u128::from(used) * 1_000_000_000
                / u128::from(std::num::NonZero::new(window)?.get());
            u64::try_from(nano_cores).ok()
        });
        kept.used = Some((pass.now, account.cpu_ns));
        CpuStats {
            time: pass.time.clone(),
            usage_core_nano_seconds: account.cpu_ns,
            usage_nano_cores: rate,
            run_queue_wait_nano_seconds: account.wait_ns,
            run_queue_wait_histogram: account.wait_hist.to_vec(),
            context_switches: account.switches,
            throttling: None,
        }
    }

    /// How often a cgroup reached its quota; `None` where it has had none, or is gone.
    pub(super) fn throttling(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<ThrottlingStats> {
        if let Some(figures) = self.walked.throttling(tree, path, &mut kept.places) {
            return throttling(figures);
        }
        if !self.throttle.contains_key(path) {
            let reader = ThrottleReader::open(tree, path).ok()?;
            self.throttle.insert(path.to_owned(), reader);
        }
        let Ok(figures) = self.throttle.get(path)?.read() else {
            self.throttle.remove(path);
            return None;
        };
        throttling(figures)
    }

    /// Memory figures; `None` when the cgroup is gone.
    pub(super) fn memory(
        &mut self,
        pass: &Pass,
        tree: &Tree,
        path: &CgroupPath,
        kept: &mut Kept,
    ) -> Option<MemoryStats> {
        if path.is_root() {
            return None;
        }
        if let Some(walked) = self.walked.memory(tree, path, &mut kept.places) {
            return Some(walked_memory(&pass.time, walked));
        }
        if !self.readers.contains_key(path) {
            let reader = MemoryReader::open(tree, path).ok()?;
            self.readers.insert(path.to_owned(), reader);
        }
        let stats = self.readers.get(path).and_then(|r| read(pass, r));
        if stats.is_none() {
            // Gone, or made anew under the same name: open again next time.
            self.readers.remove(path);
        }
        stats
    }
}

fn read(pass: &Pass, reader: &MemoryReader) -> Option<MemoryStats> {
    let (usage, stat) = (reader.usage().ok()?, reader.stat().ok()?);
    Some(memory_stats(&pass.time, usage, stat, reader.limit().ok()?))
}
