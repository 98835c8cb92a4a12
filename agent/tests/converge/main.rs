//! The thread that brings a tier to its target, on real cgroups: what it writes, in what order, that it
//! is counted, and that no process dies of it.

use std::{
    fs::File,
    io::Write as _,
    os::fd::{AsRawFd as _, IntoRawFd as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use podwarden::{
    api::types::TierConvergence,
    config::{ConvergenceConfig, OnExit},
    hierarchy::{
        act::{Counters, Files, Operation, Outcome},
        converge::{Aim, Converger, Parts, Whose},
    },
    reactor::plan::ScopeName,
};
use podwarden_cgroup::{CgroupPath, Controller, Error, MemoryReader, Tree};
use podwarden_policy::{Bytes, limits::Limit, plan::DEFAULT_MARGIN, settings::Setting};

#[path = "../../cgroup/tests/kernel/support.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod support;

use support::{Attach, Sandbox, Victim, eat, eventually};

const TIER: &str = "kubepods/besteffort";
const MIB: u64 = 1 << 20;
const FOUND: &str = "found.json";
const MARGIN: u64 = DEFAULT_MARGIN.as_u64();

/// A tier with one container, and the thread.
struct Scene {
    sandbox: Sandbox,
    memory: MemoryReader,
    counters: Arc<Counters>,
    /// `None` once it has ended.
    converger: Option<Converger>,
    on_v2: bool,
    dir: tempfile::TempDir,
}

impl Scene {
    /// `None`, with the reason printed, where cgroups cannot be made.
    fn new() -> Option<Self> {
        Self::with(OnExit::Restore)
    }

    fn with(on_exit: OnExit) -> Option<Self> {
        let sandbox = Sandbox::new()?;
        sandbox.cgroup("kubepods/besteffort/pod/main");
        let dir = tempfile::tempdir().unwrap();
        let counters = Arc::new(Counters::default());
        let converger = Converger::start(Parts {
            tree: sandbox.tree.clone(),
            backend: Arc::new(Files),
            counters: Arc::clone(&counters),
            config: ConvergenceConfig {
                on_exit,
                reclaim_step: Bytes::mebi(16),
                ..ConvergenceConfig::default()
            },
            found: dir.path().join(FOUND),
            guard: None,
        });
        Some(Self {
            memory: MemoryReader::open(&sandbox.tree, &TIER.into()).unwrap(),
            on_v2: sandbox.tree.hierarchies().is_on_v2(Controller::Memory),
            sandbox,
            counters,
            converger: Some(converger.unwrap()),
            dir,
        })
    }

    fn tree(&self) -> &Tree {
        &self.sandbox.tree
    }

    fn converger(&self) -> &Converger {
        self.converger.as_ref().unwrap()
    }

    fn run(&self, body: fn() -> !) -> Victim {
        let container = "kubepods/besteffort/pod/main";
        Victim::spawn(&Attach::open(self.tree(), container), body)
    }

    fn usage(&self) -> u64 {
        self.memory.usage().unwrap()
    }

    fn limit(&self) -> Option<u64> {
        self.memory.limit().unwrap()
    }

    /// `None` on v1 as well.
    fn high(&self) -> Option<u64> {
        match self.tree().memory_high(&TIER.into()) {
            Err(Error::Unsupported { .. }) => None,
            high => high.unwrap().bound().map(Bytes::as_u64),
        }
    }

    fn aim(&self, target: u64, level: u64) {
        self.aim_slowing(target, level, true);
    }

    fn aim_slowing(&self, target: u64, level: u64, slows: bool) {
        self.converger().aim(vec![Aim {
            scope: ScopeName::BestEffort,
            path: TIER.into(),
            target: Some(Limit::At(Bytes(target))),
            level: Some(Bytes(level)),
            told: 1,
            made: false,
            slows,
            pods: Vec::new(),
        }]);
    }

    /// What keeps the tier from growing.
    fn is_capped(&self, level: u64) -> bool {
        if self.on_v2 {
            self.high().is_some_and(|high| high <= self.usage())
        } else {
            self.limit().is_some_and(|limit| limit == level + MARGIN)
        }
    }

    fn figures(&self) -> TierConvergence {
        let figures = self.converger().figures();
        let tier = figures
            .into_iter()
            .find(|(name, _)| *name == ScopeName::BestEffort);
        // Published once the thread has looked.
        tier.map(|(_, figures)| figures).unwrap_or_default()
    }

    /// What the agent starts beside itself, which hears this from it and then its end.
    fn guard(&self, says: &[u8]) {
        let root = self
            .tree()
            .path(Controller::Memory, &CgroupPath::ROOT)
            .unwrap();
        let mut guard = Command::new(env!("CARGO_BIN_EXE_podwarden"))
            .args(["guard", "--cgroup-root"])
            .arg(root.file_name().unwrap())
            .arg("--found")
            .arg(self.dir.path().join(FOUND))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        guard.stdin.take().unwrap().write_all(says).unwrap();
        assert!(guard.wait().unwrap().success());
    }

    /// The thread ends; what was found is there again.
    fn end(mut self) {
        drop(self.converger.take());
        assert_eq!((self.limit(), self.high()), (None, None));
    }
}

/// The file that [`read_all`] reads.
static CACHED: AtomicI32 = AtomicI32::new(-1);

/// Reads the file whole, which puts it into page cache, and then sleeps.
fn read_all() -> ! {
    let mut buffer = [0_u8; 64 << 10];
    let file = CACHED.load(Ordering::Relaxed);
    // SAFETY: reads into a buffer of our own of that length.
    unsafe {
        while libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) > 0 {}
        loop {
            libc::pause();
        }
    }
}

/// A file of 96 MiB of which nothing is in page cache; `None` where page cache cannot be dropped.
fn file_on_disk(dir: &Path) -> Option<(File, PathBuf)> {
    const TMPFS: u64 = 0x0102_1994;
    if rustix::fs::statfs(dir).ok()?.f_type.unsigned_abs() == TMPFS {
        println!("skipped: {} is not on a disk", dir.display());
        return None;
    }
    let path = dir.join(format!("podwarden-converge-{}", std::process::id()));
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let block = vec![7_u8; 1 << 20];
    for _ in 0..96 {
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
    // SAFETY: a file of our own.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Some((File::open(&path).unwrap(), path))
}

fn kill(victim: &Victim) {
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
}

#[test]
fn a_tier_is_kept_from_growing_and_its_limit_follows_it_down() {
    let Some(scene) = Scene::new() else { return };
    let victim = scene.run(eat::<64>);
    eventually("the tier's memory", || scene.usage() >= 64 * MIB);
    let (target, level) = (48 * MIB, 96 * MIB);
    scene.aim(target, level);
    eventually("the cap", || scene.is_capped(level));
    eventually("the figures", || scene.figures().cap_nano_seconds.is_some());
    let figures = scene.figures();
    assert!(figures.gap_bytes > 0 && !figures.reached, "{figures:?}");
    assert!(victim.is_running(), "killed by a limit");
    kill(&victim);
    scene.converger().look();
    eventually("the target", || scene.limit() == Some(target));
    if scene.on_v2 {
        eventually("memory.high", || scene.high() == Some(target - MARGIN));
    }
    eventually("the figures", || scene.figures().reached);
    eventually("every write is counted", || {
        let steps = scene.figures().steps;
        scene.counters.now().writes().updated == steps.max + steps.high
    });
    scene.end();
}

#[test]
fn the_guard_puts_back_what_was_found_unless_it_is_dismissed() {
    let Some(mut scene) = Scene::with(OnExit::Keep) else {
        return;
    };
    let victim = scene.run(eat::<64>);
    eventually("the tier's memory", || scene.usage() >= 64 * MIB);
    let level = 96 * MIB;
    scene.aim(48 * MIB, level);
    eventually("the cap", || scene.is_capped(level));
    // As long as an agent has the tree, its limits are its own.
    scene.guard(b"");
    assert!(scene.is_capped(level));
    drop(scene.converger.take());
    assert!(scene.is_capped(level), "kept");
    scene.guard(b"dismissed");
    assert!(scene.is_capped(level), "dismissed");
    scene.guard(b"");
    assert!(victim.is_running());
    kill(&victim);
    let found = scene.dir.path().join(FOUND);
    assert!(!found.exists(), "there is nothing left to put back");
    scene.end();
}

#[test]
fn another_writer_is_answered_when_that_is_admitted() {
    let Some(scene) = Scene::new() else { return };
    let (target, foreign) = (48 * MIB, 512 * MIB);
    scene.aim(target, target - MARGIN);
    eventually("the target", || scene.limit() == Some(target));
    scene
        .tree()
        .write(
            &TIER.into(),
            &Setting::MemoryLimit(Limit::At(Bytes(foreign))),
        )
        .unwrap();
    let found = Limit::At(Bytes(foreign));
    let left = Limit::At(Bytes(target));
    let whose = || {
        scene
            .converger()
            .ours()
            .whose(&TIER.into(), found, Instant::now())
    };
    assert_eq!(whose(), Whose::Others { left });
    scene.converger().look();
    sleep(Duration::from_millis(50));
    assert_eq!(scene.limit(), Some(foreign), "it was not admitted");
    scene.converger().answer(&TIER.into(), found);
    eventually("the target again", || scene.limit() == Some(target));
    eventually("the count", || scene.counters.now().writes().corrected == 1);
    scene.end();
}

#[test]
fn page_cache_is_dropped_in_pieces_and_no_process_is_killed() {
    let Some((file, path)) = file_on_disk(Path::new("/var/tmp")) else {
        return;
    };
    std::fs::remove_file(path).unwrap();
    let Some(scene) = Scene::new() else { return };
    CACHED.store(file.into_raw_fd(), Ordering::Relaxed);
    let victim = scene.run(read_all);
    eventually("the page cache", || scene.usage() >= 96 * MIB);
    let (target, level) = (72 * MIB, 128 * MIB);
    scene.aim(target, level);
    let swaps = std::fs::read_to_string("/proc/swaps")
        .unwrap()
        .lines()
        .count()
        > 1;
    let alone = scene.tree().reclaims(&TIER.into()) == podwarden_cgroup::Reclaims::CacheAlone;
    if swaps && !alone {
        println!("skipped: anonymous memory would go to swap");
        return;
    }
    eventually("the target", || scene.limit() == Some(target));
    assert!(scene.usage() + MARGIN <= target + MIB);
    assert!(victim.is_running(), "killed by a limit");
    let pieces = scene.counters.now();
    let pieces = pieces.of(Operation::Reclaim).of(Outcome::Done);
    assert!(pieces >= 2, "{pieces} pieces of 16 MiB");
    eventually("the figures", || {
        scene.figures().reclaimed_bytes >= 32 * MIB
    });
    kill(&victim);
    scene.end();
}
