//! The systemd cgroup driver: slices as transient units, made, changed and stopped over D-Bus.
//!
//! ```text
//!  property  values of a cgroup as properties of its unit           (formulas are pure)
//!  manager   requests to systemd and its answers
//!  bus       the same over D-Bus: the system bus, or systemd's own socket
//! ```
//!
//! systemd keeps the values of a unit itself. Whenever one of them is set it writes *all* files of
//! the unit from its own memory, and of a CPU quota it knows whole percents only. Hence:
//!
//! - Every change also sets the values in force that systemd does not have: a limit that
//!   another process wrote to a file, or that usage has outgrown, does not return to its own value.
//! - systemd answers before it writes. It handles one message at a time and writes
//!   between, so that the answer to the *next* message means: written.
//! - Then the exact values go to the files, as libcontainer does, and are read back.
//!
//! Nothing but empty slices that this process has started is ever stopped.

mod bus;
mod manager;
mod property;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use podwarden_policy::settings::{Setting, table};
use rustix::io::Errno;

use crate::{
    CgroupPath, Created, Error, Result, Tree,
    slice::{self, Slice},
    tree,
};

pub use self::manager::SystemdError;
use self::{
    bus::{ANSWER_LIMIT, Bus},
    manager::{Manager, Operation, State},
    property::Properties,
};

/// How long systemd may take to start or stop a slice (as libcontainer `systemd/common.go`).
const JOB_LIMIT: Duration = Duration::from_secs(30);
/// First and longest pause between two looks at a unit.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A connection to systemd.
#[derive(Debug)]
pub struct Systemd {
    manager: Box<dyn Manager>,
    /// The first number of systemd's version.
    version: u32,
    job_limit: Duration,
    /// What systemd remembers of each unit, as far as it comes from here: what it knows already is
    /// not stated again. Each property that is stated is one more file of the unit.
    known: Mutex<BTreeMap<String, Properties>>,
}

impl Systemd {
    /// What a call waits for an answer and then for a job, at most.
    pub const LIMIT: Duration = ANSWER_LIMIT.saturating_add(JOB_LIMIT);

    /// Connects to the system bus, or as root to systemd's own socket.
    pub fn connect() -> Result<Self> {
        Self::with(Box::new(Bus::connect()?))
    }

    fn with(manager: Box<dyn Manager>) -> Result<Self> {
        let version = manager.version()?;
        Ok(Self {
            manager,
            version,
            job_limit: JOB_LIMIT,
            known: Mutex::default(),
        })
    }

    /// The first number of systemd's version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Starts the slice of a cgroup and the missing ones above it, and sees to what systemd leaves
    /// out: hierarchies and controllers that it does not manage. A slice that runs already stays as
    /// it is. The slice begins with the values of `first`, as systemd keeps them. The answer names the
    /// directories that came with this call. After an error what this call started is stopped again;
    /// [`Error::InvalidName`] for what is not the path of a slice.
    pub fn create(&self, tree: &Tree, cgroup: &CgroupPath, first: &[Setting]) -> Result<Created> {
        let mut created = Created::default();
        let made = self.create_into(tree, cgroup, first, &mut created);
        if let Err(error) = made {
            if let Err(left) = self.remove(tree, &created) {
                tracing::warn!(error = %left, "a slice started just before a failure stays behind");
            }
            return Err(error);
        }
        Ok(created)
    }

    fn create_into(
        &self,
        tree: &Tree,
        cgroup: &CgroupPath,
        first: &[Setting],
        created: &mut Created,
    ) -> Result<()> {
        let slices = slice::chain(&tree.full(cgroup))?;
        let identity = tree.identity_path(cgroup)?;
        let depth = slices.len();
        for (above, slice) in slices.iter().enumerate() {
            // The same number of levels up in every hierarchy.
            let there = identity.ancestors().nth(depth - 1 - above);
            let is_last = above + 1 == depth;
            if !is_last && there.is_some_and(Path::is_dir) {
                continue;
            }
            let first = if is_last { first } else { &[] };
            let properties = first.iter().fold(Properties::default(), |all, setting| {
                all.chain(&property::of_setting(setting, tree, self.version))
            });
            let missing: Vec<PathBuf> = tree
                .directories(&slice.path)
                .filter(|directory| !directory.is_dir())
                .collect();
            let started = self.start(slice, &properties)?;
            if started {
                let made = missing.into_iter().filter(|directory| directory.is_dir());
                created.directories.extend(made);
            }
            if is_last {
                created.extend(tree.create(cgroup)?);
                if started {
                    // All that a new cgroup holds was written by systemd from its own memory.
                    self.remember(&slice.unit, property::in_force(tree, cgroup, self.version)?);
                }
            }
        }
        Ok(())
    }

    fn remember(&self, unit: &str, properties: Properties) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(unit.to_owned(), properties);
    }

    fn forget(&self, unit: &str) -> Properties {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(unit).unwrap_or_default()
    }

    /// Starts one slice; false when it ran already.
    fn start(&self, slice: &Slice, properties: &Properties) -> Result<bool> {
        let unit = &slice.unit;
        let wanted = property::of_new_slice(slice).chain(properties);
        let asked = match self.manager.start_transient(unit, &wanted) {
            // One value that it does not take is no reason to have no slice: it is refused once more
            // when it is set.
            Err(SystemdError::Refused { .. }) if !properties.is_empty() => {
                let without = property::of_new_slice(slice);
                self.manager.start_transient(unit, &without)
            }
            answer => answer,
        };
        match asked {
            Ok(()) => {}
            Err(SystemdError::Exists { .. }) => {
                if self.manager.state(unit)? == State::Active {
                    return Ok(false);
                }
                // What a failed one left, or a unit with files of its own.
                self.forget_failed(unit)?;
                self.manager.start(unit)?;
                self.manager.set_properties(unit, &wanted)?;
            }
            Err(error) => return Err(error.into()),
        }
        self.await_state(unit, Operation::Start, State::Active)?;
        Ok(true)
    }

    /// The directories of a slice that another podwarden has made, of the tree's root for the empty
    /// name; none when it is foreign or not running. They may be removed like those that
    /// [`Systemd::create`] names.
    pub fn made_before(&self, tree: &Tree, cgroup: &CgroupPath) -> Result<Created> {
        let mut slices = slice::chain(&tree.full(cgroup))?;
        if !cgroup.is_root() {
            slices.drain(..slices.len().saturating_sub(1));
        }
        let mut found = Created::default();
        for Slice { path, unit, .. } in slices {
            let ours = self.manager.description(&unit)? == property::description(&unit);
            if ours && self.manager.state(&unit)? == State::Active {
                let directories = tree.directories(&path).filter(|d| d.is_dir());
                found.directories.extend(directories);
            }
        }
        Ok(found)
    }

    /// Sets one value of a slice, then calls `write`, which puts the exact value into its file.
    /// A slice that is not running is started: it was stopped, or its directory was made by hand.
    pub fn set(
        &self,
        tree: &Tree,
        cgroup: &CgroupPath,
        setting: &Setting,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let changed = property::of_setting(setting, tree, self.version);
        if changed.is_empty() {
            return write();
        }
        let slices = slice::chain(&tree.full(cgroup))?;
        let Some(slice) = slices.last() else {
            // The root of the tree is systemd's own.
            return write();
        };
        // Of a cgroup that is not there nothing is in force.
        tree.id(cgroup)?;
        let quota = tree.value(cgroup, &table::CPU_QUOTA).ok();
        let held = property::in_force(tree, cgroup, self.version)?;
        // Forgotten until systemd has taken all of it.
        let known = self.forget(&slice.unit);
        if known.has_all(&held) && held.has_all(&changed) {
            // It remembers what the files hold, and that is the new value: it was made with it.
            self.remember(&slice.unit, known);
            return write();
        }
        let stated = held.chain(&changed);
        let news = stated.without(&known).chain(&changed);
        self.manager.set_properties(&slice.unit, &news)?;
        // The second message: see the module.
        if self.manager.state(&slice.unit)? != State::Active {
            self.start(slice, &stated)?;
            self.manager.state(&slice.unit)?;
        }
        self.remember(&slice.unit, known.chain(&stated));
        let is_quota = matches!(setting, Setting::CpuMax(_));
        if let Some(exact) = quota.filter(|_| !is_quota)
            && tree.value(cgroup, &table::CPU_QUOTA)? != exact
        {
            tree.put(cgroup, &table::CPU_QUOTA, None, exact)?;
        }
        write()
    }

    /// Stops the slices of directories that [`Systemd::create`] made, the deepest first, and removes
    /// what systemd left of them. `EBUSY` for a slice that holds processes or cgroups, which stays. Every slice is
    /// tried; the first error is returned.
    pub fn remove(&self, tree: &Tree, created: &Created) -> Result<()> {
        let mut outcome = Ok(());
        let mut stopped = BTreeSet::new();
        let mut directories: Vec<&PathBuf> = created.directories.iter().collect();
        // Of all hierarchies the deepest: a slice goes when nothing is left below it in any of them.
        directories.sort_by_key(|directory| {
            tree.beneath_mount(directory)
                .map(|path| path.components().count())
        });
        for directory in directories.into_iter().rev() {
            let removed = self.stop_slice_of(tree, directory, &mut stopped);
            outcome = outcome.and(removed);
        }
        outcome
    }

    fn stop_slice_of(
        &self,
        tree: &Tree,
        directory: &Path,
        stopped: &mut BTreeSet<PathBuf>,
    ) -> Result<()> {
        let Some(path) = tree.beneath_mount(directory) else {
            return Ok(());
        };
        for place in tree.directories(&path.to_string_lossy()) {
            // systemd would end the processes, and remove cgroups that others made.
            if tree::holds_anything(&place)? {
                return Err(Error::os("remove", directory, Errno::BUSY));
            }
        }
        let slices = slice::chain(&path.to_string_lossy())?;
        if let Some(slice) = slices.last()
            && stopped.insert(path.to_path_buf())
        {
            self.stop(&slice.unit)?;
        }
        tree.remove_created(&Created {
            directories: vec![directory.to_path_buf()],
        })
    }

    fn stop(&self, unit: &str) -> Result<()> {
        self.forget(unit);
        match self.manager.stop(unit) {
            // It is gone, as intended.
            Err(SystemdError::NoUnit { .. }) => return Ok(()),
            result => result?,
        }
        // systemd forgets a transient unit as soon as it has stopped, unless it failed.
        if self.await_state(unit, Operation::Stop, State::Inactive)? == State::Failed {
            self.forget_failed(unit)?;
        }
        Ok(())
    }

    /// A unit that systemd does not have has not failed.
    fn forget_failed(&self, unit: &str) -> Result<()> {
        match self.manager.reset_failed(unit) {
            Err(SystemdError::NoUnit { .. }) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Waits for a job's end by the unit's state; returns the state.
    fn await_state(&self, unit: &str, operation: Operation, wanted: State) -> Result<State> {
        let deadline = Instant::now() + self.job_limit;
        let (mut pause, longest) = PAUSE;
        let mut without_job = false;
        loop {
            let state = self.manager.state(unit)?;
            // A unit that failed has stopped as well.
            if state == wanted || (wanted == State::Inactive && state == State::Failed) {
                return Ok(state);
            }
            if without_job {
                return Err(SystemdError::Job {
                    operation,
                    unit: unit.to_owned(),
                    state,
                }
                .into());
            }
            // Asked after the state, so that the job may have ended in between: one more look.
            without_job = !self.manager.has_job(unit)?;
            if without_job {
                continue;
            }
            if Instant::now() >= deadline {
                return Err(SystemdError::TimedOut {
                    operation,
                    unit: unit.to_owned(),
                    seconds: self.job_limit.as_secs(),
                }
                .into());
            }
            sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
}
