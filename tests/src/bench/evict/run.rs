//! One run: a quiet node, the daemon, and then the victim goes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::MIB;
use super::daemons::{Daemon, Running};
use super::ground::{BYSTANDERS, Ground};
use super::measure::{Outcome, measure};
use super::report::Setting;
use super::sampler::{Gauge, Sampler, Task, available};
use super::signals::Signals;
use crate::cases::Context;
use crate::harness::{check_interrupt, sleep, until};

/// The daemon may take so long from the crossing to the end.
const PATIENCE: Duration = Duration::from_secs(20);
/// After the victim's end, for the last of its memory to be seen freed.
const AFTERMATH: Duration = Duration::from_millis(300);
/// Between two looks at the victim.
const STEP: Duration = Duration::from_millis(5);

/// What a run takes, bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::bench) struct Sizes {
    /// Between the quiet node and the threshold.
    pub(super) lead: u64,
    /// Past the threshold, where the benchmark ends the victim itself: more than a daemon that looks once a
    /// second lets through in an emulated machine.
    pub(super) bound: u64,
    /// What the victim has at the threshold.
    pub(super) victim: u64,
    /// podwarden's node, and what it is to keep available of that.
    pub(super) node: u64,
    pub(super) reserve: u64,
}

impl Sizes {
    /// What the victim has at the threshold, bytes.
    pub(in crate::bench) fn victim_bytes(&self) -> u64 {
        self.victim
    }

    /// What all pods have at most, should nothing end the victim, bytes.
    pub(in crate::bench) fn at_most(&self) -> u64 {
        self.node + self.bound
    }

    /// At `percent` of what they are on a machine that is large enough.
    pub(in crate::bench) fn of(setting: Setting, percent: u64) -> Self {
        let mib = |mib: u64| mib * percent / 100 * MIB;
        let victim = mib(if setting.processes == 1 { 1024 } else { 2048 });
        let others: u64 = BYSTANDERS.iter().map(|(_, mib)| mib * MIB).sum();
        let reserve = mib(1024);
        Self {
            lead: mib(256),
            bound: mib(1600),
            victim,
            node: victim + others + reserve,
            reserve,
        }
    }
}

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) daemon: Daemon,
    pub(super) setting: Setting,
    /// Of the sizes.
    pub(super) percent: u64,
    /// How long the victim waits for its turn when the daemon watches. Different in each run: a daemon that
    /// looks once a second would else always be at the same point of its second.
    pub(super) wait: Duration,
    /// Where the other daemons' packages are.
    pub(super) root: &'a Path,
}

/// See the module.
pub(super) fn once(context: &Context, signals: &Signals, plan: Plan) -> Result<Outcome> {
    let Plan {
        daemon, setting, ..
    } = plan;
    let sizes = Sizes::of(setting, plan.percent);
    let mut ground = match daemon {
        Daemon::Podwarden => Ground::of_podwarden(context, setting, &sizes)?,
        Daemon::Earlyoom | Daemon::Nohang | Daemon::Oomd => Ground::alike(setting)?,
        Daemon::SystemdOomd => Ground::with_scope(setting, &sizes)?,
    };
    let pid = ground.start_victim(context, setting, &sizes)?;
    let used = ground.kubepods.memory()?;
    let usage = |idle_cache| Gauge::Usage {
        cgroup: ground.kubepods.clone(),
        idle_cache,
    };
    let (gauge, threshold) = match daemon {
        Daemon::Podwarden => (usage(used.inactive_file), ground.level()?),
        Daemon::Oomd => (usage(0), (used.usage + sizes.lead) / MIB * MIB),
        Daemon::SystemdOomd => (usage(0), sizes.victim),
        Daemon::Earlyoom | Daemon::Nohang => (
            Gauge::Available,
            available()?.saturating_sub(sizes.lead) / MIB * MIB,
        ),
    };
    let expected = ground.pod.memory()?.usage + sizes.lead;
    let running = match Running::start(daemon, plan.root, threshold, &ground.kubepods) {
        Ok(running) => running,
        Err(error) => {
            // Interrupted, or too much else to do.
            check_interrupt()?;
            ground.finish()?;
            return Ok(Outcome::Spoiled(format!("{error:#}")));
        }
    };
    sleep(plan.wait)?;
    signals.clear()?;
    if !ground.victim_is_alive() {
        return spoiled(
            ground,
            running,
            "the level was crossed before the victim went",
        );
    }
    let bound = match daemon {
        // Short of the kernel's own limit.
        Daemon::Podwarden => sizes.bound.min(sizes.reserve * 3 / 4),
        _ => sizes.bound,
    };
    let sampler = Sampler::start(Task {
        gauge,
        threshold,
        victim: ground.pod.clone(),
        pid,
        bound,
    })?;
    ground.let_go();
    let rate = setting.rate.unwrap_or(1024);
    let end = Instant::now() + PATIENCE + Duration::from_secs(sizes.lead / MIB / rate);
    while ground.victim_is_alive() {
        check_interrupt()?;
        if Instant::now() >= end {
            drop((running, sampler));
            ground.finish()?;
            let why = format!("no pod was killed within {} s", PATIENCE.as_secs());
            return Ok(Outcome::Failed { why });
        }
        std::thread::sleep(STEP);
    }
    // Before anything else on the machine could make it look for another victim.
    drop(running);
    // Its other processes end with the first, each when it gets a CPU. That some do not shows below.
    let _ = until(PATIENCE, "the end of the victim", || ground.pod_is_empty());
    sleep(AFTERMATH)?;
    let seen = sampler.finish()?;
    let outcome = if let Some(who) = ground.lost() {
        let who = who.to_owned();
        Outcome::WrongVictim { who }
    } else if seen.guarded {
        let why = format!("{} MiB past the threshold no pod was killed", bound / MIB);
        Outcome::Failed { why }
    } else {
        measure(&seen.samples, &ground.processes(), &signals.read()?)
    };
    ground.finish()?;
    Ok(match outcome {
        Outcome::Killed(figures) if figures.crossing_bytes.abs_diff(expected) > sizes.lead / 4 => {
            Outcome::Spoiled(format!(
                "the node's memory was at the threshold when the victim had {} MiB instead of {}",
                figures.crossing_bytes / MIB,
                expected / MIB
            ))
        }
        outcome => outcome,
    })
}

fn spoiled(ground: Ground, running: Running, why: &str) -> Result<Outcome> {
    drop(running);
    ground.finish()?;
    Ok(Outcome::Spoiled(why.to_owned()))
}
