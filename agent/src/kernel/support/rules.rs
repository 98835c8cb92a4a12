//! The rules: pure, from facts to rows and a profile.

use podwarden_cgroup::Driver;
use rustix::thread::CapabilitySet;

use super::{
    CgroupFacts, Decision, KernelSupport, Level, Lockdown, Profile, Row, TRACEPOINTS, Trial,
};

/// First release with BPF ring buffers and the capabilities CAP_BPF and CAP_PERFMON.
const OLDEST: (u32, u32) = (5, 8);

/// Judges the facts.
pub fn decide(support: &KernelSupport) -> Decision {
    let mut rows = vec![release(support)];
    rows.extend(cgroup(support.cgroup.as_ref()));
    rows.extend(programs(support));
    rows.extend(tracepoints(support));
    rows.extend(privileges(support));
    rows.extend(aids(support));
    Decision {
        profile: profile(support, &rows),
        facts: rows,
    }
}

fn profile(support: &KernelSupport, rows: &[Row]) -> Profile {
    if rows.iter().any(|row| row.level == Level::Fatal) {
        return Profile::Unusable;
    }
    let works = |trial: &Option<Trial>| *trial == Some(Trial::Works);
    let needed = TRACEPOINTS.iter().filter(|t| t.lost_without.is_none());
    let found = support.tracepoints.as_ref();
    let complete = found.is_some_and(|f| needed.clone().all(|t| f.contains_key(t.name)));
    if !(complete && works(&support.ring_buffer) && works(&support.tp_btf)) {
        return Profile::Sampling;
    }
    if works(&support.fentry) {
        Profile::Full
    } else {
        Profile::Standard
    }
}

/// A row for something that is there, is not, or cannot be told.
fn row(
    fact: &'static str,
    found: Option<bool>,
    enables: &'static str,
    lost_without: &'static str,
    without: Level,
) -> Row {
    Row {
        fact,
        found: match found {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        }
        .to_owned(),
        enables,
        lost_without,
        // What cannot be told may be missing: nobody should count on it.
        level: if found == Some(true) {
            Level::Ok
        } else {
            without
        },
    }
}

fn release(support: &KernelSupport) -> Row {
    let recent = support.release.version.map(|version| version >= OLDEST);
    Row {
        found: support.release.text.clone(),
        ..row(
            "kernel release",
            recent,
            "ring buffers and CAP_BPF need 5.8",
            "no kernel programs",
            Level::Degraded,
        )
    }
}

fn cgroup(facts: Option<&CgroupFacts>) -> Vec<Row> {
    let version = Row {
        found: facts.map_or("none that can be read".to_owned(), |f| {
            format!(
                "{}, memory on {}",
                f.version,
                if f.memory_on_v2 { "v2" } else { "v1" }
            )
        }),
        ..row(
            "cgroup hierarchies",
            Some(facts.is_some()),
            "finding pods",
            "no pod can be found: mount cgroup2 on /sys/fs/cgroup",
            Level::Fatal,
        )
    };
    let Some(facts) = facts else {
        return vec![version];
    };
    let driver = Row {
        found: facts.driver.to_string(),
        ..row(
            "cgroup driver",
            Some(true),
            "the names of pods' cgroups",
            "",
            Level::Ok,
        )
    };
    let mut rows = vec![
        version,
        driver,
        systemd(facts),
        row(
            "memory controller",
            Some(facts.memory_controller),
            "memory figures, limits and levels",
            "no memory figures, no eviction: boot without cgroup_disable=memory",
            Level::Fatal,
        ),
        row(
            "cgroups writable",
            facts.writable,
            "pod cgroups, limits and kills",
            "the agent cannot run: start it as root or with CAP_DAC_OVERRIDE",
            if facts.writable.is_none() {
                Level::Degraded
            } else {
                Level::Fatal
            },
        ),
    ];
    rows.extend(version_files(facts));
    rows
}

/// Whether slices can be made; that is only missed where systemd names the cgroups.
fn systemd(facts: &CgroupFacts) -> Row {
    let answers = facts.systemd.is_ok();
    let is_driver = facts.driver == Driver::Systemd;
    Row {
        found: match &facts.systemd {
            Ok(version) => format!("version {version}"),
            Err(why) if is_driver => why.clone(),
            Err(_) => "no".to_owned(),
        },
        ..row(
            "systemd over D-Bus",
            Some(answers || !is_driver),
            "making slices and changing them",
            "mode enforce cannot start where podwarden owns the tree; beside a kubelet systemd writes \
             its own values over podwarden's",
            Level::Degraded,
        )
    }
}

/// The files that only one version has.
fn version_files(facts: &CgroupFacts) -> Vec<Row> {
    if !facts.memory_on_v2 {
        return vec![row(
            "cgroup.event_control (v1)",
            facts.event_control,
            "the kernel notifies of a crossed level",
            "levels are confirmed by the sampler alone",
            Level::Degraded,
        )];
    }
    vec![
        row(
            "cgroup.kill (v2, 5.14)",
            facts.kill,
            "a pod is killed in one write",
            "a pod is killed process by process, until none is left",
            Level::Degraded,
        ),
        row(
            "memory.events (v2)",
            facts.memory_events,
            "the reactor looks when a limit is reached",
            "limits that are reached are seen by the sampler alone",
            Level::Degraded,
        ),
    ]
}

/// A row for something that was tried.
fn tried(
    fact: &'static str,
    trial: Option<&Trial>,
    enables: &'static str,
    lost_without: &'static str,
) -> Row {
    Row {
        found: match trial {
            Some(Trial::Works) => "works".to_owned(),
            Some(Trial::Refused(why)) => format!("refused ({why})"),
            None => "unknown (not tried: it needs BTF)".to_owned(),
        },
        ..row(
            fact,
            Some(trial == Some(&Trial::Works)),
            enables,
            lost_without,
            Level::Degraded,
        )
    }
}

fn programs(support: &KernelSupport) -> Vec<Row> {
    const NO_PROGRAM: &str = "no kernel programs: figures and levels come from the cgroup files, \
                              short processes go unseen";
    const NO_CHARGE: &str = "levels are seen at context switches, by eventfd and by the sampler, \
                             not at the charge itself";
    let lockdown = Row {
        found: match support.lockdown {
            Some(Lockdown::None) => "none",
            Some(Lockdown::Integrity) => "integrity",
            Some(Lockdown::Confidentiality) => "confidentiality",
            None => "unknown (securityfs is not mounted or not readable)",
        }
        .to_owned(),
        // What it refuses shows in the trials; alone it means nothing.
        ..row(
            "lockdown",
            Some(true),
            "none lets programs read kernel memory and attach to functions",
            "confidentiality refuses kernel programs, integrity may refuse fentry",
            Level::Ok,
        )
    };
    vec![
        row(
            "kernel types (BTF)",
            support.btf,
            "programs fit this very kernel",
            NO_PROGRAM,
            Level::Degraded,
        ),
        lockdown,
        tried(
            "ring buffer",
            support.ring_buffer.as_ref(),
            "events at once, in order",
            NO_PROGRAM,
        ),
        tried(
            "tp_btf program",
            support.tp_btf.as_ref(),
            "accounts of every pod, from the kernel",
            NO_PROGRAM,
        ),
        row(
            super::CHARGE,
            support.charge_function,
            "levels checked at every charge",
            NO_CHARGE,
            Level::Degraded,
        ),
        tried(
            "fentry program",
            support.fentry.as_ref(),
            "levels checked at every charge",
            NO_CHARGE,
        ),
    ]
}

fn tracepoints(support: &KernelSupport) -> impl Iterator<Item = Row> {
    TRACEPOINTS.iter().map(|tracepoint| {
        let arguments = support.tracepoints.as_ref().map(|t| t.get(tracepoint.name));
        let found = row(
            tracepoint.name,
            arguments.map(|a| a.is_some()),
            tracepoint.enables,
            tracepoint
                .lost_without
                .unwrap_or("no kernel programs: nothing works without this one"),
            Level::Degraded,
        );
        match arguments.flatten() {
            Some(count) => Row {
                found: format!(
                    "yes, {count} argument{}",
                    if *count == 1 { "" } else { "s" }
                ),
                ..found
            },
            None => found,
        }
    })
}

/// Capability, name, what it enables, what is lost without it.
type Privilege = (CapabilitySet, &'static str, &'static str, &'static str);

/// CAP_SYS_ADMIN stands in for the first two (capabilities(7)).
const PRIVILEGES: [Privilege; 7] = [
    (
        CapabilitySet::BPF,
        "CAP_BPF",
        "loading kernel programs",
        "no kernel programs",
    ),
    (
        CapabilitySet::PERFMON,
        "CAP_PERFMON",
        "kernel programs that trace",
        "no kernel programs",
    ),
    (
        CapabilitySet::SYS_NICE,
        "CAP_SYS_NICE",
        "a real-time reactor",
        "the reactor waits behind other work on a busy node",
    ),
    (
        CapabilitySet::IPC_LOCK,
        "CAP_IPC_LOCK",
        "locked memory",
        "under memory pressure the reactor may wait for its own pages",
    ),
    (
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "lowering oom_score_adj, PSI windows of any length",
        "the kernel's OOM killer may choose the agent, and pressure.memory takes windows of 2s, 4s, ... \
         alone",
    ),
    (
        CapabilitySet::KILL,
        "CAP_KILL",
        "killing pods of other users",
        "pods of other users cannot be evicted on v1",
    ),
    (
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        "writing cgroups of other users",
        "delegated cgroups cannot be limited",
    ),
];

fn privileges(support: &KernelSupport) -> impl Iterator<Item = Row> {
    PRIVILEGES.iter().map(|(capability, name, enables, lost)| {
        let tracing = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let held = support.capabilities.map(|held| {
            let by_admin = tracing.contains(*capability) && held.contains(CapabilitySet::SYS_ADMIN);
            held.contains(*capability) || by_admin
        });
        row(name, held, enables, lost, Level::Degraded)
    })
}

/// What makes the agent better and is nobody's foundation.
fn aids(support: &KernelSupport) -> [Row; 5] {
    let stats = Row {
        found: match support.bpf_stats {
            Some(true) => "on",
            Some(false) => "off",
            None => "unknown",
        }
        .to_owned(),
        ..row(
            "kernel.bpf_stats_enabled",
            Some(true),
            "off: kernel programs are not timed",
            "on: every run of a program costs some 30 ns more",
            Level::Ok,
        )
    };
    [
        row(
            "PSI",
            support.psi,
            "pods are evicted when tasks wait for memory, where pressure.memory says so",
            "tasks that wait for memory go unnoticed: boot with psi=1",
            Level::Degraded,
        ),
        row(
            "SCHED_FIFO",
            support.real_time,
            "the reactor runs at once on a busy node",
            "the reactor runs at nice -20 or as an ordinary thread and may wait behind other work",
            Level::Degraded,
        ),
        row(
            "memory can be locked",
            support.memory_lock,
            "the reactor never waits for its own pages",
            "under memory pressure the reactor may wait for its own pages",
            Level::Degraded,
        ),
        // Only where there is a stateDir is it missed, and the agent says so then.
        row(
            "BPF file system",
            support.bpf_fs,
            "accounts outlive the agent where stateDir is set",
            "accounts begin anew with each agent: mount -t bpf bpf /sys/fs/bpf",
            Level::Ok,
        ),
        stats,
    ]
}
