//! The time until the eviction: the agent's own live view, or lines.

use std::io::{IsTerminal as _, stdin, stdout};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::Eviction;

use crate::harness::{Node, sleep};

/// `podwarden top` on our terminal; ended when this goes away.
pub(super) struct Top(Child);

impl Top {
    /// Whether there is a terminal to show it on.
    pub(super) fn is_possible() -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// Starts it.
    pub(super) fn start(program: &std::path::Path, node: &Node) -> Result<Self> {
        let child = Command::new(program)
            .arg("top")
            .arg("--api-socket")
            .arg(node.agent.socket())
            .spawn()
            .context("start podwarden top")?;
        Ok(Self(child))
    }

    fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // Asked to end it gives the terminal back as it was.
        if self.runs() {
            let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
            let end = Instant::now() + Duration::from_secs(2);
            while self.runs() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the eviction and then a little, while something is shown; `None` when it did not come.
pub(super) fn until_evicted(
    node: &Node,
    mut top: Option<Top>,
    limit: Duration,
) -> Result<Option<Eviction>> {
    const AFTERWARDS: Duration = Duration::from_secs(3);
    let start = Instant::now();
    let mut seen = None;
    let mut line_due = Duration::ZERO;
    loop {
        let eviction = eviction(node)?;
        if eviction.is_some() && seen.is_none() {
            seen = Some(Instant::now());
        }
        // The end of the live view is the end of the demo.
        let watched = top.as_mut().is_none_or(Top::runs);
        let settled = eviction
            .as_ref()
            .is_some_and(|e| e.timeline.freed_nanos.is_some());
        if let Some(at) = seen
            && (at.elapsed() >= AFTERWARDS || (settled && !watched))
        {
            return Ok(eviction);
        }
        if start.elapsed() >= limit {
            return Ok(eviction);
        }
        if top.is_none() && start.elapsed() >= line_due {
            println!("{}", line(node, start.elapsed())?);
            line_due += Duration::from_secs(1);
        }
        sleep(Duration::from_millis(100))?;
    }
}

fn eviction(node: &Node) -> Result<Option<Eviction>> {
    Ok(node.agent.evictions()?.into_iter().next())
}

/// Every pod's cores and memory in one line.
fn line(node: &Node, time: Duration) -> Result<String> {
    let mut text = format!("{:>5.1} s ", time.as_secs_f64());
    for pod in node.agent.pods()? {
        let cores = pod
            .cpu
            .usage_nano_cores
            .map_or("-".to_owned(), |n| format!("{:.2}", n as f64 / 1e9));
        let memory = pod.memory.map_or("-".to_owned(), |memory| {
            format!("{:.0}", memory.usage_bytes as f64 / f64::from(1 << 20))
        });
        let state = if pod.phase == "Evicted" {
            " evicted"
        } else {
            ""
        };
        let name = &pod.pod_ref.name;
        text.push_str(&format!("  {name} {cores} CPU {memory} MiB{state}"));
    }
    Ok(text)
}
