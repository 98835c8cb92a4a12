//! Lists a victim's processes for the workers, has the kernel kill what they forked since the reactor signalled
//! them, and goes on looking until no process is left: a fork that was under way at the kill comes to light only
//! here.

use std::{
    collections::HashSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

use super::{Found, Handed, Progress, release::is_running, worker::WorkList};

/// Between the first two looks at a victim; doubled until it is [`SLOWEST`].
const FIRST: Duration = Duration::from_millis(2);
const SLOWEST: Duration = Duration::from_millis(64);

/// How long a victim is looked after. A process that has not ended by then waits inside the kernel.
const LONGEST: Duration = Duration::from_secs(10);

/// Processes whose size is read. More of them are all small.
const SIZED: usize = 512;

/// A victim that is not empty yet.
struct Watched {
    handed: Handed,
    since: Instant,
    due: Instant,
    pause: Duration,
    /// Killed, and not over yet. They count whether they are listed or not.
    dying: HashSet<u32>,
    /// Listed or dying at the last look.
    seen: HashSet<u32>,
    /// What they forked was killed.
    forked: bool,
}

/// What a look found.
enum Left {
    Alive,
    Ended,
    /// Listing failed, for another reason than that the cgroup is gone.
    Unknown,
}

pub(super) struct Lead {
    queue: rtrb::Consumer<Handed>,
    found: rtrb::Consumer<Found>,
    work: Arc<WorkList>,
    sweep: Sender<Handed>,
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
    watched: Vec<Watched>,
}

impl Lead {
    pub(super) fn new(
        queue: rtrb::Consumer<Handed>,
        found: rtrb::Consumer<Found>,
        work: Arc<WorkList>,
        sweep: Sender<Handed>,
        progress: Arc<Progress>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            queue,
            found,
            work,
            sweep,
            progress,
            stop,
            watched: Vec::new(),
        }
    }

    /// Runs until stopped.
    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            while let Ok(handed) = self.queue.pop() {
                let dying = self.found_in(handed.attempt);
                self.watched.push(Watched {
                    handed,
                    dying,
                    since: now,
                    due: now,
                    pause: FIRST,
                    seen: HashSet::new(),
                    forked: false,
                });
            }
            for mut watched in std::mem::take(&mut self.watched) {
                if watched.due > now {
                    self.watched.push(watched);
                    continue;
                }
                let left = watched.look(now, &self.work);
                // The workers have begun: this may wait for `cgroup_mutex`.
                watched.kill_forked();
                match left {
                    Left::Alive => self.watched.push(watched),
                    Left::Ended => self.ended(watched.handed),
                    Left::Unknown => {}
                }
            }
            self.watched.retain(|watched| !watched.is_given_up(now));
            match self.watched.iter().map(|watched| watched.due).min() {
                Some(due) => std::thread::park_timeout(due.saturating_duration_since(now)),
                None => std::thread::park(),
            }
        }
    }

    /// The processes that the reactor killed in this attempt; those of earlier ones, which came to
    /// nothing, are forgotten.
    fn found_in(&mut self, attempt: u64) -> HashSet<u32> {
        let mut pids = HashSet::new();
        while self
            .found
            .peek()
            .is_ok_and(|found| found.attempt <= attempt)
        {
            match self.found.pop() {
                Ok(found) if found.attempt == attempt => pids.insert(found.pid),
                Ok(_) => continue,
                Err(_) => break,
            };
        }
        pids
    }

    /// No process is left: the page cache is what remains.
    fn ended(&self, handed: Handed) {
        self.progress.emptied(handed.number);
        // The sweeper lives as long as the sender does.
        let _ = self.sweep.send(handed);
    }
}

impl Watched {
    fn look(&mut self, now: Instant, work: &WorkList) -> Left {
        let kill = &self.handed.files.kill;
        self.dying.retain(|pid| is_running(*pid));
        let mut pids = self.dying.clone();
        let listed = kill.processes(&mut |pid| {
            pids.insert(pid);
        });
        // After the list, which may leave out who is dying.
        match listed.and_then(|()| kill.is_populated()) {
            Ok(Some(true)) => {}
            Ok(_) if !pids.is_empty() => {}
            Ok(_) => return Left::Ended,
            Err(error) if error.is_gone() => return Left::Ended,
            Err(error) => {
                tracing::warn!(%error, "the processes of an evicted pod cannot be listed");
                return Left::Unknown;
            }
        }
        let fresh: Vec<u32> = pids.difference(&self.seen).copied().collect();
        if !self.seen.is_empty() && !fresh.is_empty() {
            tracing::debug!(
                processes = fresh.len(),
                "forked while it was killed; killed too"
            );
            if let Err(error) = kill.kill_workload(&mut |_| {})
                && !error.is_gone()
            {
                tracing::warn!(%error, "what an evicted pod forked cannot be killed");
            }
        }
        let sized = fresh.len() <= SIZED;
        work.add(fresh.iter().map(|pid| match sized {
            true => (resident_pages(*pid), *pid),
            false => (0, *pid),
        }));
        self.seen = pids;
        self.due = now + self.pause;
        self.pause = (2 * self.pause).min(SLOWEST);
        Left::Alive
    }

    /// Kills what they forked before they died, once.
    fn kill_forked(&mut self) {
        if !std::mem::replace(&mut self.forked, true)
            && let Err(error) = self.handed.files.kill.kill_forked()
            && !error.is_gone()
        {
            tracing::warn!(%error, "what an evicted pod forked cannot be killed");
        }
    }

    fn is_given_up(&self, now: Instant) -> bool {
        let given_up = now.saturating_duration_since(self.since) > LONGEST;
        if given_up {
            tracing::warn!(
                cgroup = %self.handed.files.path,
                processes = self.seen.len(),
                "an evicted pod has processes that do not end"
            );
        }
        given_up
    }
}

/// The second figure of proc_pid_statm(5); 0 for a process that is gone.
fn resident_pages(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/statm"))
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_resident() {
        assert!(resident_pages(std::process::id()) > 0);
        assert_eq!(resident_pages(u32::MAX), 0);
    }
}
