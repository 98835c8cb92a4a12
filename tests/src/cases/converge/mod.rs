//! Convergence of the tiers' reserve: no write of the agent's kills, the tier stops growing, its limit
//! gets where it belongs, and what was found is put back.

mod critical;
pub(crate) mod scene;
pub(crate) mod seen;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;
use podwarden::api::types::{EventKind, TierConvergence};

use self::scene::{Growth, Load, Scene, TARGET, Writer};
use self::seen::hard_limit;
use super::{Case, Context, case, portable, skip};
use crate::harness::{Agent, Cgroup, Mounts, Node, Options, PodSpec, eventually, monotonic};

pub(super) const CASES: &[Case] = &[
    portable("converge_anonymous", |context| {
        converges(context, Load::Anonymous)
    }),
    portable("converge_cache", |context| converges(context, Load::Cache)),
    case("converge_mixed", |context| converges(context, Load::Mixed)),
    portable("converge_after_kill", after_kill),
    portable("converge_keeps_on_exit", keeps_on_exit),
    case(
        "converge_beside_critical_pod",
        critical::beside_critical_pod,
    ),
];

/// How far the BestEffort tier is.
fn figures(node: &Node) -> Result<TierConvergence> {
    let tiers = node.agent.node()?.tiers;
    let tier = tiers.into_iter().find(|tier| tier.name == "besteffort");
    tier.and_then(|tier| tier.convergence)
        .context("the BestEffort tier does not converge")
}

fn limits(tier: &Cgroup) -> Vec<String> {
    let dir = hard_limit(tier);
    let high = dir.with_file_name("memory.high");
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    vec![read(&dir), read(&high)]
}

fn converges(context: &Context, load: Load) -> Result<()> {
    // On v1 nothing slows it: slow enough that it is not evicted before the gap was seen.
    let on_v2 = Mounts::detect()?.memory_on_v2();
    let rate = if on_v2 { 50 } else { 5 };
    let growth = match load {
        Load::Anonymous => Growth::beyond(rate),
        // With the page cache gone there is room, and with less than this no pod may be evicted.
        Load::Cache | Load::Mixed => Growth { mib: 48, rate },
    };
    let mut scene = Scene::new(context, Writer::Podwarden, load, growth, "")?;
    if load != Load::Anonymous && !can_drop_cache(&scene) {
        drop(scene);
        return skip(
            "page cache cannot be dropped here: v2 without memory.reclaim, or /var/tmp is not on a disk",
        );
    }
    let outcome = scene.play(context, |scene| {
        // Where there is page cache enough, the gap is over when that is dropped.
        if load != Load::Anonymous {
            return Ok(());
        }
        // It is told for as long as it lasts.
        eventually(context.limit(5), || {
            let figures = figures(scene.node.as_ref().context("there is no agent")?)?;
            ensure!(
                figures.target_bytes == Some(TARGET) && figures.gap_bytes > 0 && !figures.reached,
                "{figures:?}"
            );
            Ok(())
        })
    })?;
    ensure!(outcome.oom_kills == 0, "{outcome:?}");
    for (name, value) in [
        ("known_to_capped", outcome.known_to_capped_ms),
        ("capped", outcome.capped_ms),
        ("stopped", outcome.stopped_ms),
        ("reached", outcome.reached_ms),
    ] {
        if let Some(value) = value {
            context.figure(format!("{}_{name}", load.as_str()), value, "ms");
        }
    }
    for (name, value) in [
        ("grown", Some(outcome.grown_mib)),
        ("grown_capped", outcome.grown_capped_mib),
    ] {
        if let Some(value) = value {
            context.figure(format!("{}_{name}", load.as_str()), value, "MiB");
        }
    }
    ensure!(
        outcome.evictions == 0,
        "a pod was evicted: {outcome:?}, {:?}",
        scene.evictions()?
    );
    // The margin, and what the kernel charges ahead for each CPU. How long it took until then is told
    // above; it is as much as the machine is slow.
    ensure!(
        outcome.grown_capped_mib.unwrap_or(outcome.grown_mib) < 17.0,
        "the tier went on growing: {outcome:?}"
    );
    let node = scene.node.as_ref().context("there is no agent")?;
    eventually(context.limit(5), || {
        let figures = figures(node)?;
        ensure!(figures.reached && figures.gap_bytes == 0, "{figures:?}");
        let events = node.agent.events(0)?;
        let tier = |event: &&podwarden::api::types::Event| {
            matches!(&event.kind, EventKind::GapClosed { tier, target_bytes, .. }
                if tier == "besteffort" && *target_bytes == TARGET)
        };
        let opened = events
            .iter()
            .any(|event| matches!(&event.kind, EventKind::GapOpened { tier, .. } if tier == "besteffort"));
        ensure!(
            opened && events.iter().any(|e| tier(&e)),
            "no events of the gap"
        );
        let foreign = events
            .iter()
            .find(|e| matches!(e.kind, EventKind::ForeignWrite { .. }));
        ensure!(
            foreign.is_none(),
            "took its own write for another's: {foreign:?}"
        );
        Ok(())
    })?;
    scene.end()
}

/// Whether the agent can have the kernel drop page cache of the tier: v1 does it for a lower limit.
fn can_drop_cache(scene: &Scene) -> bool {
    let limit = hard_limit(&scene.tier);
    let on_v1 = limit.ends_with("memory.limit_in_bytes");
    (on_v1 || limit.with_file_name("memory.reclaim").exists())
        && scene
            .node
            .as_ref()
            .is_some_and(|node| super::memory::is_on_disk(node.sandbox.dir()).unwrap_or(false))
}

/// An agent that is killed in the gap: its guard puts back what was found. With the guard killed too the
/// limits stay; the next agent knows that they are not what was found, sees to it that they leave room,
/// goes on, and puts back what was.
fn after_kill(context: &Context) -> Result<()> {
    let mut scene = Scene::new(
        context,
        Writer::Podwarden,
        Load::Anonymous,
        Growth::beyond(50),
        "",
    )?;
    let limit = context.limit(5);
    let node = scene.node.as_mut().context("there is no agent")?;
    // What the operator had there before.
    node.agent.stop(Signal::SIGTERM, node.limit())?;
    let found = limits(&scene.tier);
    node.manifest(&PodSpec::guaranteed("arrives", "384Mi"))?;
    let restored = || {
        let now = limits(&scene.tier);
        ensure!(now == found, "found {found:?}, left {now:?}");
        Ok(())
    };
    let start = |node: &mut Node| -> Result<()> {
        let options = Options {
            memory: "640Mi".to_owned(),
            config: scene::CONFIG.to_owned(),
            ..Options::default()
        };
        node.agent = Agent::spawn(context.agent(), &node.sandbox, &options)?;
        context.watch(&node.agent.log);
        node.agent.wait_ready(context.limit(30))?;
        eventually(limit, || {
            ensure!(limits(&scene.tier) != found, "nothing is capped");
            Ok(())
        })
    };
    start(node)?;
    let killed = monotonic();
    kill(node)?;
    eventually(limit, restored).context("by the guard")?;
    context.figure("restored", (monotonic() - killed) as f64 / 1e6, "ms");
    for _ in 0..2 {
        start(node)?;
        // What the agent before it has left is a cap already, and it may not have come to its own.
        kill_with_guard(node)?;
        ensure!(limits(&scene.tier) != found, "another process restored it");
    }
    let on_v1 = !Mounts::detect()?.memory_on_v2();
    if on_v1 {
        // Between the two writes that drop page cache.
        fs::write(
            hard_limit(&scene.tier),
            scene.tier.memory()?.usage.to_string(),
        )?;
    }
    start(node)?;
    eventually(limit, || {
        let held = seen::limit(&hard_limit(&scene.tier));
        let usage = scene.tier.memory()?.usage;
        // What the kernel charges ahead for each CPU comes and goes.
        ensure!(
            held >= usage + scene::MARGIN - (1 << 20),
            "{held} at {usage}"
        );
        Ok(())
    })?;
    ensure!(scene.tier.oom_kills()? == 0, "a process was killed");
    node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    restored()
}

/// Ends the agent as nothing that it could see coming.
fn kill(node: &mut Node) -> Result<()> {
    node.agent.signal(Signal::SIGKILL)?;
    let limit = node.limit();
    node.agent.wait(limit).map(drop)
}

/// Ends the agent and its guard, so that no process puts back what was found.
fn kill_with_guard(node: &mut Node) -> Result<()> {
    let guard = eventually(node.limit(), || match node.agent.children()[..] {
        [guard] => Ok(guard),
        ref guards => anyhow::bail!("{} guards", guards.len()),
    })?;
    send(Pid::from_raw(i32::try_from(guard)?), Signal::SIGKILL)?;
    kill(node)
}

/// `onExit: keep` leaves the limits as they are.
fn keeps_on_exit(context: &Context) -> Result<()> {
    let config = "convergence: {onExit: keep}\n";
    let mut scene = Scene::new(
        context,
        Writer::Podwarden,
        Load::Anonymous,
        Growth::beyond(50),
        config,
    )?;
    scene.let_go();
    let node = scene.node.as_mut().context("there is no agent")?;
    node.manifest(&PodSpec::guaranteed("arrives", "384Mi"))?;
    eventually(context.limit(10), || {
        let held = fs::read_to_string(hard_limit(&scene.tier))?;
        ensure!(held.trim() == TARGET.to_string(), "the limit is {held}");
        Ok(())
    })?;
    let kept = limits(&scene.tier);
    node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    let left = limits(&scene.tier);
    ensure!(left == kept, "had {kept:?}, left {left:?}");
    Ok(())
}
