//! How long one plan takes, for a node full of random pods.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::{
    Bytes, MilliCpu, Node, QosClass, desired,
    name::{self, CgroupName},
    plan::{self, Snapshot},
    settings::{Observed, Version},
};

use super::median;
use crate::harness::{RandomPods, defaulted};

#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// Pods on the node.
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Plans of each kind, in turn.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Chooses the pods.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

/// One kind of work; times in microseconds.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    work: &'static str,
    /// What a plan asks for; none for the other work.
    actions: Option<usize>,
    median_micros: f64,
    p99_micros: f64,
    /// As a ratio to the first row.
    ratio: f64,
}

impl Plan {
    pub(super) fn run(&self) -> Result<()> {
        ensure!(self.pods > 0, "--pods 0: there is nothing to plan");
        let empty = self.node()?;
        let mut settled = empty.clone();
        settled.cgroups = holding_what_they_ought_to(&empty);
        let mut changed = settled.clone();
        let resized = changed.pods.iter_mut().flat_map(|pod| &mut pod.containers);
        for container in resized.take(1) {
            container.resources.cpu_limit = Some(MilliCpu(12_345));
            container.resources.cpu_request = Some(MilliCpu(1234));
        }
        ensure!(
            plan::plan(&settled).is_empty(),
            "a second plan is not empty"
        );

        // The yardstick: writing the same snapshot as JSON, which is as easily compared elsewhere.
        let kinds = [
            ("the node as JSON, for scale", None),
            ("every cgroup is missing", Some(&empty)),
            ("one pod has changed", Some(&changed)),
            ("nothing has changed", Some(&settled)),
        ];
        let mut times = [const { Vec::new() }; 4];
        // In turn, so that the machine's drift meets all of them alike.
        for _ in 0..self.runs {
            for ((_, snapshot), times) in kinds.iter().zip(&mut times) {
                let start = Instant::now();
                match snapshot {
                    None => drop(black_box(serde_json::to_vec(black_box(&settled))?)),
                    Some(snapshot) => drop(black_box(plan::plan(black_box(snapshot)))),
                }
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        let base = median(&mut times[0]);
        let rows: Vec<_> = kinds
            .into_iter()
            .zip(&mut times)
            .map(|((work, snapshot), times)| {
                let median_micros = median(times);
                Row {
                    work,
                    actions: snapshot.map(|snapshot| plan::plan(snapshot).len()),
                    median_micros,
                    // Sorted by now.
                    p99_micros: times[times.len() * 99 / 100],
                    ratio: median_micros / base,
                }
            })
            .collect();
        self.print(&rows)
    }

    /// A node with pods of every class and without a cgroup.
    fn node(&self) -> Result<Snapshot> {
        let node = Node {
            cpu_capacity: MilliCpu(256_000),
            memory_capacity: Bytes::gibi(1024),
            hugepages: BTreeMap::from([(Bytes::mebi(2), Bytes::gibi(16))]),
            qos_reserved_memory_percent: Some(50),
            ..Node::default()
        };
        let mut snapshot = Snapshot::new(node, name::kubepods(&CgroupName::root()));
        snapshot.limits.memory_reservation = true;
        snapshot.controllers.memory_protection = true;
        let mut random = RandomPods::new(self.seed, vec![Bytes::mebi(2)]);
        for _ in 0..self.pods {
            let class = *random.random().choice(&QosClass::ALL).context("a class")?;
            snapshot.pods.push(defaulted(&random.pod(class)?));
        }
        Ok(snapshot)
    }

    fn print(&self, rows: &[Row]) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(rows)?);
            return Ok(());
        }
        println!(
            "{:<28} {:>8} {:>10} {:>10} {:>7}",
            "WORK", "ACTIONS", "MEDIAN us", "P99 us", "RATIO"
        );
        for row in rows {
            let actions = row
                .actions
                .map_or_else(|| "-".to_owned(), |n| n.to_string());
            println!(
                "{:<28} {:>8} {:>10.0} {:>10.0} {:>7.3}",
                row.work, actions, row.median_micros, row.p99_micros, row.ratio
            );
        }
        println!(
            "{} pods, {} runs of each kind in turn, on one thread",
            self.pods, self.runs
        );
        Ok(())
    }
}

/// Every cgroup of the tree, with the values that it ought to have, as cgroup v1 would show them.
fn holding_what_they_ought_to(snapshot: &Snapshot) -> BTreeMap<CgroupName, Observed> {
    let tree = desired::tree(snapshot).into_iter();
    tree.map(|cgroup| {
        let mut observed = Observed {
            ours: true,
            memory_usage: Some(Bytes::mebi(1)),
            memory_working_set: Some(Bytes::mebi(1)),
            ..Observed::fresh(Version::V1, [])
        };
        for (setting, _) in &cgroup.settings {
            observed.apply(setting, snapshot.page_size);
        }
        (cgroup.name, observed)
    })
    .collect()
}
