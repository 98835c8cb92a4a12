//! `podwarden run`: the agent.

use std::{path::PathBuf, process::ExitCode};

use super::words::PRESENTER;
use crate::{
    agent::Entry,
    config::{Config, ConfigFile, Overrides},
};

const EXAMPLES: &str = "\
Examples:
  podwarden run                                       every pod by its cgroup, changes nothing
  podwarden run --pods-dir /etc/kubernetes/manifests --listen 127.0.0.1:9595
  podwarden run --kubeconfig /etc/kubernetes/kubelet.conf --node-name node-1
  podwarden run --config /etc/podwarden/config.yaml --mode enforce
  podwarden run --wait-for-lock --health-socket /run/podwarden-pod/health.sock
  podwarden run --cgroup-root /sandbox --cgroup-driver cgroupfs --api-socket /tmp/pw.sock

What the command line says overrides the file. Ends cleanly on SIGTERM and SIGINT: everything in
the kernel is detached, the cgroups of running pods stay.

Exit code: 0 ended by one of these signals, 3 a wrong argument, a configuration that is not valid, or an agent that
cannot start or go on (standard error says why).";

/// Arguments of `podwarden run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (YAML, `kind: AgentConfig`)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where another agent is at work, wait for its end, prepared, and take over from it at once
    #[arg(long)]
    wait_for_lock: bool,
    /// A unix socket for `/healthz` and `/readyz` of this process alone, from its start on: probes ask here where two agents
    /// share the API's socket during an update. `/readyz` is 200 while it waits, prepared, for the other's end
    #[arg(long, value_name = "PATH")]
    health_socket: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

/// Runs the agent until SIGTERM or SIGINT.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (config, file) = match args.config {
        None => (Config::load(None, args.overrides)?, None),
        Some(path) => {
            let file = ConfigFile::new(path, args.overrides);
            let read = file.read()?;
            (read.config.clone(), Some((file, read)))
        }
    };
    let entry = Entry {
        wait_for_lock: args.wait_for_lock,
        health_socket: args.health_socket,
    };
    crate::agent::run(config, file, PRESENTER, entry, shutdown_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Completes at the first SIGTERM or SIGINT.
pub(super) fn shutdown_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
