//! What a node offers a second time, and where each figure comes from.

use podwarden_policy::colocation::{
    class::Band,
    reclaimed::{self, Amounts, Batch, Inputs, Mid, Percents, Policy, Strategy},
};
use serde::Serialize;

use crate::cli::output;

/// One figure of the sum.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// `batch` or `mid`.
    pub(crate) band: &'static str,
    /// What the figure is.
    pub(crate) part: &'static str,
    /// `-` where it is subtracted, `<=` for an upper bound, `>=` for a lower one, `=` for what follows.
    pub(crate) sign: &'static str,
    /// Thousandths of a CPU.
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
    /// Where it comes from.
    pub(crate) from: String,
}

/// The sums of both bands.
pub(crate) fn rows(inputs: &Inputs) -> Vec<Row> {
    let batch = reclaimed::batch(&inputs.facts, &inputs.strategy);
    let mid = reclaimed::mid(&inputs.facts, &inputs.strategy);
    let mut rows = of_batch(inputs, &batch);
    rows.extend(of_mid(inputs, &mid));
    rows
}

/// Rows of one band.
struct Sum(&'static str, Vec<Row>);

impl Sum {
    fn add(
        &mut self,
        sign: &'static str,
        part: &'static str,
        of: Amounts,
        from: impl Into<String>,
    ) {
        self.1.push(Row {
            band: self.0,
            part,
            sign,
            cpu_milli: of.cpu.0,
            memory_bytes: of.memory.0,
            from: from.into(),
        });
    }
}

fn of_batch(Inputs { facts, strategy }: &Inputs, batch: &Batch) -> Vec<Row> {
    let Percents { cpu, memory } = strategy.reclaim;
    let counted = facts.workloads.iter().filter(|w| w.band >= Band::Mid);
    let unknown = counted.clone().filter(|w| w.used.is_none()).count();
    let mut sum = Sum("batch", Vec::new());
    let node = "the node's CPUs and memory";
    sum.add("", "capacity", facts.capacity, node);
    let margin =
        format!("cpuReclaimThresholdPercent {cpu}, memoryReclaimThresholdPercent {memory}");
    sum.add("-", "margin", batch.margin, margin);
    let of = |used: u64, reserved: u64| if used > reserved { "used" } else { "reserved" };
    let system = format!(
        "outside pods: CPU {}, memory {}",
        of(facts.system.cpu.0, facts.reserved.cpu.0),
        of(batch.system.memory.0, facts.reserved.memory.0),
    );
    sum.add("-", "system", batch.system, system);
    let pods = format!(
        "{} prod and mid pods: CPU {}, memory {}{}",
        counted.count(),
        counts_as(strategy.cpu_policy, true),
        counts_as(strategy.memory_policy, false),
        match unknown {
            0 => String::new(),
            unknown => format!("; {unknown} without figures by request"),
        },
    );
    sum.add("-", "pods", batch.pods, pods);
    if strategy.batch_cpu_ceiling.is_some() || strategy.batch_memory_ceiling.is_some() {
        let (cpu, memory) = (strategy.batch_cpu_ceiling, strategy.batch_memory_ceiling);
        let ceiling = Percents {
            cpu: cpu.unwrap_or(100),
            memory: memory.unwrap_or(100),
        };
        let from = "batchCPUThresholdPercent, batchMemoryThresholdPercent";
        sum.add("<=", "ceiling", facts.capacity.percent(ceiling), from);
    }
    sum.add(">=", "held", batch.held, "pods that run ask for it");
    let names = "kubernetes.io/batch-cpu, kubernetes.io/batch-memory";
    sum.add("=", "offered", batch.offered, names);
    sum.1
}

fn of_mid(Inputs { facts, strategy }: &Inputs, mid: &Mid) -> Vec<Row> {
    let mut sum = Sum("mid", Vec::new());
    match strategy.mid_static {
        Some(share) => {
            let from = "midReclaimMode: static";
            sum.add("", "share", facts.capacity.percent(share), from);
        }
        None => {
            let predicted = match facts.reclaimable {
                Some(_) => "prod pods' requests less their predicted peaks",
                None => "nothing is predicted yet (predictionColdStartSeconds)",
            };
            sum.add("", "reclaimable", mid.reclaimable, predicted);
            let unused = "capacity less what is used";
            sum.add("<=", "unused", mid.unused, unused);
            let free = format!(
                "{} % (midUnallocatedPercent) of {}m and {} that no prod pod asks for",
                strategy.mid_unallocated,
                mid.unallocated.cpu.0,
                output::bytes(mid.unallocated.memory.0),
            );
            sum.add("+", "unallocated", share(mid, strategy), free);
        }
    }
    let ceiling = facts.capacity.percent(strategy.mid_ceiling);
    let keys = "midCPUThresholdPercent, midMemoryThresholdPercent";
    sum.add("<=", "ceiling", ceiling, keys);
    sum.add(">=", "held", mid.held, "pods that run ask for it");
    let names = "kubernetes.io/mid-cpu, kubernetes.io/mid-memory";
    sum.add("=", "offered", mid.offered, names);
    sum.1
}

fn share(mid: &Mid, strategy: &Strategy) -> Amounts {
    mid.unallocated.percent(Percents {
        cpu: strategy.mid_unallocated,
        memory: strategy.mid_unallocated,
    })
}

/// CPU knows no policy `request`.
const fn counts_as(policy: Policy, cpu: bool) -> &'static str {
    match policy {
        Policy::Request if !cpu => "by request",
        Policy::Usage | Policy::Request => "by usage",
        Policy::MaxUsageRequest => "by the larger of usage and request",
    }
}

/// For people.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut band = "";
    let rows = rows.iter().map(|row| {
        let first = std::mem::replace(&mut band, row.band) != row.band;
        [
            if first { row.band } else { "" }.to_owned(),
            row.sign.to_owned(),
            row.part.to_owned(),
            format!("{}m", row.cpu_milli),
            output::bytes(row.memory_bytes),
            row.from.clone(),
        ]
    });
    output::table(["BAND", "", "PART", "CPU", "MEMORY", "FROM"], rows)
}
