//! An event as text.

mod cpu;

use podwarden_policy::signal::{Amount, ScopeName};

use crate::{
    api::types::{Event, EventKind, Eviction, EvictionTimeline, PodRef, TookOver},
    cli::output,
};

/// Width of the pod's column: that of a uid, which is the name of a pod known from its cgroup alone.
const POD: usize = 36;

/// One line; for an eviction one for each step of it as well. Without a newline at the end.
pub(crate) fn lines(event: &Event) -> String {
    let pod = event.pod.as_ref().map_or_else(|| "-".to_owned(), name);
    let head = format!(
        "{}  {pod:<POD$}  {}",
        output::moment(&event.time),
        sentence(event)
    );
    match &event.kind {
        EventKind::Eviction(eviction) => head + &steps(eviction),
        _ => head,
    }
}

/// `namespace/name`, or the uid alone.
pub(crate) fn name(pod: &PodRef) -> String {
    let name = output::printable(&pod.name);
    match pod.namespace.as_str() {
        "" => name,
        namespace => format!("{}/{name}", output::printable(namespace)),
    }
}

/// The event without its time and its pod.
pub(crate) fn sentence(event: &Event) -> String {
    match &event.kind {
        EventKind::PodAdded { qos_class } => format!("pod added, {qos_class}"),
        EventKind::PodRemoved {
            usage_core_nano_seconds,
            exits,
        } => format!(
            "pod removed after {} of CPU and {}",
            output::nanos(*usage_core_nano_seconds),
            count(*exits, "exit")
        ),
        EventKind::ContainerStarted { container } => {
            format!("container {} started", output::printable(container))
        }
        EventKind::ContainerStopped { container } => {
            format!("container {} stopped", output::printable(container))
        }
        EventKind::ProcessExit { .. } => exit(&event.kind),
        EventKind::ExitsDropped { count: dropped } => {
            format!(
                "{} more, too many for an event each",
                count(*dropped, "exit")
            )
        }
        EventKind::KernelOom { pid } => format!("the kernel's OOM killer chose process {pid}"),
        EventKind::MemoryNearLimit {
            container,
            percent,
            usage_bytes,
            limit_bytes,
        } => format!(
            "{} uses {}, {percent} % of its memory limit of {}",
            container.as_ref().map_or_else(
                || "pod".to_owned(),
                |name| format!("container {}", output::printable(name))
            ),
            output::bytes(*usage_bytes),
            output::bytes(*limit_bytes),
        ),
        EventKind::ForksRefused { container, count } => {
            let place = container.as_ref().map_or_else(String::new, |name| {
                format!(" in container {}", output::printable(name))
            });
            let forks = self::count(*count, "fork");
            format!("{forks} refused{place}, at its pids.max or one above")
        }
        EventKind::LevelCrossed {
            scope,
            level_bytes,
            usage_bytes,
            detected_by,
            ..
        } if *scope == ScopeName::Pressure => format!(
            "tasks wait for memory, which is short: pods use {}, from {} on (noticed by {detected_by})",
            output::bytes(*usage_bytes),
            output::bytes(*level_bytes),
        ),
        EventKind::LevelCrossed {
            scope,
            level_bytes,
            usage_bytes,
            working_set_bytes,
            detected_by,
        } => format!(
            "{scope} uses {}, past its level of {} (noticed by {detected_by})",
            used(*scope, *usage_bytes, *working_set_bytes),
            amount(*scope, *level_bytes),
        ),
        EventKind::Eviction(eviction) => verdict(eviction),
        EventKind::GapOpened { .. } | EventKind::GapClosed { .. } => gap(&event.kind),
        EventKind::ForeignWrite { .. }
        | EventKind::ForeignWriteContested { .. }
        | EventKind::ForeignWriteSettled { .. } => drift(&event.kind),
        EventKind::CpuQuota { .. } => cpu::quota(&event.kind),
        EventKind::BestEffortHeld { .. }
        | EventKind::BestEffortFreed { .. }
        | EventKind::BestEffortSuppressed { .. } => cpu::held(&event.kind),
        EventKind::TookOver(took_over) => self::took_over(took_over),
        EventKind::ConfigChanged { applied, pending } => config_changed(applied, pending),
        EventKind::Degraded { message } => format!("degraded: {}", output::printable(message)),
    }
}

fn took_over(event: &TookOver) -> String {
    let from = match event.predecessor_pid {
        Some(pid) => format!("process {pid}"),
        None => "another agent".to_owned(),
    };
    let end = match event.ended_nanos {
        Some(_) => "which ended",
        None => "which was killed",
    };
    let gap = output::nanos(event.gap_nanos());
    format!("took over from {from}, {end}: no agent evicted for {gap}")
}

fn config_changed(applied: &[String], pending: &[String]) -> String {
    let (applied, pending) = (applied.join(", "), pending.join(", "));
    let text =
        format!("configuration changed; in force: [{applied}]; at the next start: [{pending}]");
    output::printable(&text)
}

fn exit(kind: &EventKind) -> String {
    let EventKind::ProcessExit {
        pid,
        command,
        exit_code,
        signal,
        oom_killed,
        run_time_nanos,
        max_rss_bytes,
    } = kind
    else {
        return String::new();
    };
    let how = match (oom_killed, signal, exit_code) {
        (true, ..) => "was OOM-killed".to_owned(),
        (_, Some(signal), _) => format!("ended by {}", output::signal(*signal)),
        (_, _, Some(code)) => format!("exited with {code}"),
        (false, None, None) => "ended".to_owned(),
    };
    format!(
        "{}[{pid}] {how} after {}, at most {} resident",
        output::printable(command),
        output::nanos(*run_time_nanos),
        output::bytes(*max_rss_bytes),
    )
}

fn gap(kind: &EventKind) -> String {
    match kind {
        EventKind::GapOpened {
            tier,
            target_bytes,
            usage_bytes,
        } => format!(
            "{tier} uses {}, its reserve leaves it {}: kept from growing until it fits",
            output::bytes(*usage_bytes),
            output::bytes(*target_bytes),
        ),
        EventKind::GapClosed {
            tier,
            target_bytes,
            usage_before_bytes,
            usage_bytes,
            reclaimed_bytes,
            writes,
            open_nanos,
        } => {
            let cache = match reclaimed_bytes {
                0 => String::new(),
                bytes => format!(", {} of page cache dropped", output::bytes(*bytes)),
            };
            format!(
                "{tier} is limited to {} after {}, in {}: used {} then, {} now{cache}",
                output::bytes(*target_bytes),
                output::nanos(*open_nanos),
                count(*writes, "step"),
                output::bytes(*usage_before_bytes),
                output::bytes(*usage_bytes),
            )
        }
        _ => String::new(),
    }
}

fn drift(kind: &EventKind) -> String {
    match kind {
        EventKind::ForeignWrite {
            cgroup,
            property,
            found,
            wanted,
            corrected,
        } => {
            let done = match corrected {
                true => "put back to",
                false => "could not be put back to",
            };
            format!("{property} of {cgroup} was changed to {found} by another, {done} {wanted}")
        }
        EventKind::ForeignWriteContested {
            cgroup,
            property,
            found,
            wanted,
        } => format!(
            "another keeps changing {property} of {cgroup} to {found}: {wanted} is written at growing \
             intervals"
        ),
        EventKind::ForeignWriteSettled {
            cgroup,
            property,
            corrections,
        } => format!(
            "{property} of {cgroup} is left alone again after {}",
            count(u64::from(*corrections), "correction")
        ),
        _ => String::new(),
    }
}

/// What a scope uses, in its unit.
fn amount(scope: ScopeName, count: u64) -> String {
    match scope.signal().amount(count) {
        Amount::Memory(bytes) => output::bytes(bytes.as_u64()),
        other @ (Amount::Processes(_) | Amount::Cpu(_)) => other.to_string(),
    }
}

/// What of a scope's usage counts against its level, and its usage where that is more.
fn used(scope: ScopeName, usage: u64, working_set: Option<u64>) -> String {
    let counted = amount(scope, working_set.unwrap_or(usage));
    match amount(scope, usage) {
        all if all == counted => counted,
        all => format!("{counted} ({all} with page cache)"),
    }
}

fn verdict(eviction: &Eviction) -> String {
    let verb = if eviction.dry_run {
        "WOULD EVICT"
    } else {
        "EVICTED"
    };
    let headroom = match eviction.headroom_bytes {
        0 => String::new(),
        headroom => format!(
            " ({} lower than configured, as it filled by {} a second)",
            output::bytes(headroom),
            output::bytes(eviction.fill_bytes_per_second)
        ),
    };
    if matches!(eviction.scope, ScopeName::Cpu | ScopeName::BatchMemory) {
        return format!(
            "{verb} {} ({}): {}",
            name(&eviction.pod),
            eviction.qos_class,
            output::printable(&eviction.reason),
        );
    }
    if eviction.scope == ScopeName::Pressure {
        return format!(
            "{verb} {} ({}), using {}: tasks waited for memory, which was short: pods used {}, from {} on",
            name(&eviction.pod),
            eviction.qos_class,
            output::bytes(eviction.victim_working_set()),
            output::bytes(eviction.working_set()),
            output::bytes(eviction.level_bytes),
        );
    }
    let level = amount(eviction.scope, eviction.level_bytes);
    let past = match eviction.target_bytes {
        Some(target) => format!(
            "which is brought below {} (evictionMinimumReclaim) since it passed its level of {level}",
            amount(eviction.scope, target)
        ),
        None => format!("past its level of {level}"),
    };
    format!(
        "{verb} {} ({}), using {}: {} used {}, {past}{headroom}",
        name(&eviction.pod),
        eviction.qos_class,
        output::bytes(eviction.victim_working_set()),
        eviction.scope,
        used(
            eviction.scope,
            eviction.usage_bytes,
            eviction.working_set_bytes
        ),
    )
}

/// What is done to the victim.
pub(super) const fn killing(eviction: &Eviction) -> &'static str {
    match eviction.grace_seconds {
        Some(_) => "told to end",
        None => "killed",
    }
}

/// The timeline, each step on a line of its own, as time since the crossing.
fn steps(eviction: &Eviction) -> String {
    let timeline = &eviction.timeline;
    let since = |at: u64| offset(timeline, at);
    let processes = count(u64::from(eviction.processes), "process");
    let killed = match (timeline.killed_nanos, eviction.grace_seconds) {
        (Some(at), Some(grace)) => (since(at), format!("{processes}, {grace} s to do so")),
        (Some(at), None) => (since(at), processes),
        (None, _) if eviction.dry_run => {
            ("-".to_owned(), "nothing was done: observe mode".to_owned())
        }
        (None, _) => ("-".to_owned(), "not confirmed".to_owned()),
    };
    let mut rows = vec![
        ("crossing", "+0".to_owned(), source(timeline).to_owned()),
        (
            "wake",
            since(timeline.wake_nanos),
            eviction
                .detected_by
                .map_or_else(String::new, |by| format!("noticed by {by}")),
        ),
        (
            "verified",
            since(timeline.verified_nanos),
            output::printable(&eviction.reason),
        ),
        (killing(eviction), killed.0, killed.1),
    ];
    if !eviction.dry_run {
        let freed = timeline.freed_nanos;
        rows.push(match freed {
            Some(at) => ("freed", since(at), String::new()),
            None if eviction.interrupted => {
                let note = "unknown: the agent ended before".to_owned();
                ("freed", "-".to_owned(), note)
            }
            None => ("freed", "-".to_owned(), "not seen".to_owned()),
        });
    }
    rows.iter()
        .map(|(step, at, note)| {
            let line = format!("      {step:<8}  {at:>9}  {note}");
            format!("\n{}", line.trim_end())
        })
        .collect()
}

/// Time since the crossing; a sampled crossing may lie after the wake by a clock's width.
fn offset(timeline: &EvictionTimeline, at: u64) -> String {
    let from = timeline.crossing_nanos;
    match at.checked_sub(from) {
        Some(after) => format!("+{}", output::nanos(after)),
        None => format!("-{}", output::nanos(from - at)),
    }
}

pub(crate) fn source(timeline: &EvictionTimeline) -> &str {
    match timeline.crossing_source.as_str() {
        "kernel" => "stamped in the kernel",
        "sampled" => "between two samples, interpolated",
        "notified" => "no earlier than the notification",
        other => other,
    }
}

pub(crate) fn count(n: u64, noun: &str) -> String {
    match (n, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (n, true) => format!("{n} {noun}es"),
        (n, false) => format!("{n} {noun}s"),
    }
}

#[cfg(test)]
mod tests;
