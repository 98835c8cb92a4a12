//! One pass over the cgroups below kubepods, by an iterator in the kernel (`iter/cgroup`, Linux 6.1).
//!
//! The program writes a record of each cgroup into a map that is mapped here: one read of the iterator fills it.
//! aya loads the program; it cannot say where an iterator begins (`bpf_iter_link_info`), so the link and the
//! iterator are made here.

mod forks;
mod gathered;
mod items;

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read as _},
    num::NonZero,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    ptr::NonNull,
};

use aya::{
    Btf, Ebpf,
    maps::{Array, Map, MapData},
    programs::{Iter, ProgramFd},
};
use aya_obj::generated::{bpf_attach_type, bpf_cgroup_iter_order, bpf_cmd};
pub(super) use forks::globals;
pub use gathered::Gathered;
pub(super) use items::offsets;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
pub use podwarden_abi::CgroupRecord;
use podwarden_abi::{MAX_ACCOUNT_DEPTH, MemoryItem, NO_ITEM, WalkEnd, WalkPlan};

use super::{
    casts::Casts,
    hooks,
    refusal::refusal,
    sys::{bpf, empty},
    wire::Wire,
};

/// The structure that has a memory cgroup's statistics.
pub const STATISTICS: &str = "memcg_vmstats";

/// Where in [`STATISTICS`] each item is.
pub(super) type Offsets = [u32; MemoryItem::COUNT];

/// A pass failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} for a pass over the cgroups below {path}")]
pub struct WalkError {
    step: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The loaded program with the map that it writes.
pub struct Walker {
    program: ProgramFd,
    records: Records,
    items: Offsets,
    /// Keeps the plan's map for the program.
    _plan: Array<MapData, Wire<WalkPlan>>,
}

/// What a pass found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Cgroups with a record.
    pub cgroups: u64,
    /// Cgroups that found no room for one.
    pub lost: u64,
}

/// `union bpf_iter_link_info` of include/uapi/linux/bpf.h, as iterators over cgroups have it.
#[repr(C)]
struct LinkInfo {
    order: u32,
    cgroup_fd: u32,
    cgroup_id: u64,
}

impl Walker {
    /// Loads the program and takes its maps. The text says why it reads by helpers on a kernel that gives addresses
    /// types. The error is the kernel's reason.
    pub(super) fn new(
        ebpf: &mut Ebpf,
        btf: &Btf,
        items: Offsets,
        casts: Casts,
    ) -> Result<(Self, Option<String>), String> {
        let text = |e: &dyn std::error::Error| crate::base::error::chain(e);
        let typed = casts.are_known().then(|| load(ebpf, btf, "walk"));
        let (program, refused) = match typed {
            Some(Ok(program)) => (program, None),
            Some(Err(why)) => (load(ebpf, btf, "walk_plain")?, Some(why)),
            None => (load(ebpf, btf, "walk_plain")?, None),
        };
        let Some(Map::Array(records)) = ebpf.take_map("RECORDS") else {
            return Err("the object has no RECORDS".to_owned());
        };
        let records = Records::map(records).map_err(|e| text(&e))?;
        let places = u32::try_from(records.places).map_err(|e| text(&e))?;
        let plan = ebpf.take_map("WALK").ok_or("the object has no WALK")?;
        let mut plan: Array<_, Wire<WalkPlan>> = plan.try_into().map_err(|e| text(&e))?;
        let value = WalkPlan {
            root_level: 0,
            used: 0,
            depth: MAX_ACCOUNT_DEPTH,
            places,
            first: 0,
            parts: 0,
        };
        plan.set(0, Wire(value), 0).map_err(|e| text(&e))?;
        let this = Self {
            program,
            records,
            items,
            _plan: plan,
        };
        Ok((this, refused))
    }

    /// Whether this kernel's records have the item.
    pub fn has(&self, item: MemoryItem) -> bool {
        self.items[item as usize] != NO_ITEM
    }

    /// The iterator without any other program, with room for `places` records, to measure it. It does without the
    /// structure members `without` (as `structure.path`), without all statistics where that has [`STATISTICS`], and without
    /// typed pointers where it has [`super::casts::CASTS`]. The error is the kernel's reason, also for typed pointers
    /// that it refuses.
    pub fn alone(places: u32, without: &[&str]) -> Result<Self, String> {
        let btf = hooks::kernel_types().map_err(|e| crate::base::error::chain(&e))?;
        super::loader::walker_alone(btf, places, without)
    }

    /// Goes over the cgroup with the directory `path`, of v1 or v2, and those at most [`MAX_ACCOUNT_DEPTH`] levels
    /// below it, and hands over the record of each, a parent before its children.
    pub fn pass(&self, path: &Path, each: impl FnMut(&CgroupRecord)) -> Result<Found, WalkError> {
        let failed = |step| {
            move |source| WalkError {
                step,
                path: path.to_owned(),
                source,
            }
        };
        let directory = File::open(path).map_err(failed("opening the directory"))?;
        let link = self.link(&directory).map_err(failed("making a link"))?;
        let iterator = iterator(&link).map_err(failed("making an iterator"))?;
        let end = end(iterator).map_err(failed("reading to the end"))?;
        Ok(self.records.read(end, each))
    }

    /// Levels between the root of its hierarchy, also where this process sees a part of it alone, and the cgroup with
    /// the directory `path`.
    pub fn level(&self, path: &Path) -> Result<Option<u32>, WalkError> {
        let mut level = None;
        self.pass(path, |record| {
            level.get_or_insert(record.level);
        })?;
        Ok(level)
    }

    /// A link of the program to the cgroup and what is below it.
    fn link(&self, directory: &File) -> io::Result<OwnedFd> {
        let info = LinkInfo {
            order: bpf_cgroup_iter_order::BPF_CGROUP_ITER_DESCENDANTS_PRE as u32,
            cgroup_fd: directory.as_raw_fd().cast_unsigned(),
            cgroup_id: 0,
        };
        let mut attr = empty();
        attr.link_create.__bindgen_anon_1.prog_fd =
            self.program.as_fd().as_raw_fd().cast_unsigned();
        attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
        attr.link_create.__bindgen_anon_3.__bindgen_anon_1.iter_info =
            (&raw const info).addr() as u64;
        attr.link_create
            .__bindgen_anon_3
            .__bindgen_anon_1
            .iter_info_len = size_of::<LinkInfo>() as u32;
        bpf(bpf_cmd::BPF_LINK_CREATE, &attr)
    }
}

/// Has the kernel verify a program.
fn load(ebpf: &mut Ebpf, btf: &Btf, name: &str) -> Result<ProgramFd, String> {
    let text = |e: &dyn std::error::Error| crate::base::error::chain(e);
    let program = ebpf.program_mut(name).map(TryInto::try_into);
    let Some(Ok(program)) = program else {
        return Err("not in the object".to_owned());
    };
    let program: &mut Iter = program;
    program.load("cgroup", btf).map_err(|e| refusal(&e))?;
    let program = program.fd().map_err(|e| text(&e))?;
    program.try_clone().map_err(|e| text(&e))
}

/// A pass that is ready to be read.
fn iterator(link: &OwnedFd) -> io::Result<File> {
    let mut attr = empty();
    attr.iter_create.link_fd = link.as_raw_fd().cast_unsigned();
    bpf(bpf_cmd::BPF_ITER_CREATE, &attr).map(File::from)
}

/// Makes a pass.
fn end(mut iterator: File) -> io::Result<WalkEnd> {
    let mut end = [0; size_of::<WalkEnd>()];
    iterator.read_exact(&mut end)?;
    Wire::read(&end).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// The map of records in this process's memory.
struct Records {
    at: NonNull<CgroupRecord>,
    places: usize,
    bytes: NonZero<usize>,
    _map: MapData,
}

// SAFETY: this value alone has the memory, and only reads it.
unsafe impl Send for Records {}
// SAFETY: only read; what the kernel writes meanwhile is read a word at a time.
unsafe impl Sync for Records {}

impl Records {
    fn map(map: MapData) -> io::Result<Self> {
        let places = map.info().map_err(io::Error::other)?.max_entries() as usize;
        let bytes = NonZero::new(places * size_of::<CgroupRecord>())
            .ok_or_else(|| io::Error::other("the map of records is empty"))?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(
                None,
                bytes,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                map.fd(),
                0,
            )
        }?;
        Ok(Self {
            at: at.cast(),
            places,
            bytes,
            _map: map,
        })
    }

    /// Hands over the records of the pass with this end.
    fn read(&self, end: WalkEnd, mut each: impl FnMut(&CgroupRecord)) -> Found {
        let used = usize::try_from(end.places).unwrap_or(usize::MAX);
        let mut cgroups = 0;
        for place in 0..used.min(self.places) {
            // SAFETY: below the map's number of records, and any bytes are a record.
            let record = unsafe { self.at.add(place).read_volatile() };
            // Where all were removed before the pass the places are those of an older one.
            if record.session == end.session {
                cgroups += 1;
                each(&record);
            }
        }
        Found {
            cgroups,
            lost: used.saturating_sub(self.places) as u64,
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, of which no reference is left.
        let _ = unsafe { munmap(self.at.cast(), self.bytes.get()) };
    }
}
