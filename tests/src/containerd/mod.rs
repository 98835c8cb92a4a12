//! A real containerd of the cases' own: its own directory, socket, network and mounts, none of which the
//! machine sees. All its processes are in a PID namespace of their own and end with its first one.
//!
//! | module | purpose |
//! |---|---|
//! | `cri` | the messages that start pods, which the agent never sends |
//! | `cni` | the network plugins, behind a shim that writes down what they are asked for |
//! | `image` | an image with busybox in it |
//! | `pods` | pods that run through CRI below the agent's cgroups |
//! | `oci` | what runc and crun make of a container's values |

mod cni;
mod cri;
mod image;
mod oci;
mod pods;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::pods::runtime::{Client, RuntimeError};
use prost::Message;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::cases::{Context, skip};
use crate::harness::{eventually, private_dir};

pub(crate) use self::cni::{Asked, plugins};
pub(crate) use self::image::{NAME as BUSYBOX, build as build_busybox};
pub(crate) use self::oci::{crun_limits_stay, linear_weight, weighs_linearly};
pub(crate) use self::pods::{DEFAULT_HANDLER, RunningPod, Started, TEARDOWN, WORKLOAD};

/// What has to be on the machine, besides the network plugins.
const PROGRAMS: [&str; 8] = [
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "unshare",
    "busybox",
    "tar",
    "sha256sum",
];

/// How long a call of the cases' own may take: it may start processes and make a network.
const CALL: Duration = Duration::from_secs(60);

/// Running; ended with all that it runs when this goes away.
#[derive(Debug)]
pub(crate) struct Containerd {
    client: Client,
    runtime: Runtime,
    pid: Pid,
    /// `unshare`, whose end is that of all the others.
    outer: Child,
    dir: TempDir,
}

impl Containerd {
    /// Starts it and waits until it answers; the case is skipped where it cannot run.
    pub(crate) fn start(context: &Context) -> Result<Self> {
        if context.emulated() {
            skip("the test machine has no containerd")?;
        }
        if let Some(missing) = missing() {
            skip(format!("there is no {missing}: see `cargo xtask setup`"))?;
        }
        if plugins().is_none() {
            skip("there are no network plugins: see `cargo xtask setup`")?;
        }
        let plugins = plugins().context("the network plugins are gone")?;
        let dir = private_dir()?;
        let image = image::build(&dir.path().join("image"))?;
        cni::install(&plugins, &dir.path().join("cni"))?;
        let config = dir.path().join("config.toml");
        fs::write(&config, configuration(dir.path()))
            .context("write containerd's configuration")?;
        let mut outer = launch(dir.path(), &config)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let answered = wait_for(&runtime, dir.path(), &mut outer, context);
        let (client, pid) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                let _ = outer.kill();
                let _ = outer.wait();
                let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                return Err(error.context(format!("containerd does not start: {last:?}")));
            }
        };
        let this = Self {
            client,
            runtime,
            pid,
            outer,
            dir,
        };
        this.import(&image)?;
        Ok(this)
    }

    /// Where CRI is spoken.
    pub(crate) fn socket(&self) -> PathBuf {
        socket(self.dir.path())
    }

    /// What the network plugin was asked for so far, versions left out.
    pub(crate) fn asked(&self) -> Result<Vec<Asked>> {
        cni::asked(&self.dir.path().join("cni"))
    }

    /// What it logged of a container, or of what has its id in its name.
    pub(crate) fn said(&self, id: &str) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines = log.lines().filter(|line| line.contains(id));
        lines.map(str::to_owned).collect()
    }

    /// One call of CRI.
    pub(crate) fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let answer = self
            .runtime
            .block_on(self.client.call(method, request, CALL));
        answer.with_context(|| format!("CRI {method}"))
    }

    /// Something with the agent's client.
    pub(crate) fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&Client) -> Result<T, RuntimeError>,
    ) -> Result<T> {
        Ok(self.runtime.block_on(question(&self.client))?)
    }

    /// Has it stand still, as one that hangs, or go on. What it runs goes on all the same.
    pub(crate) fn hang(&self, hang: bool) -> Result<()> {
        let signal = if hang {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        kill(self.pid, signal).context("signal containerd")
    }

    fn import(&self, image: &Path) -> Result<()> {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io", "images", "import"])
            .args(["--snapshotter", "native"])
            .arg(image)
            .output()
            .context("start ctr")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ctr images import: {said}");
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // The kernel ends every other process in its PID namespace, and with them go mounts and network; then
        // its parent ends.
        let _ = kill(self.pid, Signal::SIGKILL);
        let ended = eventually(Duration::from_secs(20), || {
            self.outer.try_wait()?.context("it has not ended")
        });
        if ended.is_err() {
            let _ = self.outer.kill();
            let _ = self.outer.wait();
        }
    }
}

/// The first program that the machine lacks.
pub(crate) fn missing() -> Option<&'static str> {
    PROGRAMS.into_iter().find(|name| find(name).is_none())
}

/// A program of the machine, also where only root looks for it.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut files = std::env::split_paths(&path)
        .chain(also)
        .map(|dir| dir.join(name));
    files.find(|file| file.is_file())
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("containerd.sock")
}

/// A handler besides the default one. It is runc's as well.
pub(crate) const OTHER_HANDLER: &str = "other";

/// As little as there can be: no image is pulled, and `native` needs nothing of the file system.
/// `restrict_oom_score_adj` is for machines where we may not lower it.
fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
[grpc]
  address = "{dir}/containerd.sock"
[ttrpc]
  address = "{dir}/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  sandbox_image = "{image}"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{OTHER_HANDLER}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{dir}/cni/bin"
  conf_dir = "{dir}/cni/net.d"
"#,
        image = image::NAME,
    )
}

/// Starts it. `/run` and `/var/lib` are its own too: shims, network namespaces and network plugins have their files there.
/// Without `-n`, mount(8) makes a directory of its own in the machine's `/run`.
fn launch(dir: &Path, config: &Path) -> Result<Child> {
    let log = File::create(dir.join("log"))?;
    let lib = dir.join("lib");
    fs::create_dir(&lib).with_context(|| format!("create {}", lib.display()))?;
    let mut command = Command::new("unshare");
    command
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ])
        .args([
            "sh",
            "-c",
            r#"mount -n -t tmpfs tmpfs /run && mount -n --bind "$1" /var/lib && exec containerd -c "$0""#,
        ])
        .args([config, &lib])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
    }
    command.spawn().context("start containerd")
}

/// Waits until it answers; then it has a process, the only child of `unshare`.
fn wait_for(
    runtime: &Runtime,
    dir: &Path,
    outer: &mut Child,
    context: &Context,
) -> Result<(Client, Pid)> {
    let client = runtime.block_on(async { Client::new(&socket(dir)) })?;
    eventually(context.limit(60), || {
        ensure!(outer.try_wait()?.is_none(), "it has ended");
        runtime.block_on(client.version()).context("no answer")
    })?;
    let id = outer.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let mut children = children.split_ascii_whitespace();
    match (children.next(), children.next()) {
        (Some(pid), None) => Ok((client, Pid::from_raw(pid.parse()?))),
        _ => bail!("unshare has not one child"),
    }
}
