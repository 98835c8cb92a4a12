//! More than 400 lines: one test for each fact that a kernel may lack.

mod programs;

use super::*;
use crate::kernel::hooks::{self, CHARGE, Hook};

fn known_arguments(hooks: &[Hook]) -> (&'static str, Vec<String>) {
    let arguments = hooks[0].arguments.iter().map(|a| (*a).to_owned());
    (hooks[0].tracepoint, arguments.collect())
}

/// A recent kernel on v2 with everything.
fn capable_host() -> KernelSupport {
    KernelSupport {
        release: Release::parse("6.12.9-cloud-amd64"),
        capabilities: Some(CapabilitySet::all()),
        lockdown: Some(Lockdown::None),
        btf: Some(true),
        tracepoints: Some(hooks::by_tracepoint().map(known_arguments).collect()),
        lacking: Some(Vec::new()),
        charge_function: Some(true),
        ring_buffer: Some(Trial::Works),
        tp_btf: Some(Trial::Works),
        fentry: Some(Trial::Works),
        iterator: Some(Trial::Works),
        cgroup: Some(capable_cgroup()),
        psi: Some(true),
        real_time: Some(true),
        memory_lock: Some(true),
        bpf_fs: Some(true),
        bpf_stats: Some(false),
    }
}

fn capable_cgroup() -> CgroupFacts {
    CgroupFacts {
        version: Version::V2,
        driver: Driver::Systemd,
        systemd: Ok(252),
        memory_controller: true,
        memory_on_v2: true,
        writable: Some(true),
        kill: Some(true),
        memory_events: Some(true),
        event_control: None,
    }
}

fn refused() -> Option<Trial> {
    Some(Trial::Refused("Operation not permitted".to_owned()))
}

fn without(name: &str) -> KernelSupport {
    let mut support = capable_host();
    let known = support.tracepoints.as_mut().unwrap();
    assert!(
        known.remove(name).is_some(),
        "{name} is not a tracepoint in use"
    );
    support
}

/// (profile, worst level, facts that are not ok) after one field was flipped.
fn verdict(support: &KernelSupport) -> (Profile, Level, Vec<&'static str>) {
    let decision = decide(support);
    let lost = decision.facts.iter().filter(|row| row.level > Level::Ok);
    let lost = lost.map(|row| row.fact).collect();
    (decision.profile, decision.level(), lost)
}

#[test]
fn a_capable_host_runs_everything() {
    assert_eq!(verdict(&capable_host()), (Profile::Full, Level::Ok, vec![]));
    assert_eq!(decide(&capable_host()).degradations().count(), 0);
}

#[test]
fn one_fact_flipped() {
    use Level::{Degraded, Fatal};
    use Profile::{Full, Sampling, Standard, Unusable};
    let host = capable_host;
    let no = CapabilitySet::empty();
    let cases = [
        (
            KernelSupport {
                fentry: refused(),
                ..host()
            },
            Standard,
            Degraded,
            "fentry program",
        ),
        (
            KernelSupport {
                iterator: refused(),
                ..host()
            },
            Full,
            Degraded,
            "cgroup iterator (6.1)",
        ),
        (
            KernelSupport {
                fentry: None,
                ..host()
            },
            Standard,
            Degraded,
            "fentry program",
        ),
        (
            KernelSupport {
                tp_btf: refused(),
                ..host()
            },
            Sampling,
            Degraded,
            "tp_btf program",
        ),
        (
            KernelSupport {
                tp_btf: None,
                ..host()
            },
            Sampling,
            Degraded,
            "tp_btf program",
        ),
        (
            KernelSupport {
                ring_buffer: refused(),
                ..host()
            },
            Sampling,
            Degraded,
            "ring buffer",
        ),
        (
            KernelSupport {
                tracepoints: None,
                ..host()
            },
            Sampling,
            Degraded,
            "sched_switch",
        ),
        (
            without("cgroup_release"),
            Sampling,
            Degraded,
            "cgroup_release",
        ),
        (without("mark_victim"), Full, Degraded, "mark_victim"),
        (
            KernelSupport {
                btf: Some(false),
                ..host()
            },
            Full,
            Degraded,
            "kernel types (BTF)",
        ),
        (
            KernelSupport {
                btf: None,
                ..host()
            },
            Full,
            Degraded,
            "kernel types (BTF)",
        ),
        (
            KernelSupport {
                charge_function: Some(false),
                ..host()
            },
            Full,
            Degraded,
            CHARGE.tracepoint,
        ),
        (
            KernelSupport {
                capabilities: Some(no),
                ..host()
            },
            Full,
            Degraded,
            "CAP_BPF",
        ),
        (
            KernelSupport {
                capabilities: None,
                ..host()
            },
            Full,
            Degraded,
            "CAP_KILL",
        ),
        (
            KernelSupport {
                psi: Some(false),
                ..host()
            },
            Full,
            Degraded,
            "PSI",
        ),
        (
            KernelSupport {
                real_time: Some(false),
                ..host()
            },
            Full,
            Degraded,
            "SCHED_FIFO",
        ),
        (
            KernelSupport {
                memory_lock: None,
                ..host()
            },
            Full,
            Degraded,
            "memory can be locked",
        ),
        (
            KernelSupport {
                cgroup: None,
                ..host()
            },
            Unusable,
            Fatal,
            "cgroup hierarchies",
        ),
        (
            KernelSupport {
                release: Release::parse("5.4.0"),
                ..host()
            },
            Full,
            Degraded,
            "kernel release",
        ),
    ];
    for (support, profile, level, fact) in cases {
        let (found, worst, lost) = verdict(&support);
        assert_eq!((found, worst), (profile, level), "{fact}");
        assert!(lost.contains(&fact), "{fact} is not in {lost:?}");
    }
}

#[test]
fn one_cgroup_fact_flipped() {
    use Level::{Degraded, Fatal};
    use Profile::{Full, Unusable};
    let host = capable_cgroup;
    let cases = [
        (
            CgroupFacts {
                memory_controller: false,
                ..host()
            },
            Unusable,
            Fatal,
            "memory controller",
        ),
        (
            CgroupFacts {
                writable: Some(false),
                ..host()
            },
            Unusable,
            Fatal,
            "cgroups writable",
        ),
        (
            CgroupFacts {
                writable: None,
                ..host()
            },
            Full,
            Degraded,
            "cgroups writable",
        ),
        (
            CgroupFacts {
                systemd: Err("no bus".to_owned()),
                ..host()
            },
            Full,
            Degraded,
            "systemd over D-Bus",
        ),
        (
            CgroupFacts {
                kill: Some(false),
                ..host()
            },
            Full,
            Degraded,
            "cgroup.kill (v2, 5.14)",
        ),
        (
            CgroupFacts {
                memory_events: None,
                ..host()
            },
            Full,
            Degraded,
            "memory.events (v2)",
        ),
        (
            CgroupFacts {
                memory_on_v2: false,
                event_control: Some(false),
                ..host()
            },
            Full,
            Degraded,
            "cgroup.event_control (v1)",
        ),
    ];
    for (facts, profile, level, fact) in cases {
        let support = KernelSupport {
            cgroup: Some(facts),
            ..capable_host()
        };
        assert_eq!(verdict(&support), (profile, level, vec![fact]));
    }
}

#[test]
fn what_only_the_other_version_has_is_not_missed() {
    let facts = CgroupFacts {
        version: Version::Hybrid,
        memory_on_v2: false,
        event_control: Some(true),
        kill: Some(false),
        memory_events: Some(false),
        ..capable_cgroup()
    };
    let support = KernelSupport {
        cgroup: Some(facts),
        ..capable_host()
    };
    assert_eq!(verdict(&support), (Profile::Full, Level::Ok, vec![]));
}

#[test]
fn systemd_is_only_missed_where_it_names_the_cgroups() {
    let facts = CgroupFacts {
        driver: Driver::Cgroupfs,
        systemd: Err("no bus".to_owned()),
        ..capable_cgroup()
    };
    let support = KernelSupport {
        cgroup: Some(facts),
        ..capable_host()
    };
    assert_eq!(verdict(&support), (Profile::Full, Level::Ok, vec![]));
}

#[test]
fn unknown_is_said_and_is_not_no() {
    let decision = decide(&KernelSupport {
        psi: None,
        lockdown: None,
        ..capable_host()
    });
    let found = |fact| {
        &decision
            .facts
            .iter()
            .find(|row| row.fact == fact)
            .unwrap()
            .found
    };
    assert_eq!(found("PSI"), "unknown");
    assert!(found("lockdown").starts_with("unknown"));
    // Lockdown alone means nothing: the trials show what it refuses.
    assert_eq!(decision.degradations().count(), 1);
}

#[test]
fn texts_of_the_kernel() {
    assert_eq!(Release::parse("6.18.44-fc-v657").version, Some((6, 18)));
    assert_eq!(Release::parse("5.8").version, Some((5, 8)));
    assert_eq!(Release::parse("next").version, None);
    assert_eq!(
        Lockdown::parse("none [integrity] confidentiality\n"),
        Some(Lockdown::Integrity)
    );
    assert_eq!(
        Lockdown::parse("[none] integrity confidentiality\n"),
        Some(Lockdown::None)
    );
    assert_eq!(Lockdown::parse("none integrity\n"), None);
}

#[test]
fn a_probe_of_this_kernel_can_be_repeated() {
    let types = hooks::kernel_types();
    let first = probe("/", &types);
    assert!(first.release.version.is_some());
    assert!(first.ring_buffer.is_some());
    assert_eq!(first.btf == Some(true), first.tracepoints.is_some());
    // The same kernel gives the same facts: nothing of the first probe is in the way.
    assert_eq!(first, probe("/", &types));
}
