//! The table, in the form of a Markdown page.

use std::fmt::Write as _;

use crate::{
    seller::ALL,
    tally::{Day, Tally},
    traces::{DAY_S, NODE_CPU, NODE_MEMORY},
};

/// Means of a node in CPUs and GiB.
struct Mean {
    node_seconds: f64,
}

impl Mean {
    fn cpu(&self, sum: u64) -> f64 {
        sum as f64 / 1000.0 / self.node_seconds
    }

    fn memory(&self, sum: u64) -> f64 {
        sum as f64 / 1024.0 / self.node_seconds
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / (whole as f64).max(1.0)
}

/// The whole table.
pub(crate) fn text(day: &Day, nodes: u64) -> String {
    let mean = Mean {
        node_seconds: (nodes * DAY_S) as f64,
    };
    let (requested, used) = (day.requested.total(), day.used.total());
    let mut text = format!(
        "{nodes} nodes of {} CPUs and {} GiB. Guaranteed pods ask for {:.1} CPUs and {:.0} GiB of a node and use \
         {:.1} and {:.0};\nwithout batch pods they and the system want more CPU than there is in {:.1} s of a node's \
         day.\n\n",
        NODE_CPU / 1000,
        NODE_MEMORY / 1024,
        mean.cpu(requested.0),
        mean.memory(requested.1),
        mean.cpu(used.0),
        mean.memory(used.1),
        day.short_s as f64 / nodes as f64,
    );
    text.push_str(
        "| policy | offered, CPUs / GiB | sold | used | suppressed | evicted | work lost | contention, s (core-s) a node \
         | memory above capacity |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (rules, tally) in ALL.iter().zip(&day.sellers) {
        row(&mut text, rules.name, tally, &mean, nodes);
    }
    text
}

fn row(text: &mut String, name: &str, tally: &Tally, mean: &Mean, nodes: u64) {
    let (held, used) = (tally.held.total(), tally.used.total());
    let wanted = used.0 + tally.throttled;
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "| {name} | {:.1} / {:.0} | {:.1} / {:.0} | {:.1} / {:.0} | {:.2} % | {:.2} % of {} | {:.2} % | {:.2} ({:.2}) | {} |",
        mean.cpu(tally.offer.0),
        mean.memory(tally.offer.1),
        mean.cpu(held.0),
        mean.memory(held.1),
        mean.cpu(used.0),
        mean.memory(used.1),
        percent(tally.throttled, wanted),
        percent(tally.evicted, tally.started),
        tally.started,
        percent(tally.wasted, used.0),
        tally.contention_s as f64 / nodes as f64,
        tally.contention as f64 / 1000.0 / nodes as f64,
        tally.overflowed,
    );
}
