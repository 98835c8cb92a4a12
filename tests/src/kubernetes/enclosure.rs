//! Namespaces for a node: network, mounts, cgroups. What runs there sees a private cgroup as the root of every
//! hierarchy; process ids are the machine's, because the agent's kernel programs report those. In a test machine they
//! are the machine's own, which no other work shares: systemd's cgroups are in no other.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use super::driver::Driver;
use crate::harness::{Cgroup, Sandbox, clear};
use crate::machine::init::is_guest;

const SCRIPT: &str = include_str!("enclose.sh");
/// The cgroup of the daemons, beside `kubepods`.
const DAEMONS: &str = "daemons";

/// See the module. All that runs in it ends with it.
#[derive(Debug)]
pub(crate) struct Enclosure {
    /// Holds the namespaces.
    holder: Child,
    namespaces: Arc<[(File, CloneFlags)]>,
    /// The cgroup that is the root in it.
    root: Cgroup,
    /// Where its daemons run; where this program does, in a machine of its own.
    daemons: Option<Cgroup>,
    sandbox: Sandbox,
}

impl Enclosure {
    pub(super) fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let alone = is_guest();
        let (root, daemons) = match alone {
            true => (Cgroup::new(&sandbox.mounts, ""), None),
            false => (sandbox.root.clone(), Some(sandbox.root.child(DAEMONS))),
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh"])
            .arg(sandbox.dir())
            .arg(if alone { "" } else { DAEMONS })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(sandbox.dir().join("enclosure.log"))?);
        let (mut joined, mut flags) = (Vec::new(), CloneFlags::empty());
        if !alone {
            // Also the hierarchies that pods of other cases have no part in: a runtime and a kubelet use them.
            let elsewhere = Cgroup::new(&sandbox.mounts.elsewhere()?, root.path());
            elsewhere.create()?;
            joined = [procs(&root)?, procs(&elsewhere)?].concat();
            flags =
                CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP;
        }
        let prepare = move || {
            set_pdeathsig(Signal::SIGKILL)?;
            join(&joined)?;
            Ok(unshare(flags)?)
        };
        // SAFETY: only system calls between fork and exec, on paths that were built before.
        unsafe { command.pre_exec(prepare) };
        let mut holder = command.spawn().context("start a shell")?;
        let mut line = String::new();
        let said = holder.stdout.take().context("the shell has no stdout")?;
        let read = BufReader::new(said).read_line(&mut line);
        // From here on a failure ends the shell.
        let mut this = Self {
            holder,
            namespaces: Arc::new([]),
            root,
            daemons,
            sandbox,
        };
        if read.is_err() || line != "ready\n" {
            let log = std::fs::read_to_string(this.dir().join("enclosure.log"))?;
            bail!("the node's namespaces cannot be made: {}", log.trim());
        }
        let open = |(name, flag)| -> Result<(File, CloneFlags)> {
            let path = format!("/proc/{}/ns/{name}", this.holder.id());
            let file = File::open(&path).with_context(|| format!("open {path}"))?;
            Ok((file, flag))
        };
        let kinds = [
            ("cgroup", CloneFlags::CLONE_NEWCGROUP),
            ("net", CloneFlags::CLONE_NEWNET),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ];
        this.namespaces = kinds.into_iter().map(open).collect::<Result<_>>()?;
        Ok(this)
    }

    /// A program in it, which is killed when the thread ends that starts it.
    pub(super) fn command(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        let mut joined = Vec::new();
        if let Some(daemons) = &self.daemons {
            let elsewhere = Cgroup::new(&self.sandbox.mounts.elsewhere()?, daemons.path());
            joined = [procs(daemons)?, procs(&elsewhere)?].concat();
        }
        let namespaces = Arc::clone(&self.namespaces);
        let enter = move || {
            set_pdeathsig(Signal::SIGKILL)?;
            join(&joined)?;
            for (file, flag) in &*namespaces {
                setns(file, *flag)?;
            }
            Ok(())
        };
        // SAFETY: only system calls between fork and exec, on files that are open.
        unsafe { command.pre_exec(enter) };
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Its network namespace.
    pub(super) fn network(&self) -> Result<File> {
        let mut found = self.namespaces.iter();
        let found = found.find(|(_, flag)| *flag == CloneFlags::CLONE_NEWNET);
        let (file, _) = found.context("there is no network namespace")?;
        file.try_clone().context("keep the network namespace")
    }

    /// Where the machine has what is at `path` in it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// All that is written, which has the same path inside and outside.
    pub(crate) fn dir(&self) -> &Path {
        self.sandbox.dir()
    }

    /// The cgroup that is the root in it.
    pub(crate) fn root(&self) -> &Cgroup {
        &self.root
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        // What else runs is in the sandbox's cgroup, which ends it, or in a test machine below `kubepods`.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        if self.daemons.is_none() {
            // A mount on a directory that is gone could not be covered by the next node's.
            for place in ["/var/lib", "/var/log"] {
                if let Err(error) = umount2(place, MntFlags::MNT_DETACH) {
                    eprintln!("left mounted: {place}: {error}");
                }
            }
            for kubepods in Driver::ALL.map(|driver| self.root.child(driver.kubepods())) {
                if let Err(error) = clear(&kubepods) {
                    eprintln!("left behind below {}: {error:#}", kubepods.path());
                }
            }
        }
    }
}

/// A cgroup's `cgroup.procs` in every hierarchy.
fn procs(cgroup: &Cgroup) -> Result<Vec<CString>> {
    let files = cgroup.dirs().map(|dir| dir.join("cgroup.procs"));
    let files: Result<Vec<_>, _> = files
        .map(|file| CString::new(file.as_os_str().as_bytes()))
        .collect();
    Ok(files?)
}

/// Moves this process; called between fork and exec.
fn join(procs: &[CString]) -> std::io::Result<()> {
    for file in procs {
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = open(file.as_c_str(), flags, Mode::empty())?;
        nix::unistd::write(&file, b"0")?;
    }
    Ok(())
}
