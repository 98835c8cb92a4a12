//! Which CPUs best effort may use.
//!
//! Hyper-threads of one core are taken together, round robin over the NUMA nodes and sockets: the largest
//! first, then the one with the lowest CPU. What is left over is taken one by one, from where the pairs ended
//! (`calculateBESuppressCPUSetPolicy` and `adjustByCPUSet` of the koordlet).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

/// The least number of CPUs.
pub const MIN_CPUS: u64 = 2;
/// How many CPUs are added in a round, in percent of the node's.
const INCREASE_PERCENT: usize = 10;

/// One logical CPU, as `/proc/cpuinfo` and sysfs number it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// The logical CPU.
    pub id: u32,
    /// Its core, unique within a socket.
    pub core: u32,
    /// Its socket.
    pub socket: u32,
    /// Its NUMA node.
    pub node: u32,
}

/// The node's CPUs, and who has them.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Every CPU that is online.
    pub cpus: &'a [Cpu],
    /// What best effort has now.
    pub present: &'a BTreeSet<u32>,
    /// CPUs of LSE pods, of the reservation and of exclusive system pods: never best effort's.
    pub excluded: &'a BTreeSet<u32>,
    /// CPUs of LSR pods: best effort gets its share of these.
    pub lsr: &'a BTreeSet<u32>,
}

/// The node's CPUs, and who has them, as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sets {
    /// Every CPU that is online.
    pub cpus: Vec<Cpu>,
    /// What best effort had when it was found.
    pub present: BTreeSet<u32>,
    /// CPUs of LSE and SYSTEM pods.
    pub excluded: BTreeSet<u32>,
    /// CPUs of LSR pods.
    pub lsr: BTreeSet<u32>,
}

impl Sets {
    /// As the law takes them; `ours` is what was set last.
    pub fn node<'a>(&'a self, ours: Option<&'a BTreeSet<u32>>) -> Node<'a> {
        Node {
            cpus: &self.cpus,
            present: ours.unwrap_or(&self.present),
            excluded: &self.excluded,
            lsr: &self.lsr,
        }
    }

    /// True where none of these is offline or another pod's alone.
    pub fn allow(&self, set: &BTreeSet<u32>) -> bool {
        let is_free =
            |id: &u32| !self.excluded.contains(id) && self.cpus.iter().any(|cpu| cpu.id == *id);
        set.iter().all(is_free)
    }
}

impl Node<'_> {
    /// What the CPUs come to that are no other pod's alone, thousandths.
    pub fn free_milli(&self) -> i64 {
        let free = self
            .cpus
            .iter()
            .filter(|cpu| !self.excluded.contains(&cpu.id));
        i64::try_from(free.count()).map_or(i64::MAX, |cpus| cpus.saturating_mul(1000))
    }
}

/// The CPUs of best effort after a round, ascending; `None` where too few are left and what is there stays.
pub fn next(quantity: i64, node: &Node<'_>) -> Option<Vec<u32>> {
    let free = |cpu: &&Cpu| !node.excluded.contains(&cpu.id);
    let (lsr, ls): (Vec<Cpu>, Vec<Cpu>) = node
        .cpus
        .iter()
        .filter(free)
        .partition(|cpu| node.lsr.contains(&cpu.id));
    let wanted = wanted(quantity, node.present.len(), node.cpus.len());
    let of_lsr = (wanted * lsr.len()).checked_div(lsr.len() + ls.len())?;
    let mut picked = pick(of_lsr, &lsr)?;
    picked.extend(pick(wanted - of_lsr, &ls)?);
    picked.sort_unstable();
    Some(picked)
}

/// How many CPUs: the quantity in whole CPUs, at least [`MIN_CPUS`], and at most a tenth of the node more
/// than now.
fn wanted(quantity: i64, present: usize, all: usize) -> usize {
    let quantity = u64::try_from(quantity).unwrap_or(0);
    let wanted = usize::try_from(quantity.div_ceil(1000).max(MIN_CPUS)).unwrap_or(usize::MAX);
    wanted.min(present + (all * INCREASE_PERCENT).div_ceil(100))
}

/// `wanted` of these CPUs in the order in which they are taken; `None` where there are fewer.
pub fn pick(wanted: usize, cpus: &[Cpu]) -> Option<Vec<u32>> {
    if cpus.len() < wanted {
        return None;
    }
    let mut groups = groups(cpus);
    let mut picked = Vec::with_capacity(wanted);
    let at = take_pairs(wanted, &mut groups, &mut picked);
    take_single(wanted, at, &mut groups, &mut picked);
    Some(picked)
}

/// The CPUs of each socket and NUMA node, those of one core together.
fn groups(cpus: &[Cpu]) -> Vec<Vec<Cpu>> {
    let mut by_place: BTreeMap<(u32, u32), Vec<Cpu>> = BTreeMap::new();
    for cpu in cpus {
        by_place
            .entry((cpu.node, cpu.socket))
            .or_default()
            .push(*cpu);
    }
    let mut groups: Vec<Vec<Cpu>> = by_place.into_values().collect();
    for group in &mut groups {
        group.sort_unstable_by_key(|cpu| (cpu.core, cpu.id));
    }
    let first = |group: &[Cpu]| group.first().map(|cpu| cpu.id);
    groups.sort_by_key(|group| (core::cmp::Reverse(group.len()), first(group)));
    groups
}

/// Takes two CPUs of one core from each group in turn, while two are wanted. Returns the group at which it
/// ended.
fn take_pairs(wanted: usize, groups: &mut [Vec<Cpu>], picked: &mut Vec<u32>) -> usize {
    let mut before = None;
    let mut at = 0;
    while !groups.is_empty() && wanted - picked.len() > 1 {
        if at == 0 && before.replace(picked.len()) == Some(picked.len()) {
            break;
        }
        let group = &mut groups[at];
        let pair = group.windows(2).position(|two| two[0].core == two[1].core);
        if let Some(first) = pair {
            picked.extend(group.drain(first..first + 2).map(|cpu| cpu.id));
        }
        at = (at + 1) % groups.len();
    }
    at
}

/// Takes one CPU from each group in turn, from `at` on.
fn take_single(wanted: usize, mut at: usize, groups: &mut [Vec<Cpu>], picked: &mut Vec<u32>) {
    while picked.len() < wanted {
        let group = &mut groups[at];
        if !group.is_empty() {
            picked.push(group.remove(0).id);
        }
        at = (at + 1) % groups.len();
    }
}
