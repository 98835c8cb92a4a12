//! The agent in the pod of the shipped DaemonSet.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::{Event, EventKind, Eviction, NodeStats, PodStats};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Cluster, condition, uid};
use crate::harness::{Shipped, eventually, http_get};

const NAMESPACE: &str = "/api/v1/namespaces/podwarden";
const SOCKET: &str = "/run/podwarden/podwarden.sock";
/// How long a pod of it may take to be ready: its first probe may be a period late.
const READY: Duration = Duration::from_secs(60);

impl Cluster {
    /// Applies what is shipped, as it is.
    pub(crate) fn deploy(&self) -> Result<()> {
        let file = xtask::paths::Workspace::locate()
            .root()
            .join("deploy/kubernetes/podwarden.yaml");
        self.kubectl(&["apply", "-f", &file.display().to_string()])
    }

    /// Has the agent run with a configuration made from the shipped one.
    pub(crate) fn agent_with(&self, change: impl FnOnce(&str) -> String) -> Result<()> {
        let shipped = Shipped::read()?;
        let text = shipped.object("ConfigMap")?["data"]["config.yaml"].as_str();
        let text = change(text.context("the ConfigMap has no config.yaml")?);
        self.deploy()?;
        let path = format!("{NAMESPACE}/configmaps/podwarden");
        let before = self.api.get(&path)?["data"]["config.yaml"].take();
        self.api
            .patch(&path, &json!({"data": {"config.yaml": text}}))?;
        let mut unfit = HashSet::new();
        if before != text.as_str() {
            unfit.extend(self.agent_pod().and_then(|pod| uid(&pod)));
        }
        eventually(self.limit(READY), || {
            let pod = self.agent_pod()?;
            let uid = uid(&pod)?;
            let file = self.enclosure.path(&format!(
                "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~configmap/config/config.yaml"
            ));
            // The kubelet may start a pod with the configuration that it has kept from before, and changes the file
            // later: the agent has read what was there first.
            if !unfit.contains(&uid) && fs::read_to_string(file)? != text {
                unfit.insert(uid.clone());
            }
            if unfit.contains(&uid) {
                let name = pod["metadata"]["name"].as_str().context("it has no name")?;
                self.api
                    .delete(&format!("{NAMESPACE}/pods/{name}?gracePeriodSeconds=2"))?;
                bail!("it has another configuration");
            }
            ensure!(!pod["metadata"]["deletionTimestamp"].is_string(), "it ends");
            let answer = http_get(&self.socket(), "/readyz")?;
            ensure!(answer.status == 200, "/readyz answers {}", answer.status);
            let container = &pod["status"]["containerStatuses"][0];
            ensure!(container["state"]["running"].is_object(), "{container}");
            Ok(())
        })
        .context("the agent does not become ready")
    }

    /// Removes it, and waits until it has ended.
    pub(crate) fn without_agent(&self) -> Result<()> {
        let path = "/apis/apps/v1/namespaces/podwarden/daemonsets/podwarden";
        self.api.delete(path)?;
        eventually(self.limit(READY), || {
            let pods = self.api.list(&format!("{NAMESPACE}/pods"))?;
            ensure!(pods.is_empty(), "{} pods of the agent are left", pods.len());
            Ok(())
        })
    }

    /// Kills the agent of the pod with this uid as a crash would, whatever the API server says.
    pub(crate) fn kill_agent(&self, uid: &str) -> Result<()> {
        let pid = Pid::from_raw(self.agent_pid(uid)?.cast_signed());
        kill(pid, Signal::SIGKILL).context("kill the agent")
    }

    /// The agent's process in the pod with this uid.
    pub(crate) fn agent_pid(&self, uid: &str) -> Result<u32> {
        let mut processes = self.processes_of(uid).into_iter().map(|(_, pid)| pid);
        let of_agent = processes.find(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "podwarden")
        });
        of_agent.context("the agent does not run")
    }

    /// Its pod.
    pub(crate) fn agent_pod(&self) -> Result<Value> {
        let pods = self.api.list(&format!("{NAMESPACE}/pods"))?;
        let mut pods = pods.into_iter();
        let pod = pods.next().context("the agent has no pod")?;
        ensure!(pods.next().is_none(), "the agent has several pods");
        Ok(pod)
    }

    /// An error until the API server knows that its pod is ready.
    pub(crate) fn agent_is_ready(&self) -> Result<()> {
        let pod = self.agent_pod()?;
        let ready = condition(&pod, "Ready").context("it has no condition Ready")?;
        ensure!(ready["status"] == "True", "{ready}");
        Ok(())
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.enclosure.path(SOCKET)
    }

    /// An answer of the agent.
    pub(crate) fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        ask(&self.socket(), path)
    }

    /// `/v1/node`.
    pub(crate) fn node_stats(&self) -> Result<NodeStats> {
        self.ask("/v1/node")
    }

    /// `/v1/pods/{uid}`.
    pub(crate) fn pod_stats(&self, uid: &str) -> Result<PodStats> {
        self.ask(&format!("/v1/pods/{uid}"))
    }

    /// The evictions since the agent started.
    pub(crate) fn evictions(&self) -> Result<Vec<Eviction>> {
        Self::evictions_at(&self.socket())
    }

    /// The same, from another thread.
    pub(crate) fn evictions_at(socket: &Path) -> Result<Vec<Eviction>> {
        let events: Vec<Event> = ask(socket, "/v1/events?after=0")?;
        let evictions = events.into_iter().filter_map(|event| match event.kind {
            EventKind::Eviction(eviction) => Some(*eviction),
            _ => None,
        });
        Ok(evictions.collect())
    }

    /// Runs the agent's program as kubectl's plugin, by the administrator.
    pub(crate) fn plugin(&self, program: &Path, args: &[&str]) -> Result<Output> {
        let dir = self.enclosure.dir().join("plugin");
        fs::create_dir_all(&dir)?;
        let kubectl = self.programs.path("kubectl");
        for (name, to) in [
            ("kubectl", kubectl.as_path()),
            ("kubectl-podwarden", program),
        ] {
            let link = dir.join(name);
            if !link.exists() {
                symlink(to.canonicalize()?, link)?;
            }
        }
        let mut command = self.enclosure.command(&dir.join("kubectl-podwarden"))?;
        let path = format!("{}:/usr/bin:/bin", dir.display());
        command.args(args).env("PATH", path).env("HOME", &dir);
        command.arg("--kubeconfig").arg(&self.admin);
        command.output().context("start kubectl-podwarden")
    }

    /// Runs a program as root on the node, beside its daemons.
    pub(crate) fn on_node(&self, program: &Path, args: &[&str]) -> Result<Output> {
        let mut command = self.enclosure.command(program)?;
        command.args(args);
        let output = command.output();
        output.with_context(|| format!("start {}", program.display()))
    }

    /// Where the machine has what is at `path` on the node.
    pub(crate) fn path(&self, path: &str) -> std::path::PathBuf {
        self.enclosure.path(path)
    }

    /// What the agent's container wrote, of all its starts.
    pub(crate) fn agent_log(&self) -> Result<String> {
        self.agent_log_of("")
    }

    /// What the agent in the pod with this uid has logged.
    pub(crate) fn agent_log_of(&self, uid: &str) -> Result<String> {
        let dir = self.enclosure.dir().join("var/log/pods");
        let mut text = String::new();
        for pod in entries(&dir)? {
            // The pod's namespace, name and uid.
            let name = pod.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("podwarden_") && name.ends_with(uid) {
                for log in entries(&pod.join("podwarden"))? {
                    text += &fs::read_to_string(log)?;
                }
            }
        }
        Ok(text)
    }
}

fn ask<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T> {
    let answer = http_get(socket, path)?;
    ensure!(answer.status == 200, "GET {path}: {}", answer.text());
    serde_json::from_slice(&answer.body).with_context(|| format!("GET {path}: {}", answer.text()))
}

fn entries(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect())
}
