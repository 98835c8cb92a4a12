//! The rules: pure, from facts to rows and a profile.

use podwarden_abi::Figure;
use podwarden_cgroup::Driver;

use super::{CgroupFacts, Decision, KernelSupport, Level, Profile, Row, Trial};

mod privileges;
mod programs;

/// First release with BPF ring buffers and the capabilities CAP_BPF and CAP_PERFMON.
const OLDEST: (u32, u32) = (5, 8);

/// Judges the facts.
pub fn decide(support: &KernelSupport) -> Decision {
    let mut rows = vec![release(support)];
    rows.extend(cgroup(support.cgroup.as_ref()));
    rows.extend(programs::load(support));
    rows.extend(programs::tracepoints(support));
    rows.extend(programs::figures(support));
    rows.extend(privileges::rows(support));
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
    let complete = programs::fit(support);
    if !(complete && works(&support.ring_buffer) && works(&support.tp_btf)) {
        return Profile::Sampling;
    }
    if works(&support.fentry) && !programs::lacks(support, Figure::Levels) {
        Profile::Full
    } else {
        Profile::Standard
    }
}

/// A row for something that is there, is absent, or is unknown.
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
        // The unknown counts as missing.
        level: if found == Some(true) {
            Level::Ok
        } else {
            without
        },
        part: None,
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

/// Whether the agent can make slices, which it needs only where systemd names the cgroups.
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

/// What makes the agent better; it works without each of them.
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
            "the pressure of pods is known; pods are evicted for it where pressure.memory says so",
            "the pressure of pods is unknown and tasks that wait for memory go unnoticed: boot with psi=1",
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
        // The agent needs it only where there is a stateDir, and reports it at the start then.
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
