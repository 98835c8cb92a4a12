//! Pods for the cases: busybox with this program in it.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Cluster, NODE, PODS};
use crate::containerd::BUSYBOX;
use crate::harness::{Cgroup, eventually};

/// How long pods may take to be gone.
const GONE: Duration = Duration::from_secs(60);

impl Cluster {
    /// Has the pod's filler begin.
    pub(crate) fn go(&self, name: &str) -> Result<()> {
        let signal = self.enclosure.dir().join("go").join(name);
        fs::write(signal, "").context("let the pod go on")
    }

    /// The directory in which a file of its name has a pod's filler begin.
    pub(crate) fn go_dir(&self) -> std::path::PathBuf {
        self.enclosure.dir().join("go")
    }

    /// A filler that is started again does not begin.
    pub(crate) fn stay(&self, name: &str) -> Result<()> {
        let signal = self.enclosure.dir().join("go").join(name);
        fs::remove_file(signal).context("have the pod wait")
    }

    /// Has the kubelet run a static pod; the answer is its uid, which its mirror tells.
    pub(crate) fn run_static(&self, pod: &Pod) -> Result<String> {
        let dir = self.enclosure.dir();
        let manifest = pod.manifest(&dir.join("go"))?;
        self.write_static(pod.name(), &manifest)?;
        let mirror = format!("{}-{NODE}", pod.name());
        self.running(&mirror)?;
        let uid = &self.pod(&mirror)?["metadata"]["annotations"]["kubernetes.io/config.mirror"];
        uid.as_str().map(str::to_owned).context("it is no mirror")
    }

    /// Gives the kubelet a static pod's manifest.
    pub(crate) fn write_static(&self, name: &str, manifest: &Value) -> Result<()> {
        let file = self.dir().join(format!("manifests/{name}.json"));
        fs::write(file, manifest.to_string()).context("write the static pod's manifest")
    }

    /// Takes one away.
    pub(crate) fn end_static(&self, name: &str) -> Result<()> {
        let file = self.dir().join(format!("manifests/{name}.json"));
        fs::remove_file(file).context("remove the static pod's manifest")
    }

    /// Takes all of them away.
    pub(crate) fn remove_static(&self) -> Result<()> {
        for entry in fs::read_dir(self.dir().join("manifests"))? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// The lines that the first container of a pod has written, as its runtime keeps them.
    pub(crate) fn said(&self, pod: &Pod, uid: &str) -> Result<Vec<String>> {
        let file = format!("/var/log/pods/default_{}_{uid}/{MAIN}/0.log", pod.name());
        let text = fs::read_to_string(self.enclosure.path(&file))
            .with_context(|| format!("read {file} of the enclosure"))?;
        // Time, stream and a tag stand before each.
        let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        Ok(lines.map(str::to_owned).collect())
    }

    /// The pod as it is made.
    pub(crate) fn manifest(&self, pod: &Pod) -> Result<Value> {
        pod.manifest(&self.enclosure.dir().join("go"))
    }

    /// Removes the pods of a case and waits until nothing of them runs.
    pub(crate) fn clear(&self) -> Result<()> {
        self.remove_static()?;
        for entry in fs::read_dir(self.enclosure.dir().join("go"))? {
            fs::remove_file(entry?.path())?;
        }
        self.api.delete(&format!("{PODS}?gracePeriodSeconds=1"))?;
        eventually(self.limit(GONE), || {
            let pods = self.api.list(PODS)?;
            let names: Vec<_> = pods.iter().map(|pod| &pod["metadata"]["name"]).collect();
            ensure!(names.is_empty(), "pods are left: {names:?}");
            let own = match self.agent_pod() {
                Ok(pod) => pod["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                Err(_) => String::new(),
            };
            let left: Vec<_> = self
                .pod_cgroups()
                .into_iter()
                .filter(|pod| own.is_empty() || !self.driver.is_of(pod.path(), &own))
                .collect();
            ensure!(left.is_empty(), "cgroups of pods are left: {left:?}");
            Ok(())
        })
    }

    /// The cgroups of pods.
    pub(crate) fn pod_cgroups(&self) -> Vec<Cgroup> {
        let tiers = [
            self.tier("burstable"),
            self.tier("besteffort"),
            self.kubepods(),
        ];
        let pods = tiers.iter().flat_map(Cgroup::children);
        pods.filter(|pod| self.is_pod(pod.path())).collect()
    }

    /// The processes of a pod, each with its cgroup; systemd has crun make one more within a container's.
    pub(crate) fn processes_of(&self, uid: &str) -> Vec<(Cgroup, u32)> {
        let pods = self.pod_cgroups().into_iter();
        let own = pods.filter(|pod| self.driver.is_of(pod.path(), uid));
        own.flat_map(|pod| pod.all_procs()).collect()
    }

    /// Whether a path is that of a pod's cgroup.
    pub(crate) fn is_pod(&self, path: &str) -> bool {
        let name = path.rsplit('/').next();
        name.is_some_and(|name| self.driver.is_pod(name))
    }
}

/// What the one container is called.
const MAIN: &str = "main";

/// A pod of the namespace `default`.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    name: String,
    script: String,
    resources: Value,
    critical: bool,
    labels: Value,
    grace_seconds: u32,
    lifecycle: Value,
}

impl Pod {
    /// Its container runs `script` in a shell, where `/e2e` is this program. BestEffort.
    pub(crate) fn new(name: &str, script: &str) -> Self {
        Self {
            name: name.to_owned(),
            script: script.to_owned(),
            resources: json!({}),
            critical: false,
            labels: json!({}),
            grace_seconds: 1,
            lifecycle: json!({}),
        }
    }

    /// One that fills memory once the file of its name is in the directory `/go`.
    pub(crate) fn filler(name: &str, mib: u64, rate: u64) -> Self {
        // As process 1 of its namespace this program would take itself for a machine's first.
        let script = format!(
            "while [ ! -e /go/{name} ]; do usleep 10000; done; \
             /e2e workload fill --mib {mib} --rate {rate} --step-kib 64; true"
        );
        Self::new(name, &script)
    }

    /// One that holds memory.
    pub(crate) fn holding(name: &str, mib: u64) -> Self {
        Self::new(name, &format!("/e2e workload anon --mib {mib}; true"))
    }

    /// Writes a file first, which leaves so much page cache that no process uses.
    pub(crate) fn caching(mut self, mib: u64) -> Self {
        self.script = format!(
            "busybox dd if=/dev/zero of=/cached bs=1M count={mib} 2>/dev/null; {}",
            self.script
        );
        self
    }

    /// Requests this memory, and has it as its limit if it is Guaranteed.
    pub(crate) fn requesting(mut self, memory: &str, guaranteed: bool) -> Self {
        let amounts = json!({"cpu": "10m", "memory": memory});
        self.resources = match guaranteed {
            true => json!({"requests": amounts, "limits": amounts}),
            false => json!({"requests": amounts}),
        };
        self
    }

    /// Its container's `resources`.
    pub(crate) fn with_resources(self, resources: Value) -> Self {
        Self { resources, ..self }
    }

    /// With one more label.
    pub(crate) fn labelled(mut self, key: &str, value: &str) -> Self {
        self.labels[key] = value.into();
        self
    }

    /// Has this time to end, and its container's `lifecycle`.
    pub(crate) fn ending(mut self, grace_seconds: u32, lifecycle: Value) -> Self {
        (self.grace_seconds, self.lifecycle) = (grace_seconds, lifecycle);
        self
    }

    /// Neither a kubelet nor the agent evicts it.
    pub(crate) fn critical(self) -> Self {
        Self {
            critical: true,
            ..self
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A v1 Pod; `go` is the machine's directory for `/go`.
    pub(super) fn manifest(&self, go: &std::path::Path) -> Result<Value> {
        let program = fs::canonicalize("/proc/self/exe").context("find this program")?;
        let (go, program) = (go.display().to_string(), program.display().to_string());
        // This program is linked to the machine's libraries.
        let mounts = [
            ("usr-lib", "/usr/lib", "/usr/lib"),
            ("lib", "/lib", "/lib"),
            ("lib64", "/lib64", "/lib64"),
            ("go", &go, "/go"),
            ("e2e", &program, "/e2e"),
        ];
        let volumes =
            mounts.map(|(name, path, _)| json!({"name": name, "hostPath": {"path": path}}));
        let inside = mounts
            .map(|(name, _, path)| json!({"name": name, "mountPath": path, "readOnly": true}));
        let mut spec = json!({
            "terminationGracePeriodSeconds": self.grace_seconds,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": MAIN,
                "image": BUSYBOX,
                "command": ["/bin/sh", "-c", self.script],
                "resources": self.resources,
                "lifecycle": self.lifecycle,
                "volumeMounts": inside,
            }],
            "volumes": volumes,
        });
        if self.critical {
            spec["priorityClassName"] = "system-node-critical".into();
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "labels": self.labels},
            "spec": spec,
        }))
    }
}
