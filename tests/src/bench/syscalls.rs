//! What the reactor asks of the kernel while it evicts: every system call of its thread, how long it
//! took, and in which of them the thread went to sleep, by the kernel's own trace.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use super::evict::{Ground, Setting, Sizes};
use super::isolate::{Isolation, run_again};
use super::trace::{Entry, Trace};
use crate::cases::Context;
use crate::harness::{call_name, catch_signals, check_interrupt, remove_stale, sleep};

/// Where the reactor is to sleep.
const WAITS: [i64; 3] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Syscalls {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Processes of the victim, which fills 500 MiB/s.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Threads that burn CPU beside the pods.
    #[arg(long, default_value_t = 0)]
    hogs: usize,
    /// Evictions.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// One JSON array in place of the table.
    #[arg(long)]
    json: bool,
    /// Set where the benchmark has isolated itself.
    #[arg(long, hide = true)]
    isolated: bool,
}

/// All calls of one name.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Calls {
    count: u64,
    /// The longest, nanoseconds, with what the thread waited for a CPU.
    longest_nanos: u64,
    total_nanos: u64,
    /// How often the thread went to sleep in it.
    slept: u64,
}

/// By the call's number.
type Tally = BTreeMap<i64, Calls>;

impl Syscalls {
    pub(super) fn run(&self) -> Result<()> {
        if !self.isolated {
            remove_stale()?;
            return run_again(Isolation::Mounts);
        }
        catch_signals()?;
        let agent = fs::canonicalize(&self.agent)
            .with_context(|| format!("find {}", self.agent.display()))?;
        let context = Context::of_bench(&agent);
        let mut tally = Tally::new();
        for run in 1..=self.runs {
            let entries = self.evict(&context).with_context(|| format!("run {run}"))?;
            add(&mut tally, &entries);
        }
        self.print(&tally)
    }

    /// One eviction, from a quiet node to the victim's end, as the kernel traced the reactor's thread.
    fn evict(&self, context: &Context) -> Result<Vec<Entry>> {
        let setting = Setting {
            rate: Some(500),
            hogs: self.hogs,
            processes: self.processes.into(),
        };
        let sizes = Sizes::of(setting, 25);
        let mut ground = Ground::of_podwarden(context, setting, &sizes)?;
        let thread = ground.reactor()?;
        let trace = Trace::start()?;
        for event in ["sys_enter", "sys_exit"] {
            trace.enable(
                &format!("raw_syscalls/{event}"),
                &format!("common_pid == {thread}"),
            )?;
        }
        trace.enable("sched/sched_switch", &format!("prev_pid == {thread}"))?;
        ground.start_victim(context, setting, &sizes)?;
        trace.clear()?;
        ground.let_go();
        let end = Instant::now() + context.limit(20);
        while ground.victim_is_alive() {
            check_interrupt()?;
            ensure!(Instant::now() < end, "the victim was not killed");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The look that finds its memory free, and the reports.
        sleep(Duration::from_millis(100))?;
        let entries = trace.read()?;
        drop(trace);
        ground.finish()?;
        Ok(entries)
    }

    fn print(&self, tally: &Tally) -> Result<()> {
        if tally.is_empty() {
            bail!(
                "the kernel traced nothing of the reactor: thread ids here are not the kernel's own \
                 (a PID namespace)"
            );
        }
        if self.json {
            let named: BTreeMap<_, _> = tally
                .iter()
                .map(|(call, calls)| (call_name(*call), calls))
                .collect();
            println!("{}", serde_json::to_string_pretty(&named)?);
            return Ok(());
        }
        println!(
            "{:<20} {:>8} {:>12} {:>12} {:>8}",
            "CALL", "COUNT", "MEAN us", "LONGEST us", "SLEPT"
        );
        let mut rows: Vec<_> = tally.iter().collect();
        rows.sort_by_key(|(_, calls)| std::cmp::Reverse(calls.count));
        for (call, calls) in rows {
            println!(
                "{:<20} {:>8} {:>12.1} {:>12.0} {:>8}",
                call_name(*call),
                calls.count,
                calls.total_nanos as f64 / 1e3 / calls.count.max(1) as f64,
                calls.longest_nanos as f64 / 1e3,
                calls.slept
            );
        }
        let slept: Vec<_> = tally
            .iter()
            .filter(|(call, calls)| calls.slept > 0 && !WAITS.contains(call))
            .map(|(call, _)| call_name(*call))
            .collect();
        let told = match slept.as_slice() {
            [] => "it slept nowhere but in epoll".to_owned(),
            calls => format!("besides epoll it slept in {}", calls.join(", ")),
        };
        println!(
            "the reactor's thread over {} evictions, {} process(es), {} hogs: {told}",
            self.runs, self.processes, self.hogs
        );
        Ok(())
    }
}

/// Adds what one thread did. A call that had begun before the first event is left out.
fn add(tally: &mut Tally, entries: &[Entry]) {
    let mut within: Option<(i64, u64)> = None;
    for entry in entries {
        match entry.event.as_str() {
            "sys_enter" => within = number(&entry.text).map(|call| (call, entry.nanos)),
            "sys_exit" => {
                if let Some((call, since)) = within.take() {
                    let calls = tally.entry(call).or_default();
                    let nanos = entry.nanos.saturating_sub(since);
                    calls.count += 1;
                    calls.total_nanos += nanos;
                    calls.longest_nanos = calls.longest_nanos.max(nanos);
                }
            }
            // It was taken off the CPU; in state R it only waits for another one.
            "sched_switch" if !entry.text.contains("prev_state=R") => {
                if let Some((call, _)) = within {
                    tally.entry(call).or_default().slept += 1;
                }
            }
            _ => {}
        }
    }
}

/// The call's number in `NR 232 (7, …`.
fn number(text: &str) -> Option<i64> {
    text.strip_prefix("NR ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(micros: u64, event: &str, text: &str) -> Entry {
        Entry {
            nanos: micros * 1000,
            by: "reactor".to_owned(),
            event: event.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn calls_are_counted_and_sleep_is_told_from_waiting_for_a_cpu() {
        let mut tally = Tally::new();
        let entries = [
            entry(1, "sys_exit", "NR 232 = 1"),
            entry(2, "sys_enter", "NR 17 (3, 7f, 10, 0, 0, 0)"),
            entry(
                3,
                "sched_switch",
                "prev_comm=reactor prev_state=R+ ==> next_comm=x",
            ),
            entry(9, "sys_exit", "NR 17 = 8"),
            entry(10, "sys_enter", "NR 17 (3, 7f, 10, 0, 0, 0)"),
            entry(
                11,
                "sched_switch",
                "prev_comm=reactor prev_state=D ==> next_comm=x",
            ),
            entry(12, "sys_exit", "NR 17 = 8"),
            entry(13, "sys_enter", "NR 232 (7, 0)"),
        ];
        add(&mut tally, &entries);
        let expected = Calls {
            count: 2,
            longest_nanos: 7_000,
            total_nanos: 9_000,
            slept: 1,
        };
        assert_eq!(tally, Tally::from([(17, expected)]));
    }

    #[test]
    fn calls_have_names() {
        assert_eq!(call_name(libc::SYS_openat), "openat");
        assert_eq!(call_name(9999), "call 9999");
    }
}
