//! `podwarden run`: the agent.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use podwarden_cgroup::Driver;

use crate::config::{Config, ConfigError, KernelLog, Mode, Overrides};

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
    /// Whether to act, or only to tell what would be done [default: observe]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Parent of kubepods, relative to each controller's mount point [default: /]
    #[arg(long, value_name = "PATH")]
    cgroup_root: Option<String>,
    /// Who names the cgroups [default: auto]
    #[arg(long, value_name = "DRIVER", value_parser = ["auto", "cgroupfs", "systemd"])]
    cgroup_driver: Option<String>,
    /// Directory of v1 Pod manifests (*.yaml, *.yml, *.json)
    #[arg(long, value_name = "DIR")]
    pods_dir: Option<PathBuf>,
    /// Take this node's pods from the API server of this file's current context [default: that of the
    /// pod's service account, where the agent runs in a pod]
    #[arg(long, value_name = "FILE", conflicts_with = "no_apiserver")]
    kubeconfig: Option<PathBuf>,
    /// Take no pods from an API server, whatever the configuration says
    #[arg(long)]
    no_apiserver: bool,
    /// Name of this node, as its Node object has it [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Unix socket of the container runtime (CRI v1), such as /run/containerd/containerd.sock
    /// [default: none is asked]
    #[arg(long, value_name = "PATH")]
    cri_socket: Option<String>,
    /// The least severe lines that the kernel programs write to the log [default: warn]
    #[arg(long, value_enum, value_name = "LEVEL")]
    kernel_log: Option<KernelLog>,
    /// Address of the HTTP API, beside its unix socket [default: none]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Unix socket of the HTTP API [default: /run/podwarden/podwarden.sock]
    #[arg(long, value_name = "PATH")]
    api_socket: Option<PathBuf>,
}

impl Args {
    /// The file's configuration under the command line's values.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn config(self) -> Result<Config, ConfigError> {
        let overrides = Overrides {
            mode: self.mode,
            node_name: self.node_name,
            pods_dir: self.pods_dir,
            kubeconfig: self.kubeconfig,
            no_apiserver: self.no_apiserver,
            cri_socket: self.cri_socket,
            kernel_log: self.kernel_log,
            listen: self.listen,
            api_socket: self.api_socket,
            cgroup_root: self.cgroup_root,
            cgroup_driver: self.cgroup_driver.as_deref().map(|driver| match driver {
                "cgroupfs" => Some(Driver::Cgroupfs),
                "systemd" => Some(Driver::Systemd),
                _ => None,
            }),
        };
        Config::load(self.config.as_deref(), overrides)
    }
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// An invalid configuration, or a failed start.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.config()?;
    crate::agent::run(config, shutdown_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Completes at the first SIGTERM or SIGINT.
fn shutdown_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
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
