//! The object's maps: made, or those that an agent before this one left.

use std::{collections::HashMap, path::Path, thread};

use aya::{Btf, Ebpf, EbpfError, EbpfLoader, maps::MapError};
use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    unistd::chroot,
};
use podwarden_abi::{Figure, walk_places};

use super::{LoadError, LoadOptions, OBJECT};
use crate::{
    config::KernelLog,
    kernel::{
        accounts,
        btf::VMLINUX,
        casts::Casts,
        pins::{PinError, Pins},
        size,
        walk::Offsets,
    },
};

/// What there is before any program is loaded.
pub(super) struct Made {
    pub(super) ebpf: Ebpf,
    /// Where the accounts are pinned.
    pub(super) pins: Option<Pins>,
    /// Why the accounts end with the agent, where they were not to.
    pub(super) unpinned: Option<PinError>,
}

/// Makes the maps, the accounts pinned where that is wanted and can be.
pub(super) fn make(
    options: &LoadOptions,
    globals: &HashMap<&'static str, u64>,
    btf: &Btf,
    walk: Option<&Offsets>,
    casts: Casts,
) -> Result<Made, LoadError> {
    let with = |pins: Option<Pins>| {
        Ok(Made {
            ebpf: object(options, globals, btf, walk, casts, pins.as_ref())?,
            pins,
            unpinned: None,
        })
    };
    let Some(place) = &options.pins else {
        return with(None);
    };
    let shapes = accounts::shapes(options.max_accounts);
    let pins = match options.only_continue {
        false => Pins::prepare(place, &shapes),
        true => Pins::existing(place, &shapes),
    };
    match pins
        .map_err(LoadError::Pins)
        .and_then(|pins| with(Some(pins)))
    {
        Err(LoadError::Pins(error)) if !options.only_continue => Ok(Made {
            unpinned: Some(error),
            ..with(None)?
        }),
        made => made,
    }
}

/// As the programs compare it: 0 is off.
fn aya_log_level(level: KernelLog) -> u8 {
    match level {
        KernelLog::Off => 0,
        KernelLog::Error => aya_log::Level::Error as u8,
        KernelLog::Warn => aya_log::Level::Warn as u8,
        KernelLog::Info => aya_log::Level::Info as u8,
        KernelLog::Debug => aya_log::Level::Debug as u8,
        KernelLog::Trace => aya_log::Level::Trace as u8,
    }
}

/// A loader, without the kernel's types where that can be had. It is told which to use only after it has read and parsed
/// the whole of them, 28 ms of CPU time and 10 MiB; it looks for them under a path that a thread does not have whose root
/// directory is another one.
fn loader() -> EbpfLoader<'static> {
    let aside = || {
        unshare(CloneFlags::CLONE_FS)?;
        chroot(Path::new(VMLINUX).parent().ok_or(Errno::ENOENT)?)?;
        Ok::<_, Errno>(EbpfLoader::new())
    };
    let made = thread::spawn(aside).join();
    match made {
        Ok(Ok(loader)) => loader,
        // Without CAP_SYS_CHROOT, say.
        _ => EbpfLoader::new(),
    }
}

fn object(
    options: &LoadOptions,
    globals: &HashMap<&'static str, u64>,
    btf: &Btf,
    walk: Option<&Offsets>,
    casts: Casts,
    pins: Option<&Pins>,
) -> Result<Ebpf, LoadError> {
    // Without the iterator nothing writes records.
    let records = if walk.is_some() {
        options.max_accounts
    } else {
        1
    };
    let cpus = aya::util::nr_cpus().map_err(|_| LoadError::Missing("count of CPUs"))?;
    let bios = match options.off.contains(&Figure::DiskLatency) {
        true => 1,
        false => size::bios(u32::try_from(cpus).unwrap_or(u32::MAX)),
    };
    let mut loader = loader();
    loader
        .btf(Some(btf))
        // Task storage, which only the programs use.
        .allow_unsupported_maps()
        .map_max_entries("ACCOUNTS", options.max_accounts)
        .map_max_entries("SHARED", options.max_accounts)
        .map_max_entries("FREE_SLOTS", options.max_accounts)
        .map_max_entries("TRACKED", accounts::max_tracked(options.max_accounts))
        .map_max_entries(
            "OBJECTIVES",
            if options.waits {
                options.max_accounts
            } else {
                1
            },
        )
        .map_max_entries("BIOS", bios)
        .map_max_entries("RECORDS", records)
        .map_max_entries("PLACES", walk_places(records))
        .map_max_entries("TELEMETRY", options.telemetry_bytes);
    let log = aya_log_level(options.log);
    loader.override_global(aya_log::LEVEL, &log, true);
    for (name, value) in globals {
        loader.override_global(name, value, false);
    }
    if let Some(items) = walk {
        loader.override_global("ITEM_AT", &items[..], true);
    }
    if let Some(pins) = pins {
        // aya opens what is pinned there and looks at nothing; `Pins::prepare` has.
        for (map, file) in [
            ("ACCOUNTS", "accounts"),
            ("SHARED", "shared"),
            ("TRACKED", "tracked"),
            ("ENDED", "ended"),
        ] {
            loader.map_pin_path(map, pins.path(file));
        }
    }
    let object = casts.put_into(OBJECT);
    loader.load(&object).map_err(|error| match (error, pins) {
        (EbpfError::MapError(error @ MapError::PinError { .. }), Some(pins)) => {
            LoadError::Pins(pins.refused(error))
        }
        (error, _) => LoadError::Object(Box::new(error)),
    })
}
