//! podwarden beside other OOM daemons, on one workload, seen from outside.
//!
//! ```text
//!  ground   the cgroups, the bystanders, the CPU hogs and the victim of one run
//!  scope    the victim's cgroup where systemd is to make it
//!  daemons  how each daemon is told its threshold and whom to prefer
//!  sampler  what the daemon watches and what the victim has, read by a real-time thread
//!  signals  when the kernel sent a signal to the victim, and who had it sent (tracefs)
//!  measure  one run's figures out of these; pure
//!  report   the table and the JSON; pure
//!  plot     the picture; pure
//!  dots     how it is drawn: lines of dots on logarithmic axes
//! ```
//!
//! No figure comes from a daemon: the crossing is the moment at which the very figure that the daemon
//! watches passes its threshold, as read here; overshoot is what the victim notes in shared memory,
//! page by page, from then to its end; the time of the kill is the kernel's.

mod daemons;
mod dots;
mod ground;
mod measure;
mod plot;
mod report;
mod run;
mod sampler;
mod scope;
mod signals;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::isolate::{Isolation, run_again};
use crate::cases::Context;
use crate::harness::{catch_signals, check_interrupt, remove_stale};
use daemons::Daemon;
pub(super) use ground::Ground;
use measure::Outcome;
use report::Report;
pub(super) use report::Setting;
use run::Plan;
pub(super) use run::Sizes;
pub(super) use sampler::available;
use signals::Signals;

const MIB: u64 = 1 << 20;
/// How often a run that said nothing about its daemon is done again.
const TRIES: usize = 10;

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Evict {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// The other daemons, or none.
    #[arg(long, value_delimiter = ',', default_value = "earlyoom,nohang")]
    peers: Vec<Peer>,
    /// The root below which their packages are unpacked or installed.
    #[arg(long, value_name = "DIR", default_value = "/")]
    peers_root: PathBuf,
    /// How fast the victim fills: MiB/s, or `full` for as fast as it can.
    #[arg(long, value_delimiter = ',', value_parser = rate, default_value = "500")]
    rate: Vec<Rate>,
    /// Threads that burn CPU beside the pods.
    #[arg(long, value_delimiter = ',', default_value = "0,6")]
    hogs: Vec<usize>,
    /// Processes of the victim: one holds 1 GiB when the level is crossed, several 2 GiB together.
    #[arg(long, value_delimiter = ',', default_value = "1,16",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: Vec<u16>,
    /// Runs of each daemon in each setting, in turn.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Sizes in percent of what they are otherwise, for small machines.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=100))]
    size: u64,
    /// Measures nothing: shows what these files hold, which --json wrote on one machine, and for --svg
    /// draws it.
    #[arg(long, value_delimiter = ',', value_name = "FILE")]
    show: Vec<PathBuf>,
    /// Writes every run and the machine to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws every run into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Set where the benchmark has isolated itself.
    #[arg(long, hide = true)]
    isolated: bool,
}

/// A value of `--peers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    None,
    Earlyoom,
    Nohang,
    /// Takes cgroup v2.
    Oomd,
    /// Takes cgroup v2 with systemd as the first process; is given swap, which it takes too.
    SystemdOomd,
}

/// MiB per second; none is as fast as the victim can.
type Rate = Option<u64>;

fn rate(text: &str) -> Result<Rate, String> {
    match text {
        "full" => Ok(None),
        number => match number.parse() {
            Ok(rate @ 1..=100_000) => Ok(Some(rate)),
            _ => Err("a rate is a number of MiB/s from 1 to 100000, or full".to_owned()),
        },
    }
}

impl Evict {
    pub(super) fn run(&self) -> Result<()> {
        if !self.show.is_empty() {
            return self.give(&Report::of_files(&self.show)?);
        }
        ensure!(
            nix::unistd::geteuid().is_root(),
            "the benchmark makes cgroups and reads the kernel's trace: run it as root"
        );
        for peer in self.peers() {
            peer.ensure_installed(&self.peers_root)?;
        }
        if !self.isolated {
            remove_stale()?;
            // No daemon is to see a process that is not the benchmark's.
            return run_again(Isolation::Processes);
        }
        catch_signals()?;
        let agent = std::fs::canonicalize(&self.agent)
            .with_context(|| format!("find {}", self.agent.display()))?;
        let context = Context::of_bench(&agent);
        let mut report = Report::new(&context);
        // What was measured until then is worth a look all the same.
        let ended = self.measure(&context, &mut report);
        self.give(&report)?;
        ended
    }

    /// The table, and the files that are asked for.
    fn give(&self, report: &Report) -> Result<()> {
        print!("{}", report.table());
        if let Some(path) = &self.json {
            let text = serde_json::to_string(report)? + "\n";
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        if let Some(path) = &self.svg {
            plot::draw(report, path)?;
        }
        Ok(())
    }

    fn measure(&self, context: &Context, report: &mut Report) -> Result<()> {
        let signals = Signals::start()?;
        let daemons: Vec<_> = std::iter::once(Daemon::Podwarden)
            .chain(self.peers())
            .collect();
        for setting in self.settings() {
            for run in 1..=self.runs {
                // In turn, so that what else the machine does meets all of them alike.
                for &daemon in &daemons {
                    check_interrupt()?;
                    let plan = Plan {
                        daemon,
                        setting,
                        percent: self.size,
                        wait: wait_of(run),
                        root: &self.peers_root,
                    };
                    let Some(outcome) = once(context, &signals, plan)? else {
                        continue;
                    };
                    eprintln!(
                        "{setting}, run {run} of {}: {}: {outcome}",
                        self.runs,
                        daemon.name()
                    );
                    report.add(daemon, setting, outcome);
                }
            }
        }
        Ok(())
    }

    fn peers(&self) -> impl Iterator<Item = Daemon> {
        self.peers.iter().filter_map(|peer| match peer {
            Peer::None => None,
            Peer::Earlyoom => Some(Daemon::Earlyoom),
            Peer::Nohang => Some(Daemon::Nohang),
            Peer::Oomd => Some(Daemon::Oomd),
            Peer::SystemdOomd => Some(Daemon::SystemdOomd),
        })
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &rate in &self.rate {
            for &hogs in &self.hogs {
                for &processes in &self.processes {
                    settings.push(Setting {
                        rate,
                        hogs,
                        processes: processes.into(),
                    });
                }
            }
        }
        settings
    }
}

/// One run, done again where something else on the machine spoiled it; none where it always did.
fn once(context: &Context, signals: &Signals, plan: Plan) -> Result<Option<Outcome>> {
    for _ in 0..TRIES {
        match run::once(context, signals, plan)? {
            Outcome::Spoiled(why) => {
                let Plan {
                    daemon, setting, ..
                } = plan;
                eprintln!("{setting}: {}: once more, since {why}", daemon.name());
            }
            outcome => return Ok(Some(outcome)),
        }
    }
    Ok(None)
}

/// The wait of one run: over all runs they fill a second evenly, however many there are.
fn wait_of(run: u16) -> Duration {
    /// The golden ratio: multiples of it lie evenly in any interval (Weyl, 1916).
    const STEP: f64 = 0.618_033_988_749_895;
    Duration::from_secs_f64((f64::from(run) * STEP).fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_fill_a_second_evenly() {
        for runs in [5, 30] {
            let mut waits: Vec<_> = (1..=runs).map(wait_of).collect();
            waits.sort_unstable();
            let gaps = waits.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.max().unwrap() < Duration::from_secs(2) / u32::from(runs));
            assert!(waits[usize::from(runs) - 1] < Duration::from_secs(1));
        }
    }

    #[test]
    fn a_rate_is_a_number_or_full() {
        assert_eq!(rate("500"), Ok(Some(500)));
        assert_eq!(rate("full"), Ok(None));
        for wrong in ["0", "-1", "fast", "1e9"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
