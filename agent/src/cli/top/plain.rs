//! The table as text, for `--once`.

use super::{
    figures::{PodRow, TIERS},
    layout::{self, Layout},
};
use crate::api::types::NodeStats;

pub(super) fn render(node: &NodeStats, rows: &[PodRow], layout: &Layout) -> String {
    let mut lines = vec![layout::summary(node), layout::memory(node)];
    lines.extend(layout::best_effort(node));
    lines.extend(
        node.degradations
            .iter()
            .map(|text| format!("degraded: {text}")),
    );
    lines.push(String::new());
    lines.push(layout.titles());
    for tier in TIERS {
        lines.push(layout.tier(tier, rows, node));
        for row in rows.iter().filter(|row| row.tier() == tier) {
            lines.push(layout.pod(row).into_iter().map(|(text, _)| text).collect());
        }
    }
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}
