//! The agent is killed at every step of an eviction, and leaves nothing that its successor cannot go on
//! from.
//!
//! One of its threads is led from system call to system call (ptrace(2)), and dies before the n-th:
//! between two of them nothing happens that others could see. The other threads run on meanwhile.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;

use super::reaping::{Scene, bomb_pids};
use super::recorder::{logging, records, restart};
use super::{Case, Context, portable};
use crate::harness::{Call, Cgroup, Options, Traced, Workload, eventually, sleep, state_of, until};
use part::{Few, PARTS, POLLS, Part, When, is_bell};

mod part;

pub(super) const CASES: &[Case] = &[
    portable("killed_at_each_step", at_each_step),
    portable("killed_while_others_fork", while_others_fork),
];

const MIB: u64 = 1 << 20;

/// What the agent is killed with in the middle.
struct Rig<'a> {
    context: &'a Context,
    options: Options,
    scene: Scene,
    log: PathBuf,
    /// The victim forks without end.
    bomb: bool,
    rounds: usize,
    seen: Seen,
    _home: tempfile::TempDir,
}

/// How often something was found after a kill.
#[derive(Debug, Default)]
struct Seen {
    kills: usize,
    /// The process that held the memory was dead already.
    dead: usize,
    /// Another process of the victim was not: there was no more pressure to evict it for.
    half_dead: usize,
    /// A part of it was left frozen.
    frozen: usize,
    /// The last line of the event log was torn.
    torn: usize,
    /// The eviction has no event: the agent died between the first signal and its line.
    untold: usize,
}

fn at_each_step(context: &Context) -> Result<()> {
    let mut rig = Rig::new(context, false)?;
    for part in PARTS {
        rig.try_steps(part)?;
    }
    rig.finish()
}

fn while_others_fork(context: &Context) -> Result<()> {
    let mut rig = Rig::new(context, true)?;
    let [reactor, ..] = PARTS;
    if context.include_slow() {
        rig.try_steps(reactor)?;
    }
    let mut whens = vec![When::Before(40)];
    // No cgroup is frozen on v2.
    if !rig.scene.node.sandbox.mounts.memory_on_v2() {
        whens.push(When::Frozen);
    }
    for when in whens {
        let evicted = rig.evict(reactor, when);
        evicted.with_context(|| format!("killed {when:?}"))?;
    }
    rig.finish()
}

impl<'a> Rig<'a> {
    fn new(context: &'a Context, bomb: bool) -> Result<Self> {
        let home = tempfile::tempdir_in("/var/tmp")?;
        let log = home.path().join("events.jsonl");
        let options = logging(&log);
        Ok(Self {
            context,
            scene: Scene::new(context, &options)?,
            options,
            log,
            bomb,
            rounds: 0,
            seen: Seen::default(),
            _home: home,
        })
    }

    /// Kills the agent before steps of one of its threads: each of them, or a few.
    fn try_steps(&mut self, part: Part) -> Result<()> {
        let tried: Vec<usize> = match (self.context.include_slow(), part.few) {
            (true, _) => self.spread(part, part.most)?,
            (false, Few::Spread(few)) if self.context.emulated() => {
                let steps = self.spread(part, few)?;
                // The first say least.
                steps[steps.len().saturating_sub(2)..].to_vec()
            }
            (false, Few::Spread(few)) => self.spread(part, few)?,
            (false, Few::These(_)) if self.context.emulated() => Vec::new(),
            (false, Few::These(steps)) => steps.to_vec(),
        };
        for step in tried {
            let taken = self
                .evict(part, When::Before(step))
                .with_context(|| format!("{} killed before step {step}", part.thread))?;
            ensure!(
                !taken.is_empty() || step == 0,
                "{} did nothing",
                part.thread
            );
        }
        Ok(())
    }

    /// At most `most` of the steps of an eviction in which the agent lives.
    fn spread(&mut self, part: Part, most: usize) -> Result<Vec<usize>> {
        let steps = self
            .evict(part, When::Never)
            .with_context(|| format!("{} with the agent alive", part.thread))?;
        ensure!(!steps.is_empty(), "{} had nothing to do", part.thread);
        let name = part.thread.replace('-', "_");
        self.context
            .figure(format!("{name}_steps"), steps.len() as f64, "");
        Ok(spread(steps.len(), most).collect())
    }

    /// Brings an eviction about and kills the agent at some step of a thread's, or lets it live when it does
    /// not come to that. The answer is the steps it took.
    fn evict(&mut self, part: Part, when: When) -> Result<Vec<Call>> {
        let victims = self.start_victims()?;
        let limits = self.limits();
        let level = self.scene.node.level()?;
        let mut traced = Traced::thread(self.scene.node.agent.pid(), part.thread)?;
        // A thread that was woken to be stopped sleeps again before the eviction begins.
        if part.sleeps {
            while traced.next_call(Duration::from_millis(20))?.is_some() {}
        }
        let mut filler = self.scene.fill_to(level + 8 * MIB)?;
        let (steps, kill) = self.lead(part, &mut traced, when)?;
        let mut is_dead = false;
        if kill {
            self.scene.node.agent.signal(Signal::SIGKILL)?;
            traced.killed()?;
            self.scene.node.agent.wait(self.context.limit(10))?;
            is_dead = self.look_after(holder(&victims)?, &limits)?;
            restart(self.context, &mut self.scene.node, &self.options)?;
        } else {
            drop(traced);
        }
        self.ensure_evicted(holder(&victims)?)?;
        ensure!(filler.is_alive(), "the Guaranteed pod was killed");
        ensure!(self.limits() == limits, "limits are not what they were");
        self.ensure_told(is_dead)?;
        drop((victims, filler));
        until(self.scene.node.limit(), "memory free again", || {
            let memory = self.scene.node.kubepods().memory();
            memory.is_ok_and(|memory| memory.usage < level / 2)
        })?;
        // For a moment longer the reaper looks for what the victim forked, and kills it: what is started anew
        // must not be taken for that.
        sleep(Duration::from_millis(200))?;
        Ok(steps)
    }

    /// The victim's processes, once they hold their memory; see [`holder`].
    fn start_victims(&self) -> Result<Vec<Workload>> {
        let victim = &self.scene.victim;
        let mut started = vec![victim.start(&["anon", "--mib", "128"])?];
        if self.bomb {
            victim.main.limit_pids(bomb_pids(self.context))?;
            started.push(victim.start(&["forkbomb", "--restless"])?);
            until(self.scene.node.limit(), "the bomb", || {
                victim.main.procs().len() > 8
            })?;
        } else {
            started.push(victim.start(&["anon", "--mib", "8"])?);
        }
        self.scene.victim_holds(128)?;
        Ok(started)
    }

    /// Follows a thread through the eviction, up to the moment `when`; true when that came.
    fn lead(&self, part: Part, traced: &mut Traced, when: When) -> Result<(Vec<Call>, bool)> {
        let mut steps = Vec::new();
        // The reactor tells of the crossing, of the kill, and of the end of the wait.
        let mut told = 0;
        let mut waiting = 0;
        loop {
            let patience = match steps.is_empty() {
                true => self.context.limit(20),
                false => self.context.quiet(),
            };
            let Some(call) = traced.next_call(patience)? else {
                ensure!(!steps.is_empty(), "{} does nothing", part.thread);
                return Ok((steps, false));
            };
            if steps.is_empty() && !(part.begins)(&call) {
                continue;
            }
            if part.thread == "reactor" {
                told += u32::from(call.number == libc::SYS_write && is_bell(&call));
                waiting += u32::from(told == 2);
                if told == 2 && waiting > POLLS {
                    continue;
                }
            }
            if when.is_now(&steps) {
                return Ok((steps, true));
            }
            steps.push(call);
            if told == 3 {
                return Ok((steps, false));
            }
        }
    }

    /// Right after a kill: limits are as they were, and what is left of the victim runs. True when the
    /// process that holds the memory is dead.
    fn look_after(&mut self, holder: u32, limits: &[(PathBuf, String)]) -> Result<bool> {
        let victim = &self.scene.victim;
        // A living process sleeps, unless it is frozen; one that was sent SIGKILL does not until it is gone.
        until(
            self.context.limit(20),
            "the holder alive and asleep, or dead",
            || victim.cgroup.is_frozen() || matches!(state_of(holder), Some('S' | 'Z') | None),
        )?;
        let left = victim.main.procs();
        let is_dead = state_of(holder) != Some('S');
        self.seen.kills += 1;
        self.seen.dead += usize::from(is_dead);
        self.seen.half_dead += usize::from(is_dead && !left.is_empty());
        if victim.cgroup.is_frozen() {
            ensure!(self.bomb, "it was frozen, and it does not fork");
            self.seen.frozen += 1;
            until(self.context.limit(10), "thawed by the guard", || {
                !victim.cgroup.is_frozen()
            })?;
        } else {
            for pid in left {
                let state = state_of(pid);
                ensure!(
                    !matches!(state, Some('T' | 't')),
                    "process {pid} of the victim is left in state {state:?}"
                );
            }
        }
        ensure!(self.limits() == limits, "limits are left changed");
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        self.seen.torn += usize::from(!text.is_empty() && !text.ends_with('\n'));
        Ok(is_dead)
    }

    /// The one that holds the memory is dead, and nothing is frozen.
    fn ensure_evicted(&self, holder: u32) -> Result<()> {
        let victim = &self.scene.victim;
        until(self.context.limit(20), "the end of the victim", || {
            !victim.main.procs().contains(&holder)
        })?;
        ensure!(!victim.cgroup.is_frozen(), "it is left frozen");
        Ok(())
    }

    /// The event log is whole, its ids grow, and what is told of evictions is about the victim. Of this
    /// round there is one, unless the agent had done its work and not told of it yet.
    fn ensure_told(&mut self, was_dead: bool) -> Result<()> {
        self.rounds += 1;
        let told = || {
            let events = self.scene.node.agent.events(0)?;
            ensure!(
                events.is_sorted_by(|a, b| a.id < b.id),
                "ids do not grow: {events:?}"
            );
            let evictions = events.into_iter().filter_map(|event| match event.kind {
                EventKind::Eviction(eviction) => Some(*eviction),
                _ => None,
            });
            let evictions: Vec<_> = evictions.collect();
            ensure!(
                evictions
                    .iter()
                    .all(|e| e.pod.uid == self.scene.victim.uid()),
                "another pod was evicted: {evictions:?}"
            );
            Ok::<_, anyhow::Error>(evictions.len())
        };
        let expected = self.rounds - self.seen.untold;
        if was_dead && told()? < expected {
            self.seen.untold += 1;
        } else {
            eventually(self.scene.node.limit(), || {
                let told = told()?;
                ensure!(told == expected, "{told} evictions in {expected} rounds");
                Ok(())
            })?;
        }
        records(&self.log).map(|_| ())
    }

    /// The settings of every cgroup below the root; what a bomb's freezer says is told apart.
    fn limits(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        collect(&self.scene.node.sandbox.root, &mut found);
        found.retain(|(path, _)| !(self.bomb && path.ends_with("freezer.state")));
        found
    }

    fn finish(self) -> Result<()> {
        let Seen {
            kills,
            dead,
            half_dead,
            frozen,
            torn,
            untold,
        } = self.seen;
        for (name, count) in [
            ("kills", kills),
            ("memory_free_before_the_successor", dead),
            ("victim_half_dead", half_dead),
            ("left_frozen_until_then", frozen),
            ("torn_lines_until_then", torn),
            ("evictions_without_an_event", untold),
        ] {
            self.context.figure(name, count as f64, "");
        }
        self.scene.node.finish()
    }
}

/// The first one holds most of the memory.
fn holder(victims: &[Workload]) -> Result<u32> {
    Ok(victims.first().context("no victim")?.pid())
}

fn collect(cgroup: &Cgroup, found: &mut Vec<(PathBuf, String)>) {
    found.extend(cgroup.settings());
    for child in cgroup.children() {
        collect(&child, found);
    }
}

/// `most` of the numbers below `count`, evenly spread, the first and the last among them.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = most.min(count);
    let last = taken.saturating_sub(1).max(1);
    (0..taken).map(move |n| {
        if taken == count {
            n
        } else {
            n * (count - 1) / last
        }
    })
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn spread_takes_the_ends_and_all_where_it_may() {
        let taken = |count, most| spread(count, most).collect::<Vec<_>>();
        assert_eq!(taken(4, 9), [0, 1, 2, 3]);
        assert_eq!(taken(4, 4), [0, 1, 2, 3]);
        assert_eq!(taken(101, 3), [0, 50, 100]);
        assert_eq!(taken(101, 1), [0]);
        assert!(taken(0, 3).is_empty());
    }
}
