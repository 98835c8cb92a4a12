//! `kubectl podwarden`: the agents of a cluster, asked by their users' own rights.
//!
//! This program by the name `kubectl-podwarden`, which kubectl finds in PATH. It asks each agent by `kubectl exec`,
//! so that kubectl's configuration, logins and proxies count, the API server decides who may, and no port is open.
//!
//! | module | purpose |
//! |---|---|
//! | `agents` | which agents there are, and their answers |
//! | `top`, `events` | answers of many agents as one text |

mod agents;
mod events;
mod top;

use std::{ffi::OsStr, path::Path, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use self::agents::{Agents, Answers};
use super::output::{self, Format};

const EXAMPLES: &str = "\
Examples:
  kubectl podwarden top --all                      every node, then every pod
  kubectl podwarden top --node node-1               one node
  kubectl podwarden evictions                      who was evicted in this cluster, when and why
  kubectl podwarden events --node node-1 -o json
  kubectl podwarden explain shop/web               why the pod's cgroup holds what it holds

It needs `list` of pods and `create` of pods/exec in the agents' namespace, explain also `get` of the pod.
Exit code: 0 every agent has answered, 1 some have not, 3 nothing could be done.";

/// The fleet, seen by its agents.
#[derive(Debug, Parser)]
#[command(name = "kubectl-podwarden", bin_name = "kubectl podwarden", version, after_help = EXAMPLES)]
pub struct Plugin {
    #[command(flatten)]
    agents: Agents,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show figures of nodes and pods, once
    Top(Printed),
    /// Show what happened on the nodes
    Events(Printed),
    /// Show who was evicted
    Evictions(Printed),
    /// Show why a pod's cgroup holds what it holds, and what would change it
    Explain {
        /// NAMESPACE/NAME
        #[arg(value_parser = named)]
        pod: PodName,
        #[command(flatten)]
        printed: Printed,
    },
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct Printed {
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, Clone)]
struct PodName {
    namespace: String,
    name: String,
}

fn named(text: &str) -> Result<PodName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(PodName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

impl Plugin {
    /// True where the program was started by the plugin's name; kubectl takes an underscore for a dash.
    pub fn is_named(program: &OsStr) -> bool {
        let name = Path::new(program).file_name();
        name.is_some_and(|name| name == "kubectl-podwarden" || name == "kubectl_podwarden")
    }

    pub fn run(self) -> anyhow::Result<ExitCode> {
        super::block_on(self.answered())
    }

    async fn answered(self) -> anyhow::Result<ExitCode> {
        let Self { agents, command } = self;
        let events = ["events", "-o", "json"];
        let (text, failed) = match command {
            Command::Top(Printed { output }) => {
                let answers = agents.ask(&["top", "--once", "-o", "json"]).await?;
                top::text(answers, output)?
            }
            Command::Events(Printed { output }) => {
                events::text(agents.ask(&events).await?, output, None)?
            }
            Command::Evictions(Printed { output }) => {
                events::text(agents.ask(&events).await?, output, Some("eviction"))?
            }
            Command::Explain { pod, printed } => {
                return explain(agents, &pod, printed.output).await;
            }
        };
        output::print(&text)?;
        Ok(unanswered(&failed))
    }
}

/// Says which agents have not answered.
fn unanswered(failed: &[(String, String)]) -> ExitCode {
    for (node, problem) in failed {
        eprintln!("podwarden: {node}: {}", output::printable(problem.trim()));
    }
    match failed {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    }
}

async fn explain(agents: Agents, pod: &PodName, output: Format) -> anyhow::Result<ExitCode> {
    let PodName { namespace, name } = pod;
    let agents = match agents.has_node() {
        true => agents,
        false => {
            let node = agents.node_of(namespace, name).await?;
            let node = node.with_context(|| format!("{namespace}/{name} is on no node yet"))?;
            agents.on(node)
        }
    };
    let of = format!("{namespace}/{name}");
    let output = match output {
        Format::Table => "text",
        Format::Json => "json",
    };
    let answers: Answers = agents.ask(&["explain", &of, "-o", output]).await?;
    let mut failed = Vec::new();
    for (node, answer) in answers {
        match answer {
            Ok(text) => output::print(&String::from_utf8_lossy(&text))?,
            Err(problem) => failed.push((node, problem)),
        }
    }
    Ok(unanswered(&failed))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_examples_are_understood() {
        Plugin::command().debug_assert();
        let mut understood = 0;
        for line in EXAMPLES.lines() {
            let Some(line) = line.trim().strip_prefix("kubectl podwarden ") else {
                continue;
            };
            let command = line.split("  ").next().unwrap_or_default();
            let words = ["kubectl-podwarden"]
                .into_iter()
                .chain(command.split_whitespace());
            if let Err(error) = Plugin::try_parse_from(words) {
                panic!("{line}: {error}");
            }
            understood += 1;
        }
        assert_eq!(understood, 5);
        for refused in ["explain web", "explain /web", "top --all --node a"] {
            let words = ["kubectl-podwarden"]
                .into_iter()
                .chain(refused.split_whitespace());
            assert!(Plugin::try_parse_from(words).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_program_is_the_plugin_by_its_name() {
        for (program, is) in [
            ("/usr/local/bin/kubectl-podwarden", true),
            ("kubectl_podwarden", true),
            ("/usr/local/bin/podwarden", false),
            ("kubectl-podwarden/podwarden", false),
            ("", false),
        ] {
            assert_eq!(Plugin::is_named(OsStr::new(program)), is, "{program}");
        }
    }
}
