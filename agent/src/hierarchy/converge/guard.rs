//! Thaws what the agent had frozen and restores the tiers' limits after a kill of the agent: a process of its
//! own that sleeps until the agent's end of a pipe is closed.
//!
//! What the agent leaves would otherwise stay: on v1 a frozen victim that can neither run nor end, and a
//! hard limit without an eviction level below it, so that the kernel kills at it; on v2 a `memory.high` that
//! slows the tier down until a write raises it. An agent that ends by itself restores the limits itself, and
//! dismisses the guard after that.
//!
//! What ends a container or a service kills every process in its cgroup: the agent moves the guard out of its
//! own cgroup, to the hierarchies' roots.
//! One that starts anew before the guard is done waits for it, by
//! [`TreeLock`]; where it came first, the limits are its own to take back.
//!
//! An agent that ends while another waits to take over leaves the limits in force, and its guard with them: the guard
//! acts if the other agent is gone before it has them.

use std::{
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_cgroup::{
    AgentLock, CgroupPath, Error, Hierarchies, LeftFrozen, Progress, Systemd, Tree, TreeLock,
    leave_every_cgroup,
};

use super::{Parts, found::Originals, writes};
use crate::{
    config::ConvergenceConfig,
    hierarchy::act::{Files, Slices},
};

/// The subcommand, which is not for people.
pub const COMMAND: &str = "guard";

/// How often it is tried to have the tree to oneself, and the pause in between: the kernel closes the files
/// of a killed process one after another, and another agent may have come first.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// What the agent says when nothing is left to do.
const DISMISSED: &[u8] = b"dismissed";

/// What the agent says when another takes its limits over.
const HANDED_OVER: &[u8] = b"handed over";

/// One that takes over and has settled for so long has the limits; where it wants none, they go.
const SETTLED: Duration = Duration::from_secs(10);

/// One that takes over and does not say for so long that it has settled is of a version that says nothing.
const SILENT: Duration = Duration::from_secs(120);

/// An agent that holds the root no more for so long has ended. A killed agent's root changes hands in less.
const ABSENT: Duration = Duration::from_millis(300);

/// The guard's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Parent of kubepods, relative to each controller's mount point.
    pub cgroup_root: String,
    /// The file of what was found, see [`super::found_file`], where agents lock their root; `None` where the limits stay.
    pub found: Option<PathBuf>,
    /// The record of what the agent freezes; `None` where it freezes nothing (v2).
    pub frozen: Option<PathBuf>,
    /// The file of CPU quotas as they were found, which the subcommand puts back; `None` where none is raised.
    pub quotas: Option<PathBuf>,
    /// Where groups of resctrl are, which the subcommand removes; `None` where none is made.
    pub resctrl: Option<PathBuf>,
    /// Values are set through systemd.
    pub systemd: bool,
}

/// The agent's end; the guard acts once this is closed without [`Guard::dismiss`].
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts the process.
    pub(crate) fn start(place: &Place) -> io::Result<Self> {
        // What runs, also where the file has been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.args([COMMAND, "--cgroup-root", &place.cgroup_root]);
        for (name, file) in [
            ("--found", &place.found),
            ("--frozen", &place.frozen),
            ("--quotas", &place.quotas),
            ("--resctrl", &place.resctrl),
        ] {
            if let Some(file) = file {
                command.arg(name).arg(file);
            }
        }
        if place.systemd {
            command.arg("--systemd");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Self)
    }

    /// Moves it out of the agent's cgroup.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        leave_every_cgroup(self.0.id())
    }

    /// The limits are as they are to be left.
    pub(crate) fn dismiss(mut self) {
        self.say(DISMISSED);
        let _ = self.0.wait();
    }

    /// The limits are another agent's from now on; the guard ends once that has them.
    pub(crate) fn hand_over(mut self) {
        self.say(HANDED_OVER);
    }

    fn say(&mut self, word: &[u8]) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // An error says that the guard has ended.
            let _ = pipe.write_all(word);
        }
    }
}

/// The guard's own process: waits until `agent` is closed, and returns when there is nothing left to do. The
/// tree where the agent was killed.
pub fn run(place: Place, agent: impl io::Read) -> Result<Option<Tree>, Error> {
    // The agent's own: the next one makes another.
    let frozen = place.frozen.as_deref().map(LeftFrozen::open).transpose();
    let mut said = Vec::new();
    // An error is an end as well.
    let _ = agent.take(64).read_to_end(&mut said);
    if said == DISMISSED {
        return Ok(None);
    }
    let tree = Tree::new(Hierarchies::detect()?, &place.cgroup_root)?;
    if said == HANDED_OVER && is_taken_over(&place, &tree) {
        return Ok(None);
    }
    if let Some(frozen) = frozen?.flatten() {
        thaw(&frozen, &tree);
    }
    let Some(found) = place.found else {
        return Ok(Some(tree));
    };
    let Some(_lock) = wait_for(&tree)? else {
        tracing::info!("another agent is there already: it takes the limits back");
        return Ok(Some(tree));
    };
    let originals = Originals::open(found.clone());
    restore(&parts_of(place.systemd, tree.clone(), found), originals);
    tracing::warn!("the agent was killed: the tiers have the limits again that it found");
    Ok(Some(tree))
}

/// Waits until another agent has what this guard's agent left to it, however long its start takes; false where there is
/// none, or where it takes no limits.
fn is_taken_over(place: &Place, tree: &Tree) -> bool {
    let beside = place.found.as_deref().or(place.frozen.as_deref());
    let Some(run_dir) = beside.and_then(Path::parent) else {
        return false;
    };
    let start = Instant::now();
    let (mut seen, mut settled) = (start, None);
    let has_settled = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() >= SETTLED);
    while start.elapsed() < SILENT && !has_settled(settled) {
        match AgentLock::progress(run_dir, &place.cgroup_root) {
            Ok(Progress::Settled) => {
                seen = Instant::now();
                settled = settled.or(Some(seen));
            }
            Ok(Progress::Underway) => (seen, settled) = (Instant::now(), None),
            Ok(Progress::Absent) | Err(_) if seen.elapsed() > ABSENT => return false,
            Ok(Progress::Absent) | Err(_) => {}
        }
        std::thread::sleep(PAUSE);
    }
    // Its own guard looks after them now.
    matches!(TreeLock::try_acquire(tree), Ok(None))
}

/// Thaws what an agent that was killed has left frozen: its pods could neither run nor end.
pub(crate) fn thaw(left: &LeftFrozen, tree: &Tree) {
    match left.thaw(tree) {
        Ok(thawed) => {
            for cgroup in thawed {
                tracing::warn!(
                    cgroup = %cgroup.display(),
                    "thawed a pod that an agent had frozen to kill it whole when it was killed itself"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "a pod may be left frozen"),
    }
}

/// For a node without agent and guard: the cgroups whose limits are not what was found, which are put back
/// unless `dry_run`. The file that tells of them goes once all are. [`Error::Locked`] while an agent or a guard has the
/// tree.
pub fn put_back(place: &Place, dry_run: bool) -> Result<Vec<CgroupPath>, Error> {
    let Some(found) = place.found.clone() else {
        return Ok(Vec::new());
    };
    let originals = Originals::open(found.clone());
    let left: Vec<_> = originals.all().map(|(path, _)| path).collect();
    if dry_run || left.is_empty() {
        return Ok(left);
    }
    let tree = Tree::new(Hierarchies::detect()?, &place.cgroup_root)?;
    let Some(_lock) = wait_for(&tree)? else {
        return Err(Error::Locked {
            path: found.into(),
            holder: None,
        });
    };
    restore(&parts_of(place.systemd, tree, found), originals);
    Ok(left)
}

/// What writes the limits back.
fn parts_of(systemd: bool, tree: Tree, found: PathBuf) -> Parts {
    let connected = systemd.then(Systemd::connect).transpose();
    let backend = connected.unwrap_or_else(|error| {
        tracing::warn!(%error, "only the files of systemd's slices are written");
        None
    });
    Parts {
        backend: match backend {
            Some(systemd) => Arc::new(Slices(systemd)),
            None => Arc::new(Files),
        },
        tree,
        counters: Arc::default(),
        config: ConvergenceConfig::default(),
        found,
        guard: None,
    }
}

/// Has the tree to oneself; `None` where another agent has it.
pub(super) fn wait_for(tree: &Tree) -> Result<Option<TreeLock>, Error> {
    for _ in 0..TRIES {
        if let Some(lock) = TreeLock::try_acquire(tree)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// Restores all originals, and removes their file once all of that is done.
pub(super) fn restore(parts: &Parts, originals: Originals) {
    let mut whole = true;
    for (path, found) in originals.all() {
        match writes::restore(parts, &path, found) {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => {
                tracing::warn!(%error, cgroup = %path, "its limits are not what was found");
                whole = false;
            }
        }
    }
    if whole {
        originals.close();
    }
}
