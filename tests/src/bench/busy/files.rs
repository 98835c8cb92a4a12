//! The files that cAdvisor's loop reads for each pod and container, as the kubelet has it: those that
//! `opencontainers/cgroups` opens for `GetStats` (`fs` for cgroup v1, `fs2` for v2), and of each pod
//! `/proc/PID/net/dev`.
//!
//! Each is opened, read to its end and closed at each pass, as there. Nothing is parsed and nothing is kept, so that this
//! is the least that such a loop takes. Controllers that the pods are in no cgroup of are left out.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::scene::Scene;
use crate::bench::cpu_time;
use crate::harness::Cgroup;

/// cgroup v1.
const V1: [&str; 37] = [
    "cpu.stat",
    "cpuacct.stat",
    "cpuacct.usage",
    "cpuacct.usage_percpu",
    "cpuacct.usage_all",
    "memory.stat",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.failcnt",
    "memory.limit_in_bytes",
    "memory.memsw.usage_in_bytes",
    "memory.memsw.max_usage_in_bytes",
    "memory.memsw.failcnt",
    "memory.memsw.limit_in_bytes",
    "memory.kmem.usage_in_bytes",
    "memory.kmem.max_usage_in_bytes",
    "memory.kmem.failcnt",
    "memory.kmem.limit_in_bytes",
    "memory.kmem.tcp.usage_in_bytes",
    "memory.kmem.tcp.max_usage_in_bytes",
    "memory.kmem.tcp.failcnt",
    "memory.kmem.tcp.limit_in_bytes",
    "memory.use_hierarchy",
    "memory.numa_stat",
    "pids.current",
    "pids.max",
    "cpuset.cpus",
    "cpuset.cpu_exclusive",
    "cpuset.mems",
    "cpuset.mem_hardwall",
    "cpuset.mem_exclusive",
    "cpuset.memory_migrate",
    "cpuset.memory_spread_page",
    "cpuset.memory_spread_slab",
    "cpuset.memory_pressure",
    "cpuset.sched_load_balance",
    "cpuset.sched_relax_domain_level",
];

/// cgroup v2; cAdvisor itself reads `memory.events`.
const V2: [&str; 16] = [
    "pids.current",
    "pids.max",
    "memory.stat",
    "memory.current",
    "memory.max",
    "memory.peak",
    "memory.swap.current",
    "memory.swap.max",
    "memory.swap.peak",
    "memory.events",
    "memory.pressure",
    "io.stat",
    "io.pressure",
    "cpu.stat",
    "cpu.pressure",
    "rdma.current",
];

/// See the module.
pub(super) struct Files(Vec<PathBuf>);

impl Files {
    pub(super) fn of(scene: &Scene) -> Result<Self> {
        let mut all = Vec::new();
        for pod in &scene.pods {
            let containers = pod.containers.iter();
            for cgroup in containers.map(|one| &one.cgroup).chain([&pod.pod.cgroup]) {
                let files = of_cgroup(cgroup);
                ensure!(files.len() >= 8, "{} lacks its files", cgroup.path());
                all.extend(files);
            }
            let pid = pod.containers.first().context("a pod without a process")?;
            all.push(format!("/proc/{}/net/dev", pid.pid).into());
        }
        Ok(Self(all))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Reads all of them; the CPU time that this took.
    pub(super) fn pass(&self, buffer: &mut [u8]) -> Result<Duration> {
        let start = cpu_time()?;
        for path in &self.0 {
            let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
            let read = |file: &mut File, buffer: &mut [u8]| {
                file.read(buffer)
                    .with_context(|| format!("read {}", path.display()))
            };
            while black_box(read(&mut file, buffer)?) > 0 {}
        }
        Ok(cpu_time()? - start)
    }
}

/// Those of one cgroup that this kernel has. Beside v1 the files of v2 are not read there either.
fn of_cgroup(cgroup: &Cgroup) -> Vec<PathBuf> {
    let mounts = cgroup.mounts();
    let is_v2 = mounts.memory_on_v2();
    let names = if is_v2 { &V2[..] } else { &V1[..] };
    let dirs = cgroup.dirs().filter(|dir| {
        let on_v2 = mounts.v2().is_some_and(|v2| dir.starts_with(v2));
        on_v2 == is_v2
    });
    let all = dirs.flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    // Some are there and refuse to be read, as those of pressure where it is off.
    all.filter(|path| fs::read(path).is_ok()).collect()
}
