//! Best effort is held to the koordlet's formula.

use std::fs;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;
use podwarden_policy::settings::Controller;

use super::colocation::quota;
use super::colocation::scene::Scene;
use super::undo::undo;
use super::{Case, Context, case, portable};
use crate::harness::{Options, PodSpec, Qos, eventually, http_get, sleep};

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
    case("suppression_by_cpus", suppression_by_cpus),
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
const WHOLE: RangeInclusive<u64> = 14_000..=15_000;
/// The same once others have used some: a rise below a hundredth of the node, 1,600 us, is not written.
const WHOLE_AGAIN: RangeInclusive<u64> = 13_100..=15_000;

/// The best-effort pod takes all CPUs.
fn start(context: &Context, options: &Options) -> Result<Scene> {
    let web = PodSpec::new("web", Qos::Burstable, "500m", "64Mi");
    let mut scene = Scene::start(context, options, web)?;
    scene
        .work
        .push(scene.batch.start(&["burn", "--threads", "2"])?);
    Ok(scene)
}

/// What the latest event lets best effort use, thousandths of a CPU.
fn told(scene: &Scene, dry: bool) -> Result<u64> {
    let events = scene.node.agent.events(0)?;
    let mut steps = events.iter().rev().filter_map(|event| match event.kind {
        EventKind::BestEffortSuppressed {
            to_milli, dry_run, ..
        } if dry_run == dry => Some(to_milli),
        _ => None,
    });
    steps.next().context("no event of suppression")
}

/// `/v1/node`, `/metrics` and `podwarden explain node` say what best effort may use.
fn is_shown(context: &Context, scene: &Scene) -> Result<()> {
    let agent = &scene.node.agent;
    eventually(scene.node.limit(), || {
        let stats = agent.node()?.best_effort_cpu.context("nothing is shown")?;
        let limit = stats.suppress_limit_milli.unwrap_or_default();
        ensure!((1400..=1500).contains(&limit), "{stats:?}");
        ensure!(
            stats.wait_limit_milli.is_none() && !stats.dry_run,
            "{stats:?}"
        );
        Ok(())
    })?;
    let metrics = http_get(agent.socket(), "/metrics")?.text();
    let series = "podwarden_best_effort_cpu_limit_cores{strategy=\"suppress\"} 1.";
    ensure!(metrics.contains(series), "no series {series}");
    let explained = Command::new(context.agent())
        .args(["explain", "node", "--api-socket"])
        .arg(agent.socket())
        .output()
        .context("run podwarden explain")?;
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    ensure!(
        text.contains("CPUs: colocation.cpuSuppressThresholdPercent"),
        "{text}"
    );
    is_planned(context, scene)
}

/// A recorded snapshot has the formula's figures, and its plan the quota in force.
fn is_planned(context: &Context, scene: &Scene) -> Result<()> {
    let recorded = http_get(scene.node.agent.socket(), "/v1/plan")?.text();
    let file = scene.node.sandbox.dir().join("snapshot.json");
    fs::write(&file, recorded)?;
    let planned = Command::new(context.agent())
        .args(["plan", "-o", "json", "-f"])
        .arg(&file)
        .output()
        .context("run podwarden plan")?;
    let report: serde_json::Value = serde_json::from_slice(&planned.stdout)?;
    let rows = report["cpuStrategies"].as_array();
    let rows = rows.context("plan shows no strategy")?;
    let of = |part: &str| {
        let row = rows.iter().find(|row| row["part"] == part);
        let milli = row.and_then(|row| row["cpuMilli"].as_i64());
        milli.with_context(|| format!("no {part} in {rows:?}"))
    };
    // Half of 16 CPUs, of which 6.5 are reserved.
    let (node, system, formula) = (of("node")?, of("system")?, of("formula")?);
    ensure!(node == 8000 && system >= 6500, "{rows:?}");
    ensure!(
        formula == (node - system - of("pods")?).max(320),
        "{rows:?}"
    );
    ensure!((1400..=1500).contains(&of("quota")?), "{rows:?}");
    Ok(())
}

fn has(scene: &Scene, expected: RangeInclusive<u64>) -> Result<()> {
    eventually(scene.node.limit(), || {
        let quota = quota(&scene.tier)?;
        let is_so = quota.is_some_and(|quota| expected.contains(&quota));
        ensure!(is_so, "best effort has a quota of {quota:?} us");
        Ok(())
    })
}

fn suppressed_while_others_use_cpu(context: &Context) -> Result<()> {
    let scene = start(context, &options("cfsQuota"))?;
    has(&scene, WHOLE)?;
    let may_use = told(&scene, false)?;
    ensure!((1400..=1500).contains(&may_use), "{may_use}");
    is_shown(context, &scene)?;
    // What the protected pod uses is taken from best effort, down to 320m.
    let work = scene.web.start(&["burn", "--threads", "2"])?;
    has(&scene, 3_200..=13_000)?;
    drop(work);
    has(&scene, WHOLE_AGAIN)?;
    let fights = scene.foreign_writes()?;
    ensure!(fights == 0, "its own quota is a foreign write");
    scene.finish()
}

fn observed_suppression_writes_nothing(context: &Context) -> Result<()> {
    let options = Options {
        mode: "observe",
        ..options("cfsQuota")
    };
    let scene = start(context, &options)?;
    eventually(scene.node.limit(), || told(&scene, true).map(drop))?;
    ensure!(quota(&scene.tier)?.is_none(), "a quota was written");
    scene.finish()
}

fn suppression_ends_with_a_killed_agent(context: &Context) -> Result<()> {
    let mut scene = start(context, &options("cfsQuota"))?;
    scene.held()?;
    scene.node.kill_agent()?;
    scene.free()?;
    scene.empty()
}

fn suppression_is_undone(context: &Context) -> Result<()> {
    let mut scene = start(context, &options("cfsQuota"))?;
    scene.held()?;
    scene.node.kill_agent_and_guards()?;
    ensure!(quota(&scene.tier)?.is_some(), "there is nothing to undo");
    scene.undo(context)?;
    scene.finish_by_undo(context)
}

/// A kubelet with a static CPU manager sets the CPUs of containers: neither these nor the tier's are touched.
fn suppression_beside_a_kubelet(context: &Context) -> Result<()> {
    for policy in ["cfsQuota", "cpuset"] {
        let options = Options {
            assist: true,
            ..options(policy)
        };
        let scene = start(context, &options)?;
        let cgroups = [&scene.tier, &scene.batch.main, &scene.web.main];
        let before = cgroups.map(|cgroup| cgroup.cpus().ok());
        sleep(Duration::from_secs(1))?;
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
        let after = cgroups.map(|cgroup| cgroup.cpus().ok());
        ensure!(before == after, "CPUs {before:?}, then {after:?}");
        scene.finish()?;
    }
    Ok(())
}

fn suppression_by_cpus(context: &Context) -> Result<()> {
    let mut scene = start(context, &options("cpuset"))?;
    let limit = scene.node.limit();
    // Two CPUs at least, which are all that a small machine has.
    eventually(limit, || {
        let to = told(&scene, false)?;
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
    let all = scene.node.sandbox.root.effective_cpus()?;
    let found = match scene.tier.mounts().is_on_v2(Controller::CpuSet) {
        true => String::new(),
        false => all.clone(),
    };
    // Some kernels take a list away only while no process is below the cgroup: all CPUs are in it until then.
    let left = match scene.takes_lists_away()? {
        true => &found,
        false => &all,
    };
    let now = scene.tier.cpus()?;
    ensure!(
        now == *left,
        "the agent left CPUs {now} and not {left}, it found {found}"
    );
    scene.work.clear();
    undo(context, &scene.node, &[])?;
    if scene.tier.exists() {
        let now = scene.tier.cpus()?;
        ensure!(
            now == found,
            "undo left CPUs {now}, the agent found {found}"
        );
    }
    scene.finish_by_undo(context)
}
