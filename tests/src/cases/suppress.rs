//! Best effort is held to the koordlet's formula.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::{Event, EventKind};
use podwarden_policy::settings::Controller;

use super::colocation::quota;
use super::{Case, Context, portable};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Qos, Workload, eventually};

pub(super) const CASES: &[Case] = &[
    portable(
        "suppressed_while_others_use_cpu",
        suppressed_while_others_use_cpu,
    ),
    portable(
        "observed_suppression_writes_nothing",
        observed_suppression_writes_nothing,
    ),
    portable(
        "suppression_ends_with_a_killed_agent",
        suppression_ends_with_a_killed_agent,
    ),
    portable("suppression_is_undone", suppression_is_undone),
    portable("suppression_beside_a_kubelet", suppression_beside_a_kubelet),
    portable("suppression_by_cpus", suppression_by_cpus),
];

/// What is reserved is more than the machine's own work uses: of 16 CPUs half may be used, so that pods and best effort
/// share 1.5.
fn options(policy: &str) -> Options {
    Options {
        cpu: "16",
        config: format!(
            "systemReserved: {{cpu: 6500m}}\ncolocation:\n  cpuSuppressThresholdPercent: 50\n  \
             cpuSuppressMinPercent: 2\n  cpuSuppressPolicy: {policy}\n"
        ),
        ..Options::default()
    }
}

/// The tier's quota while others use nothing, microseconds in a period of 10 ms.
const WHOLE: std::ops::RangeInclusive<u64> = 14_000..=15_000;

/// A node with a best-effort pod that takes all CPUs, and a protected one.
struct Scene {
    node: Node,
    web: Pod,
    batch: Pod,
    tier: Cgroup,
    work: Vec<Workload>,
}

impl Scene {
    fn start(context: &Context, options: &Options) -> Result<Self> {
        let node = Node::start(context, options)?;
        let web = node.pod(PodSpec::new("web", Qos::Burstable, "500m", "64Mi"))?;
        let batch = node.pod(PodSpec::best_effort("batch"))?;
        let tier = node.tier("besteffort")?;
        let work = vec![batch.start(&["burn", "--threads", "2"])?];
        Ok(Self {
            node,
            web,
            batch,
            tier,
            work,
        })
    }

    /// What the latest event lets best effort use, thousandths of a CPU.
    fn told(&self, dry: bool) -> Result<u64> {
        let events = self.node.agent.events(0)?;
        let steps = events.iter().rev().filter_map(|event| match event.kind {
            EventKind::BestEffortSuppressed {
                to_milli, dry_run, ..
            } if dry_run == dry => Some(to_milli),
            _ => None,
        });
        steps.take(1).next().context("no event of suppression")
    }

    fn held(&self) -> Result<()> {
        eventually(self.node.limit(), || {
            ensure!(quota(&self.tier)?.is_some(), "best effort has no quota");
            Ok(())
        })
    }

    fn has(&self, expected: std::ops::RangeInclusive<u64>) -> Result<()> {
        eventually(self.node.limit(), || {
            let quota = quota(&self.tier)?;
            let is_so = quota.is_some_and(|quota| expected.contains(&quota));
            ensure!(is_so, "best effort has a quota of {quota:?} us");
            Ok(())
        })
    }

    fn free(&self) -> Result<()> {
        eventually(self.node.limit(), || {
            let quota = quota(&self.tier)?;
            ensure!(quota.is_none(), "best effort has a quota of {quota:?} us");
            Ok(())
        })
    }

    fn empty(self) -> Result<()> {
        drop(self.work);
        self.node.empty()?;
        for pod in [&self.web, &self.batch] {
            if pod.cgroup.exists() {
                eventually(self.node.limit(), || pod.cgroup.remove())?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let limit = self.node.limit();
        self.node.agent.stop(Signal::SIGTERM, limit)?;
        ensure!(quota(&self.tier)?.is_none(), "the agent left a quota");
        self.empty()
    }
}

fn suppressed_while_others_use_cpu(context: &Context) -> Result<()> {
    let scene = Scene::start(context, &options("cfsQuota"))?;
    scene.has(WHOLE)?;
    ensure!(
        (1400..=1500).contains(&scene.told(false)?),
        "{}",
        scene.told(false)?
    );
    // What the protected pod uses is taken from best effort, down to 320m.
    let work = scene.web.start(&["burn", "--threads", "2"])?;
    scene.has(3_200..=13_000)?;
    drop(work);
    scene.has(WHOLE)?;
    let events = scene.node.agent.events(0)?;
    let foreign = |e: &&Event| matches!(e.kind, EventKind::ForeignWrite { .. });
    ensure!(
        !events.iter().any(|e| foreign(&e)),
        "its own quota is a foreign write"
    );
    scene.finish()
}

fn observed_suppression_writes_nothing(context: &Context) -> Result<()> {
    let options = Options {
        mode: "observe",
        ..options("cfsQuota")
    };
    let scene = Scene::start(context, &options)?;
    eventually(scene.node.limit(), || scene.told(true).map(drop))?;
    ensure!(quota(&scene.tier)?.is_none(), "a quota was written");
    scene.finish()
}

fn suppression_ends_with_a_killed_agent(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, &options("cfsQuota"))?;
    scene.held()?;
    let limit = scene.node.limit();
    scene.node.agent.signal(Signal::SIGKILL)?;
    scene.node.agent.wait(limit)?;
    scene.free()?;
    scene.empty()
}

fn suppression_is_undone(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, &options("cfsQuota"))?;
    scene.held()?;
    let limit = scene.node.limit();
    for guard in scene.node.agent.children() {
        kill(Pid::from_raw(i32::try_from(guard)?), Signal::SIGKILL)?;
    }
    scene.node.agent.signal(Signal::SIGKILL)?;
    scene.node.agent.wait(limit)?;
    ensure!(quota(&scene.tier)?.is_some(), "there is nothing to undo");
    let root = format!("/{}", scene.node.sandbox.root.path().trim_matches('/'));
    let arguments = [
        "undo",
        "--cgroup-driver",
        "cgroupfs",
        "--cgroup-root",
        &root,
    ];
    Command::new(context.agent())
        .args(arguments)
        .output()
        .context("run podwarden undo")?;
    ensure!(quota(&scene.tier)?.is_none(), "undo left a quota");
    scene.empty()
}

fn suppression_beside_a_kubelet(context: &Context) -> Result<()> {
    let options = Options {
        assist: true,
        ..options("cfsQuota")
    };
    let scene = Scene::start(context, &options)?;
    let degradations = scene.node.agent.node()?.degradations;
    ensure!(
        degradations
            .iter()
            .any(|one| one.contains("cpuSuppressThresholdPercent")),
        "nothing says that best effort is not suppressed: {degradations:?}"
    );
    ensure!(
        quota(&scene.tier)?.is_none(),
        "a kubelet's tier has a quota"
    );
    scene.finish()
}

fn suppression_by_cpus(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, &options("cpuset"))?;
    let limit = scene.node.limit();
    // Two CPUs at least, which are all that a small machine has.
    eventually(limit, || {
        let to = scene.told(false)?;
        ensure!(to == 2000, "best effort has {to}m");
        Ok(())
    })?;
    ensure!(
        !scene.tier.cpus()?.is_empty(),
        "the tier has no list of CPUs"
    );
    ensure!(
        quota(&scene.tier)?.is_none(),
        "the policy is not about quotas"
    );
    scene.node.agent.stop(Signal::SIGTERM, limit)?;
    let found = match scene.tier.mounts().is_on_v2(Controller::CpuSet) {
        true => String::new(),
        false => scene.node.sandbox.root.cpus()?,
    };
    let left = scene.tier.cpus()?;
    ensure!(
        left == found,
        "the agent left CPUs {left}, it found {found}"
    );
    scene.empty()
}
