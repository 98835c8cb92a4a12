//! What the agents have told so far: no figure of one pod, container or tier may be less later.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{CpuStats, ExitStats, PodStats, StallStats};

use super::load::{Load, Made};
use crate::harness::{Agent, Node, Pod, eventually};

/// The kernel adds what a task has used to the task and to its cgroup one after the other.
const SLACK_NS: u64 = 1_000_000;

/// The most that was told of each.
#[derive(Debug, Default)]
pub(super) struct Figures {
    most: BTreeMap<String, u64>,
    compared: usize,
}

impl Figures {
    /// Compares everything that the agent tells with what was told before; pods that still run may not have
    /// used more than the kernel says, nor more processes than were started have ended.
    pub(super) fn look(&mut self, agent: &Agent, pods: &[Pod], load: &Load) -> Result<()> {
        let told = self.look_at(agent)?;
        for pod in pods {
            let stats = told.iter().find(|stats| stats.pod_ref.uid == pod.uid());
            let stats = stats.with_context(|| format!("pod {} is not known", pod.spec.name))?;
            let (found, kernel) = (stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?);
            ensure!(
                found <= kernel + SLACK_NS,
                "{}: {found} ns, the kernel says {kernel} ns",
                pod.spec.name
            );
            let (exits, started) = (stats.exits.total, load.started(pod.uid()));
            ensure!(
                exits <= started,
                "{}: {exits} exits of {started} processes",
                pod.spec.name
            );
        }
        Ok(())
    }

    /// The first of these alone.
    pub(super) fn look_at(&mut self, agent: &Agent) -> Result<Vec<PodStats>> {
        let pods = agent.pods()?;
        for pod in &pods {
            let key = format!("pod {}", pod.pod_ref.uid);
            self.take(&key, &pod.cpu, Some((&pod.exits, &pod.stall)))?;
            for container in &pod.containers {
                let key = format!("{key} container {}", container.id);
                let beside = (&container.exits, &container.stall);
                self.take(&key, &container.cpu, Some(beside))?;
            }
        }
        for tier in agent.node()?.tiers {
            self.take(&format!("tier {}", tier.name), &tier.cpu, None)?;
        }
        Ok(pods)
    }

    fn take(
        &mut self,
        of: &str,
        cpu: &CpuStats,
        beside: Option<(&ExitStats, &StallStats)>,
    ) -> Result<()> {
        let mut all = vec![
            ("cpu".to_owned(), cpu.usage_core_nano_seconds),
            ("wait".to_owned(), cpu.run_queue_wait_nano_seconds),
            ("switches".to_owned(), cpu.context_switches),
        ];
        let waits = cpu.run_queue_wait_histogram.iter().enumerate();
        all.extend(waits.map(|(bucket, count)| (format!("waits {bucket}"), *count)));
        if let Some((exits, stall)) = beside {
            all.extend(
                [
                    ("exits", exits.total),
                    ("failed", exits.failed),
                    ("signaled", exits.signaled),
                    ("oom", exits.oom_killed),
                    ("direct stall", stall.direct_reclaim_nano_seconds),
                    ("memcg stall", stall.memcg_reclaim_nano_seconds),
                ]
                .map(|(name, value)| (name.to_owned(), value)),
            );
        }
        for (name, value) in all {
            let most = self.most.entry(format!("{of}: {name}")).or_default();
            ensure!(value >= *most, "{of}: {name} is {value}, it was {most}");
            *most = value;
            self.compared += 1;
        }
        Ok(())
    }

    /// How many figures were compared.
    pub(super) fn compared(&self) -> usize {
        self.compared
    }

    /// When the load has ended: what is told stands still, and is not more than there was.
    pub(super) fn look_after(&mut self, node: &Node, pods: &[Pod], made: &Made) -> Result<()> {
        for pod in pods {
            let started = made.started(pod.uid());
            node.expect(pod.uid(), |stats| {
                ensure!(stats.exits.total > 0, "nothing is counted");
                ensure!(stats.exits.total <= started, "{:?}", stats.exits);
                Ok(())
            })?;
        }
        eventually(node.limit(), || self.look_at(&node.agent).map(|_| ()))
    }

    /// Processes that ended while no agent counted.
    pub(super) fn unseen_exits(&self, pods: &[Pod], made: &Made) -> usize {
        let seen = |pod: &Pod| self.most.get(&format!("pod {}: exits", pod.uid()));
        let unseen = pods.iter().map(|pod| {
            let seen = seen(pod).copied().unwrap_or_default();
            made.started(pod.uid()).saturating_sub(seen)
        });
        usize::try_from(unseen.sum::<u64>()).unwrap_or(usize::MAX)
    }
}
