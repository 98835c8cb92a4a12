//! What the real-time thread calls allocates nothing, neither when it works nor when it fails.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use crate::support::{Attach, Sandbox, Victim, eventually};
use podwarden_cgroup::{KernelCpu, KillHandle, MemoryReader};

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.set(CALLS.get() + 1);
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

/// Runs something and fails if it called the allocator.
fn allocates_nothing<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let before = CALLS.get();
    let result = run();
    assert_eq!(CALLS.get() - before, 0, "{what} called the allocator");
    result
}

#[test]
fn the_count_counts() {
    let before = CALLS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(CALLS.get() - before, 2);
}

#[test]
fn reading_and_killing_allocate_nothing() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/nested/container");
    let attach = Attach::open(tree, container);
    let victims: Vec<_> = (0..5).map(|_| Victim::sleeper(&attach)).collect();
    eventually("all are inside", || {
        tree.procs(&container.into()).unwrap().len() == 5
    });

    let memory = MemoryReader::open(tree, &"pod".into()).unwrap();
    let cpu = KernelCpu::open(tree, &"pod".into()).unwrap();
    let handle = KillHandle::open(tree, &"pod".into()).unwrap();
    allocates_nothing("usage", || memory.usage().unwrap());
    allocates_nothing("stat", || memory.stat().unwrap());
    allocates_nothing("limit", || memory.limit().unwrap());
    allocates_nothing("CPU time", || cpu.usage_nanos().unwrap());
    let mut listed = 0;
    allocates_nothing("list", || handle.processes(&mut |_| listed += 1).unwrap());
    assert!(listed >= 5);
    let killed = allocates_nothing("kill", || handle.kill_workload(&mut |_| {}).unwrap());
    assert_eq!(killed.processes, 5);
    for victim in victims {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }

    tree.remove(&"pod".into()).unwrap();
    allocates_nothing("usage of what is gone", || {
        memory.usage().is_err_and(|e| e.is_gone())
    });
    allocates_nothing("kill of what is gone", || {
        handle
            .kill_workload(&mut |_| {})
            .is_err_and(|e| e.is_gone())
    });
}
