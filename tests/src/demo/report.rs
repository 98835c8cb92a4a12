//! What the demo has found, as text and as data.

use std::fmt;

use podwarden::api::types::{Eviction, NodeStats};
use serde::Serialize;
use workload::stamps::Stamp;

const MIB: f64 = (1u64 << 20) as f64;

/// Everything; the file of `--json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// `uname -r`.
    pub(super) kernel: String,
    /// `v1`, `hybrid` or `v2`.
    pub(super) cgroup_version: String,
    /// Which profile ran.
    pub(super) profile: String,
    /// What this machine cannot do.
    pub(super) degradations: Vec<String>,
    /// The eviction.
    pub(super) eviction: Eviction,
    /// The same from the victim's side.
    pub(super) victim: Victim,
    /// podwarden's figures beside the kernel's.
    pub(super) pods: Vec<Compared>,
}

impl Report {
    /// The part that `/v1/node` tells.
    pub(super) fn new(
        node: NodeStats,
        eviction: Eviction,
        victim: Victim,
        pods: Vec<Compared>,
    ) -> Self {
        Self {
            kernel: crate::harness::kernel_release(),
            cgroup_version: node.cgroup_version,
            profile: node.profile,
            degradations: node.degradations,
            eviction,
            victim,
            pods,
        }
    }
}

/// What the victim stamped into shared memory while it filled.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Victim {
    /// Its rate, MiB per second.
    pub(super) rate_mib_per_second: u64,
    /// What it had filled when it died, bytes.
    pub(super) filled_bytes: u64,
    /// How much of this after the crossing, bytes.
    pub(super) overshoot_bytes: u64,
}

impl Victim {
    /// Reads its stamps.
    pub(super) fn new(rate: u64, stamps: &[Stamp], crossing: u64) -> Self {
        let filled = stamps.last().map_or(0, |stamp| stamp.bytes);
        let before = stamps.iter().rev().find(|stamp| stamp.nanos <= crossing);
        Self {
            rate_mib_per_second: rate,
            filled_bytes: filled,
            overshoot_bytes: filled.saturating_sub(before.map_or(0, |stamp| stamp.bytes)),
        }
    }
}

/// A figure of ours and the kernel's.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Pair {
    /// Ours.
    pub(super) podwarden: u64,
    /// From the kernel's own file; for exits, what the demo started.
    pub(super) kernel: u64,
}

impl Pair {
    fn difference(self) -> i128 {
        i128::from(self.podwarden) - i128::from(self.kernel)
    }
}

/// One pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Compared {
    /// `namespace/name`.
    pub(super) pod: String,
    /// Its class.
    pub(super) qos_class: &'static str,
    /// CPU time, nanoseconds; after everything was stopped.
    pub(super) cpu_nanos: Pair,
    /// Memory, bytes; while the pods ran. The evicted pod's is what was left of it.
    pub(super) memory_bytes: Option<Pair>,
    /// Processes that ended.
    pub(super) exits: Pair,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.eviction(f)?;
        writeln!(f)?;
        self.table(f)
    }
}

impl Report {
    fn eviction(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Eviction { pod, timeline, .. } = &self.eviction;
        writeln!(
            f,
            "Evicted {}/{} ({}), {} process(es), because {}",
            pod.namespace,
            pod.name,
            self.eviction.qos_class,
            self.eviction.processes,
            self.eviction.reason
        )?;
        writeln!(
            f,
            "  {} at {:.1} MiB of a level of {:.1} MiB; the pod had {:.1} MiB",
            self.eviction.scope,
            self.eviction.usage_bytes as f64 / MIB,
            self.eviction.level_bytes as f64 / MIB,
            self.eviction.victim_usage_bytes as f64 / MIB
        )?;
        let steps = [
            ("level crossed", Some(timeline.crossing_nanos)),
            ("reactor awake", Some(timeline.wake_nanos)),
            (
                "usage verified, victim chosen",
                Some(timeline.verified_nanos),
            ),
            ("processes killed", timeline.killed_nanos),
            ("memory freed", timeline.freed_nanos),
        ];
        for (name, at) in steps {
            if let Some(at) = at {
                let after = at.saturating_sub(timeline.crossing_nanos) as f64 / 1e6;
                writeln!(f, "  +{after:>9.3} ms  {name}")?;
            }
        }
        writeln!(
            f,
            "  crossing {}; by its own stamps the pod filled {} MiB/s and got {:.1} MiB past the level",
            self.eviction.timeline.crossing_source,
            self.victim.rate_mib_per_second,
            self.victim.overshoot_bytes as f64 / MIB
        )
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "podwarden's accounts beside the kernel's own files:")?;
        writeln!(
            f,
            "  {:<12} {:<10} {:>10} {:>10} {:>9}  {:>9} {:>9} {:>8}  {:>6} {:>7}",
            "POD",
            "CLASS",
            "CPU ms",
            "kernel",
            "diff",
            "MEM MiB",
            "kernel",
            "diff",
            "EXITS",
            "started"
        )?;
        for row in &self.pods {
            let ms = |nanos: u64| nanos as f64 / 1e6;
            let cpu = row.cpu_nanos;
            write!(
                f,
                "  {:<12} {:<10} {:>10.3} {:>10.3} {:>+9.3}  ",
                row.pod,
                row.qos_class,
                ms(cpu.podwarden),
                ms(cpu.kernel),
                cpu.difference() as f64 / 1e6
            )?;
            match row.memory_bytes {
                Some(memory) => write!(
                    f,
                    "{:>9.2} {:>9.2} {:>+8.3}",
                    memory.podwarden as f64 / MIB,
                    memory.kernel as f64 / MIB,
                    memory.difference() as f64 / MIB
                )?,
                None => write!(f, "{:>9} {:>9} {:>8}", "-", "-", "-")?,
            }
            writeln!(f, "  {:>6} {:>7}", row.exits.podwarden, row.exits.kernel)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use podwarden::api::types::{EvictionTimeline, PodRef};

    use super::*;

    fn report() -> Report {
        let eviction = Eviction {
            pod: PodRef {
                name: "hog".into(),
                namespace: "jobs".into(),
                uid: "1".into(),
            },
            qos_class: "BestEffort".into(),
            scope: podwarden_policy::signal::ScopeName::Kubepods,
            level_bytes: 768 << 20,
            usage_bytes: 769 << 20,
            victim_usage_bytes: 500 << 20,
            processes: 1,
            dry_run: false,
            reason: "it is BestEffort".into(),
            interrupted: false,
            timeline: EvictionTimeline {
                crossing_nanos: 1_000_000,
                crossing_source: "kernel".into(),
                wake_nanos: 1_050_000,
                verified_nanos: 1_060_000,
                killed_nanos: Some(1_500_000),
                freed_nanos: None,
            },
            ..Eviction::default()
        };
        let stamps = [(900_000, 5 << 20), (1_100_000, 7 << 20)];
        let stamps = stamps.map(|(nanos, bytes)| Stamp { nanos, bytes });
        let victim = Victim::new(200, &stamps, 1_000_000);
        let pods = vec![Compared {
            pod: "jobs/hog".into(),
            qos_class: "BestEffort",
            cpu_nanos: Pair {
                podwarden: 10_000_000,
                kernel: 12_500_000,
            },
            memory_bytes: None,
            exits: Pair {
                podwarden: 1,
                kernel: 1,
            },
        }];
        Report::new(NodeStats::default(), eviction, victim, pods)
    }

    #[test]
    fn the_steps_count_from_the_crossing() {
        let text = report().to_string();
        for line in [
            "  +    0.000 ms  level crossed",
            "  +    0.050 ms  reactor awake",
            "  +    0.500 ms  processes killed",
            "200 MiB/s and got 2.0 MiB past the level",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
        assert!(
            !text.contains("memory freed"),
            "a step that did not happen: {text}"
        );
    }

    #[test]
    fn the_difference_has_a_sign_and_unknown_memory_a_dash() {
        let text = report().to_string();
        let row = text.lines().last().unwrap();
        assert!(row.contains("   -2.500 ") && row.contains(" - "), "{row}");
    }
}
