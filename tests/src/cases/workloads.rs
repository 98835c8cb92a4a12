//! The harness itself, without an agent: a case that compares figures is worth no more than this.

use std::time::Duration;

use anyhow::{Result, ensure};
use workload::stamps::Stamps;

use super::{Case, Context, case, portable};
use crate::harness::{Cgroup, Sandbox, Workload, monotonic, until};

pub(super) const CASES: &[Case] = &[
    case(
        "workloads_are_charged_to_their_cgroup",
        workloads_are_charged_to_their_cgroup,
    ),
    portable("workloads_do_what_they_say", workloads_do_what_they_say),
    portable("sandbox_cleans_up", sandbox_cleans_up),
];

const MIB: u64 = 1 << 20;

fn workloads_are_charged_to_their_cgroup(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cgroup = sandbox.root.child("container");
    cgroup.create()?;
    let mut burn = Workload::start(&cgroup, &["burn", "--cpu-ms", "300"])?;
    ensure!(burn.wait(context.limit(20))?.success(), "burn failed");
    let cpu = cgroup.cpu_ns()?;
    // v2 tells whole microseconds.
    ensure!(cpu >= 299_999_000, "{cpu} ns were charged of 300 ms");
    let _held = Workload::start(&cgroup, &["anon", "--mib", "32"])?;
    let file = sandbox.dir().join("file").display().to_string();
    let _cache = Workload::start(&cgroup, &["cache", "--mib", "16", "--file", &file])?;
    until(
        context.limit(20),
        "32 MiB of anonymous memory and 16 MiB of page cache",
        || {
            cgroup.memory().is_ok_and(|memory| {
                memory.rss >= 32 * MIB && memory.usage >= 48 * MIB && memory.usage < 80 * MIB
            })
        },
    )
}

fn workloads_do_what_they_say(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cgroup = sandbox.root.child("container");
    cgroup.create()?;
    let limit = context.limit(20);
    let start = |args: &[&str]| Workload::start(&cgroup, args);
    let done = start(&[
        "storm",
        "--count",
        "50",
        "--busy-us",
        "2000",
        "--parallel",
        "3",
    ])?
    .done(limit)?;
    ensure!(done.count == 50, "{} processes of 50", done.count);
    // Beside another each may get only a part of its 2 ms.
    ensure!(
        done.children_cpu_ns > 20_000_000,
        "they used {} ns",
        done.children_cpu_ns
    );
    let done = start(&["pingpong", "--rounds", "300"])?.done(limit)?;
    ensure!(done.count == 300, "{} round trips of 300", done.count);
    let path = sandbox.dir().join("stamps");
    let stamps = Stamps::create(&path)?;
    let path = path.display().to_string();
    let args = [
        "fill",
        "--mib",
        "8",
        "--rate",
        "100",
        "--hold-ms",
        "0",
        "--stamps",
        &path,
    ];
    let before = monotonic();
    ensure!(start(&args)?.wait(limit)?.success(), "fill failed");
    let stamps = stamps.read();
    ensure!(stamps.len() == 8, "{} stamps of 8", stamps.len());
    ensure!(
        stamps.is_sorted_by(|a, b| a.nanos <= b.nanos && a.bytes < b.bytes),
        "{stamps:?}"
    );
    // 8 MiB at 100 MiB/s: the last step starts after 70 ms, never before.
    let took = stamps[7].nanos - before;
    ensure!(took >= 70_000_000, "it filled in {took} ns");
    let _bomb = start(&["forkbomb", "--max", "20"])?;
    until(limit, "20 processes", || cgroup.procs().len() == 20)
}

fn sandbox_cleans_up(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (root, dir) = (sandbox.root.clone(), sandbox.dir().to_owned());
    let deep = root.child("a").child("b").child("c");
    deep.create_below(&root)?;
    let mut bomb = Workload::start(&deep, &["forkbomb", "--max", "10"])?;
    until(context.limit(20), "10 processes", || {
        deep.procs().len() == 10
    })?;
    freeze(&deep);
    drop(sandbox);
    ensure!(
        root.dirs().all(|dir| !dir.exists()),
        "cgroups are left below {}",
        root.path()
    );
    ensure!(!dir.exists(), "{} is left", dir.display());
    ensure!(
        !bomb.wait(Duration::from_secs(5))?.success(),
        "the forkbomb ended by itself"
    );
    Ok(())
}

fn freeze(cgroup: &Cgroup) {
    for dir in cgroup.dirs() {
        for (file, value) in [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")] {
            if dir.join(file).exists() {
                // Whether it took effect at once does not matter here.
                let _ = std::fs::write(dir.join(file), value);
            }
        }
    }
}
