//! Loads and attaches the kernel programs, as far as this kernel takes them.
//!
//! Programs that the accounts need must load; each of the others is an upgrade whose absence is
//! recorded as a [`MissingHook`]. Dropping [`Programs`] detaches everything.

mod globals;
mod maps;

use aya::{
    Btf, Ebpf,
    maps::{MapData, RingBuf},
    programs::{BtfTracePoint, FEntry, RawTracePoint, RawTracePointRunOptions},
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    accounts::Accounts,
    btf::KernelBtf,
    levels::Levels,
    pins::{PinError, Place},
};
use crate::base::error::chain;
use maps::Made;

/// The object that `cargo xtask build-ebpf` made; empty when this binary was built without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/podwarden.bpf.o"));

/// Name of the `page_counter_try_charge` program and the kernel function it watches.
const CHARGE: (&str, &str) = ("charge", "page_counter_try_charge");

/// What to load.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Hierarchy whose cgroups identify pods: 0 is the unified one, otherwise the memory
    /// controller's `hierarchy` number in `/proc/cgroups`.
    pub identity_hierarchy: u32,
    /// Accounts, one per cgroup down to [`podwarden_abi::MAX_ACCOUNT_DEPTH`]; about 240 bytes per CPU
    /// each.
    pub max_accounts: u32,
    /// Size of the telemetry ring, bytes; a power of two and at least a page.
    pub telemetry_bytes: u32,
    /// Whether to try the fentry programs.
    pub fentry: bool,
    /// Where the accounts are to outlive the agent; `None` where they are not to.
    pub pins: Option<Place>,
}

/// Why nothing runs in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Built without the object.
    #[error(
        "this binary was built without its kernel programs: run `cargo xtask build-ebpf` and build again"
    )]
    NotBuilt,
    /// A structure member is not in this kernel's BTF.
    #[error("this kernel's BTF has no {structure}.{path}, which the kernel programs read")]
    NoMember {
        /// The structure.
        structure: &'static str,
        /// Its member.
        path: &'static str,
    },
    /// A tracepoint is not there, or not as known.
    #[error("tracepoint {name} of this kernel has the arguments ({found}); known is ({known})")]
    Tracepoint {
        /// Its name.
        name: &'static str,
        /// What BTF says.
        found: String,
        /// What the programs were written for.
        known: &'static str,
    },
    /// BTF could not be read.
    #[error("reading the kernel's BTF")]
    Btf(#[source] aya::BtfError),
    /// The object was refused.
    #[error("loading the kernel programs' maps")]
    Object(#[source] Box<aya::EbpfError>),
    /// A program that the accounts need was refused.
    #[error("loading kernel program {name}")]
    Program {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    /// A map is missing or not of the expected type.
    #[error("map {name} of the kernel programs")]
    Map {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        #[source]
        source: Box<aya::maps::MapError>,
    },
    /// Maps cannot be kept for the next agent.
    #[error(transparent)]
    Pins(#[from] PinError),
    /// The object lacks something it should have.
    #[error("the kernel programs' object has no {0}")]
    Missing(&'static str),
}

/// An upgrade that this kernel refused.
#[derive(Debug, Clone)]
pub struct MissingHook {
    /// The program.
    pub program: &'static str,
    /// What is lost without it.
    pub lost: &'static str,
    /// What the kernel said.
    pub why: String,
}

/// Everything in the kernel; detached on drop.
pub struct Programs {
    ebpf: Ebpf,
    /// Upgrades that are not there.
    pub missing: Vec<MissingHook>,
}

/// What [`load`] gives, each part to its one owner.
pub struct Loaded {
    /// Keeps the programs attached.
    pub programs: Programs,
    /// The figures, for the event loop.
    pub accounts: Accounts,
    /// The armed levels, for the reactor.
    pub levels: Levels,
    /// The decisions ring, for the reactor.
    pub decisions: RingBuf<MapData>,
    /// The telemetry ring, for the event loop.
    pub telemetry: RingBuf<MapData>,
    /// Why the accounts end with the agent, where they were not to.
    pub unpinned: Option<PinError>,
}

/// A tracepoint program: (program, tracepoint, what is lost without it).
struct Hook(&'static str, &'static str, Option<&'static str>);

/// In the order in which they are attached: scope before accounting, so that nothing is missed.
const HOOKS: &[Hook] = &[
    Hook("cgroup_mkdir", "cgroup_mkdir", None),
    Hook("cgroup_rmdir", "cgroup_rmdir", None),
    Hook("cgroup_release", "cgroup_release", None),
    Hook(
        "cgroup_attach_task",
        "cgroup_attach_task",
        Some("CPU time of a running task that is moved counts to where it moved"),
    ),
    Hook(
        "task_newtask",
        "task_newtask",
        Some("CPU time is lost where the kernel leaves context switches untraced"),
    ),
    Hook("sched_process_exit", "sched_process_exit", None),
    Hook("sched_switch", "sched_switch", None),
    Hook(
        "direct_reclaim_begin",
        "mm_vmscan_direct_reclaim_begin",
        Some("no stall time for direct reclaim"),
    ),
    Hook(
        "direct_reclaim_end",
        "mm_vmscan_direct_reclaim_end",
        Some("no stall time for direct reclaim"),
    ),
    Hook(
        "memcg_reclaim_begin",
        "mm_vmscan_memcg_reclaim_begin",
        Some("no stall time for memory cgroup reclaim"),
    ),
    Hook(
        "memcg_reclaim_end",
        "mm_vmscan_memcg_reclaim_end",
        Some("no stall time for memory cgroup reclaim"),
    ),
];

/// Loads and attaches everything that this kernel takes. Consumes `btf`, which is not needed once the
/// object's globals are known.
///
/// # Errors
/// [`LoadError`] when the accounts cannot work; nothing stays attached then.
pub fn load(btf: KernelBtf, options: &LoadOptions) -> Result<Loaded, LoadError> {
    if OBJECT.is_empty() {
        return Err(LoadError::NotBuilt);
    }
    let globals = globals::globals(&btf, options)?;
    let victim = victim_program(&btf);
    drop(btf);
    let aya_btf = Btf::from_sys_fs().map_err(LoadError::Btf)?;
    let Made {
        mut ebpf,
        accounts,
        unpinned,
    } = maps::make(options, &globals, &aya_btf)?;

    follow_log(&mut ebpf);
    let levels = Levels::new(&mut ebpf)?;
    let decisions = ring(&mut ebpf, "DECISIONS")?;
    let telemetry = ring(&mut ebpf, "TELEMETRY")?;
    let mut programs = Programs {
        ebpf,
        missing: Vec::new(),
    };
    programs.attach_all(victim, &aya_btf, options.fentry)?;
    Ok(Loaded {
        programs,
        accounts,
        levels,
        decisions,
        telemetry,
        unpinned,
    })
}

/// Lines that the programs write when they were built with `--debug-log`; none otherwise.
fn follow_log(ebpf: &mut Ebpf) {
    let Ok(logger) = aya_log::EbpfLogger::init(ebpf) else {
        return;
    };
    // SAFETY: the logger's ring owns its descriptor, which stays the same.
    let logger = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
    let Ok(mut logger) = logger else { return };
    tokio::spawn(async move {
        while let Ok(mut guard) = logger.readable_mut().await {
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
    });
}

/// Takes a map out of the object.
pub(super) fn take<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, LoadError>
where
    T: TryFrom<aya::maps::Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or(LoadError::Missing(name))?;
    T::try_from(map).map_err(|e| LoadError::Map {
        name,
        source: Box::new(e),
    })
}

fn ring(ebpf: &mut Ebpf, name: &'static str) -> Result<RingBuf<MapData>, LoadError> {
    take(ebpf, name)
}

/// The program for this kernel's `mark_victim`, which hands over the task since about 6.8 and a
/// process id before.
fn victim_program(btf: &KernelBtf) -> &'static str {
    let arguments = btf.tracepoint_args("mark_victim").unwrap_or_default();
    match arguments.first() {
        Some(first) if first.contains("task_struct") => "mark_victim_task",
        _ => "mark_victim_pid",
    }
}

impl Programs {
    fn attach_all(
        &mut self,
        victim: &'static str,
        aya_btf: &Btf,
        fentry: bool,
    ) -> Result<(), LoadError> {
        self.load_flush()?;
        for Hook(program, tracepoint, lost) in HOOKS {
            self.tracepoint(program, tracepoint, *lost, aya_btf)?;
        }
        self.tracepoint(
            victim,
            "mark_victim",
            Some("kernel OOM kills look like any other SIGKILL"),
            aya_btf,
        )?;
        if fentry {
            self.charge(aya_btf);
        } else {
            self.miss(CHARGE.0, LOST_CHARGE, "switched off".to_owned());
        }
        Ok(())
    }

    fn load_flush(&mut self) -> Result<(), LoadError> {
        self.flush_program()?
            .load()
            .map_err(|e| LoadError::Program {
                name: "flush",
                source: Box::new(e),
            })
    }

    fn flush_program(&mut self) -> Result<&mut RawTracePoint, LoadError> {
        self.ebpf
            .program_mut("flush")
            .and_then(|p| p.try_into().ok())
            .ok_or(LoadError::Missing("flush"))
    }

    /// Loads and attaches one tracepoint program; a failure is fatal only without `lost`.
    fn tracepoint(
        &mut self,
        name: &'static str,
        tracepoint: &str,
        lost: Option<&'static str>,
        btf: &Btf,
    ) -> Result<(), LoadError> {
        let program: &mut BtfTracePoint = self
            .ebpf
            .program_mut(name)
            .and_then(|p| p.try_into().ok())
            .ok_or(LoadError::Missing(name))?;
        let result = program
            .load(tracepoint, btf)
            .and_then(|()| program.attach());
        match (result, lost) {
            (Ok(_), _) => Ok(()),
            (Err(e), Some(lost)) => {
                self.miss(name, lost, chain(&e));
                Ok(())
            }
            (Err(e), None) => Err(LoadError::Program {
                name,
                source: Box::new(e),
            }),
        }
    }

    fn charge(&mut self, btf: &Btf) {
        let (name, function) = CHARGE;
        let result = match self.ebpf.program_mut(name).map(TryInto::try_into) {
            Some(Ok(program)) => {
                let program: &mut FEntry = program;
                program
                    .load(function, btf)
                    .and_then(|()| program.attach())
                    .map_err(|e| chain(&e))
            }
            _ => Err("not in the object".to_owned()),
        };
        if let Err(why) = result {
            self.miss(name, LOST_CHARGE, why);
        }
    }

    fn miss(&mut self, program: &'static str, lost: &'static str, why: String) {
        tracing::debug!(program, lost, why, "kernel hook not available");
        self.missing.push(MissingHook { program, lost, why });
    }

    /// True when levels are checked at the charge itself.
    pub fn has_charge_hook(&self) -> bool {
        self.missing.iter().all(|m| m.program != CHARGE.0)
    }

    /// Accounts what runs on `cpu` up to the kernel's last tick (an interrupt on that CPU).
    ///
    /// # Errors
    /// What the kernel says; `ENXIO` for a CPU that is offline.
    pub fn flush(&mut self, cpu: u32) -> Result<(), aya::programs::ProgramError> {
        use aya::programs::TestRun as _;
        let Ok(program) = self.flush_program() else {
            return Ok(());
        };
        let mut options = RawTracePointRunOptions::new();
        options.cpu = Some(cpu);
        program.test_run(options).map(|_| ())
    }
}

const LOST_CHARGE: &str = "levels are seen at context switches, by eventfd and by the sampler, not at \
                           the charge itself";
