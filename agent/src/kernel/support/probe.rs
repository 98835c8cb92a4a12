//! Gathers the facts. Nothing is left attached or created, and nothing is decided.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags},
    sys::{
        resource::{RLIM_INFINITY, Resource, getrlimit},
        utsname::uname,
    },
    unistd::{AccessFlags, faccessat},
};
use podwarden_cgroup::{Controller, DriverFacts, Hierarchies, Systemd};
use rustix::thread::CapabilitySet;

use super::{CgroupFacts, KernelSupport, Lockdown, Release, Trial, trial};
use crate::kernel::{
    btf::{BtfError, KernelBtf, VMLINUX},
    hooks::{self, CHARGE, WALK},
    pins, realtime,
};

/// What the agent locks at most: its own pages, well below this.
const LOCKED_BYTES: u64 = 64 << 20;

/// Asks this kernel, whose types are `types`, for an agent whose `kubepods` is below `cgroup_root`.
pub fn probe(cgroup_root: &str, types: &Result<KernelBtf, BtfError>) -> KernelSupport {
    let release = uname().map(|names| names.release().to_string_lossy().into_owned());
    let release = Release::parse(&release.unwrap_or_default());
    let capabilities = rustix::thread::capabilities(None).ok().map(|c| c.effective);
    let mut support = KernelSupport {
        release,
        capabilities,
        lockdown: lockdown(),
        btf: Path::new(VMLINUX).try_exists().ok(),
        tracepoints: None,
        lacking: None,
        charge_function: None,
        ring_buffer: Some(trial::ring_buffer()),
        tp_btf: None,
        fentry: None,
        iterator: None,
        cgroup: cgroup(cgroup_root),
        psi: Path::new("/proc/pressure/memory").try_exists().ok(),
        real_time: real_time(),
        memory_lock: memory_lock(capabilities),
        bpf_fs: Some(pins::is_bpf_fs(Path::new(pins::BPF_FS))),
        bpf_stats: flag(Path::new("/proc/sys/kernel/bpf_stats_enabled")),
    };
    match types {
        Ok(btf) => ask_btf(&mut support, btf),
        Err(error) => {
            tracing::debug!(%error, "no kernel types");
        }
    }
    support
}

fn ask_btf(support: &mut KernelSupport, btf: &KernelBtf) {
    let arguments = |name| Some((name, btf.tracepoint_args(name)?));
    let names = hooks::by_tracepoint().map(|hooks| hooks[0].tracepoint);
    support.tracepoints = Some(names.filter_map(arguments).collect::<BTreeMap<_, _>>());
    support.lacking = Some(hooks::lacking(btf));
    support.charge_function = Some(btf.func_exists(CHARGE.tracepoint));
    support.tp_btf = btf.tracepoint_id("cgroup_mkdir").map(trial::tracepoint);
    support.fentry = btf.func_id(CHARGE.tracepoint).map(trial::fentry);
    support.iterator = Some(match btf.func_id(WALK.tracepoint) {
        Some(id) => trial::iterator(id),
        None => Trial::Refused("this kernel has none".to_owned()),
    });
}

/// `[none] integrity confidentiality`, the one in force in brackets (kernel_lockdown(7)).
fn lockdown() -> Option<Lockdown> {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    Lockdown::parse(&text)
}

fn cgroup(root: &str) -> Option<CgroupFacts> {
    let found = Hierarchies::detect().ok()?;
    let memory = found.controllers.get(&Controller::Memory);
    let memory_on_v2 = found.is_on_v2(Controller::Memory);
    let v2_child = found.v2_mount.as_deref().and_then(first_child);
    let below_v2 = |file| {
        v2_child
            .as_ref()
            .and_then(|c| c.join(file).try_exists().ok())
    };
    Some(CgroupFacts {
        version: found.version,
        driver: DriverFacts::probe(&found, root).guess(),
        systemd: Systemd::connect()
            .map(|systemd| systemd.version())
            .map_err(|error| error.to_string()),
        memory_controller: memory.is_some(),
        memory_on_v2,
        writable: memory.and_then(|mount| writable(&mount.join(root.trim_matches('/')))),
        kill: below_v2("cgroup.kill"),
        memory_events: if memory_on_v2 {
            below_v2("memory.events")
        } else {
            Some(false)
        },
        event_control: memory
            .filter(|_| !memory_on_v2)
            .and_then(|mount| mount.join("cgroup.event_control").try_exists().ok()),
    })
}

/// Some cgroup below the mount point: the root has not all the files.
fn first_child(mount: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(mount).ok()?.flatten();
    entries.find_map(|e| e.file_type().ok()?.is_dir().then(|| e.path()))
}

/// Whether the effective ids and capabilities allow writes to the directory or to its first ancestor that exists.
fn writable(dir: &Path) -> Option<bool> {
    let existing = dir.ancestors().find(|d| d.is_dir())?;
    match faccessat(AT_FDCWD, existing, AccessFlags::W_OK, AtFlags::AT_EACCESS) {
        Ok(()) => Some(true),
        Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => Some(false),
        Err(_) => None,
    }
}

/// Tries SCHED_FIFO in a thread of its own, which ends with it.
fn real_time() -> Option<bool> {
    let attempt = thread::Builder::new().spawn(realtime::make_fifo);
    attempt.ok()?.join().ok()
}

fn memory_lock(capabilities: Option<CapabilitySet>) -> Option<bool> {
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    if limit == RLIM_INFINITY || limit >= LOCKED_BYTES {
        return Some(true);
    }
    capabilities.map(|c| c.contains(CapabilitySet::IPC_LOCK))
}

fn flag(path: &Path) -> Option<bool> {
    Some(fs::read_to_string(path).ok()?.trim() != "0")
}
