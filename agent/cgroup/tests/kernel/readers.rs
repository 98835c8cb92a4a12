use podwarden_cgroup::{Error, KernelCpu, MemoryReader};
use podwarden_policy::{Bytes, limits::Limit, settings::Setting};

use crate::support::{Attach, Sandbox, Victim, eat, eventually};

const MIB: usize = 1 << 20;

fn burn() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

#[test]
fn memory_of_the_whole_node_is_between_a_process_and_all_there_is() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let node = match MemoryReader::open_node(sandbox.tree.hierarchies()) {
        Ok(node) => node,
        Err(error @ Error::Unsupported { .. }) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().next().unwrap();
    let total: u64 = total.split_whitespace().nth(1).unwrap().parse().unwrap();
    let usage = node.usage().unwrap();
    let used = usage - node.stat().unwrap().inactive_file;
    assert!(used > MIB as u64 && usage < total * 1024, "{used} {usage}");
    assert_eq!(node.limit().unwrap(), None);
}

#[test]
fn memory_of_a_process_is_seen() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    tree.write(
        &"pod".into(),
        &Setting::MemoryLimit(Limit::At(Bytes::mebi(256))),
    )
    .unwrap();
    let pod = MemoryReader::open(tree, &"pod".into()).unwrap();
    assert_eq!(pod.limit().unwrap(), Some(256 << 20));
    assert_eq!(
        MemoryReader::open(tree, &container.into())
            .unwrap()
            .limit()
            .unwrap(),
        None
    );
    assert!(pod.usage().unwrap() < 4 * MIB as u64);

    let _victim = Victim::spawn(&Attach::open(tree, container), eat::<32>);
    eventually("usage holds the memory", || {
        pod.usage().unwrap() >= 32 * MIB as u64
    });
    eventually("so does rss, once flushed", || {
        pod.stat().unwrap().rss >= 31 * MIB as u64
    });
    assert!(pod.stat().unwrap().inactive_file < 4 * MIB as u64);
    assert!(pod.usage().unwrap() < 64 * MIB as u64);
}

#[test]
fn cpu_time_of_a_process_is_seen() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let cpu = KernelCpu::open(tree, &"pod".into()).unwrap();
    let idle = cpu.usage_nanos().unwrap();
    let _victim = Victim::spawn(&Attach::open(tree, container), burn);
    eventually("50 ms are counted", || {
        cpu.usage_nanos().unwrap() >= idle + 50_000_000
    });
}

#[test]
fn what_vanishes_is_gone() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let memory = MemoryReader::open(tree, &pod.into()).unwrap();
    let cpu = KernelCpu::open(tree, &pod.into()).unwrap();
    tree.remove(&pod.into()).unwrap();

    for error in [
        memory.usage().unwrap_err(),
        memory.stat().unwrap_err(),
        memory.limit().unwrap_err(),
        cpu.usage_nanos().unwrap_err(),
    ] {
        assert!(matches!(error, Error::Gone { .. }), "{error:?}");
        assert!(error.is_gone() && !error.is_permission());
    }
    for error in [
        MemoryReader::open(tree, &pod.into()).unwrap_err(),
        KernelCpu::open(tree, &pod.into()).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
        assert!(error.is_gone());
    }
}
