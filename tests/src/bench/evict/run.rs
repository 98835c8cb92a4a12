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
use crate::harness::{check_interrupt, sleep};

/// The daemon may take so long from the crossing to the end.
const PATIENCE: Duration = Duration::from_secs(15);
/// After the victim's end, for the last of its memory to be seen freed.
const AFTERMATH: Duration = Duration::from_millis(300);
/// Between two looks at the victim.
const STEP: Duration = Duration::from_millis(5);

/// What a run takes, bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::bench) struct Sizes {
    /// Between the quiet node and the threshold.
    pub(super) lead: u64,
    /// Past the threshold, where the benchmark ends the victim itself.
    pub(super) bound: u64,
    /// What the victim has at the threshold.
    pub(super) victim: u64,
    /// podwarden's node, and what it is to keep available of that.
    pub(super) node: u64,
    pub(super) reserve: u64,
}

impl Sizes {
    /// At `percent` of what they are on a machine that is large enough.
    pub(in crate::bench) fn of(setting: Setting, percent: u64) -> Self {
        let mib = |mib: u64| mib * percent / 100 * MIB;
        let victim = mib(if setting.processes == 1 { 1024 } else { 2048 });
        let others: u64 = BYSTANDERS.iter().map(|(_, mib)| mib * MIB).sum();
        let reserve = mib(1024);
        Self {
            lead: mib(256),
            bound: mib(768),
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
        Daemon::Earlyoom | Daemon::Nohang => Ground::alike(setting)?,
    };
    let pid = ground.start_victim(context, setting, &sizes)?;
    let used = ground.kubepods.memory()?;
    let (gauge, threshold) = match daemon {
        Daemon::Podwarden => (
            Gauge::Usage {
                cgroup: ground.kubepods.clone(),
                idle_cache: used.inactive_file,
            },
            ground.level(context)?,
        ),
        Daemon::Earlyoom | Daemon::Nohang => (
            Gauge::Available,
            available()?.saturating_sub(sizes.lead) / MIB * MIB,
        ),
    };
    let expected = ground.pod.memory()?.usage + sizes.lead;
    let running = Running::start(daemon, plan.root, threshold)?;
    signals.clear()?;
    if !ground.victim_is_alive() {
        return spoiled(
            ground,
            running,
            "the level was crossed before the victim went",
        );
    }
    let sampler = Sampler::start(Task {
        gauge,
        threshold,
        victim: ground.pod.clone(),
        pid,
        bound: sizes.bound,
    })?;
    // A few samples before anything happens.
    sleep(STEP)?;
    ground.let_go();
    let rate = setting.rate.unwrap_or(1024);
    let until = Instant::now() + PATIENCE + Duration::from_secs(sizes.lead / MIB / rate);
    while ground.victim_is_alive() && Instant::now() < until {
        check_interrupt()?;
        std::thread::sleep(STEP);
    }
    // Before anything else on the machine could make it look for another victim.
    drop(running);
    sleep(AFTERMATH)?;
    let seen = sampler.finish()?;
    let outcome = if let Some(who) = ground.lost() {
        let who = who.to_owned();
        Outcome::WrongVictim { who }
    } else if seen.guarded {
        let why = format!(
            "{} MiB past the threshold nobody was killed",
            sizes.bound / MIB
        );
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
