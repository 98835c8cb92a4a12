//! Pods that run through CRI, as a kubelet has them run: below the pod's cgroup, with its labels.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::pods::runtime::cri::{
    Container, ContainerMetadata, ContainerState, Nothing, PodSandbox, PodSandboxMetadata,
    SandboxState,
};

use super::Containerd;
use super::cri::{
    ContainerConfig, CreateContainerRequest, Id, ImageSpec, LinuxContainerConfig,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount,
    NamespaceOption, OF_CONTAINER, PodSandboxConfig, RunPodSandboxRequest, method,
};
use super::image;
use crate::harness::{Cgroup, PodSpec, eventually};

/// How long a pod may take to be torn down: what the runtime refuses is tried again, ever later.
pub(crate) const TEARDOWN: Duration = Duration::from_secs(60);

/// What the one container is called.
pub(crate) const WORKLOAD: &str = "main";

/// The runtime's own choice.
pub(crate) const DEFAULT_HANDLER: &str = "";

/// A container to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started<'a> {
    /// Its name in the pod's spec.
    pub(crate) name: &'a str,
    /// How often one of this name was started before.
    pub(crate) attempt: u32,
    /// See [`Containerd::run_pod`].
    pub(crate) go: &'a Path,
    /// The same.
    pub(crate) script: &'a str,
}

/// A pod with one container.
#[derive(Debug)]
pub(crate) struct RunningPod {
    /// The pod's cgroup.
    pub(crate) cgroup: Cgroup,
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// The container's id.
    pub(crate) container: String,
}

impl RunningPod {
    /// Its sandbox's process.
    pub(crate) fn sandbox_pid(&self) -> Result<u32> {
        only_process(&self.cgroup.child(&self.sandbox))
    }

    /// Processes of its container.
    pub(crate) fn workload(&self) -> Vec<u32> {
        self.cgroup.child(&self.container).procs()
    }
}

fn only_process(cgroup: &Cgroup) -> Result<u32> {
    let procs = cgroup.procs();
    ensure!(
        procs.len() == 1,
        "{} has the processes {procs:?}",
        cgroup.path()
    );
    Ok(procs[0])
}

impl Containerd {
    /// Runs a pod below `cgroup`, which must be there. Its container runs `script` in a shell; what is in
    /// the machine's directory `go` it sees in `/go`, and this program is `/e2e`.
    pub(crate) fn run_pod(
        &self,
        spec: &PodSpec,
        cgroup: &Cgroup,
        go: &Path,
        script: &str,
    ) -> Result<RunningPod> {
        self.run_pod_by(DEFAULT_HANDLER, spec, cgroup, go, script)
    }

    /// The same by a handler of the runtime, as a RuntimeClass names one.
    pub(crate) fn run_pod_by(
        &self,
        handler: &str,
        spec: &PodSpec,
        cgroup: &Cgroup,
        go: &Path,
        script: &str,
    ) -> Result<RunningPod> {
        let config = sandbox_config(spec, cgroup);
        let Id { id: sandbox } = self.call(
            method::RUN_POD_SANDBOX,
            RunPodSandboxRequest {
                config: Some(config.clone()),
                runtime_handler: handler.to_owned(),
            },
        )?;
        let mut pod = RunningPod {
            cgroup: cgroup.clone(),
            sandbox,
            container: String::new(),
        };
        let main = Started {
            name: WORKLOAD,
            attempt: 0,
            go,
            script,
        };
        pod.container = self.run_container(spec, &pod, main)?;
        Ok(pod)
    }

    /// Runs one more container in a pod's sandbox; returns its id.
    pub(crate) fn run_container(
        &self,
        spec: &PodSpec,
        pod: &RunningPod,
        started: Started<'_>,
    ) -> Result<String> {
        let Id { id } = self.call(
            method::CREATE_CONTAINER,
            CreateContainerRequest {
                pod_sandbox_id: pod.sandbox.clone(),
                config: Some(container_config(spec, started)?),
                sandbox_config: Some(sandbox_config(spec, &pod.cgroup)),
            },
        )?;
        let Nothing {} = self.call(method::START_CONTAINER, Id { id: id.clone() })?;
        Ok(id)
    }

    /// What the runtime says of a pod's sandbox and container: ready, running.
    pub(crate) fn state_of(&self, pod: &RunningPod) -> Result<(bool, bool)> {
        let (sandboxes, containers): (Vec<PodSandbox>, Vec<Container>) =
            self.ask(async |client| Ok((client.sandboxes().await?, client.containers().await?)))?;
        let sandbox = sandboxes.iter().find(|sandbox| sandbox.id == pod.sandbox);
        let container = containers.iter().find(|one| one.id == pod.container);
        Ok((
            sandbox.context("the sandbox is gone")?.state == SandboxState::Ready as i32,
            container.context("the container is gone")?.state == ContainerState::Running as i32,
        ))
    }

    /// Stops and removes a container.
    pub(crate) fn remove_container(&self, id: &str) -> Result<()> {
        let id = Id { id: id.to_owned() };
        let Nothing {} = self.call(method::REMOVE_CONTAINER, id)?;
        Ok(())
    }

    /// Stops and removes a pod, as a kubelet does in the end: time and again, for while the agent stops the same sandbox
    /// the runtime may find its network half gone, and refuse.
    pub(crate) fn remove(&self, pod: &RunningPod) -> Result<()> {
        eventually(TEARDOWN, || {
            self.ask(async |client| client.stop_sandbox(&pod.sandbox).await)
        })?;
        let Nothing {} = self.call(
            method::REMOVE_POD_SANDBOX,
            Id {
                id: pod.sandbox.clone(),
            },
        )?;
        Ok(())
    }
}

fn own_pids() -> Option<NamespaceOption> {
    Some(NamespaceOption { pid: OF_CONTAINER })
}

/// `pkg/kubelet/types/labels.go`.
fn labels(spec: &PodSpec) -> BTreeMap<String, String> {
    [
        ("io.kubernetes.pod.name", spec.name.as_str()),
        ("io.kubernetes.pod.namespace", spec.namespace),
        ("io.kubernetes.pod.uid", &spec.uid),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn sandbox_config(spec: &PodSpec, cgroup: &Cgroup) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: spec.name.clone(),
            uid: spec.uid.clone(),
            namespace: spec.namespace.to_owned(),
            attempt: 0,
        }),
        hostname: spec.name.clone(),
        labels: labels(spec),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("/{}", cgroup.path()),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: own_pids(),
            }),
        }),
    }
}

fn container_config(spec: &PodSpec, started: Started<'_>) -> Result<ContainerConfig> {
    let Started {
        name,
        attempt,
        go,
        script,
    } = started;
    let program = fs::canonicalize("/proc/self/exe").context("find this program")?;
    let go = go.display().to_string();
    let program = program.display().to_string();
    // This program is linked to the machine's libraries.
    let mounts = [
        ("/usr/lib", "/usr/lib"),
        ("/lib", "/lib"),
        ("/lib64", "/lib64"),
        (&go, "/go"),
        (&program, "/e2e"),
    ];
    let mut labels = labels(spec);
    labels.insert("io.kubernetes.container.name".to_owned(), name.to_owned());
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: name.to_owned(),
            attempt,
        }),
        image: Some(ImageSpec {
            image: image::NAME.to_owned(),
        }),
        command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        mounts: mounts
            .into_iter()
            .map(|(host_path, container_path)| Mount {
                container_path: container_path.to_owned(),
                host_path: host_path.to_owned(),
                readonly: container_path != "/go",
            })
            .collect(),
        labels,
        linux: Some(LinuxContainerConfig {
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: own_pids(),
            }),
        }),
    })
}
