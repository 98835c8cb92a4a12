//! Loads the iterator over cgroups.

use aya::Btf;
use podwarden_abi::{Figure, MemoryItem, NO_ITEM};

use super::{LoadOptions, Programs, globals, maps};
use crate::{
    base::error::chain,
    config::KernelLog,
    kernel::{
        btf::KernelBtf,
        casts::{CASTS, Casts},
        hooks::{self, Member, WALK},
        walk::{self, Offsets, Walker},
    },
};

/// The iterator over cgroups without any other program, with room for `places` records, see [`Walker::alone`].
pub(in crate::kernel) fn alone(
    btf: KernelBtf,
    places: u32,
    without: &[&str],
) -> Result<Walker, String> {
    let options = LoadOptions {
        identity_hierarchy: 0,
        max_accounts: places,
        telemetry_bytes: 4096,
        waits: false,
        fentry: false,
        walk: true,
        casts: !without.contains(&CASTS),
        off: Vec::new(),
        pins: None,
        only_continue: false,
        log: KernelLog::Off,
        without_members: without.iter().copied().map(str::to_owned).collect(),
    };
    let lacking = super::lacking(&btf, &options);
    let mut items = offsets(&btf, &options, &lacking)?;
    if without.contains(&walk::STATISTICS) {
        items = [NO_ITEM; MemoryItem::COUNT];
    }
    let globals = globals::globals(&btf, &options, &lacking).map_err(|e| chain(&e))?;
    let casts = options.casts(&btf);
    let targets = hooks::targets(&btf).map_err(|e| chain(&e))?;
    drop(btf);
    let mut made =
        maps::make(&options, &globals, &targets, Some(&items), casts).map_err(|e| chain(&e))?;
    match Walker::new(&mut made.ebpf, &targets, items, casts)? {
        (walker, None) => Ok(walker),
        (_, Some(refused)) => Err(refused),
    }
}

/// Where the statistics are that a pass over the cgroups reads, or why there is to be no pass.
pub(super) fn offsets(
    btf: &KernelBtf,
    options: &LoadOptions,
    lacking: &[Member],
) -> Result<Offsets, String> {
    if !options.walk {
        return Err("switched off".to_owned());
    }
    let needed = [Figure::Walk, Figure::Levels];
    if lacking.iter().any(|member| needed.contains(&member.figure)) {
        return Err("it lacks structure members".to_owned());
    }
    walk::offsets(btf)
}

impl Programs {
    /// Loads the iterator over cgroups, or notes why there is none.
    pub(super) fn walker(
        &mut self,
        items: Result<Offsets, String>,
        casts: Casts,
        btf: &Btf,
    ) -> Option<Walker> {
        let walker = items.and_then(|items| Walker::new(&mut self.ebpf, btf, items, casts));
        match (walker, WALK.lost_without) {
            (Ok((walker, refused)), _) => {
                if let Some(why) = refused {
                    let lost = "a pass over the cgroups takes twice the CPU time";
                    self.miss("bpf_rdonly_cast", lost, why);
                }
                Some(walker)
            }
            (Err(why), Some(lost)) => {
                self.miss(WALK.tracepoint, lost, why);
                None
            }
            (Err(_), None) => None,
        }
    }
}
