//! A node with an agent whose pods' processes all run a few times a second.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::cases::Context;
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Sandbox, Workload, eventually, sleep};

/// All processes are there after this.
const START: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) pods: Vec<BusyPod>,
    outside: Cgroup,
    processes: Workload,
}

/// A pod with one process in each container.
pub(super) struct BusyPod {
    pub(super) pod: Pod,
    pub(super) containers: Vec<Container>,
}

pub(super) struct Container {
    pub(super) cgroup: Cgroup,
    pub(super) pid: u32,
}

impl Scene {
    pub(super) fn make(context: &Context, pods: u32) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let outside = sandbox.root.child("outside");
        outside.create_below(&sandbox.root)?;
        let options = Options {
            config: format!(
                "maxPods: {}\nsampling: {{interval: 1s, disk: true, network: true}}\nmetrics: {{pods: full}}\n",
                pods.max(110)
            ),
            ..Options::default()
        };
        let node = Node::on(context, sandbox, &options)?;
        let specs = (0..pods).map(|n| match n % 3 {
            0 => PodSpec::guaranteed(&format!("guaranteed-{n}"), "64Mi"),
            1 => PodSpec::burstable(&format!("burstable-{n}"), "8Mi"),
            _ => PodSpec::best_effort(&format!("besteffort-{n}")),
        });
        let pods = node.pods(specs.collect())?;
        let mut cgroups = Vec::new();
        for (n, pod) in pods.into_iter().enumerate() {
            let mut containers = vec![pod.main.clone()];
            if n % 2 == 1 {
                let second = pod.cgroup.child("second");
                second.create()?;
                containers.push(second);
            }
            cgroups.push((pod, containers));
        }
        let count = cgroups.iter().map(|(_, all)| all.len()).sum();
        let (processes, pids) = start(&node, &outside, count)?;
        let mut pids = pids.into_iter();
        let mut busy = Vec::with_capacity(cgroups.len());
        for (pod, all) in cgroups {
            let mut containers = Vec::with_capacity(all.len());
            for cgroup in all {
                let pid = pids.next().context("too few processes")?;
                cgroup.attach(pid)?;
                containers.push(Container { cgroup, pid });
            }
            busy.push(BusyPod { pod, containers });
        }
        Ok(Self {
            node,
            pods: busy,
            outside,
            processes,
        })
    }

    pub(super) fn containers(&self) -> usize {
        self.pods.iter().map(|pod| pod.containers.len()).sum()
    }

    /// Pods each of whose containers ran between two looks, with a pass or two between them.
    pub(super) fn busy_pods(&self) -> Result<usize> {
        let look = || -> Result<HashMap<String, Vec<u64>>> {
            let pods = self.node.agent.pods()?.into_iter();
            let used = pods.map(|pod| {
                let containers = pod.containers.iter();
                let used = containers.map(|one| one.cpu.usage_core_nano_seconds);
                (pod.pod_ref.uid.to_string(), used.collect())
            });
            Ok(used.collect())
        };
        let before = look()?;
        sleep(Duration::from_millis(2200))?;
        let after = look()?;
        let ran = after.iter().filter(|(uid, after)| {
            let before = before.get(*uid);
            before.is_some_and(|before| {
                before.len() == after.len() && before.iter().zip(*after).all(|(a, b)| a < b)
            })
        });
        Ok(ran.count())
    }

    /// Ends the processes, then the agent, and looks that nothing is left.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.processes);
        let outside = self.outside;
        eventually(START, || outside.remove())?;
        self.node.finish()
    }
}

/// Starts `count` processes outside the pods.
fn start(node: &Node, outside: &Cgroup, count: usize) -> Result<(Workload, Vec<u32>)> {
    let file = node.sandbox.dir().join("processes");
    let args = ["pulse", "--count", &count.to_string(), "--pids"];
    let path = file.to_str().context("a directory's name is not text")?;
    let processes = Workload::start(outside, &[&args[..], &[path]].concat())?;
    let text = eventually(START, || Ok(fs::read_to_string(&file)?))?;
    let pids = text
        .lines()
        .map(str::parse)
        .collect::<Result<Vec<_>, _>>()?;
    ensure!(pids.len() == count, "{} of {count} processes", pids.len());
    Ok((processes, pids))
}
