//! A node: a private root with an agent on it, and pods.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::{PodStats, SourceStats};
use podwarden_policy::name::parse_pod;

use super::agent::{Agent, Options};
use super::cgroup::Cgroup;
use super::manifest::PodSpec;
use super::sandbox::Sandbox;
use super::wait::{eventually, until};
use super::workload::Workload;
use crate::cases::Context;

/// See the module. Fields are dropped in order: the agent ends before its cgroups go.
#[derive(Debug)]
pub(crate) struct Node {
    /// The agent.
    pub(crate) agent: Agent,
    /// Its root.
    pub(crate) sandbox: Sandbox,
    limit: Duration,
    /// In observe mode, and beside a kubelet, the agent makes no cgroups; the kubelet does.
    observes: bool,
    driver: &'static str,
}

/// A pod whose cgroup is there.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    /// What its manifest says.
    pub(crate) spec: PodSpec,
    /// Its cgroup.
    pub(crate) cgroup: Cgroup,
    /// Its one container's cgroup, which the harness makes as a runtime would.
    pub(crate) main: Cgroup,
}

impl Pod {
    /// Its uid.
    pub(crate) fn uid(&self) -> &str {
        &self.spec.uid
    }

    /// Starts a process in its container.
    pub(crate) fn start(&self, args: &[&str]) -> Result<Workload> {
        Workload::start(&self.main, args)
    }
}

impl Node {
    /// Starts an agent on a new root and waits until it is ready.
    pub(crate) fn start(context: &Context, options: &Options) -> Result<Self> {
        let sandbox = match (options.driver, options.mode) {
            ("systemd", "enforce") => Sandbox::slice(),
            _ => Sandbox::new(),
        };
        Self::on(context, sandbox?, options)
    }

    /// Starts an agent on a root that may hold something already.
    pub(crate) fn on(context: &Context, sandbox: Sandbox, options: &Options) -> Result<Self> {
        let mut node = Self::unready(context, sandbox, options)?;
        node.agent.wait_ready(context.limit(30))?;
        Ok(node)
    }

    /// The same, and does not wait until it is ready.
    pub(crate) fn unready(context: &Context, sandbox: Sandbox, options: &Options) -> Result<Self> {
        let observes = options.mode == "observe" || options.assist;
        if observes {
            let name = match options.driver {
                "systemd" => "kubepods.slice",
                _ => "kubepods",
            };
            sandbox.root.child(name).create()?;
        }
        let agent = Agent::spawn(context.agent(), &sandbox, options)?;
        Ok(Self {
            observes,
            driver: options.driver,
            ..Self::of(context, sandbox, agent)
        })
    }

    /// An agent that was started already, beside what is taken for a kubelet.
    pub(crate) fn of(context: &Context, sandbox: Sandbox, agent: Agent) -> Self {
        context.watch(&agent.log);
        Self {
            agent,
            sandbox,
            limit: context.limit(20),
            observes: true,
            driver: "cgroupfs",
        }
    }

    /// The kubepods cgroup.
    pub(crate) fn kubepods(&self) -> Cgroup {
        self.sandbox.kubepods(self.driver).1
    }

    /// Adds one pod.
    pub(crate) fn pod(&self, spec: PodSpec) -> Result<Pod> {
        self.pods(vec![spec])?
            .pop()
            .context("one spec makes one pod")
    }

    /// Writes manifests, waits until the agent has made the pods' cgroups and knows them, and makes
    /// the containers'.
    pub(crate) fn pods(&self, specs: Vec<PodSpec>) -> Result<Vec<Pod>> {
        let mut pods = Vec::with_capacity(specs.len());
        for spec in specs {
            let cgroup = self.manifest(&spec)?;
            let main = cgroup.child("main");
            pods.push(Pod { spec, cgroup, main });
        }
        for pod in &pods {
            if self.observes {
                pod.cgroup.create_below(&self.sandbox.root)?;
            }
            until(
                self.limit,
                &format!("the cgroup {}", pod.cgroup.path()),
                || pod.cgroup.exists(),
            )?;
            pod.main.create()?;
        }
        self.known(&pods)?;
        Ok(pods)
    }

    /// Where a pod's manifest is.
    fn manifest_file(&self, spec: &PodSpec) -> PathBuf {
        self.sandbox.pods_dir().join(format!("{}.json", spec.uid))
    }

    /// Takes a manifest away and does not wait.
    pub(crate) fn withdraw(&self, spec: &PodSpec) -> Result<()> {
        fs::remove_file(self.manifest_file(spec)).context("take a manifest away")
    }

    /// Puts a manifest in place and does not wait; the answer is the cgroup that the pod is to have.
    pub(crate) fn manifest(&self, spec: &PodSpec) -> Result<Cgroup> {
        let manifest = self.manifest_file(spec);
        // Renamed into place: a directory watcher must never see half a manifest.
        let draft = self.sandbox.dir().join("draft.json");
        fs::write(&draft, spec.manifest().to_string()).context("write a manifest")?;
        fs::rename(&draft, &manifest).context("put a manifest in place")?;
        Ok(self.cgroup_of(spec))
    }

    /// Waits until the API lists all of `pods`, each with its container.
    fn known(&self, pods: &[Pod]) -> Result<()> {
        eventually(self.limit, || {
            let known = self.agent.pods()?;
            for pod in pods {
                let found = known.iter().find(|p| p.pod_ref.uid == pod.uid());
                let found = found.with_context(|| format!("pod {} is unknown", pod.spec.name))?;
                ensure!(
                    !found.containers.is_empty(),
                    "pod {} has no container",
                    pod.spec.name
                );
            }
            Ok(())
        })
    }

    /// The cgroup that a pod has or is to have.
    pub(crate) fn cgroup_of(&self, spec: &PodSpec) -> Cgroup {
        let (kubepods, _) = self.sandbox.kubepods(self.driver);
        let name = spec.components().fold(kubepods, |name, c| name.child(c));
        self.sandbox.cgroup(self.driver, &name)
    }

    /// How the agent says that one of its sources of pods is doing.
    pub(crate) fn source(&self, name: &str) -> Result<SourceStats> {
        let sources = self.agent.node()?.pod_sources;
        let source = sources.into_iter().find(|source| source.name == name);
        source.with_context(|| format!("/v1/node tells of no source {name}"))
    }

    /// Waits until the agent has exactly these pods.
    pub(crate) fn expect_pods(&self, specs: &[&PodSpec]) -> Result<()> {
        let wanted: BTreeSet<_> = specs.iter().map(|spec| spec.uid.as_str()).collect();
        eventually(self.limit, || {
            let pods = self.agent.pods()?;
            let found: BTreeSet<_> = pods.iter().map(|pod| pod.pod_ref.uid.as_str()).collect();
            ensure!(found == wanted, "{found:?}, not {wanted:?}");
            Ok(())
        })
    }

    /// Asks for a pod's figures until they satisfy `check`.
    pub(crate) fn expect(
        &self,
        uid: &str,
        check: impl Fn(&PodStats) -> Result<()>,
    ) -> Result<PodStats> {
        eventually(self.limit, || {
            let stats = self.agent.pod(uid)?;
            check(&stats)?;
            Ok(stats)
        })
        .with_context(|| format!("pod {uid}"))
    }

    /// The level at which the agent acts on all pods' memory, bytes, once there is one.
    pub(crate) fn level(&self) -> Result<u64> {
        eventually(self.limit, || {
            let tiers = self.agent.node()?.tiers;
            let kubepods = tiers.iter().find(|tier| tier.name == "kubepods");
            kubepods
                .and_then(|tier| tier.armed_level_bytes)
                .context("kubepods has no armed level")
        })
    }

    /// How long to wait for what takes a moment.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Kills the agent, and leaves the rest to its guards.
    pub(crate) fn kill_agent(&mut self) -> Result<()> {
        self.agent.signal(Signal::SIGKILL)?;
        self.agent.wait(self.limit).map(drop)
    }

    /// Kills the agent's guards first, so that only the next agent or `podwarden undo` puts anything back.
    pub(crate) fn kill_agent_and_guards(&mut self) -> Result<()> {
        for guard in self.agent.children() {
            kill(Pid::from_raw(guard.cast_signed()), Signal::SIGKILL)?;
        }
        self.kill_agent()
    }

    /// Ends everything at once, as a machine that loses its power does; files stay.
    pub(crate) fn go_down(&mut self) -> Result<()> {
        self.kill_agent_and_guards()?;
        self.sandbox.go_down()
    }

    /// Removes the containers' cgroups, ends the agent with SIGTERM and looks that it left nothing
    /// behind. All workloads must have ended.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.empty()?;
        self.agent.stop(Signal::SIGTERM, self.limit)?;
        self.ensure_nothing_left()
    }

    /// The same where the harness has made the tree itself, down to `own`: that must still be there.
    pub(crate) fn finish_with(mut self, own: &Cgroup) -> Result<()> {
        self.agent.stop(Signal::SIGTERM, self.limit)?;
        ensure!(
            own.exists(),
            "the agent removed {}, which is not its own",
            own.path()
        );
        Ok(())
    }

    /// A tier's cgroup, which the agent makes when it starts.
    pub(crate) fn tier(&self, name: &str) -> Result<Cgroup> {
        let (kubepods, _) = self.sandbox.kubepods(self.driver);
        let tier = self.sandbox.cgroup(self.driver, &kubepods.child(name));
        until(self.limit, &format!("the cgroup {}", tier.path()), || {
            tier.exists()
        })?;
        Ok(tier)
    }

    /// Removes every cgroup below the pods' cgroups, which the agent did not make.
    pub(crate) fn empty(&self) -> Result<()> {
        fn visit(cgroup: &Cgroup, in_pod: bool, limit: Duration) -> Result<()> {
            for child in cgroup.children() {
                let name = child.path().rsplit('/').next().unwrap_or_default();
                let is_pod = parse_pod(name).is_some() && !in_pod;
                visit(&child, in_pod || is_pod, limit)?;
                if in_pod {
                    // The last process may still be on its way out.
                    eventually(limit, || child.remove())?;
                }
            }
            Ok(())
        }
        visit(&self.kubepods(), false, self.limit)
    }

    /// After the agent's end: nothing that it made is left.
    pub(crate) fn ensure_nothing_left(&self) -> Result<()> {
        let left = self.sandbox.root.children();
        ensure!(
            left.is_empty(),
            "the agent left cgroups: {:?}",
            left.iter().map(Cgroup::path).collect::<Vec<_>>()
        );
        Ok(())
    }
}
