//! The kernel's own means of keeping best effort apart, each without an agent.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::settings::Controller;

use super::Keeper;
use super::scene::{cpus, file};
use crate::harness::Cgroup;

/// The slice of a protected pod's tasks, nanoseconds: the shortest that the kernel takes (`__setparam_fair` of
/// `kernel/sched/syscalls.c`).
const SLICE_NS: u64 = 100_000;
/// Half of the node: the period of its quota, microseconds.
const PERIOD_US: usize = 100_000;

/// Sets what the keeper is about on the tier, before there is work.
pub(super) fn prepare(keeper: Keeper, tier: &Cgroup) -> Result<()> {
    match keeper {
        Keeper::Idle => write(tier, Controller::Cpu, ("cpu.idle", "cpu.idle"), "1"),
        Keeper::Quota => {
            let quota = cpus() * PERIOD_US / 2;
            let names = ("cpu.cfs_quota_us", "cpu.max");
            write(tier, Controller::Cpu, names, &quota.to_string())
        }
        Keeper::Cpus => {
            let half = (cpus() / 2).max(1) - 1;
            partition(tier, &format!("0-{half}"))
        }
        _ => Ok(()),
    }
}

/// Children first: on v1 a parent holds its children's CPUs.
fn partition(cgroup: &Cgroup, list: &str) -> Result<()> {
    for child in cgroup.children() {
        partition(&child, list)?;
    }
    let names = ("cpuset.cpus", "cpuset.cpus");
    write(cgroup, Controller::CpuSet, names, list)
}

fn write(cgroup: &Cgroup, controller: Controller, names: (&str, &str), text: &str) -> Result<()> {
    let path = file(cgroup, controller, names)?;
    fs::write(&path, text).with_context(|| format!("write {text} to {}", path.display()))
}

/// Makes every task of a container SCHED_IDLE; what these start is so too.
pub(super) fn make_idle(container: &Cgroup) -> Result<()> {
    schedule(container, libc::SCHED_IDLE, 0).context("make it SCHED_IDLE")
}

/// Makes every task of a container SCHED_FIFO of the least priority: it waits for no task that has none.
pub(super) fn make_real_time(container: &Cgroup) -> Result<()> {
    /// Of each second, where cgroups have real-time budgets (v1); a new one has none.
    const BUDGET_US: &str = "800000";
    let mount = container.mounts().of(Controller::Cpu);
    let mut directory = mount.context("no cpu controller")?.to_owned();
    for component in Path::new(container.path()).components() {
        directory.push(component);
        let budget = directory.join("cpu.rt_runtime_us");
        if budget.exists() {
            fs::write(&budget, BUDGET_US)
                .with_context(|| format!("write {BUDGET_US} to {}", budget.display()))?;
        }
    }
    schedule(container, libc::SCHED_FIFO, 1).context("make it SCHED_FIFO")
}

fn schedule(container: &Cgroup, policy: i32, priority: i32) -> Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    for tid in tasks(container)? {
        // SAFETY: affects the task alone; the pointer is to a live value.
        let done = unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) };
        check(done.into(), tid)?;
    }
    Ok(())
}

/// `struct sched_attr` of `include/uapi/linux/sched/types.h`, its first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice of an ordinary task, from Linux 6.12.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Gives every task of a container a short slice; what these start has it too.
pub(super) fn shorten_slices(container: &Cgroup) -> Result<()> {
    let attributes = Attributes {
        size: u32::try_from(size_of::<Attributes>())?,
        policy: 0,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    for tid in tasks(container)? {
        // SAFETY: affects the task alone; the pointer is to a live value of the size that it says.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0_u32) };
        check(done, tid).context("shorten its slice")?;
    }
    Ok(())
}

/// A task that has ended meanwhile is as good.
fn check(done: libc::c_long, tid: i32) -> Result<()> {
    let error = io::Error::last_os_error();
    if done != 0 && error.raw_os_error() != Some(libc::ESRCH) {
        return Err(error).with_context(|| format!("task {tid}"));
    }
    Ok(())
}

fn tasks(container: &Cgroup) -> Result<Vec<i32>> {
    let mut tids = Vec::new();
    for pid in container.procs() {
        // One that has ended has none.
        for entry in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
        {
            let name = entry?.file_name();
            tids.extend(name.to_str().and_then(|tid| tid.parse::<i32>().ok()));
        }
    }
    ensure!(!tids.is_empty(), "{} has no task", container.path());
    Ok(tids)
}
