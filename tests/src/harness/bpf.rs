//! The kernel objects that a process holds: what they take of memory, and whether they are gone after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{MapInfo, loaded_maps};
use aya::programs::{loaded_links, loaded_programs};

/// The agent's programs of disks; the kernel keeps 15 characters of a name.
pub(crate) const DISK_PROGRAMS: [&str; 3] =
    ["block_bio_queue", "block_bio_compl", "block_rq_comple"];

/// Ids of programs, links and maps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Objects {
    /// Those that process `pid` has open; a link names its program too (`/proc/PID/fdinfo`, proc(5)).
    pub(crate) fn of_process(pid: u32) -> Result<Self> {
        let dir = format!("/proc/{pid}/fdinfo");
        let mut found = Self::default();
        for entry in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
            // A descriptor may be closed meanwhile.
            let Ok(text) = fs::read_to_string(entry?.path()) else {
                continue;
            };
            for line in text.lines() {
                let Some((key, value)) = line.split_once(':') else {
                    continue;
                };
                let Ok(id) = value.trim().parse() else {
                    continue;
                };
                match key {
                    "prog_id" => found.programs.insert(id),
                    "link_id" => found.links.insert(id),
                    "map_id" => found.maps.insert(id),
                    _ => false,
                };
            }
        }
        Ok(found)
    }

    /// The same without maps that are pinned below `dir`: they are to stay.
    pub(crate) fn without_pinned(mut self, dir: &Path) -> Self {
        for path in files_below(dir) {
            if let Ok(info) = MapInfo::from_pin(&path) {
                self.maps.remove(&info.id());
            }
        }
        self
    }

    /// The programs' names, of which the kernel keeps 15 characters.
    pub(crate) fn program_names(&self) -> BTreeSet<String> {
        let programs = loaded_programs().filter_map(Result::ok);
        let own = programs.filter(|info| self.programs.contains(&info.id()));
        own.filter_map(|info| info.name_as_str().map(str::to_owned))
            .collect()
    }

    /// Whether the process has the program with this id.
    pub(crate) fn has_program(&self, id: u32) -> bool {
        self.programs.contains(&id)
    }

    /// How many programs.
    pub(crate) fn programs(&self) -> usize {
        self.programs.len()
    }

    /// An error when one of them is still in the kernel. Ids are not used again soon.
    pub(crate) fn ensure_gone(&self) -> Result<()> {
        // Objects that go away during the walk are errors of the walk: they are gone.
        let programs = loaded_programs()
            .filter_map(|info| Some(info.ok()?.id()))
            .collect();
        let links = loaded_links()
            .filter_map(|info| Some(info.ok()?.id()))
            .collect();
        let maps = loaded_maps()
            .filter_map(|info| Some(info.ok()?.id()))
            .collect();
        for (what, ours, all) in [
            ("programs", &self.programs, &programs),
            ("links", &self.links, &links),
            ("maps", &self.maps, &maps),
        ] {
            let left: Vec<_> = ours.intersection(all).collect();
            ensure!(
                left.is_empty(),
                "the kernel still has the agent's {what} {left:?}"
            );
        }
        Ok(())
    }
}

/// What a process's maps and programs take of the kernel's memory, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KernelMemory {
    pub(crate) maps: u64,
    pub(crate) programs: u64,
}

impl KernelMemory {
    /// By `memlock` of `/proc/PID/fdinfo` (`bpf_map_show_fdinfo` of kernel/bpf/syscall.c), each map and program once.
    pub(crate) fn of_process(pid: u32) -> Result<Self> {
        let (mut maps, mut programs) = (BTreeMap::new(), BTreeMap::new());
        let dir = format!("/proc/{pid}/fdinfo");
        for entry in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
            // A descriptor may be closed meanwhile.
            let Ok(text) = fs::read_to_string(entry?.path()) else {
                continue;
            };
            let field = |name: &str| -> Option<u64> {
                let mut lines = text.lines().filter_map(|line| line.split_once(':'));
                let (_, value) = lines.find(|(key, _)| *key == name)?;
                value.trim().parse().ok()
            };
            let Some(bytes) = field("memlock") else {
                continue;
            };
            if let Some(id) = field("map_id") {
                maps.insert(id, bytes);
            } else if let Some(id) = field("prog_id") {
                programs.insert(id, bytes);
            }
        }
        Ok(Self {
            maps: maps.values().sum(),
            programs: programs.values().sum(),
        })
    }
}

/// Every file below a directory; none where it cannot be read.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}
