//! The reactor's own thread, on real cgroups: it calls the allocator at no point from the arming of a
//! plan to the last report, and a victim that vanishes does not hold it up.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use podwarden::{
    config::ReactorConfig,
    reactor::{
        Reactor,
        free::FreeMemory,
        growth::Seen,
        plan::{
            ArmedPlan, Notice, Pressure, Scope, ScopeName, StallTrigger, Victim as ArmedVictim,
            VictimFiles,
        },
        report::Report,
    },
};
use podwarden_cgroup::{
    CgroupPath, Controller, KillHandle, MemoryReader, MemoryThresholds, PsiKind, Tree,
};
use podwarden_policy::{
    evict::Candidate, limits::Limit, model::QosClass, settings::Setting, threshold::Amount,
    units::Bytes,
};

#[path = "../../cgroup/tests/kernel/support.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod support;

use support::{Attach, Sandbox, Victim, eat, eventually};

/// Counts the calls of one thread.
struct Counting;

/// The thread; 0 for none.
static WATCHED: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    let watched = WATCHED.load(Ordering::Relaxed);
    // SAFETY: gettid(2) takes nothing.
    if watched != 0 && unsafe { libc::gettid() } == watched {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract is ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The thread of this process that is called `reactor`.
fn reactor_thread() -> i32 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut names = tasks.filter_map(|task| {
        let task = task.ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        (name.trim() == "reactor").then(|| task.file_name().to_str()?.parse().ok())?
    });
    names.next().expect("there is no reactor's thread")
}

fn config() -> ReactorConfig {
    ReactorConfig {
        real_time: false,
        min_interval: Duration::from_millis(1),
        max_interval: Duration::from_millis(20),
        max_evictions_per_minute: 60,
        max_headroom: Amount::Percent(10_000_000),
    }
}

fn scope(tree: &Tree, level: u64) -> Arc<Scope> {
    Arc::new(Scope {
        name: ScopeName::Kubepods,
        level,
        target: level,
        memory: MemoryReader::open(tree, &"kubepods".into()).unwrap(),
        memory_id: tree.memory_id(&"kubepods".into()).unwrap(),
        notice: Notice::of(MemoryThresholds::of(tree, &"kubepods".into()).ok()),
        events: None,
    })
}

fn candidate(tree: &Tree, token: u64, path: &CgroupPath, priority: i32) -> ArmedVictim {
    ArmedVictim {
        token,
        uid: path.as_str().into(),
        place: QosClass::BestEffort,
        candidate: Candidate {
            qos: QosClass::BestEffort,
            priority,
            memory_request: Bytes(0),
            working_set: None,
        },
        files: Arc::new(VictimFiles {
            path: path.to_owned(),
            memory: MemoryReader::open(tree, path).unwrap(),
            kill: KillHandle::open(tree, path).unwrap(),
            seen: Seen::default(),
        }),
    }
}

fn plan(scope: &Arc<Scope>, victims: Vec<ArmedVictim>) -> ArmedPlan {
    ArmedPlan {
        scopes: vec![Arc::clone(scope)],
        victims,
        cpus: 2,
        enforce: true,
        ..ArmedPlan::default()
    }
}

/// The reports up to the one that says what became of a victim's memory.
fn until_freed(reactor: &mut Reactor) -> Vec<Report> {
    let mut reports = Vec::new();
    let end = Instant::now() + Duration::from_secs(30);
    while !reports.iter().any(|r| matches!(r, Report::Freed { .. })) {
        assert!(Instant::now() < end, "only {reports:?}");
        reports.extend(std::iter::from_fn(|| reactor.next_report()));
        sleep(Duration::from_millis(2));
    }
    reports
}

fn victim_of(reports: &[Report]) -> Option<u64> {
    reports.iter().find_map(|report| match report {
        Report::Chosen(chosen) => chosen.outcome.map(|_| chosen.token),
        _ => None,
    })
}

/// What is used once no more of it is freed: memory of a victim that counts as freed may still go down.
fn at_rest(memory: &MemoryReader) -> u64 {
    let mut last = memory.usage().unwrap();
    eventually("usage rests", || {
        sleep(Duration::from_millis(200));
        let now = memory.usage().unwrap();
        std::mem::replace(&mut last, now).abs_diff(now) < 64 << 10
    });
    last
}

fn hog(sandbox: &Sandbox, path: &CgroupPath) -> Victim {
    sandbox.cgroup(path.as_str());
    let hog = Victim::spawn(&Attach::open(&sandbox.tree, path.as_str()), eat::<32>);
    let memory = MemoryReader::open(&sandbox.tree, path).unwrap();
    eventually("it has eaten", || memory.usage().unwrap() >= 32 << 20);
    hog
}

/// A stall trigger, and what makes it fire.
fn trigger() -> (TcpStream, StallTrigger) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let trigger = StallTrigger {
        kind: PsiKind::Some,
        window: Duration::from_secs(2),
        notice: far.into(),
    };
    (near, trigger)
}

fn urge(stream: &TcpStream) {
    // SAFETY: one byte of a constant, on a socket that is open.
    let sent = unsafe { libc::send(stream.as_raw_fd(), [1_u8].as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
}

/// One test for both, so that no other thread is called `reactor`.
#[test]
fn the_reactors_thread_allocates_nothing_and_outlives_what_vanishes() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let hogs = ["kubepods/a/main", "kubepods/b/main"].map(|path| hog(&sandbox, &path.into()));
    let mut reactor = Reactor::start(None, config()).unwrap();
    let thread = reactor_thread();
    // All that is its own is made: the thread waits.
    sleep(Duration::from_millis(50));
    WATCHED.store(thread, Ordering::Relaxed);

    // A level out of reach, then plans that replace one another.
    let high = scope(tree, 1 << 40);
    for _ in 0..3 {
        reactor.arm(plan(
            &high,
            vec![candidate(tree, 1, &"kubepods/a".into(), 0)],
        ));
        sleep(Duration::from_millis(30));
    }
    // Armed below usage: crossing, choice, kill, report, freed.
    let low = scope(tree, 48 << 20);
    let both = vec![
        candidate(tree, 1, &"kubepods/a".into(), 1),
        candidate(tree, 2, &"kubepods/b".into(), 0),
    ];
    reactor.arm(plan(&low, both));
    let reports = until_freed(&mut reactor);
    assert_eq!(victim_of(&reports), Some(2), "{reports:?}");
    let [first, second] = hogs;
    assert_eq!(second.ended_by(), Some(libc::SIGKILL));
    assert!(first.is_running());

    // The next would be one that vanishes between the choice and the kill: on v1 its memory can still be
    // read when its freezer is gone.
    let gone = hog(&sandbox, &"kubepods/gone/main".into());
    let vanished = candidate(tree, 3, &"kubepods/gone".into(), -1);
    let expected = vanish(&sandbox, &"kubepods/gone".into());
    reactor.arm(plan(
        &low,
        vec![candidate(tree, 1, &"kubepods/a".into(), 1), vanished],
    ));
    let reports = until_freed(&mut reactor);
    assert_eq!(victim_of(&reports), Some(expected), "{reports:?}");

    // Tasks that wait for memory: the condition is what a stall trigger has, urgent data.
    let stalled = hog(&sandbox, &"kubepods/stalled/main".into());
    let usage = at_rest(&MemoryReader::open(tree, &"kubepods".into()).unwrap());
    tree.write(
        &"kubepods".into(),
        &Setting::MemoryLimit(Limit::At(Bytes(usage + (1 << 20)))),
    )
    .unwrap();
    let (trigger, notice) = trigger();
    let mut waiting = plan(
        &high,
        vec![candidate(tree, 4, &"kubepods/stalled".into(), 0)],
    );
    waiting.pressure = Some(Arc::new(Pressure {
        memory: MemoryReader::open(tree, &"kubepods".into()).unwrap(),
        memory_id: tree.memory_id(&"kubepods".into()).unwrap(),
        free: FreeMemory::open().unwrap(),
        triggers: vec![notice],
    }));
    reactor.arm(waiting);
    sleep(Duration::from_millis(30));
    urge(&trigger);
    let reports = until_freed(&mut reactor);
    assert_eq!(victim_of(&reports), Some(4), "{reports:?}");
    assert!(
        reports.iter().any(|report| matches!(
            report,
            Report::Crossed(crossing) if crossing.scope == ScopeName::Pressure
        )),
        "{reports:?}"
    );
    assert_eq!(stalled.ended_by(), Some(libc::SIGKILL));

    WATCHED.store(0, Ordering::Relaxed);
    let calls = CALLS.load(Ordering::Relaxed);
    assert_eq!(calls, 0, "the reactor's thread called the allocator");
    let pulse = reactor.pulse();
    let beat = pulse.take();
    eventually("it goes round", || pulse.take() > beat);
    drop((first, gone, reactor));
}

/// Removes what the kill needs of a cgroup and leaves its memory; the token of who goes instead.
fn vanish(sandbox: &Sandbox, path: &CgroupPath) -> u64 {
    let tree = &sandbox.tree;
    let Ok(freezer) = tree.path(Controller::Freezer, path) else {
        println!("skipped: on v2 a cgroup vanishes as a whole");
        return 3;
    };
    for directory in [freezer.join("main"), freezer] {
        let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        for pid in processes.lines() {
            let outside = tree.path(Controller::Freezer, &CgroupPath::ROOT).unwrap();
            fs::write(outside.join("cgroup.procs"), pid).unwrap();
        }
        eventually("the freezer's cgroup is gone", || {
            fs::remove_dir(&directory).is_ok()
        });
    }
    1
}

#[test]
fn the_count_counts() {
    // SAFETY: gettid(2) takes nothing.
    let this = unsafe { libc::gettid() };
    let before = CALLS.load(Ordering::Relaxed);
    if WATCHED
        .compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
    {
        println!("skipped: the other test is counting");
        return;
    }
    drop(std::hint::black_box(Box::new(1)));
    let counted = CALLS.load(Ordering::Relaxed) - before;
    WATCHED.store(0, Ordering::Relaxed);
    CALLS.store(before, Ordering::Relaxed);
    assert!(counted >= 2, "{counted}");
}
