//! A node with a protected pod and a best-effort one, whose tier an agent holds, and every way in which that ends.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;
use podwarden_policy::settings::Controller;

use super::quota;
use crate::cases::Context;
use crate::cases::undo::{found, steps, undo};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Workload, eventually};

/// See the module.
pub(in crate::cases) struct Scene {
    pub(in crate::cases) node: Node,
    /// The protected pod.
    pub(in crate::cases) web: Pod,
    /// The best-effort pod.
    pub(in crate::cases) batch: Pod,
    /// The besteffort tier.
    pub(in crate::cases) tier: Cgroup,
    /// What runs in the pods.
    pub(in crate::cases) work: Vec<Workload>,
}

impl Scene {
    /// Starts an agent, and makes both pods, in which nothing runs.
    pub(in crate::cases) fn start(
        context: &Context,
        options: &Options,
        web: PodSpec,
    ) -> Result<Self> {
        let node = Node::start(context, options)?;
        let web = node.pod(web)?;
        let batch = node.pod(PodSpec::best_effort("batch"))?;
        Ok(Self {
            tier: node.tier("besteffort")?,
            node,
            web,
            batch,
            work: Vec::new(),
        })
    }

    /// Waits until best effort has a quota.
    pub(in crate::cases) fn held(&self) -> Result<()> {
        eventually(self.node.limit(), || {
            ensure!(quota(&self.tier)?.is_some(), "best effort is not held back");
            Ok(())
        })
    }

    /// Waits until it has none.
    pub(in crate::cases) fn free(&self) -> Result<()> {
        eventually(self.node.limit(), || self.is_free())
    }

    /// An error where it has one.
    pub(in crate::cases) fn is_free(&self) -> Result<()> {
        let quota = quota(&self.tier)?;
        ensure!(quota.is_none(), "best effort has a quota of {quota:?} us");
        Ok(())
    }

    /// Writes that the agent takes for another program's.
    pub(in crate::cases) fn foreign_writes(&self) -> Result<usize> {
        let events = self.node.agent.events(0)?;
        let foreign = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::ForeignWrite { .. }));
        Ok(foreign.count())
    }

    /// Whether this kernel takes a list of CPUs away from a cgroup with a process.
    pub(in crate::cases) fn takes_lists_away(&self) -> Result<bool> {
        let probe = self.node.sandbox.root.child("probe");
        probe.create()?;
        let mut process = Workload::start(&probe, &["sleep"])?;
        let mounts = probe.mounts();
        let mount = mounts.of(Controller::CpuSet).context("no cpuset")?;
        let file = mount.join(probe.path()).join("cpuset.cpus");
        let taken = match mounts.is_on_v2(Controller::CpuSet) {
            true => {
                fs::write(&file, "0\n").with_context(|| file.display().to_string())?;
                fs::write(&file, "\n").is_ok()
            }
            // None is empty there.
            false => true,
        };
        process.kill();
        eventually(self.node.limit(), || probe.remove())?;
        Ok(taken)
    }

    /// Runs `podwarden undo` beside the pods, which run: it exits with 1, and nothing stays but the cgroups that they
    /// are in, and the tier's list of CPUs where the kernel does not take that away.
    pub(in crate::cases) fn undo(&self, context: &Context) -> Result<()> {
        let (code, answer) = undo(context, &self.node, &[])?;
        ensure!(code == Some(1), "beside pods that run: {code:?} {answer}");
        for step in steps(&answer)? {
            let (_, stays) = found(&answer, step)?;
            let is_of_kernel = match stays.as_slice() {
                [one] if step == "quotas" && self.tier.path().ends_with(&format!("/{one}")) => {
                    !self.takes_lists_away()?
                }
                _ => false,
            };
            ensure!(
                step == "cgroups" || stays.is_empty() || is_of_kernel,
                "{answer}"
            );
        }
        self.is_free().context("podwarden undo ran")
    }

    /// Ends the pods. Then `podwarden undo` exits with 0, and leaves nothing.
    pub(in crate::cases) fn finish_by_undo(self, context: &Context) -> Result<()> {
        drop(self.work);
        self.node.empty()?;
        let (code, answer) = undo(context, &self.node, &[])?;
        ensure!(code == Some(0), "without a pod: {code:?} {answer}");
        self.node.ensure_nothing_left()
    }

    /// Ends the agent by SIGTERM: best effort has no quota by then.
    pub(in crate::cases) fn finish(mut self) -> Result<()> {
        let limit = self.node.limit();
        self.node.agent.stop(Signal::SIGTERM, limit)?;
        self.is_free().context("the agent has ended")?;
        self.empty()
    }

    /// Ends the pods.
    pub(in crate::cases) fn empty(self) -> Result<()> {
        drop(self.work);
        self.node.empty()?;
        for pod in [&self.web, &self.batch] {
            if pod.cgroup.exists() {
                eventually(self.node.limit(), || pod.cgroup.remove())?;
            }
        }
        Ok(())
    }
}
