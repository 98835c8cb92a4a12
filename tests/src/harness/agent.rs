//! The agent under test, as a process of its own.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::{Event, EventKind, Eviction, NodeStats, PodList, PodStats};
use podwarden::kernel::pins::BPF_FS;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde::de::DeserializeOwned;

use super::bpf::Objects;
use super::cgroup::Cgroup;
use super::http;
use super::log::Log;
use super::memory::memory;
use super::sandbox::Sandbox;
use super::schedstat::SchedStat;
use super::wait::{eventually, until};

/// How the agent is started.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// `observe` or `enforce`.
    pub(crate) mode: &'static str,
    /// A kubelet owns the tree.
    pub(crate) assist: bool,
    /// `cgroupfs` or `systemd`.
    pub(crate) driver: &'static str,
    /// The node's CPUs and memory as the configuration tells it.
    pub(crate) cpu: &'static str,
    pub(crate) memory: String,
    /// `evictionHard: memory.available`; none leaves the levels as they are without.
    pub(crate) eviction_hard: Option<String>,
    /// More lines for the configuration file.
    pub(crate) config: String,
    /// More arguments.
    pub(crate) args: Vec<String>,
    /// More environment.
    pub(crate) env: Vec<(String, String)>,
    /// Its socket, where it is not the sandbox's.
    pub(crate) socket: Option<PathBuf>,
    /// Capabilities that it does not get.
    pub(crate) without: CapabilitySet,
    /// The user it runs as, root where none is given.
    pub(crate) user: Option<u32>,
    /// Takes pods of the node [`NODE`] from this kubeconfig's API server.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// What the agent's node is called in the API.
pub(crate) const NODE: &str = "e2e-node";

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: "enforce",
            assist: false,
            driver: "cgroupfs",
            cpu: "2",
            memory: "16Gi".to_owned(),
            eviction_hard: None,
            config: String::new(),
            args: Vec::new(),
            env: Vec::new(),
            socket: None,
            without: CapabilitySet::empty(),
            user: None,
            kubeconfig: None,
        }
    }
}

impl Options {
    fn config_file(&self) -> String {
        let mut text = format!(
            "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\nmode: {}\n\
             capacity: {{cpu: \"{}\", memory: {}}}\n",
            self.mode, self.cpu, self.memory
        );
        if let Some(amount) = &self.eviction_hard {
            text.push_str(&format!("evictionHard: {{memory.available: {amount}}}\n"));
        }
        text.extend(self.assist.then_some("ownership: assist\n"));
        text.push_str(&self.config);
        text
    }
}

/// A running agent; ended when this goes away.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    reader: JoinHandle<()>,
    socket: PathBuf,
    /// Where it pins maps.
    bpf_fs: PathBuf,
    /// What it says.
    pub(crate) log: Log,
}

impl Agent {
    /// Starts it and does not wait.
    pub(crate) fn spawn(program: &Path, sandbox: &Sandbox, options: &Options) -> Result<Self> {
        Self::spawn_in(program, sandbox, options, None)
    }

    /// The same, as a member of a cgroup.
    pub(crate) fn spawn_in(
        program: &Path,
        sandbox: &Sandbox,
        options: &Options,
        cgroup: Option<&Cgroup>,
    ) -> Result<Self> {
        let config = sandbox.dir().join("config.yaml");
        fs::write(&config, options.config_file()).context("write the configuration")?;
        let socket = options.socket.clone().unwrap_or_else(|| sandbox.socket());
        let mut command = Command::new(program);
        command
            .arg("run")
            .arg("--config")
            .arg(&config)
            .args([
                "--cgroup-root",
                &format!("/{}", sandbox.root.path()),
                "--cgroup-driver",
                options.driver,
            ])
            .arg("--pods-dir")
            .arg(sandbox.pods_dir())
            .args(["--node-name", NODE, "--mode", options.mode, "--api-socket"])
            .arg(&socket)
            .args(&options.args)
            .env("PODWARDEN_BPF_FS", sandbox.bpf_fs())
            .envs(options.env.iter().cloned());
        match &options.kubeconfig {
            Some(kubeconfig) => command.arg("--kubeconfig").arg(kubeconfig),
            None => command.arg("--no-apiserver"),
        };
        if let Some(user) = options.user {
            command.uid(user).gid(user);
        }
        let without = options.without;
        let entries: Vec<_> = cgroup.into_iter().flat_map(Cgroup::dirs).collect();
        let entries: Vec<_> = entries
            .iter()
            .map(|dir| File::options().write(true).open(dir.join("cgroup.procs")))
            .collect::<Result<_, _>>()?;
        let prepare = move || {
            for entry in &entries {
                (&*entry).write_all(b"0")?;
            }
            for capability in without.iter() {
                remove_capability_from_bounding_set(capability)?;
            }
            Ok(())
        };
        // SAFETY: only system calls between fork and exec, and no allocation.
        unsafe { command.pre_exec(prepare) };
        let mut agent = Self::launch(command, &socket)?;
        agent.bpf_fs = sandbox.bpf_fs();
        Ok(agent)
    }

    /// Starts it by this command, and does not wait; `socket` is where its API will be.
    pub(crate) fn launch(mut command: Command, socket: &Path) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?));
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let log = Log::default();
        let stderr = child.stderr.take().context("the agent has no stderr")?;
        let lines = log.clone();
        let reader = thread::spawn(move || {
            BufReader::new(stderr)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| lines.push(line));
        });
        Ok(Self {
            child,
            reader,
            socket: socket.to_owned(),
            bpf_fs: BPF_FS.into(),
            log,
        })
    }

    /// Waits until `/readyz` says 200.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let socket = self.socket.clone();
        let mut early = None;
        eventually(limit, || {
            early = self.child.try_wait()?;
            if early.is_some() {
                return Ok(());
            }
            let answer = http::get(&socket, "/readyz")?;
            ensure!(answer.status == 200, "/readyz: {}", answer.text());
            Ok(())
        })
        .context("the agent does not become ready")?;
        if let Some(status) = early {
            bail!("the agent ended with {status} before it was ready");
        }
        Ok(())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that it has started and that run.
    pub(crate) fn children(&self) -> Vec<u32> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| parent(*pid) == Some(self.pid()))
            .collect()
    }

    /// The process that looks after what it leaves when it is killed.
    pub(crate) fn guard(&self) -> Result<u32> {
        eventually(Duration::from_secs(20), || match self.children()[..] {
            [guard] => Ok(guard),
            ref guards => bail!("{} guards", guards.len()),
        })
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// A JSON answer of status 200.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = http::get(&self.socket, path)?;
        ensure!(
            answer.status == 200,
            "GET {path}: {} {}",
            answer.status,
            answer.text()
        );
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("GET {path}: {}", answer.text()))
    }

    /// `/v1/node`.
    pub(crate) fn node(&self) -> Result<NodeStats> {
        self.get("/v1/node")
    }

    /// `/v1/pods`.
    pub(crate) fn pods(&self) -> Result<Vec<PodStats>> {
        Ok(self.get::<PodList>("/v1/pods")?.pods)
    }

    /// One of them.
    pub(crate) fn pod(&self, uid: &str) -> Result<PodStats> {
        self.get(&format!("/v1/pods/{uid}"))
    }

    /// `/v1/events`, those after `id`.
    pub(crate) fn events(&self, id: u64) -> Result<Vec<Event>> {
        self.get(&format!("/v1/events?after={id}"))
    }

    /// What is told of each eviction so far.
    pub(crate) fn evictions(&self) -> Result<Vec<Eviction>> {
        let events = self.events(0)?.into_iter();
        let evictions = events.filter_map(|event| match event.kind {
            EventKind::Eviction(eviction) => Some(*eviction),
            _ => None,
        });
        Ok(evictions.collect())
    }

    /// Resident memory, bytes.
    pub(crate) fn rss(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// Resident memory that no file stands behind, bytes.
    pub(crate) fn anonymous(&self) -> Result<u64> {
        self.memory("RssAnon:")
    }

    fn memory(&self, field: &str) -> Result<u64> {
        memory(self.pid(), field)
    }

    /// CPU time of all its threads, nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        Ok(SchedStat::of_process(self.pid())?.ran)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().cast_signed()), signal)?)
    }

    /// Whether it has ended; reaps it when it has.
    pub(crate) fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for its end, and until all that it wrote is in the log.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = eventually(limit, || {
            self.child.try_wait()?.context("the agent has not ended")
        })?;
        until(limit, "the end of the log", || self.reader.is_finished())?;
        Ok(status)
    }

    /// Ends it as an operator does, and looks that it left nothing: no kernel object but pinned maps, no
    /// socket.
    pub(crate) fn stop(&mut self, signal: Signal, limit: Duration) -> Result<()> {
        let objects = Objects::of_process(self.pid())?.without_pinned(&self.bpf_fs);
        self.signal(signal)?;
        let status = self.wait(limit)?;
        ensure!(
            status.code() == Some(0),
            "the agent ended with {status} after {signal:?}"
        );
        ensure!(
            !self.socket.exists(),
            "the agent left its socket {}",
            self.socket.display()
        );
        // The kernel frees programs after a grace period.
        eventually(limit, || objects.ensure_gone())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A moment to clean up by itself; the guard of the cgroups does it otherwise.
            let _ = self.signal(Signal::SIGTERM);
            let _ = self.wait(Duration::from_secs(3));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that has started this one, while both run.
fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent?.trim().parse().ok()
}
