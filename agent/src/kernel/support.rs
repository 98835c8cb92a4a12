//! What this kernel can do for podwarden: facts ([`mod@probe`]) -> rules ([`decide`]) -> profile.

use std::{collections::BTreeMap, io, os::fd::OwnedFd};

use podwarden_cgroup::{Driver, Version};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use super::hooks::Member;
#[cfg(doc)]
use super::hooks::{CHARGE, HOOKS};

mod probe;
mod rules;
mod trial;

#[cfg(test)]
mod tests;

pub use probe::probe;
pub use rules::decide;

/// `major.minor` of a kernel release, with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// As uname(2) gives it.
    pub text: String,
    /// First two numbers; `None` where the text does not begin with two.
    pub version: Option<(u32, u32)>,
}

impl Release {
    /// Reads `6.18.5-amd64` and the like.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .map(|n| n.parse().ok());
        let mut next = || numbers.next().flatten();
        let version = next().and_then(|major| Some((major, next()?)));
        Self {
            text: text.to_owned(),
            version,
        }
    }
}

/// Kernel lockdown (kernel_lockdown(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lockdown {
    /// Not locked.
    None,
    /// The kernel may not be changed while it runs.
    Integrity,
    /// Nor may its memory be read.
    Confidentiality,
}

impl Lockdown {
    /// From the text of `/sys/kernel/security/lockdown`.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once('[')?;
        match rest.split_once(']')?.0 {
            "none" => Some(Self::None),
            "integrity" => Some(Self::Integrity),
            "confidentiality" => Some(Self::Confidentiality),
            _ => None,
        }
    }
}

/// What came of trying something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// The kernel took it.
    Works,
    /// The kernel refused: at which step, and what it said.
    Refused(String),
}

impl Trial {
    /// Closes what was made.
    fn of(step: &str, result: io::Result<OwnedFd>) -> Self {
        match result {
            Ok(_closed) => Self::Works,
            Err(error) => Self::Refused(format!("{step}: {error}")),
        }
    }
}

/// The cgroup file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupFacts {
    /// Where the controllers are.
    pub version: Version,
    /// Who names the cgroups.
    pub driver: Driver,
    /// The version of the systemd that answers over D-Bus, or why none does.
    pub systemd: Result<u32, String>,
    /// The memory controller is on a mounted hierarchy.
    pub memory_controller: bool,
    /// It is on the v2 hierarchy.
    pub memory_on_v2: bool,
    /// This process may create cgroups there.
    pub writable: Option<bool>,
    /// v2 `cgroup.kill`, since 5.14; `None` where there is no cgroup to look in.
    pub kill: Option<bool>,
    /// v2 `memory.events`.
    pub memory_events: Option<bool>,
    /// v1 `cgroup.event_control`; `None` on v2.
    pub event_control: Option<bool>,
}

/// Facts only; the rules are in [`decide`]. `None` is unknown, never false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSupport {
    /// The kernel's release.
    pub release: Release,
    /// This process's effective capabilities.
    pub capabilities: Option<CapabilitySet>,
    /// Lockdown; unknown where securityfs is not mounted.
    pub lockdown: Option<Lockdown>,
    /// `/sys/kernel/btf/vmlinux` is there.
    pub btf: Option<bool>,
    /// The tracepoints of [`HOOKS`] that exist, with their arguments; unknown without BTF.
    pub tracepoints: Option<BTreeMap<&'static str, Vec<String>>>,
    /// The structure members that this kernel lacks; unknown without BTF.
    pub lacking: Option<Vec<Member>>,
    /// The function of [`CHARGE`] exists; unknown without BTF.
    pub charge_function: Option<bool>,
    /// A BPF ring buffer (since 5.8).
    pub ring_buffer: Option<Trial>,
    /// A `tp_btf` program; not tried without BTF.
    pub tp_btf: Option<Trial>,
    /// An fentry program on the function of [`CHARGE`]; not tried without BTF or without the function.
    pub fentry: Option<Trial>,
    /// An iterator over cgroups; not tried without BTF, refused before 6.1.
    pub iterator: Option<Trial>,
    /// The cgroup file systems; `None` where none is mounted or can be read.
    pub cgroup: Option<CgroupFacts>,
    /// `/proc/pressure/memory` is there.
    pub psi: Option<bool>,
    /// A thread of this process may become SCHED_FIFO.
    pub real_time: Option<bool>,
    /// This process may lock its memory.
    pub memory_lock: Option<bool>,
    /// A BPF file system is mounted on [`super::pins::BPF_FS`].
    pub bpf_fs: Option<bool>,
    /// `kernel.bpf_stats_enabled` is on: every program is timed, which costs.
    pub bpf_stats: Option<bool>,
}

podwarden_policy::names! {
    /// How podwarden runs here.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Profile {
        /// Accounts by `tp_btf`, levels at every charge by fentry.
        Full = "full",
        /// Accounts by `tp_btf`, levels at context switches, by eventfd and by the sampler.
        Standard = "standard",
        /// No kernel program: figures and levels from the cgroup files alone.
        Sampling = "sampling",
        /// Nothing works.
        Unusable = "unusable",
    }
}

/// What a fact means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Something is lost.
    Degraded,
    /// Nothing works.
    Fatal,
}

/// One fact, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// What was looked at.
    pub fact: &'static str,
    /// What was found; `unknown` with the reason where the probe could not find out.
    pub found: String,
    pub enables: &'static str,
    pub lost_without: &'static str,
    /// What it means here.
    pub level: Level,
    /// The part of the kernel programs that it is about, by the name that [`super::loader::Missing`] has.
    #[serde(skip)]
    pub part: Option<&'static str>,
}

/// The facts, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// How podwarden runs here.
    pub profile: Profile,
    /// Every fact.
    pub facts: Vec<Row>,
}

impl Decision {
    /// The worst level of any fact.
    pub fn level(&self) -> Level {
        self.facts
            .iter()
            .map(|row| row.level)
            .max()
            .unwrap_or(Level::Ok)
    }

    /// True where another fact already reports this part of the kernel programs as missing.
    pub fn reports(&self, part: &str) -> bool {
        let mut lost = self.facts.iter().filter(|row| row.level > Level::Ok);
        lost.any(|row| row.part == Some(part))
    }

    /// What is lost here, one sentence each.
    pub fn degradations(&self) -> impl Iterator<Item = String> {
        let lost = self.facts.iter().filter(|row| row.level > Level::Ok);
        lost.map(|row| format!("{} ({}: {})", row.lost_without, row.fact, row.found))
    }
}
