//! Loads and attaches the kernel programs, as far as this kernel takes them.
//!
//! [`prepare`] loads, [`Prepared::attach`] attaches. Programs that the accounts need must load; each of the others is an
//! upgrade whose absence is recorded as [`Missing`]. Dropping [`Programs`] detaches everything.

mod attach;
mod globals;
mod maps;
mod walk;

use aya::{
    Ebpf,
    maps::{MapData, RingBuf},
    programs::ProgramError,
};
use podwarden_abi::Figure;
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    accounts::Accounts,
    btf::KernelBtf,
    casts::Casts,
    hooks::{self, Hook, Member},
    levels::Levels,
    pins::{PinError, Pins, Place},
    waits::Waits,
    walk::Walker,
};
use crate::config::KernelLog;
use maps::Made;
pub(super) use walk::alone as walker_alone;

/// The object that `cargo xtask build-ebpf` made; empty when this binary was built without it.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/podwarden.bpf.o"));

#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Hierarchy whose cgroups identify pods: 0 is the unified one, otherwise the memory
    /// controller's `hierarchy` number in `/proc/cgroups`.
    pub identity_hierarchy: u32,
    /// Accounts, one per cgroup down to [`podwarden_abi::MAX_ACCOUNT_DEPTH`]; see [`super::size`].
    pub max_accounts: u32,
    /// Size of the telemetry ring, bytes; a power of two and at least a page.
    pub telemetry_bytes: u32,
    /// Whether waits beyond an objective are reported.
    pub waits: bool,
    /// Whether to try the fentry programs.
    pub fentry: bool,
    /// Whether to try the iterator over cgroups.
    pub walk: bool,
    /// Whether the programs may have the kernel give pointers a type.
    pub casts: bool,
    /// Figures that are not wanted: their programs are not loaded.
    pub off: Vec<Figure>,
    /// Where accounts that outlive the agent are pinned; `None` where they end with it.
    pub pins: Option<Place>,
    /// Uses what is pinned at `pins` as it is, and changes nothing there: another agent works with it.
    pub only_continue: bool,
    /// The least severe lines that the programs write.
    pub log: KernelLog,
    /// Structure members to do without, as `structure.path`.
    pub without_members: Vec<String>,
}

impl LoadOptions {
    /// How the programs give pointers a type on this kernel.
    fn casts(&self, btf: &KernelBtf) -> Casts {
        match self.casts {
            true => Casts::of(btf),
            false => Casts::NONE,
        }
    }
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
        structure: &'static str,
        /// Its member.
        path: &'static str,
    },
    /// A tracepoint that the accounts need is absent or unknown.
    #[error("tracepoint {name}: {why}")]
    Tracepoint {
        name: &'static str,
        /// The finding in BTF.
        why: String,
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
        name: &'static str,
        #[source]
        source: Box<ProgramError>,
    },
    /// A map is missing or not of the expected type.
    #[error("map {name} of the kernel programs")]
    Map {
        name: &'static str,
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

/// A part of the programs that this kernel refused.
#[derive(Debug, Clone)]
pub struct Missing {
    /// The tracepoint or function, or the figure; rows of [`super::support::Decision`] have the same name.
    pub part: &'static str,
    /// What is lost without it.
    pub lost: &'static str,
    /// What the kernel said.
    pub why: String,
}

/// Everything in the kernel; detached on drop.
pub struct Programs {
    ebpf: Ebpf,
    /// Figures whose own programs are attached.
    figures: Vec<Figure>,
    /// What this kernel refused.
    pub missing: Vec<Missing>,
    /// The hooks whose programs are loaded, in the order in which they are attached.
    loaded: Vec<&'static Hook>,
}

/// What [`Prepared::attach`] gives, each part to its one owner.
pub struct Loaded {
    /// Keeps the programs attached.
    pub programs: Programs,
    /// The figures, for the reconciler.
    pub accounts: Accounts,
    /// The armed levels, for the reactor.
    pub levels: Levels,
    /// The decisions ring, for the reactor.
    pub decisions: RingBuf<MapData>,
    /// The telemetry ring, for the reconciler.
    pub telemetry: RingBuf<MapData>,
    /// Objectives of waits and the ring of those that were longer; `None` where none is reported.
    pub waits: Option<Waits>,
    /// Reads the figures of every cgroup in one pass; `None` where the kernel has no such iterator.
    pub walker: Option<Walker>,
    /// Why the accounts end with the agent although there is a place for pins.
    pub unpinned: Option<PinError>,
}

/// The hook to attach for each tracepoint by BTF, or why none fits.
type Choices = Vec<(&'static Hook, Result<&'static Hook, String>)>;

/// The members that this kernel lacks, and those to do without.
fn lacking(btf: &KernelBtf, options: &LoadOptions) -> Vec<Member> {
    let without = |m: &&Member| options.without_members.contains(&m.name());
    let mut lacking = hooks::lacking(btf);
    lacking.extend(hooks::MEMBERS.iter().filter(without));
    lacking.retain(|member| !options.off.contains(&member.figure));
    lacking
}

/// The programs, verified by the kernel and attached to nothing.
pub struct Prepared {
    programs: Programs,
    pins: Option<Pins>,
    unpinned: Option<PinError>,
    max_accounts: u32,
    waits: bool,
    walker: Option<Walker>,
}

/// Loads everything that this kernel takes. Consumes `btf`, which is not needed once the
/// object's globals are known. An error where the accounts cannot work.
pub fn prepare(btf: KernelBtf, options: &LoadOptions) -> Result<Prepared, LoadError> {
    if OBJECT.is_empty() {
        return Err(LoadError::NotBuilt);
    }
    let lacking = lacking(&btf, options);
    let globals = globals::globals(&btf, options, &lacking)?;
    let wanted = |hooks: &&[Hook]| {
        let figure = hooks[0].figure;
        let lacks = |figure| lacking.iter().any(|member| member.figure == figure);
        figure.is_none_or(|figure| !options.off.contains(&figure) && !lacks(figure))
    };
    let choices = hooks::by_tracepoint().filter(wanted).map(|hooks| {
        let arguments = btf.tracepoint_args(hooks[0].tracepoint);
        (&hooks[0], hooks::choose(hooks, arguments.as_deref()))
    });
    let choices: Choices = choices.collect();
    let items = walk::offsets(&btf, options, &lacking);
    let casts = options.casts(&btf);
    let aya_btf = hooks::targets(&btf).map_err(LoadError::Btf)?;
    drop(btf);
    let Made {
        ebpf,
        pins,
        unpinned,
    } = maps::make(options, &globals, &aya_btf, items.as_ref().ok(), casts)?;
    let mut programs = Programs {
        ebpf,
        figures: Vec::new(),
        missing: Vec::new(),
        loaded: Vec::new(),
    };
    programs.lose_figures(&lacking);
    programs.load_all(choices, &aya_btf, options.fentry)?;
    let seen = |member: &&Member| member.figure == Figure::LongWaits;
    Ok(Prepared {
        walker: programs.walker(items, casts, &aya_btf),
        programs,
        pins,
        unpinned,
        max_accounts: options.max_accounts,
        waits: options.waits && lacking.iter().filter(seen).count() == 0,
    })
}

impl Prepared {
    /// Attaches the programs; the agent holds the root's lock by now. After an error nothing stays attached.
    /// [`LoadError::Pins`] where maps cannot be kept.
    pub fn attach(mut self) -> Result<Loaded, LoadError> {
        let ebpf = &mut self.programs.ebpf;
        // The maps before the programs run: cgroups that appear from the first moment need free accounts.
        let accounts = Accounts::new(ebpf, self.max_accounts, self.pins.as_ref())?;
        follow_log(ebpf);
        let levels = Levels::new(ebpf)?;
        let decisions = ring(ebpf, "DECISIONS")?;
        let telemetry = ring(ebpf, "TELEMETRY")?;
        let waits = self.waits.then(|| Waits::new(ebpf)).transpose()?;
        self.programs.attach_all()?;
        Ok(Loaded {
            programs: self.programs,
            accounts,
            levels,
            decisions,
            telemetry,
            waits,
            walker: self.walker,
            unpinned: self.unpinned,
        })
    }
}

/// Passes the lines that the programs write to the agent's log.
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

pub(super) fn ring(ebpf: &mut Ebpf, name: &'static str) -> Result<RingBuf<MapData>, LoadError> {
    take(ebpf, name)
}
