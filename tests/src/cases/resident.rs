//! What the reactor does for the first time does not wait for a disk.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{Case, Context, case, eviction, reaping::Scene, skip};

pub(super) const CASES: &[Case] = &[case("reaping_without_a_disk", reaping_without_a_disk)];

/// What proc_pid_stat(5) says of one thread.
#[derive(Debug, Clone, Copy)]
struct Stat {
    flags: u64,
    /// Page faults that waited for a disk, and the others.
    major: u64,
    minor: u64,
}

/// The thread's allocations start no IO: what `PR_SET_IO_FLUSHER` sets (`include/linux/sched.h`).
const PF_MEMALLOC_NOIO: u64 = 0x0008_0000;

/// Fields 9, 10 and 12 of proc_pid_stat(5) of every thread of the agent that takes part in an eviction, by name.
fn threads(agent: u32) -> Result<Vec<(String, Stat)>> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{agent}/task")).context("list the agent's threads")? {
        let stat = fs::read_to_string(task?.path().join("stat")).context("read a thread's stat")?;
        let (head, rest) = stat.rsplit_once(") ").context("a thread without a name")?;
        let (_, name) = head.split_once('(').context("a thread without a name")?;
        if name == "reactor" || name.starts_with("reaper") {
            let fields: Vec<&str> = rest.split(' ').collect();
            let field = |number: usize| -> Result<u64> {
                let field = fields.get(number - 3).context("a thread's stat is short")?;
                field
                    .parse()
                    .with_context(|| format!("field {number} of a thread's stat"))
            };
            let stat = Stat {
                flags: field(9)?,
                minor: field(10)?,
                major: field(12)?,
            };
            all.push((name.to_owned(), stat));
        }
    }
    ensure!(
        all.iter().any(|(name, _)| name == "reactor"),
        "the agent has no reactor: {all:?}"
    );
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(all)
}

/// Has the kernel drop what it keeps of files, of the agent's at least, and that no process has mapped in.
fn drop_caches(context: &Context, agent: u32) -> Result<()> {
    if context.emulated() {
        fs::write("/proc/sys/vm/drop_caches", "3").context("drop caches")?;
    }
    let maps =
        fs::read_to_string(format!("/proc/{agent}/maps")).context("read the agent's maps")?;
    let files = maps.lines().filter_map(|line| line.split_once('/'));
    let mut files: Vec<String> = files.map(|(_, path)| format!("/{path}")).collect();
    files.sort();
    files.dedup();
    for file in files.iter().filter_map(|path| fs::File::open(path).ok()) {
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .context("drop a file's pages")?;
    }
    Ok(())
}

/// How much of a process's code there is, and how much of it is in memory, KiB (`smaps` of proc_pid_smaps(5)).
fn code(pid: u32) -> Result<(u64, u64)> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).context("find the agent's program")?;
    let program = program.display().to_string();
    let smaps =
        fs::read_to_string(format!("/proc/{pid}/smaps")).context("read the agent's smaps")?;
    let mut lines = smaps.lines();
    lines
        .find(|line| line.contains(" r-xp ") && line.ends_with(&program))
        .context("the agent has no code")?;
    let mut figure = |name: &str| -> Result<u64> {
        let line = lines
            .find_map(|line| line.strip_prefix(name))
            .context("smaps is short")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok((figure("Size:")?, figure("Rss:")?))
}

/// What the reactor does for the first time is in memory already: on a full node, no part of the way from the
/// crossing to freed memory waits for a disk.
fn reaping_without_a_disk(context: &Context) -> Result<()> {
    let scene = Scene::new(context, &eviction::small("enforce"))?;
    let agent = scene.node.agent.pid();
    let node = scene.node.agent.node()?;
    if let Some(why) = (node.degradations.iter()).find(|lost| lost.contains("could not be locked"))
    {
        return skip(why);
    }
    let victim = scene.victim.start(&["anon", "--mib", "128"])?;
    scene.victim_holds(128)?;
    drop_caches(context, agent)?;
    let (size, resident) = code(agent)?;
    ensure!(
        resident == size,
        "{resident} of {size} KiB of the agent's code are in memory"
    );
    let before = threads(agent)?;
    let mut lost = node.degradations.iter();
    if !lost.any(|lost| lost.contains("PR_SET_IO_FLUSHER")) {
        for (name, stat) in &before {
            ensure!(
                stat.flags & PF_MEMALLOC_NOIO != 0,
                "{name} may wait for pages to be written: {stat:?}"
            );
        }
    }
    let filler = scene.fill()?;
    let eviction = scene.evictions(1)?.remove(0);
    let after = threads(agent)?;
    ensure!(eviction.timeline.freed_nanos.is_some(), "{eviction:?}");
    ensure!(before.len() == after.len(), "{before:?} became {after:?}");
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        if name == "reactor" {
            let minor = (after.minor - before.minor) as f64;
            context.figure("reactor_minor_faults", minor, "");
        }
        if after.major > before.major {
            bail!(
                "{name} waited for a disk {} times during an eviction",
                after.major - before.major
            );
        }
    }
    drop((victim, filler));
    scene.node.finish()
}
