//! Where the statistics of a memory cgroup are in `struct memcg_vmstats`.
//!
//! Before 6.10 its arrays have a place for every enumerator. Since then they have places for those alone that a
//! memory cgroup counts, in the order of the lists `memcg_node_stat_items`, `memcg_stat_items` and
//! `memcg_vm_event_stat` of mm/memcontrol.c, and the table from enumerator to place (`mem_cgroup_stats_index`) is
//! neither in BTF nor, without `CONFIG_KALLSYMS_ALL`, anywhere else. The lists are therefore repeated here, without
//! the enumerators that a kernel lacks, and count only where their length is that of the kernel's own arrays. A
//! pass compares what it finds with `memory.stat` besides.

use podwarden_abi::{MemoryItem, NO_ITEM};

use super::Offsets;
use crate::kernel::btf::KernelBtf;

/// Bytes of one value.
const WORD: u32 = 8;

/// `memcg_node_stat_items`, up to where the kernels agree.
const NODE: &[&str] = &[
    "NR_INACTIVE_ANON",
    "NR_ACTIVE_ANON",
    "NR_INACTIVE_FILE",
    "NR_ACTIVE_FILE",
    "NR_UNEVICTABLE",
    "NR_SLAB_RECLAIMABLE_B",
    "NR_SLAB_UNRECLAIMABLE_B",
    "NR_PERCPU_B",
    "WORKINGSET_REFAULT_ANON",
    "WORKINGSET_REFAULT_FILE",
    "WORKINGSET_ACTIVATE_ANON",
    "WORKINGSET_ACTIVATE_FILE",
    "WORKINGSET_RESTORE_ANON",
    "WORKINGSET_RESTORE_FILE",
    "WORKINGSET_NODERECLAIM",
    "NR_ANON_MAPPED",
    "NR_FILE_MAPPED",
    "NR_FILE_PAGES",
    "NR_FILE_DIRTY",
    "NR_WRITEBACK",
    "NR_SHMEM",
    "NR_SHMEM_THPS",
    "NR_FILE_THPS",
    "NR_ANON_THPS",
    "NR_VMALLOC",
    "NR_KERNEL_STACK_KB",
    "NR_PAGETABLE",
    "NR_SECONDARY_PAGETABLE",
    "NR_SWAPCACHE",
];

/// Counted by a memory cgroup since 6.12; enumerators of the node before.
const TIERING: &[&str] = &[
    "PGPROMOTE_SUCCESS",
    "PGDEMOTE_KSWAPD",
    "PGDEMOTE_DIRECT",
    "PGDEMOTE_KHUGEPAGED",
    "PGDEMOTE_PROACTIVE",
];

/// The rest of `memcg_node_stat_items`.
const NODE_LAST: &[&str] = &[
    "PGSTEAL_KSWAPD",
    "PGSTEAL_DIRECT",
    "PGSTEAL_KHUGEPAGED",
    "PGSTEAL_PROACTIVE",
    "PGSTEAL_ANON",
    "PGSTEAL_FILE",
    "PGSCAN_KSWAPD",
    "PGSCAN_DIRECT",
    "PGSCAN_KHUGEPAGED",
    "PGSCAN_PROACTIVE",
    "PGSCAN_ANON",
    "PGSCAN_FILE",
    "PGREFILL",
    "NR_HUGETLB",
    "NR_KMEM",
];

/// `memcg_stat_items`.
const MEMCG: &[&str] = &[
    "MEMCG_SWAP",
    "MEMCG_SOCK",
    "MEMCG_PERCPU_B",
    "MEMCG_VMALLOC",
    "MEMCG_KMEM",
    "MEMCG_ZSWAP_B",
    "MEMCG_ZSWAPPED",
    "MEMCG_ZSWAP_INCOMP",
];

/// `memcg_vm_event_stat` before `PGFAULT`, but for the first ones.
const SCANS: &[&str] = &[
    "PGSCAN_KSWAPD",
    "PGSCAN_DIRECT",
    "PGSCAN_KHUGEPAGED",
    "PGSCAN_PROACTIVE",
    "PGSTEAL_KSWAPD",
    "PGSTEAL_DIRECT",
    "PGSTEAL_KHUGEPAGED",
    "PGSTEAL_PROACTIVE",
];

/// `memcg_vm_event_stat` from `PGFAULT` on.
const FAULTS: &[&str] = &[
    "PGFAULT",
    "PGMAJFAULT",
    "PGREFILL",
    "PGACTIVATE",
    "PGDEACTIVATE",
    "PGLAZYFREE",
    "PGLAZYFREED",
    "SWPIN_ZERO",
    "SWPOUT_ZERO",
    "ZSWPIN",
    "ZSWPOUT",
    "ZSWPWB",
    "THP_FAULT_ALLOC",
    "THP_COLLAPSE_ALLOC",
    "THP_SWPOUT",
    "THP_SWPOUT_FALLBACK",
];

/// Counted by a memory cgroup since 6.12.
const NUMA: &[&str] = &["NUMA_PAGE_MIGRATE", "NUMA_PTE_UPDATES", "NUMA_HINT_FAULTS"];

/// What this kernel's types say.
pub(super) struct Types<F> {
    /// The value of an enumerator.
    pub(super) value: F,
    /// Length of `memcg_vmstats.state`.
    pub(super) states: usize,
    /// Length of `memcg_vmstats.events`.
    pub(super) events: usize,
    /// `CONFIG_MEMCG_V1`.
    pub(super) v1: bool,
}

/// Offset in `struct memcg_vmstats` of each item, by [`MemoryItem`].
pub(in crate::kernel) fn offsets(btf: &KernelBtf) -> Result<Offsets, String> {
    let len = |member| {
        let len = btf.array_len("memcg_vmstats", member);
        len.ok_or_else(|| format!("no memcg_vmstats.{member}"))
    };
    let at = |member| {
        let at = btf.offset("memcg_vmstats", member);
        at.ok_or_else(|| format!("no memcg_vmstats.{member}"))
    };
    let types = Types {
        value: |of: &str, name: &str| btf.enum_value(of, name),
        states: len("state")?,
        events: len("events")?,
        v1: btf.offset("mem_cgroup", "kmem").is_some(),
    };
    let (states, events) = (at("state")?, at("events")?);
    let places = places(&types)?;
    Ok(std::array::from_fn(|item| match places[item] {
        None => NO_ITEM,
        Some(place) if item < MemoryItem::Faults as usize => states + place * WORD,
        Some(place) => events + place * WORD,
    }))
}

/// The place of each item in its array.
pub(super) fn places<F>(types: &Types<F>) -> Result<[Option<u32>; MemoryItem::COUNT], String>
where
    F: Fn(&str, &str) -> Option<i64>,
{
    let state = states(types)?;
    let one = |names: &[&str]| {
        let place = names.iter().find_map(|name| state(name));
        place.ok_or_else(|| format!("memory cgroups do not count {}", names[0]))
    };
    let faults = faults(types);
    Ok([
        Some(one(&["NR_ANON_MAPPED"])?),
        Some(one(&["NR_FILE_PAGES"])?),
        Some(one(&["NR_SHMEM"])?),
        Some(one(&["NR_INACTIVE_FILE"])?),
        Some(one(&["NR_ACTIVE_FILE"])?),
        state("MEMCG_KMEM").or_else(|| state("NR_KMEM")),
        state("WORKINGSET_REFAULT_ANON"),
        state("WORKINGSET_REFAULT_FILE"),
        faults,
        faults.map(|place| place + 1),
    ])
}

/// From a statistic's name to its place.
type Place<'a> = Box<dyn Fn(&str) -> Option<u32> + 'a>;

/// The place of each statistic that memory cgroups count.
fn states<F>(types: &Types<F>) -> Result<Place<'_>, String>
where
    F: Fn(&str, &str) -> Option<i64>,
{
    let value = |name: &str| {
        (types.value)("node_stat_item", name).or_else(|| (types.value)("memcg_stat_item", name))
    };
    let all = (types.value)("memcg_stat_item", "MEMCG_NR_STAT");
    if all.is_some_and(|all| usize::try_from(all) == Ok(types.states)) {
        return Ok(Box::new(move |name| value(name)?.try_into().ok()));
    }
    let known = |names: &[&'static str], of: &str| -> Vec<&'static str> {
        let names = names.iter().copied();
        names
            .filter(|name| (types.value)(of, name).is_some())
            .collect()
    };
    let node = known(NODE, "node_stat_item");
    let tiering = known(TIERING, "node_stat_item");
    let last = known(NODE_LAST, "node_stat_item");
    let memcg = known(MEMCG, "memcg_stat_item");
    let with = [node.clone(), tiering, last.clone(), memcg.clone()].concat();
    let without = [node, last, memcg].concat();
    let found = [with, without]
        .into_iter()
        .find(|names| names.len() == types.states);
    let Some(names) = found else {
        return Err(format!(
            "memory cgroups count {} statistics here, in an order that is not known",
            types.states
        ));
    };
    Ok(Box::new(move |name| {
        let place = names.iter().position(|known| *known == name)?;
        u32::try_from(place).ok()
    }))
}

/// The place of `PGFAULT` among the events; `PGMAJFAULT` follows it.
fn faults<F>(types: &Types<F>) -> Option<u32>
where
    F: Fn(&str, &str) -> Option<i64>,
{
    let count = |names: &[&str]| {
        let known = |name: &&&str| (types.value)("vm_event_item", name).is_some();
        names.iter().filter(known).count()
    };
    // PGPGIN and PGPGOUT, which only v1 shows since 6.11.
    let first = if types.v1 { 2 } else { 0 };
    let (scans, numa) = (count(SCANS), count(NUMA));
    let least = first + scans + count(FAULTS);
    let direct = (types.value)("memcg_stat_item", "MEMCG_NR_STAT");
    if direct.is_some_and(|all| usize::try_from(all) == Ok(types.states)) {
        // These kernels count PGPGIN always, and fewer of the last ones.
        let place = 2 + scans;
        return (place + 2 <= types.events)
            .then(|| place.try_into().ok())
            .flatten();
    }
    // PSWPIN and PSWPOUT came later; three at the end depend on the configuration: no two ways give one length.
    let swaps = [(0, 0), (2, 0), (0, numa), (2, numa)];
    let (swaps, _) = swaps
        .into_iter()
        .find(|(swaps, numa)| least + swaps + numa == types.events)?;
    u32::try_from(first + swaps + scans).ok()
}
