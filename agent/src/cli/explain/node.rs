//! `podwarden explain node`: what is allocatable, what is offered a second time, and where each figure comes from.

use podwarden_policy::reserve;
use serde::Serialize;

use crate::cli::{
    output,
    plan::{
        cpu,
        input::Input,
        reclaimed::{self, Row},
    },
};

/// What the node is called on the command line.
pub(super) const NAME: &str = "node";

/// What `-o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    /// Thousandths of a CPU, and bytes.
    cpu_milli: u64,
    memory_bytes: u64,
    allocatable_cpu_milli: u64,
    allocatable_memory_bytes: u64,
    /// The sums of batch and mid resources; empty where they are not computed.
    reclaimed: Vec<Row>,
    /// What the CPU strategies give and hold back; empty where all are off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpu_strategies: Vec<cpu::Row>,
    /// What best effort may use, and why; absent from a snapshot, and where nothing holds it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) best_effort_cpu: Option<String>,
}

impl Explanation {
    pub(super) fn of(input: &Input) -> Self {
        let node = &input.snapshot.node;
        let allocatable = reserve::allocatable(node);
        Self {
            cpu_milli: node.cpu_capacity.0,
            memory_bytes: node.memory_capacity.0,
            allocatable_cpu_milli: allocatable.cpu.0,
            allocatable_memory_bytes: allocatable.memory.0,
            reclaimed: input.reclaimed.iter().flat_map(reclaimed::rows).collect(),
            cpu_strategies: cpu::rows(&input.cpu_strategies, &input.snapshot),
            best_effort_cpu: None,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "the node: {}m of CPU, {} of memory; {}m and {} allocatable\n\n",
            self.cpu_milli,
            output::bytes(self.memory_bytes),
            self.allocatable_cpu_milli,
            output::bytes(self.allocatable_memory_bytes),
        );
        if let Some(line) = &self.best_effort_cpu {
            text.push_str(&format!("{line}\n\n"));
        }
        if self.reclaimed.is_empty() {
            text.push_str(
                "no reclaimed resources: colocation.reclaimed.enable is off, or no two sampling passes were made\n",
            );
        } else {
            text.push_str(&reclaimed::table(&self.reclaimed));
        }
        text.push_str(&cpu::section(&self.cpu_strategies));
        text
    }
}
