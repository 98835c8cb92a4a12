//! An explanation for people.

use std::fmt::Write as _;

use super::explanation::{Asked, Candidate, Cgroup, Eviction, Explained, Explanation, Neighbour};
use crate::cli::{events::text::name, output, plan::files::File};

impl Explanation {
    /// Some paragraphs.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}, uid {}: {}\n  {}\n",
            name(&self.pod_ref),
            self.pod_ref.uid,
            self.qos_class,
            self.class_reason,
        );
        if let Some(colocation) = &self.colocation {
            let _ = writeln!(text, "  {colocation}");
        }
        if !self.resources.is_empty() {
            text.push('\n');
            text.push_str(&resources(&self.resources));
        }
        for cgroup in &self.cgroups {
            push_cgroup(&mut text, cgroup);
        }
        for container in &self.containers {
            let name = output::printable(&container.name);
            // Writing to a string does not fail.
            let _ = writeln!(text, "\ncontainer {name}, from its runtime");
            for value in &container.values {
                push_value(&mut text, value);
            }
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        push_eviction(&mut text, &self.eviction);
        text
    }
}

fn resources(rows: &[Asked]) -> String {
    const HEAD: [&str; 5] = [
        "CONTAINER",
        "CPU REQUEST",
        "CPU LIMIT",
        "MEMORY REQUEST",
        "MEMORY LIMIT",
    ];
    let amount = |amount: &Option<String>| amount.clone().unwrap_or_else(|| "-".to_owned());
    let rows = rows.iter().map(|row| {
        [
            output::printable(&row.name),
            amount(&row.cpu_request),
            amount(&row.cpu_limit),
            amount(&row.memory_request),
            amount(&row.memory_limit),
        ]
    });
    output::table(HEAD, rows)
}

fn push_cgroup(text: &mut String, cgroup: &Cgroup) {
    let missing = match cgroup.exists {
        Some(false) => "  (does not exist)",
        _ => "",
    };
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n{}{missing}", cgroup.path);
    for value in &cgroup.values {
        push_value(text, value);
    }
}

fn push_value(text: &mut String, explained: &Explained) {
    let Explained {
        file: File {
            name,
            value,
            reason,
        },
        detail,
        changes_with,
        pending,
    } = explained;
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {name} = {value}\n    {reason}");
    if let Some(detail) = detail {
        let _ = writeln!(text, "    {detail}");
    }
    let _ = writeln!(text, "    changes with {changes_with}");
    match pending {
        Some(now) if now.value == *value => {
            text.push_str("    not in force yet: to be written\n");
        }
        Some(now) => {
            let _ = writeln!(
                text,
                "    not in force yet: to be written {}: {}",
                now.value, now.reason
            );
        }
        None => {}
    }
}

fn push_eviction(text: &mut String, eviction: &Eviction) {
    // Writing to a string does not fail.
    let _ = match eviction {
        Eviction::Protected { reason } => writeln!(text, "\nEviction: never ({reason})"),
        Eviction::NoCandidate { reason } => {
            writeln!(text, "\nEviction: not among the candidates, for {reason}")
        }
        Eviction::Candidate(candidate) => {
            let Candidate {
                place,
                candidates,
                reason,
                after,
                before,
                changes_with,
            } = &**candidate;
            let _ = writeln!(
                text,
                "\nEviction: place {place} of {candidates}\n  {reason}"
            );
            for (word, neighbour) in [("after", after), ("before", before)] {
                if let Some(Neighbour { pod_ref, reason }) = neighbour {
                    let _ = writeln!(text, "  {word} {}: {reason}", name(pod_ref));
                }
            }
            writeln!(text, "  changes with {changes_with}")
        }
    };
}
