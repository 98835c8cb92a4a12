//! The agent is ended and started again: the accounts go on where they were, and nothing is done twice.

mod each_step;
mod figures;
mod hand_over;
mod hog;
mod load;
mod nested;
mod soak;
mod unfit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::{Event, EventKind, PodStats};

use self::figures::Figures;
pub(super) use self::hand_over::{gap, last_take_over};
use self::hog::Hog;
use self::load::Load;
use super::eviction::small;
use super::recorder::{records, restart};
use super::{Case, Context, case, portable, skip, slow};
use crate::harness::{
    Node, Options, Pod, PodSpec, Sandbox, Workload, eventually, files_below, sleep, until,
};

pub(super) const CASES: &[Case] = &[
    portable("restarts_continue", restarts_continue),
    portable("restarts_each_step", each_step::each_step),
    case("restarts_unseen", restarts_unseen),
    portable("restarts_unfit", unfit::unfit),
    portable("hand_over", hand_over::filling),
    portable("hand_over_limits", hand_over::limits),
    portable("restarts_nested", nested::some),
    slow("restarts_nested_20000", nested::thousands),
    slow("soak", soak::soak),
];

const MIB: u64 = 1 << 20;

/// A node whose accounts outlive its agent.
struct Rig<'a> {
    context: &'a Context,
    node: Node,
    options: Options,
    log: PathBuf,
    // The last to go: the agent keeps files there.
    _home: tempfile::TempDir,
}

impl<'a> Rig<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        Self::with(context, |_, _| Ok(()))
    }

    /// The same with other options, which may name files of the directory that is given.
    fn with(
        context: &'a Context,
        change: impl FnOnce(&mut Options, &Path) -> Result<()>,
    ) -> Result<Self> {
        let home = tempfile::tempdir_in("/var/tmp")?;
        let log = home.path().join("events.jsonl");
        let mut options = Options {
            config: format!(
                "stateDir: {}\neventLog: {{path: {}, maxSize: 16Mi}}\n",
                home.path().join("state").display(),
                log.display()
            ),
            ..small("enforce")
        };
        change(&mut options, home.path())?;
        let sandbox = Sandbox::new()?;
        sandbox.mount_bpf_fs()?;
        let node = Node::on(context, sandbox, &options)?;
        if node.agent.node()?.profile == "sampling" {
            skip("no kernel programs run here, so nothing is pinned")?;
        }
        Ok(Self {
            context,
            node,
            options,
            log,
            _home: home,
        })
    }

    /// Ends the agent and waits until it has ended.
    fn end(&mut self, signal: Signal) -> Result<()> {
        self.node.agent.signal(signal)?;
        self.node.agent.wait(self.context.limit(20))?;
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        restart(self.context, &mut self.node, &self.options)
    }

    /// Lines of the agent's log that hold a text.
    fn says(&self, text: &str) -> bool {
        self.node.agent.log.text().contains(text)
    }

    fn pinned(&self) -> Vec<PathBuf> {
        files_below(&self.node.sandbox.bpf_fs().join("podwarden"))
    }
}

fn restarts_continue(context: &Context) -> Result<()> {
    let seed = context.seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rig = Rig::new(context)?;
    let pods = rig.node.pods(vec![
        PodSpec::burstable("burns", "32Mi"),
        PodSpec::best_effort("storms"),
        PodSpec::guaranteed("nests", "64Mi"),
        PodSpec::burstable("churns", "32Mi"),
    ])?;
    let mut load = Load::start(&pods)?;
    let settings = |rig: &Rig, pods: &[Pod]| -> Result<Vec<_>> {
        let mut all = Vec::new();
        for tier in ["burstable", "besteffort"] {
            all.extend(rig.node.tier(tier)?.settings());
        }
        all.extend(pods.iter().flat_map(|pod| pod.cgroup.settings()));
        Ok(all)
    };
    let limits = settings(&rig, &pods)?;
    let mut figures = Figures::default();
    let mut hogs: BTreeMap<String, bool> = BTreeMap::new();
    let rounds = context.repetitions(if context.emulated() { 2 } else { 5 });
    let mut killed = 0;
    for round in 0..rounds {
        let mut hog = match round % 2 {
            1 => Some(Hog::start(&rig)?),
            _ => None,
        };
        for _ in 0..random.u32(1..=3) {
            sleep(Duration::from_millis(random.u64(0..400)))?;
            figures.look(&rig.node.agent, &pods, &load)?;
        }
        let signal = match random.u8(0..3) {
            0 => Signal::SIGTERM,
            _ => Signal::SIGKILL,
        };
        killed += u32::from(signal == Signal::SIGKILL);
        rig.end(signal)?;
        sleep(Duration::from_millis(random.u64(0..300)))?;
        ensure!(
            settings(&rig, &pods)? == limits,
            "limits are not what they were"
        );
        let was_dead = hog.as_mut().is_some_and(Hog::is_dead);
        rig.start()?;
        let told = figures.look(&rig.node.agent, &pods, &load);
        told.with_context(|| format!("round {round}, ended by {signal:?}, seed {seed}"))?;
        ensure!(
            settings(&rig, &pods)? == limits,
            "limits are not what they were before the agent was started again"
        );
        if let Some(mut hog) = hog {
            hog.evicted(&rig, context.limit(20))?;
            hogs.insert(hog.pod.uid().to_owned(), was_dead);
            take_away(&rig, &hog.pod)?;
        }
        load.ensure_goes_on()?;
    }
    let made = load.stop(context.limit(60))?;
    figures.look_after(&rig.node, &pods, &made)?;
    let unseen = figures.unseen_exits(&pods, &made);
    let untold = ensure_evicted_once(&rig, &hogs)?;
    counts_exactly(&rig, &pods)?;
    for (name, count) in [
        ("restarts", rounds as usize),
        ("by_sigkill", killed as usize),
        ("figures_compared", figures.compared()),
        ("evictions", hogs.len()),
        ("evictions_without_an_event", untold),
        ("exits_while_no_agent_ran", unseen),
    ] {
        context.figure(name, count as f64, "");
    }
    rig.node.finish()
}

/// Takes an idle pod off the node.
fn take_away(rig: &Rig, pod: &Pod) -> Result<()> {
    rig.node.withdraw(&pod.spec)?;
    eventually(rig.node.limit(), || pod.main.remove())?;
    until(rig.node.limit(), "the end of a pod's cgroup", || {
        !pod.cgroup.exists()
    })
}

/// No hog was evicted twice, and no other pod at all. Returns how many evictions have no event: the agent died
/// between the last signal and the first line.
fn ensure_evicted_once(rig: &Rig, hogs: &BTreeMap<String, bool>) -> Result<usize> {
    let mut told: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for record in records(&rig.log)? {
        let Event { pod, kind, id, .. } = record.event;
        if let (Some(pod), EventKind::Eviction(eviction)) = (pod, kind) {
            ensure!(
                hogs.contains_key(pod.uid.as_str()),
                "pod {} was evicted and is no hog",
                pod.name
            );
            // A line with its curves takes the place of the one before, of the same number.
            let of_pod = told.entry(pod.uid.to_string()).or_default();
            of_pod.insert(id, format!("{eviction:?}"));
        }
    }
    let mut untold = 0;
    for (uid, was_dead) in hogs {
        match told.get(uid) {
            Some(of_pod) if of_pod.len() == 1 => {}
            None if *was_dead => untold += 1,
            found => anyhow::bail!("hog {uid} is told of as evicted: {found:?}"),
        }
    }
    Ok(untold)
}

/// With the same agent all the time, every process counts once.
fn counts_exactly(rig: &Rig, pods: &[Pod]) -> Result<()> {
    for pod in pods {
        let before = settled_exits(rig, pod)?;
        let storm = ["storm", "--count", "50", "--busy-us", "200"];
        pod.start(&storm)?.done(rig.context.limit(30))?;
        rig.node.expect(pod.uid(), |stats| {
            let exits = stats.exits.total;
            ensure!(exits == before + 51, "{exits} exits, {before} before");
            Ok(())
        })?;
    }
    Ok(())
}

/// A pod's exits, once they no longer grow.
fn settled_exits(rig: &Rig, pod: &Pod) -> Result<u64> {
    let exits = || Ok::<_, anyhow::Error>(rig.node.agent.pod(pod.uid())?.exits.total);
    let mut last = exits()?;
    eventually(rig.node.limit(), || {
        sleep(Duration::from_millis(1500))?;
        let before = std::mem::replace(&mut last, exits()?);
        ensure!(last == before, "{before} exits, then {last}");
        Ok(last)
    })
}

/// Starts processes in a container and waits until all of them are counted.
fn storm(rig: &Rig, pod: &Pod, cgroup: &crate::harness::Cgroup, count: u64) -> Result<()> {
    let before = rig.node.agent.pod(pod.uid()).map_or(0, |s| s.exits.total);
    let args = ["storm", "--count", &count.to_string(), "--busy-us", "300"];
    Workload::start(cgroup, &args)?.done(rig.context.limit(30))?;
    rig.node.expect(pod.uid(), |stats| {
        let exits = stats.exits.total;
        ensure!(exits == before + count + 1, "{exits} exits after {before}");
        Ok(())
    })?;
    Ok(())
}

fn exits_of(stats: &PodStats, container: &str) -> Option<u64> {
    let mut found = stats.containers.iter().filter(|c| c.id == container);
    Some(found.next()?.exits.total)
}

/// Cgroups go away while no agent runs: what they had used counts where it counted.
fn restarts_unseen(context: &Context) -> Result<()> {
    let mut rig = Rig::new(context)?;
    let pods = rig.node.pods(vec![
        PodSpec::burstable("stays", "32Mi"),
        PodSpec::best_effort("goes"),
    ])?;
    let [stays, goes] = &*pods else {
        anyhow::bail!("two specs make two pods");
    };
    let (second, third) = (stays.cgroup.child("second"), stays.cgroup.child("third"));
    let nested = stays.main.child("nested");
    let stay = stays.start(&["sleep"])?;
    second.create()?;
    nested.create()?;
    storm(&rig, stays, &stays.main, 10)?;
    storm(&rig, stays, &second, 20)?;
    storm(&rig, stays, &nested, 5)?;
    storm(&rig, goes, &goes.main, 30)?;
    // What is gone before the kill has been folded, or not yet.
    eventually(rig.node.limit(), || nested.remove())?;
    let mut figures = Figures::default();
    let look = |rig: &Rig, figures: &mut Figures, containers: &[(&str, u64)], total: u64| {
        figures.look_at(&rig.node.agent)?;
        rig.node.expect(stays.uid(), |stats| {
            for (id, expected) in containers {
                let exits = exits_of(stats, id);
                ensure!(exits == Some(*expected), "{id}: {exits:?} of {expected}");
            }
            let exits = stats.exits.total;
            ensure!(exits == total, "{exits} exits of {total}");
            let shown = stats.containers.len();
            ensure!(shown == containers.len(), "{shown} containers are shown");
            Ok(())
        })
    };
    look(&rig, &mut figures, &[("main", 17), ("second", 21)], 38)?;

    rig.end(Signal::SIGKILL)?;
    eventually(rig.node.limit(), || second.remove())?;
    rig.node.withdraw(&goes.spec)?;
    eventually(rig.node.limit(), || goes.main.remove())?;
    eventually(rig.node.limit(), || goes.cgroup.remove())?;
    // No agent runs to count these.
    let args = ["storm", "--count", "7"];
    stays.start(&args)?.done(context.limit(30))?;
    rig.start()?;

    look(&rig, &mut figures, &[("main", 17)], 38)?;
    rig.node.expect_pods(&[&stays.spec])?;
    // An account that is used again begins at nothing.
    third.create()?;
    storm(&rig, stays, &third, 8)?;
    look(&rig, &mut figures, &[("main", 17), ("third", 9)], 47)?;
    // Long after what is gone has been folded, and through another end.
    sleep(Duration::from_millis(2500))?;
    look(&rig, &mut figures, &[("main", 17), ("third", 9)], 47)?;
    rig.end(Signal::SIGTERM)?;
    ensure!(rig.pinned().len() == 5, "pinned: {:?}", rig.pinned());
    rig.start()?;
    look(&rig, &mut figures, &[("main", 17), ("third", 9)], 47)?;
    // A pod whose cgroup is made anew is the same pod, by its uid.
    rig.end(Signal::SIGKILL)?;
    drop(stay);
    for cgroup in [&third, &stays.main, &stays.cgroup] {
        eventually(rig.node.limit(), || cgroup.remove())?;
    }
    rig.start()?;
    until(rig.node.limit(), "the pod's cgroup again", || {
        stays.cgroup.exists()
    })?;
    look(&rig, &mut figures, &[], 47)?;
    context.figure("figures_compared", figures.compared() as f64, "");
    rig.node.finish()
}
