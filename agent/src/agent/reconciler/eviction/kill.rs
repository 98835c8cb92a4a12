//! Kills by the reconciler, for what is not urgent; the reactor has its own.

use std::{sync::Arc, time::Duration};

use podwarden_policy::{
    evict::Place,
    signal::{Detector, ScopeName},
};

use crate::{
    base::clock::monotonic,
    reactor::{
        plan::{Victim, VictimFiles},
        report::{Chosen, Crossing, Outcome, Report},
    },
};

/// Between two looks at a victim that ends.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A victim that was killed is waited for no longer than this.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Numbers of these evictions: the reactor's are below.
#[derive(Debug)]
pub(super) struct Numbers(u64);

impl Default for Numbers {
    fn default() -> Self {
        Self(1 << 48)
    }
}

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Whether nothing runs in a pod.
pub(super) fn is_empty(files: &VictimFiles) -> bool {
    processes(files) == 0
}

/// How many processes run in a pod.
pub(super) fn processes(files: &VictimFiles) -> u32 {
    let mut count = 0;
    let listed = files.kill.processes(&mut |_| count += 1);
    listed.map_or(0, |_| count)
}

/// Sends SIGKILL to what runs in a pod; `None` where nothing does.
pub(super) fn kill(files: &Arc<VictimFiles>) -> podwarden_cgroup::Result<Option<Outcome>> {
    let kill = || files.kill.signal_workload(&mut |_| {});
    let killed = match tokio::task::block_in_place(kill) {
        Ok(killed) => killed,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error),
    };
    if killed.processes == 0 {
        return Ok(None);
    }
    let files = Arc::clone(files);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = files.kill.kill_forked()
            && !error.is_gone()
        {
            tracing::warn!(%error, cgroup = %files.path, "what it forked meanwhile may run on");
        }
    });
    Ok(Some(Outcome {
        killed: monotonic(),
        processes: killed.processes,
        spared: killed.spared,
        complete: killed.complete,
        grace_seconds: 0,
    }))
}

/// A crossing that was found just now by reading figures.
pub(super) fn sampled(scope: ScopeName) -> Crossing {
    let at = monotonic();
    Crossing {
        scope,
        level: 0,
        headroom: 0,
        fill_rate: 0,
        usage: 0,
        working_set: 0,
        target: 0,
        detector: Detector::Sampler,
        crossed: at,
        wake: at,
    }
}

/// The report of a victim that has ended, or was waited for long enough.
pub(super) fn freed(number: u64, files: &VictimFiles, is_gone: bool) -> Report {
    Report::Freed {
        number,
        at: is_gone.then(monotonic),
        left: files.memory.usage().unwrap_or(0),
    }
}

/// The report of a victim, with what was done to it.
pub(super) fn chosen(
    number: u64,
    victim: &Victim,
    place: Place,
    crossing: Crossing,
    outcome: Option<Outcome>,
) -> Report {
    let usage = victim.files.memory.usage().unwrap_or(0);
    let stat = victim.files.memory.stat().ok();
    Report::Chosen(Chosen {
        number,
        token: victim.token,
        class: victim.candidate.qos,
        place,
        usage,
        working_set: stat.map_or(usage, |stat| stat.working_set(usage)),
        shared: stat.map_or(0, |stat| stat.shmem),
        crossing,
        verified: monotonic(),
        outcome,
    })
}
