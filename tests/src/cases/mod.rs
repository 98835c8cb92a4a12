//! The cases: what podwarden promises, one function each.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use xtask::cases::{Extent, Share};

use crate::harness::{Log, quantile};
use crate::kubernetes::{Cluster, Shared};
use crate::machine::message::Figure;

pub(crate) use list::{Pods, all};

mod accounts;
mod api;
pub(crate) mod apiserver;
pub(crate) mod clients;
mod colocation;
mod containerd;
pub(crate) mod converge;
mod cpu;
mod cpu_eviction;
mod daemonset;
mod drift;
pub(crate) mod eviction;
pub(crate) mod eviction_status;
mod exits;
mod faults;
mod fleet;
mod footprint;
mod full_speed;
mod graceful;
mod guard;
mod hierarchy;
mod iterator;
mod killed;
mod kubelet;
mod kubernetes;
mod levels;
mod lifecycle;
mod list;
mod memory;
mod near_limit;
mod node_told;
mod observe;
mod outage;
mod pids;
mod pressure;
mod proactive;
mod profile;
pub(crate) mod prometheus;
mod pure_v1;
mod random_sources;
mod reaping;
mod reclaimed;
mod recorder;
mod relief;
mod reload;
mod resident;
mod restarts;
mod scale;
mod secure;
mod shutdown;
mod stalls;
mod static_url;
mod stuck;
mod suppress;
mod systemd;
mod traffic;
mod undo;
mod victims;
mod wait;
mod workloads;
mod worth;

/// A case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) run: fn(&Context) -> Result<()>,
    /// Left out unless asked for: takes minutes.
    pub(crate) slow: bool,
    /// Takes the same way on every kernel with the same cgroup version.
    pub(crate) portable: bool,
}

/// A case that runs always.
const fn case(name: &'static str, run: fn(&Context) -> Result<()>) -> Case {
    Case {
        name,
        run,
        slow: false,
        portable: false,
    }
}

/// A case that takes the same way on every kernel: it runs here and in one machine.
const fn portable(name: &'static str, run: fn(&Context) -> Result<()>) -> Case {
    Case {
        portable: true,
        ..case(name, run)
    }
}

/// A case that runs when asked for.
const fn slow(name: &'static str, run: fn(&Context) -> Result<()>) -> Case {
    Case {
        name,
        run,
        slow: true,
        portable: false,
    }
}

/// How far apart two CPU times are, nanoseconds.
fn cpu_gap(found: u64, kernel: u64) -> u64 {
    found.abs_diff(kernel)
}

/// The promise about CPU time: within 0.5 % or 5 ms of the kernel's own counter.
pub(crate) fn close_cpu(found: u64, kernel: u64) -> Result<()> {
    let allowed = (kernel / 200).max(5_000_000);
    let gap = cpu_gap(found, kernel);
    ensure!(
        gap <= allowed,
        "CPU time is {found} ns, the kernel says {kernel} ns, {gap} ns apart"
    );
    Ok(())
}

/// How much longer something may take where every instruction is interpreted, beside other machines and on a host that has
/// other work.
const EMULATED: u32 = 10;

/// What a case gets.
#[derive(Debug)]
pub(crate) struct Context {
    agent: PathBuf,
    emulated: bool,
    extent: Extent,
    figures: RefCell<Vec<Figure>>,
    log: RefCell<Log>,
    kubernetes: RefCell<Shared>,
}

impl Context {
    /// For an agent, on this machine, with all that takes long: of a benchmark.
    pub(crate) fn of_bench(agent: &Path) -> Self {
        let extent = Extent {
            include_slow: true,
            ..Extent::default()
        };
        Self::new(agent, extent)
    }

    /// For an agent, on this machine.
    pub(crate) fn new(agent: &Path, extent: Extent) -> Self {
        Self {
            agent: agent.to_owned(),
            emulated: is_emulated(),
            extent,
            figures: RefCell::default(),
            log: RefCell::default(),
            kubernetes: RefCell::default(),
        }
    }

    /// The agent's program.
    pub(crate) fn agent(&self) -> &Path {
        &self.agent
    }

    /// True where every instruction is interpreted (QEMU TCG): ten to thirty times slower.
    pub(crate) fn emulated(&self) -> bool {
        self.emulated
    }

    /// The same where the machine's own clock is as slow as its CPUs.
    pub(crate) fn at_full_speed(self) -> Self {
        Self {
            emulated: false,
            ..self
        }
    }

    /// Whether long runs were asked for.
    pub(crate) fn include_slow(&self) -> bool {
        self.extent.include_slow
    }

    /// How often to do what is done again and again: as asked for, or else `usual`.
    pub(crate) fn repetitions(&self, usual: u32) -> u32 {
        self.extent.repeat.unwrap_or(usual)
    }

    /// What to choose everything by, noted as a figure: as asked for, or any.
    pub(crate) fn seed(&self) -> u64 {
        // Short enough to be copied, and to be a figure without loss.
        let any = || u64::from(fastrand::u32(..));
        let seed = self.extent.seed.unwrap_or_else(any);
        self.figure("seed", seed as f64, "");
        seed
    }

    /// The part of what is chosen by the seed that this run takes.
    pub(crate) fn part(&self) -> Share {
        self.extent.part.unwrap_or_default()
    }

    /// How long to wait for something that takes `seconds` at the very most on a real machine.
    pub(crate) fn limit(&self, seconds: u64) -> Duration {
        Duration::from_secs(seconds) * self.slowdown()
    }

    /// How many times longer than on a real machine something may take here.
    pub(crate) fn slowdown(&self) -> u32 {
        if self.emulated { EMULATED } else { 1 }
    }

    /// A thread that has made no system call for so long has nothing more to do.
    pub(crate) fn quiet(&self) -> Duration {
        Duration::from_millis(if self.emulated { 2500 } else { 500 })
    }

    /// The cluster of this run, started when a case first asks for it.
    pub(crate) fn kubernetes(&self) -> Result<Rc<Cluster>> {
        self.kubernetes.borrow_mut().get(self)
    }

    /// The same, for the one who ends it; a case that asks later gets another.
    pub(crate) fn take_kubernetes(&self) -> Result<Rc<Cluster>> {
        let cluster = self.kubernetes()?;
        self.kubernetes.take();
        Ok(cluster)
    }

    /// Notes a figure.
    pub(crate) fn figure(&self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.borrow_mut().push(Figure {
            name: name.into(),
            value,
            unit: unit.to_owned(),
        });
    }

    /// Notes the median and the largest of what was measured again and again, if it was at all.
    pub(crate) fn spread(&self, name: &str, mut values: Vec<f64>, unit: &'static str) {
        values.sort_by(f64::total_cmp);
        if let Some(largest) = values.last() {
            self.figure(format!("{name}_median"), values[values.len() / 2], unit);
            let p99 = quantile(&values, 990).filter(|_| values.len() >= 100);
            if let Some(p99) = p99 {
                self.figure(format!("{name}_p99"), p99, unit);
            }
            self.figure(format!("{name}_max"), *largest, unit);
        }
    }

    /// The figures since the last call.
    pub(crate) fn take_figures(&self) -> Vec<Figure> {
        self.figures.take()
    }

    /// Names the log to show should the case fail.
    pub(crate) fn watch(&self, log: &Log) {
        *self.log.borrow_mut() = log.clone();
    }

    /// That log; empty from then on.
    pub(crate) fn take_log(&self) -> Log {
        self.log.take()
    }
}

/// The error of a case that cannot run here.
#[derive(Debug)]
pub(crate) struct Skip(String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Ends a case as skipped.
pub(crate) fn skip(reason: impl Into<String>) -> Result<()> {
    Err(Skip(reason.into()).into())
}

/// The hypervisor's name in CPUID leaf 0x4000_0000 (QEMU `docs/system/i386`, "TCGTCGTCGTCG").
#[cfg(target_arch = "x86_64")]
fn is_emulated() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    leaf.ebx.to_le_bytes() == *b"TCGT"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_emulated() -> bool {
    false
}
