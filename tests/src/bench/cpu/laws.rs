//! The koordlet's laws in a loop of 1 s, its default interval: podwarden's own policy functions, which follow its
//! formulas and golden tables, from figures of the last second. Suppression takes the quota policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use podwarden_cgroup::{CgroupPath, Hierarchies, KernelCpu, ThrottleReader, Tree};
use podwarden_policy::MilliCpu;
use podwarden_policy::colocation::burst::{self, BurstConfig, Container, SharePool};
use podwarden_policy::colocation::suppress::{self, Capacity, Threshold, Usage};
use podwarden_policy::convert::DEFAULT_PERIOD_US;
use podwarden_policy::limits::{CpuMax, Limit};

use super::scene::{busy, cpus};
use crate::harness::{Cgroup, Node, Pod};

const PERIOD: Duration = Duration::from_secs(1);
/// How often the thread looks whether it is to end.
const STEP: Duration = Duration::from_millis(20);

/// The loop, in a thread of its own.
pub(super) struct Laws {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

struct Loop {
    tree: Tree,
    capacity: MilliCpu,
    tier: CgroupPath,
    pod: CgroupPath,
    container: CgroupPath,
    pods_cpu: KernelCpu,
    tier_cpu: KernelCpu,
    throttle: ThrottleReader,
    /// The container's limit, where it has one.
    limit: Option<MilliCpu>,
    last: Look,
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    node: Duration,
    pods: u64,
    best_effort: u64,
    throttled: u64,
}

impl Laws {
    pub(super) fn start(node: &Node, pod: &Pod, tier: &Cgroup) -> Result<Self> {
        let mut laws = Loop::new(node, pod, tier)?;
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                thread::sleep(STEP);
                if laws.last.at.elapsed() >= PERIOD {
                    laws.round()?;
                }
            }
            Ok(())
        });
        Ok(Self { end, thread })
    }

    /// Ends it and says what it failed at.
    pub(super) fn end(self) -> Result<()> {
        self.end.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the loop of the koordlet's laws panicked"))?
    }
}

impl Loop {
    fn new(node: &Node, pod: &Pod, tier: &Cgroup) -> Result<Self> {
        let tree = Tree::new(Hierarchies::detect()?, "")?;
        let path = |cgroup: &Cgroup| CgroupPath::from(cgroup.path());
        let container = path(&pod.main);
        let limit = match tree.cpu_max(&container)?.quota_us {
            Limit::At(quota) => Some(MilliCpu(quota * 1000 / DEFAULT_PERIOD_US)),
            Limit::Unlimited => None,
        };
        let (pods_cpu, tier_cpu, throttle) = (
            KernelCpu::open(&tree, &path(&node.kubepods()))?,
            KernelCpu::open(&tree, &path(tier))?,
            ThrottleReader::open(&tree, &container)?,
        );
        let mut laws = Self {
            capacity: MilliCpu(cpus() as u64 * 1000),
            tier: path(tier),
            pod: path(&pod.cgroup),
            container,
            limit,
            last: Look {
                at: Instant::now(),
                node: Duration::ZERO,
                pods: 0,
                best_effort: 0,
                throttled: 0,
            },
            tree,
            pods_cpu,
            tier_cpu,
            throttle,
        };
        laws.last = laws.look()?;
        Ok(laws)
    }

    fn look(&self) -> Result<Look> {
        Ok(Look {
            at: Instant::now(),
            node: busy()?,
            pods: self.pods_cpu.usage_nanos()?,
            best_effort: self.tier_cpu.usage_nanos()?,
            throttled: self.throttle.read()?.throttled_periods,
        })
    }

    fn round(&mut self) -> Result<()> {
        let now = self.look()?;
        let window = now.at.duration_since(self.last.at);
        let milli = |nanos: u128| {
            MilliCpu(u64::try_from(nanos * 1000 / window.as_nanos().max(1)).unwrap_or(u64::MAX))
        };
        let usage = Usage {
            node: milli(now.node.saturating_sub(self.last.node).as_nanos()),
            pods: milli(u128::from(now.pods - self.last.pods)),
            best_effort_pods: milli(u128::from(now.best_effort - self.last.best_effort)),
            ..Usage::default()
        };
        self.suppress(usage).context("suppression")?;
        self.burst(usage, now.throttled > self.last.throttled)
            .context("burst")?;
        self.last = now;
        Ok(())
    }

    fn suppress(&self, usage: Usage) -> Result<()> {
        let node = Capacity {
            capacity: self.capacity,
            reserved: MilliCpu::ZERO,
        };
        let quantity = suppress::quantity(node, usage, Threshold::default());
        let now = self.tree.cpu_max(&self.tier)?.quota_us;
        if let Some(next) = suppress::next_quota(quantity, now, self.capacity) {
            self.tree.set_cpu_max(&self.tier, at(next))?;
        }
        Ok(())
    }

    fn burst(&self, usage: Usage, throttled: bool) -> Result<()> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let config = BurstConfig {
            policy: burst::Policy::Auto,
            ..BurstConfig::default()
        };
        // A Guaranteed pod is LSR: its CPUs are not in the pool.
        let pool = SharePool::new(
            self.capacity,
            usage.node,
            limit,
            // The two pods are all that there are.
            usage.pods,
        );
        let state = burst::node_state(Some(pool), config.share_pool_percent);
        let Limit::At(quota_us) = self.tree.cpu_max(&self.container)?.quota_us else {
            return Ok(());
        };
        let container = Container {
            limit,
            quota_us,
            throttled: Some(throttled),
            allowed: true,
        };
        let next = burst::next_quota(&container, &config, state).unwrap_or(quota_us);
        let carried = burst::kernel_burst_us(limit, &config, Some(next));
        let mut order = [&self.pod, &self.container];
        if next < quota_us {
            order.reverse();
        }
        for path in order {
            if next < quota_us {
                self.tree.set_cpu_burst(path, carried)?;
                self.tree.set_cpu_max(path, at(next))?;
            } else {
                self.tree.set_cpu_max(path, at(next))?;
                self.tree.set_cpu_burst(path, carried)?;
            }
        }
        Ok(())
    }
}

fn at(quota_us: u64) -> CpuMax {
    CpuMax {
        quota_us: Limit::At(quota_us),
        period_us: DEFAULT_PERIOD_US,
    }
}
