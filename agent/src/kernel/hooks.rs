//! The one table of hooks. Loading, `podwarden check`, the degradations and `deploy/docs/hooks.md` come from it.

use std::collections::BTreeSet;

use podwarden_abi::{Figure, for_each_offset};

use super::btf::{self, BtfError, KernelBtf};

#[cfg(test)]
mod tests;

/// A program and what it is attached to.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name in the object.
    pub program: &'static str,
    /// The tracepoint; for [`CHARGE`] a function of the kernel.
    pub tracepoint: &'static str,
    /// The first arguments that the kernel hands over, as far as the program reads them. The kernel's own
    /// type must contain each of these texts.
    pub arguments: &'static [&'static str],
    /// What it gives.
    pub enables: &'static str,
    /// The loss without it; `None` where no program works without it.
    pub lost_without: Option<&'static str>,
    /// The figure that it is for alone: it is not loaded where that is switched off, or lacks members.
    pub figure: Option<Figure>,
}

impl Hook {
    /// One without which something is lost; its program has the tracepoint's name.
    const fn new(
        tracepoint: &'static str,
        arguments: &'static [&'static str],
        enables: &'static str,
        lost_without: &'static str,
    ) -> Self {
        Self {
            lost_without: Some(lost_without),
            ..Self::needed(tracepoint, arguments, enables)
        }
    }

    /// One without which no program works.
    const fn needed(
        tracepoint: &'static str,
        arguments: &'static [&'static str],
        enables: &'static str,
    ) -> Self {
        Self {
            program: tracepoint,
            tracepoint,
            arguments,
            enables,
            lost_without: None,
            figure: None,
        }
    }

    const fn of_program(self, program: &'static str) -> Self {
        Self { program, ..self }
    }

    const fn for_alone(self, figure: Figure) -> Self {
        Self {
            figure: Some(figure),
            ..self
        }
    }

    fn fits(&self, found: &[String]) -> bool {
        let pairs = self.arguments.iter().zip(found);
        found.len() >= self.arguments.len() && pairs.into_iter().all(|(known, f)| f.contains(known))
    }
}

const NO_DISK: &str = "what pods read from and write to disks is unknown";
const NO_DISK_LATENCY: &str = "how long disks take for what pods read and write is unknown";
const NO_RETRANSMITS: &str = "TCP segments that pods send again are unknown";
const NO_OOM_MARK: &str = "kernel OOM kills look like any other SIGKILL";
const NO_DIRECT_STALL: &str = "no stall time for direct reclaim";
const NO_MEMCG_STALL: &str = "no stall time for memory cgroup reclaim";

/// Every tracepoint program, in the order in which they are attached: scope before accounting, so that
/// nothing is missed. Programs on one tracepoint stand beside each other, and the first that fits is attached.
#[rustfmt::skip]
pub const HOOKS: &[Hook] = &[
    Hook::needed("cgroup_mkdir", &["cgroup *"], "pods are seen when they appear"),
    Hook::needed("cgroup_rmdir", &["cgroup *"], "pods are seen when they go"),
    Hook::needed("cgroup_release", &["cgroup *"], "accounts are freed when the last task is gone"),
    Hook::new("cgroup_attach_task", &["cgroup *", "char *", "task_struct *", "bool"],
        "a task that is moved counts to where it ran",
        "CPU time of a running task that is moved counts to where it moved"),
    Hook::new("task_newtask", &["task_struct *"],
        "CPU time is complete where the kernel leaves switches untraced",
        "CPU time is lost where the kernel leaves context switches untraced"),
    Hook::new("sched_process_exit", &["task_struct *"], "exits of every pod", "exits are unknown"),
    Hook::needed("sched_switch", &["bool", "task_struct *", "task_struct *", "unsigned int"],
        "CPU time and run-queue wait of every pod"),
    Hook::new("mm_vmscan_direct_reclaim_begin", &[], "stall time of pods in reclaim for the node", NO_DIRECT_STALL)
        .of_program("direct_reclaim_begin"),
    Hook::new("mm_vmscan_direct_reclaim_end", &[], "stall time of pods in reclaim for the node", NO_DIRECT_STALL)
        .of_program("direct_reclaim_end"),
    Hook::new("mm_vmscan_memcg_reclaim_begin", &[], "stall time of pods in reclaim for a limit", NO_MEMCG_STALL)
        .of_program("memcg_reclaim_begin"),
    Hook::new("mm_vmscan_memcg_reclaim_end", &[], "stall time of pods in reclaim for a limit", NO_MEMCG_STALL)
        .of_program("memcg_reclaim_end"),
    Hook::new("mark_victim", &["task_struct *"], "exits by the kernel's OOM killer are marked", NO_OOM_MARK)
        .of_program("mark_victim_task"),
    // Before 6.8 the kernel hands over the process id.
    Hook::new("mark_victim", &["int"], "exits by the kernel's OOM killer are marked", NO_OOM_MARK)
        .of_program("mark_victim_pid"),
    Hook::new("block_bio_queue", &["bio *"], "bytes and operations of disks of every pod", NO_DISK)
        .for_alone(Figure::Disk),
    Hook::new("block_bio_complete", &["request_queue *", "bio *"],
        "how long each disk without a queue of requests takes", NO_DISK_LATENCY)
        .for_alone(Figure::DiskLatency),
    Hook::new("block_rq_complete", &["request *", "blk_status_t", "unsigned int"],
        "how long each other disk takes", NO_DISK_LATENCY)
        .for_alone(Figure::DiskLatency),
    Hook::new("tcp_retransmit_skb", &["sock *", "sk_buff *"],
        "TCP segments that every pod sends again", NO_RETRANSMITS)
        .for_alone(Figure::Retransmits),
];

/// The fentry program on the function that sees every charge of memory (kernel `mm/page_counter.c`). The
/// kernel's verifier compares its arguments.
#[rustfmt::skip]
pub const CHARGE: Hook = Hook::new("page_counter_try_charge", &["page_counter *", "unsigned long"],
    "levels checked at every charge",
    "levels are seen at context switches, by eventfd and by the sampler, not at the charge itself")
    .of_program("charge");

/// The iterator over cgroups (kernel `kernel/bpf/cgroup_iter.c`, 6.1).
#[rustfmt::skip]
pub const WALK: Hook = Hook::new("bpf_iter_cgroup", &["bpf_iter_meta *", "cgroup *"],
    "memory and throttling of every pod in one pass",
    "memory and throttling of pods are read file by file, without peaks and page faults")
    .of_program("walk");

/// A figure's purpose, and the loss where this kernel lacks a structure member that it needs; `None`
/// where no program works without it.
pub const fn figure(figure: Figure) -> (&'static str, Option<&'static str>) {
    match figure {
        Figure::Accounts => ("CPU time of every pod", None),
        Figure::Wait => ("run-queue wait", Some("run-queue wait is always 0")),
        Figure::Untraced => (
            "CPU time across untraced switches",
            Some(
                "CPU time of tasks older than the agent is lost where the kernel leaves switches untraced",
            ),
        ),
        Figure::Shortcuts => (
            "cheap context switches",
            Some("each context switch of a pod's task takes longer"),
        ),
        Figure::Levels => (
            "levels checked by kernel programs",
            Some("levels are seen by eventfd and by the sampler alone"),
        ),
        Figure::Exits => ("exits of processes", Some("exits are unknown")),
        Figure::ExitDetails => (
            "details of exits",
            Some("exits have no command, CPU time and largest resident set"),
        ),
        Figure::LongWaits => (
            "waits that are too long",
            Some("best-effort CPU is not held back when a protected pod waits"),
        ),
        Figure::Walk => ("figures of every cgroup in one pass", WALK.lost_without),
        Figure::WalkPids => (
            "tasks of every cgroup in one pass",
            Some("the number of tasks of pods is unknown"),
        ),
        Figure::WalkBandwidth => (
            "throttling of every cgroup in one pass",
            Some("throttling of pods is read file by file"),
        ),
        Figure::WalkPressure => (
            "pressure of every cgroup in one pass",
            Some("the pressure of pods is unknown"),
        ),
        Figure::Disk => ("bytes and operations of disks", Some(NO_DISK)),
        Figure::DiskLatency => ("how long disks take", Some(NO_DISK_LATENCY)),
        Figure::Retransmits => ("TCP segments sent again", Some(NO_RETRANSMITS)),
    }
}

/// A member of a kernel structure that the programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The programs' global that takes its offset.
    pub global: &'static str,
    /// What it is for.
    pub figure: Figure,
    pub structure: &'static str,
    /// Its path in the structure.
    pub path: &'static str,
}

macro_rules! members {
    ($($global:ident: $figure:ident, $structure:literal, $path:literal;)*) => {
        /// Every member that the programs read.
        pub const MEMBERS: &[Member] = &[$(Member {
            global: stringify!($global),
            figure: Figure::$figure,
            structure: $structure,
            path: $path,
        }),*];
    };
}
for_each_offset!(members);

impl Member {
    /// As C writes it.
    pub fn name(&self) -> String {
        format!("{}.{}", self.structure, self.path)
    }
}

/// What is asked for besides the tables.
const ALSO_ASKED: [&str; 8] = [
    "bpf_rdonly_cast",
    "bpf_task_storage_get_recur",
    "cgroup_subsys_id",
    "memcg_stat_item",
    "memcg_vmstats",
    "node_stat_item",
    "pidcg_event",
    "vm_event_item",
];

/// The kernel's names of what programs are attached to.
fn target_names() -> Vec<String> {
    let tracepoints = by_tracepoint().map(|hooks| btf::of_tracepoint(hooks[0].tracepoint));
    let functions = [CHARGE.tracepoint, WALK.tracepoint].map(str::to_owned);
    tracepoints.chain(functions).collect()
}

/// What programs are attached to, as aya takes it.
pub fn targets(btf: &KernelBtf) -> Result<aya::Btf, aya::BtfError> {
    let names = target_names();
    btf.targets(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// This kernel's types, those in the tables looked up.
pub fn kernel_types() -> Result<KernelBtf, BtfError> {
    let targets = target_names();
    let names = MEMBERS.iter().map(|member| member.structure);
    let names = names
        .chain(ALSO_ASKED)
        .chain(targets.iter().map(String::as_str));
    let names: BTreeSet<_> = names.collect();
    Ok(KernelBtf::load()?.with(&names.into_iter().collect::<Vec<_>>()))
}

/// The members that `btf` lacks.
pub fn lacking(btf: &KernelBtf) -> Vec<Member> {
    let members = MEMBERS.iter().copied();
    members
        .filter(|member| btf.offset(member.structure, member.path).is_none())
        .collect()
}

/// The figures whose members are `lacking`, each with those that it misses in words.
pub fn lost_figures(lacking: &[Member]) -> impl Iterator<Item = (Figure, String)> {
    Figure::ALL.into_iter().filter_map(|figure| {
        let missing = lacking.iter().filter(|member| member.figure == figure);
        let missing: Vec<_> = missing.map(Member::name).collect();
        (!missing.is_empty()).then(|| (figure, format!("no {}", missing.join(", "))))
    })
}

/// [`HOOKS`] by tracepoint.
pub fn by_tracepoint() -> impl Iterator<Item = &'static [Hook]> {
    HOOKS.chunk_by(|a, b| a.tracepoint == b.tracepoint)
}

/// The first of the hooks on one tracepoint whose arguments the kernel has; else why none fits. `found` are
/// the kernel's own arguments, `None` where there is no such tracepoint.
pub fn choose<'a>(hooks: &'a [Hook], found: Option<&[String]>) -> Result<&'a Hook, String> {
    let Some(found) = found else {
        return Err("no such tracepoint".to_owned());
    };
    hooks.iter().find(|hook| hook.fits(found)).ok_or_else(|| {
        let known: Vec<_> = hooks.iter().map(|hook| hook.arguments.join(", ")).collect();
        format!(
            "it has the arguments ({}), known is ({})",
            found.join(", "),
            known.join(") or (")
        )
    })
}
