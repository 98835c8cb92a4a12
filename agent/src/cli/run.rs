//! `podwarden run`: the agent.

use std::{path::PathBuf, process::ExitCode};

use super::words::PRESENTER;
use crate::config::{Config, ConfigFile, Overrides};

const EXAMPLES: &str = "\
Examples:
  podwarden run                                       every pod by its cgroup, changes nothing
  podwarden run --pods-dir /etc/kubernetes/manifests --listen 127.0.0.1:9595
  podwarden run --kubeconfig /etc/kubernetes/kubelet.conf --node-name node-1
  podwarden run --config /etc/podwarden/config.yaml --mode enforce
  podwarden run --cgroup-root /sandbox --cgroup-driver cgroupfs --api-socket /tmp/pw.sock

What the command line says overrides the file. Ends cleanly on SIGTERM and SIGINT: everything in
the kernel is detached, the cgroups of running pods stay.";

/// Arguments of `podwarden run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (YAML, `kind: AgentConfig`)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// An invalid configuration, or a failed start.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (config, file) = match args.config {
        None => (Config::load(None, args.overrides)?, None),
        Some(path) => {
            let file = ConfigFile::new(path, args.overrides);
            let read = file.read()?;
            (read.config.clone(), Some((file, read)))
        }
    };
    crate::agent::run(config, file, PRESENTER, shutdown_signal()?).await?;
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
