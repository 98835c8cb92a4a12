//! The command line: one file per subcommand, and what they share.
//!
//! | module | purpose |
//! |---|---|
//! | `kubectl` | `kubectl podwarden`, for many agents |
//! | `output` | formats, pipes, colours, figures in units |
//! | `best_effort` | what best effort may use of the CPU, in words |
//! | `chart` | pictures as SVG |
//! | `connect` | the address of the running agent |
//! | `select` | a pod by its name or uid |
//! | `words` | what the API says in words |

use std::{process::ExitCode, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

mod best_effort;
pub(crate) mod bundle;
pub mod chart;
pub(crate) mod check;
mod connect;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod guard;
pub(crate) mod health;
pub mod kubectl;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod run;
mod select;
pub(crate) mod top;
pub(crate) mod undo;
pub mod words;

const EXAMPLES: &str = "\
Examples:
  podwarden check                                        what this node can and cannot do
  podwarden run --pods-dir /etc/kubernetes/manifests     account and report, change nothing
  podwarden run --config /etc/podwarden/config.yaml --mode enforce
  podwarden top                                          live figures, pod by pod
  podwarden plan -f pods.yaml                            what the cgroups of these pods hold, and why
  podwarden explain shop/web                             every value of one pod, and what would change it
  podwarden events --follow                              exits, evictions, degradations";

/// The node agent: live per-pod accounting from the kernel, and eviction within milliseconds.
#[derive(Debug, Parser)]
#[command(name = "podwarden", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// How log lines are written, on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, global = true)]
    log_format: LogFormat,
    /// What is logged: a level, or levels by module such as `info,podwarden::reactor=debug`.
    #[arg(
        long,
        env = "PODWARDEN_LOG",
        default_value = "info",
        global = true,
        value_name = "FILTER"
    )]
    log: String,
    #[command(subcommand)]
    command: Command,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent
    Run(run::Args),
    /// Show live figures, pod by pod
    Top(top::Args),
    /// Show what the cgroups ought to hold, who is evicted first, and why
    Plan(plan::Args),
    /// Show why a pod's cgroup holds what it holds, and what would change it
    Explain(explain::Args),
    /// Show what happened, and what happens
    Events(events::Args),
    /// Show what this node can do for podwarden, and what is lost
    Check(check::Args),
    /// Ask the running agent whether it does its work
    Health(health::Args),
    /// Write all that a report of a fault needs into one file
    Bundle(bundle::Args),
    /// Serve a bundle as its agent did
    Replay(replay::Args),
    /// Remove what agents have left on this node, when none runs
    Undo(undo::Args),
    /// Take the agent's limits back when it is killed; the agent starts it
    #[command(hide = true)]
    Guard(guard::Args),
}

impl Cli {
    /// Runs the subcommand. The caller prints the error.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        log_to_stderr(&self.log, self.log_format)?;
        match self.command {
            Command::Run(args) => {
                crate::agent::keep_heap_small();
                block_on(run::run(args))
            }
            Command::Top(args) => block_on(top::run(args)),
            Command::Plan(args) => block_on(plan::run(args)),
            Command::Explain(args) => block_on(explain::run(args)),
            Command::Events(args) => block_on(events::run(args)),
            Command::Check(args) => check::run(&args),
            Command::Health(args) => block_on(health::run(args)),
            Command::Bundle(args) => block_on(bundle::run(args)),
            Command::Replay(args) => block_on(replay::run(args)),
            Command::Undo(args) => undo::run(&args),
            Command::Guard(args) => guard::run(args),
        }
    }
}

/// Two threads are enough: one reads the figures, one answers the API, and the reactor has its own.
fn block_on(future: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(future)
}

/// The value of an option in seconds: `shortest` to an hour.
fn seconds(text: &str, shortest: Duration) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(3600);
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|value| (shortest..=LONGEST).contains(value))
        .ok_or_else(|| {
            let [from, to] = [shortest, LONGEST].map(|bound| bound.as_secs_f64());
            format!("not between {from} and {to} seconds")
        })
}

fn log_to_stderr(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    // `--kernel-log` is the filter of the kernel programs' lines. kube's client logs each failed request, which
    // the agent says itself, once for each problem.
    let filter = format!("podwarden_ebpf=trace,kube_client=off,{filter}");
    let filter = EnvFilter::try_new(&filter).map_err(|e| {
        anyhow::anyhow!("--log (or PODWARDEN_LOG) is `{filter}`: {e}; write a level such as info")
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output::colours(&std::io::stderr()));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn seconds_have_bounds() {
        let tenth = Duration::from_millis(100);
        assert_eq!(seconds("0.1", tenth), Ok(tenth));
        assert_eq!(seconds("3600", tenth), Ok(Duration::from_secs(3600)));
        assert_eq!(seconds("0", Duration::ZERO), Ok(Duration::ZERO));
        for wrong in ["0.09", "3600.5", "-1", "NaN"] {
            let said = seconds(wrong, tenth).unwrap_err();
            assert_eq!(said, "not between 0.1 and 3600 seconds", "{wrong}");
        }
        assert_eq!(seconds("1s", tenth).unwrap_err(), "not a number of seconds");
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_says_its_exit_codes() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = command.get_after_help().map(ToString::to_string);
            let says = help.is_some_and(|help| help.contains("\nExit code: 0 "));
            assert!(says, "{}", command.get_name());
        }
    }

    #[test]
    fn a_wrong_address_or_path_is_said_once_with_what_to_write() {
        for (line, remedy) in [
            ("top --server localhost", "write an IP address and a port"),
            (
                "replay a.tar --listen 9595",
                "write an IP address and a port",
            ),
            ("undo --cgroup-root foo", "write a path below"),
        ] {
            let words = ["podwarden"].into_iter().chain(line.split(' '));
            let said = Cli::try_parse_from(words).unwrap_err().to_string();
            assert_eq!(said.matches(remedy).count(), 1, "{line}: {said}");
        }
    }

    /// Parsing finds what `debug_assert` does not: an argument with the name of a global one.
    #[test]
    fn the_examples_are_understood() {
        let mut help = vec![EXAMPLES.to_owned()];
        for command in Cli::command().get_subcommands() {
            help.extend(command.get_after_help().map(ToString::to_string));
        }
        let mut understood = 0;
        for line in help.iter().flat_map(|text| text.lines()) {
            let Some(line) = line.trim().strip_prefix("podwarden ") else {
                continue;
            };
            // Without what the shell takes for itself, and what the line is for.
            let command = line.split(['|', '>']).next().unwrap_or_default();
            let command = command.split("  ").next().unwrap_or_default();
            let words = ["podwarden"].into_iter().chain(command.split_whitespace());
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{line}: {error}");
            }
            understood += 1;
        }
        assert!(understood > 10, "{understood}");
    }
}
