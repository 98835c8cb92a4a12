//! Whether the node has CPU to give: the share pool's usage over the last window.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, KernelCpu, Tree};
use podwarden_policy::{
    MilliCpu,
    colocation::burst::{NodeState, SharePool, node_state},
};

/// Between two looks. The machine's own figures advance by 10 ms.
pub(super) const WINDOW: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Pool {
    open: HashMap<CgroupPath, KernelCpu>,
    last: Option<Look>,
    state: Option<NodeState>,
}

#[derive(Debug)]
struct Look {
    at: Instant,
    node: Duration,
    outside: HashMap<CgroupPath, u64>,
}

impl Pool {
    /// The state that the last window showed.
    pub(super) fn state(&self) -> NodeState {
        self.state.unwrap_or(NodeState::Unknown)
    }

    /// Time until the next look.
    pub(super) fn due(&self, now: Instant) -> Duration {
        let since = self.last.as_ref().map(|last| now.duration_since(last.at));
        since.map_or(Duration::ZERO, |since| WINDOW.saturating_sub(since))
    }

    /// Looks at the machine and at the cgroups outside the pool.
    pub(super) fn look(
        &mut self,
        tree: &Tree,
        outside: &[CgroupPath],
        (cpus, reserved): (MilliCpu, MilliCpu),
        threshold_percent: u64,
    ) {
        let at = Instant::now();
        let Some(node) = busy() else {
            self.state = None;
            return;
        };
        self.open.retain(|path, _| outside.contains(path));
        let outside = outside
            .iter()
            .filter_map(|path| Some((path.to_owned(), self.usage(tree, path)?)))
            .collect();
        let now = Look { at, node, outside };
        let pool = self.last.as_ref().map(|last| {
            let window = now.at.duration_since(last.at);
            let used_outside = now
                .outside
                .iter()
                .filter_map(|(path, used)| Some(used.saturating_sub(*last.outside.get(path)?)));
            let used = milli(now.node.saturating_sub(last.node), window);
            let outside = milli(Duration::from_nanos(used_outside.sum()), window);
            SharePool::new(cpus, used, reserved, outside)
        });
        self.state = Some(node_state(pool, threshold_percent));
        self.last = Some(now);
    }

    fn usage(&mut self, tree: &Tree, path: &CgroupPath) -> Option<u64> {
        if !self.open.contains_key(path) {
            let reader = KernelCpu::open(tree, path).ok()?;
            self.open.insert(path.to_owned(), reader);
        }
        let used = self.open.get(path)?.usage_nanos().ok();
        if used.is_none() {
            self.open.remove(path);
        }
        used
    }
}

/// CPU time of a window as CPU; `None` where the window is empty.
pub fn rate(used: Duration, window: Duration) -> Option<MilliCpu> {
    let milli = (used.as_nanos() * 1000).checked_div(window.as_nanos())?;
    Some(MilliCpu(u64::try_from(milli).unwrap_or(u64::MAX)))
}

/// The same, 0 where the window is empty.
pub(super) fn milli(used: Duration, window: Duration) -> MilliCpu {
    rate(used, window).unwrap_or_default()
}

/// How long the machine's CPUs were busy since it started, in all: user, which has guests, nice, system, irq, softirq
/// and steal of `/proc/stat` (`proc_stat(5)`).
pub fn busy() -> Option<Duration> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

fn parse(stat: &str) -> Option<Duration> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks.as_slice() else {
        return None;
    };
    // The kernel gives user space hundredths of a second on every architecture that runs here (`USER_HZ`).
    let ticks = user + nice + system + irq + softirq + steal;
    Some(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_guests_are_not_busy() {
        let stat = "cpu  1 2 3 400 500 4 5 6 7 8\ncpu0 1 2\n";
        assert_eq!(parse(stat), Some(Duration::from_millis(210)));
        assert_eq!(parse("cpu  1 2 3\n"), None);
        assert_eq!(parse(""), None);
        assert_eq!(
            milli(Duration::from_millis(250), Duration::from_millis(500)),
            MilliCpu(500)
        );
        assert!(busy().is_some());
    }
}
