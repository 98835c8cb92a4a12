//! Loads the kernel programs at the start, and reports what is lost where they do not load.

use std::fs;

use podwarden_abi::Figure;
use podwarden_cgroup::{Identity, Tree};

use super::StartError;
use crate::{
    accounting::KernelSide,
    base::error,
    config::Config,
    kernel::{
        btf::{BtfError, KernelBtf},
        casts::CASTS,
        hooks,
        loader::{self, LoadError, LoadOptions, Prepared},
        pins::{self, Place},
        size,
        support::{self, Decision, Profile},
        waits::Waits,
    },
    reactor::KernelLevels,
};

/// Telemetry that can wait for the agent: about 6,000 exits.
const TELEMETRY_BYTES: u32 = 1 << 20;

/// Comma-separated kernel facilities to do without, for tests and for trouble: `bpf`, `fentry`, `iterator`, `casts`,
/// `waits`, and structure members such as `task_struct.sched_info.run_delay`.
const DISABLE: &str = "PODWARDEN_DISABLE";

/// Number of accounts, for tests.
const ACCOUNTS: &str = "PODWARDEN_ACCOUNTS";

/// Size of the telemetry ring in bytes, for tests.
const RING: &str = "PODWARDEN_TELEMETRY_BYTES";

/// The BPF file system, for tests.
const BPF_FS: &str = "PODWARDEN_BPF_FS";

/// What the kernel programs give; nothing where they do not run.
pub(super) struct Programs {
    pub(super) accounts: Option<KernelSide>,
    pub(super) levels: Option<KernelLevels>,
    pub(super) waits: Option<Waits>,
    pub(super) profile: Profile,
    /// What is lost on this kernel, one sentence each.
    pub(super) degradations: Vec<String>,
}

/// The kernel's types, or why they are not known.
type Types = Result<KernelBtf, BtfError>;

/// Reads the kernel's types, and asks the kernel what it takes.
fn ask(config: &Config) -> (Types, Decision) {
    let types = hooks::kernel_types();
    let decision = support::decide(&support::probe(&config.cgroup_root, &types));
    (types, decision)
}

/// The programs of an agent that waits for the one at work, attached to nothing.
pub(in crate::agent) struct Standby {
    prepared: Prepared,
    decision: Decision,
}

/// Loads the kernel programs while another agent works, and changes nothing of its own; the error says why that waits
/// until this agent has the root.
pub(in crate::agent) fn stand_by(config: &Config, tree: &Tree) -> Result<Standby, String> {
    let (types, decision) = ask(config);
    let options = LoadOptions {
        only_continue: true,
        ..options(config, tree)
    };
    let prepared = prepare(types, &options)?;
    Ok(Standby { prepared, decision })
}

/// Loads the kernel programs where no agent that waited has, and attaches them; without them the agent still runs,
/// from the files alone.
pub(super) fn load(
    config: &Config,
    tree: &Tree,
    standby: Option<Standby>,
) -> Result<Programs, StartError> {
    let (loaded, decision) = match standby {
        Some(Standby { prepared, decision }) => {
            let attached = prepared.attach().or_else(|error| {
                tracing::warn!(%error, "the kernel programs are loaded anew");
                load_and_attach(hooks::kernel_types(), &options(config, tree))
            });
            (attached, decision)
        }
        None => {
            let (types, decision) = ask(config);
            (load_and_attach(types, &options(config, tree)), decision)
        }
    };
    let mut degradations: Vec<_> = decision.degradations().collect();
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(why) => {
            degradations.push(format!(
                "no kernel programs: CPU and memory come from the cgroup files, pods are looked for every \
                 second, and run-queue wait, stalls and exits are unknown ({why})"
            ));
            return Ok(Programs {
                accounts: None,
                levels: None,
                waits: None,
                profile: Profile::Sampling,
                degradations,
            });
        }
    };
    let missing = loaded.programs.missing.iter();
    for missing in missing.filter(|missing| !decision.reports(missing.part)) {
        degradations.push(format!(
            "{} ({}: {})",
            missing.lost, missing.part, missing.why
        ));
    }
    if let Some(why) = &loaded.unpinned {
        degradations.push(format!(
            "accounts begin anew with each agent, although there is a stateDir ({})",
            error::chain(why)
        ));
    }
    let profile = if loaded.programs.has_charge_hook() {
        Profile::Full
    } else {
        Profile::Standard
    };
    let levels = KernelLevels {
        levels: loaded.levels,
        decisions: loaded.decisions,
    };
    let kernel = KernelSide::new(
        loaded.programs,
        loaded.accounts,
        loaded.telemetry,
        loaded.walker,
    )
    .map_err(StartError::Accounting)?;
    Ok(Programs {
        accounts: Some(kernel),
        levels: Some(levels),
        waits: loaded.waits,
        profile,
        degradations,
    })
}

/// Figures without which the programs are loaded.
fn off(config: &Config, hierarchy: u32) -> Vec<Figure> {
    let wanted = [
        (Figure::Disk, config.sampling_disk),
        (Figure::DiskLatency, config.sampling_disk),
        // Sockets know their cgroup in the unified hierarchy alone.
        (
            Figure::Retransmits,
            config.sampling_network && hierarchy == 0,
        ),
    ];
    let off = wanted.into_iter().filter(|(_, wanted)| !wanted);
    off.map(|(figure, _)| figure).collect()
}

/// What is switched off, see [`DISABLE`].
fn disabled() -> Vec<String> {
    let disabled = std::env::var(DISABLE).unwrap_or_default();
    disabled.split(',').map(|d| d.trim().to_owned()).collect()
}

fn options(config: &Config, tree: &Tree) -> LoadOptions {
    let disabled = disabled();
    let without = |what: &str| disabled.iter().any(|d| d == what);
    let hierarchy = identity_hierarchy(tree);
    LoadOptions {
        identity_hierarchy: hierarchy,
        max_accounts: max_accounts(config),
        telemetry_bytes: std::env::var(RING)
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(TELEMETRY_BYTES),
        waits: config.colocation.wait.enable && !without("waits"),
        fentry: !without("fentry"),
        walk: !without("iterator"),
        casts: !without(CASTS),
        off: off(config, hierarchy),
        pins: config.state_dir.is_some().then(|| Place {
            bpf_fs: std::env::var_os(BPF_FS).map_or_else(|| pins::BPF_FS.into(), Into::into),
            cgroup_root: config.cgroup_root.clone(),
            hierarchy,
        }),
        only_continue: false,
        log: config.kernel_log,
        without_members: disabled,
    }
}

fn max_accounts(config: &Config) -> u32 {
    let given = std::env::var(ACCOUNTS).ok().and_then(|n| n.parse().ok());
    given.unwrap_or_else(|| {
        let cpus = aya::util::nr_cpus()
            .ok()
            .and_then(|n| u32::try_from(n).ok());
        size::accounts(config.max_pods, cpus.unwrap_or(1))
    })
}

fn prepare(types: Types, options: &LoadOptions) -> Result<Prepared, String> {
    if disabled().iter().any(|what| what == "bpf") {
        return Err("switched off".to_owned());
    }
    let types = types.map_err(|e| error::chain(&e))?;
    loader::prepare(types, options).map_err(|e| error::chain(&e))
}

fn load_and_attach(types: Types, options: &LoadOptions) -> Result<loader::Loaded, String> {
    let attached = match prepare(types, options)?.attach() {
        // The maps cannot be kept after all.
        Err(LoadError::Pins(why)) => {
            let unpinned = LoadOptions {
                pins: None,
                ..options.clone()
            };
            let loaded = prepare(hooks::kernel_types(), &unpinned)?.attach();
            loaded.map(|loaded| loader::Loaded {
                unpinned: Some(why),
                ..loaded
            })
        }
        attached => attached,
    };
    attached.map_err(|e| error::chain(&e))
}

/// The kernel's number of the hierarchy whose cgroups identify pods; see proc_pid_cgroup(5).
fn identity_hierarchy(tree: &Tree) -> u32 {
    match tree.identity() {
        Identity::V2 => 0,
        Identity::V1Memory => fs::read_to_string("/proc/cgroups")
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                let mut words = line.split_ascii_whitespace();
                (words.next() == Some("memory")).then(|| words.next()?.parse().ok())?
            })
            .unwrap_or(0),
    }
}
