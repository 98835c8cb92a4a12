//! The order of the statistics, for kernels whose types were looked up.

use super::items::{Types, places};

/// What the types of a kernel have, as text.
struct Kernel {
    node: &'static str,
    memcg: &'static str,
    events: &'static str,
    /// Lengths of the two arrays.
    lengths: (usize, usize),
    v1: bool,
}

const NODE_6_12: &str = "NR_INACTIVE_ANON NR_ACTIVE_ANON NR_INACTIVE_FILE NR_ACTIVE_FILE NR_UNEVICTABLE \
    NR_SLAB_RECLAIMABLE_B NR_SLAB_UNRECLAIMABLE_B NR_ISOLATED_ANON NR_ISOLATED_FILE WORKINGSET_NODES \
    WORKINGSET_REFAULT_ANON WORKINGSET_REFAULT_FILE WORKINGSET_ACTIVATE_ANON WORKINGSET_ACTIVATE_FILE \
    WORKINGSET_RESTORE_ANON WORKINGSET_RESTORE_FILE WORKINGSET_NODERECLAIM NR_ANON_MAPPED NR_FILE_MAPPED \
    NR_FILE_PAGES NR_FILE_DIRTY NR_WRITEBACK NR_WRITEBACK_TEMP NR_SHMEM NR_SHMEM_THPS NR_SHMEM_PMDMAPPED \
    NR_FILE_THPS NR_FILE_PMDMAPPED NR_ANON_THPS NR_VMSCAN_WRITE NR_KERNEL_STACK_KB NR_PAGETABLE \
    NR_SECONDARY_PAGETABLE NR_IOMMU_PAGES NR_SWAPCACHE PGPROMOTE_SUCCESS PGPROMOTE_CANDIDATE PGDEMOTE_KSWAPD \
    PGDEMOTE_DIRECT PGDEMOTE_KHUGEPAGED";
const EVENTS_6_12: &str = "PGPGIN PGPGOUT PSWPIN PSWPOUT PGACTIVATE PGDEACTIVATE PGLAZYFREE PGFAULT PGMAJFAULT \
    PGLAZYFREED PGREFILL PGSTEAL_KSWAPD PGSTEAL_DIRECT PGSTEAL_KHUGEPAGED PGSCAN_KSWAPD PGSCAN_DIRECT \
    PGSCAN_KHUGEPAGED NUMA_PTE_UPDATES NUMA_HINT_FAULTS NUMA_PAGE_MIGRATE THP_FAULT_ALLOC THP_COLLAPSE_ALLOC \
    THP_SWPOUT THP_SWPOUT_FALLBACK SWPIN_ZERO SWPOUT_ZERO";
const MEMCG_6_12: &str = "MEMCG_SWAP MEMCG_SOCK MEMCG_PERCPU_B MEMCG_VMALLOC MEMCG_KMEM MEMCG_ZSWAP_B \
    MEMCG_ZSWAPPED MEMCG_NR_STAT";

fn found(kernel: &Kernel) -> Result<[Option<u32>; 10], String> {
    let place = |list: &str, name: &str| {
        let at = list.split_whitespace().position(|known| known == name)?;
        i64::try_from(at).ok()
    };
    let nodes = kernel.node.split_whitespace().count() as i64;
    places(&Types {
        value: |of: &str, name: &str| match of {
            "node_stat_item" => place(kernel.node, name),
            "memcg_stat_item" => place(kernel.memcg, name).map(|at| at + nodes),
            "vm_event_item" => place(kernel.events, name),
            _ => None,
        },
        states: kernel.lengths.0,
        events: kernel.lengths.1,
        v1: kernel.v1,
    })
}

/// Debian's 6.12 for clouds.
fn debian_6_12() -> Kernel {
    Kernel {
        node: NODE_6_12,
        memcg: MEMCG_6_12,
        events: EVENTS_6_12,
        lengths: (38, 22),
        v1: false,
    }
}

#[test]
fn the_order_of_kernels_with_short_arrays() {
    let places = found(&debian_6_12()).unwrap();
    let expected = [14, 16, 19, 2, 3, 35, 7, 8, 6, 7].map(Some);
    assert_eq!(places, expected);
}

#[test]
fn without_what_a_memory_cgroup_did_not_count_before() {
    // 6.10: no promotions, demotions and NUMA events in the lists, PGPGIN in every kernel.
    let kernel = Kernel {
        lengths: (34, 19),
        v1: true,
        events: "PGPGIN PGPGOUT PGSCAN_KSWAPD PGSCAN_DIRECT PGSCAN_KHUGEPAGED PGSTEAL_KSWAPD PGSTEAL_DIRECT \
                 PGSTEAL_KHUGEPAGED PGFAULT PGMAJFAULT PGREFILL PGACTIVATE PGDEACTIVATE PGLAZYFREE PGLAZYFREED \
                 THP_FAULT_ALLOC THP_COLLAPSE_ALLOC THP_SWPOUT THP_SWPOUT_FALLBACK NUMA_PAGE_MIGRATE \
                 NUMA_PTE_UPDATES NUMA_HINT_FAULTS",
        ..debian_6_12()
    };
    let expected = [14, 16, 19, 2, 3, 31, 7, 8, 8, 9].map(Some);
    assert_eq!(found(&kernel).unwrap(), expected);
}

#[test]
fn a_place_for_every_enumerator() {
    let nodes = NODE_6_12.split_whitespace().count();
    let kernel = Kernel {
        lengths: (nodes + 7, 22),
        ..debian_6_12()
    };
    let places = found(&kernel).unwrap();
    assert_eq!(places[..4], [Some(17), Some(19), Some(23), Some(2)]);
    assert_eq!(places[5], Some(nodes as u32 + 4));
}

#[test]
fn an_unknown_order_is_refused() {
    for lengths in [(37, 22), (39, 22), (0, 22)] {
        let kernel = Kernel {
            lengths,
            ..debian_6_12()
        };
        let why = found(&kernel).unwrap_err();
        assert!(why.contains("not known"), "{why}");
    }
    let kernel = Kernel {
        lengths: (38, 20),
        ..debian_6_12()
    };
    assert_eq!(
        found(&kernel).unwrap()[8..],
        [None, None],
        "faults alone are lost"
    );
}
