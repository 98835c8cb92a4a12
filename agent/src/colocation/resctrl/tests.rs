//! The groups, on files that answer as the kernel documents them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    sync::{Arc, Mutex, MutexGuard},
};

use nix::libc;
use podwarden_policy::colocation::resctrl::Vendor;

use super::{
    files::{Files, Line},
    groups::{Group, Groups, ResctrlError},
};
use crate::config::ResctrlConfig;

/// A processor with two caches of 12 ways, of which a mask has two at least, and memory bandwidth in tens.
const ALL: u64 = 0xfff;
const LEAST_WAYS: u32 = 2;
const LEAST_BANDWIDTH: u64 = 10;

/// The agent's cgroup root.
const ROOT: &str = "/a/b";

/// What `resctrl` keeps: a class of service for each group, tasks in exactly one.
#[derive(Debug)]
struct State {
    /// By name; the root group has none. Masks and bandwidth of both caches.
    groups: BTreeMap<String, ([u64; 2], [u64; 2])>,
    tasks: BTreeMap<u32, String>,
    classes: usize,
    status: String,
    writes: Vec<String>,
}

#[derive(Debug, Clone)]
struct Kernel(Arc<Mutex<State>>);

impl Kernel {
    fn new(tasks: &[u32]) -> Self {
        Self(Arc::new(Mutex::new(State {
            groups: BTreeMap::from([(String::new(), ([ALL; 2], [100; 2]))]),
            tasks: tasks.iter().map(|task| (*task, String::new())).collect(),
            classes: 4,
            status: "ok".to_owned(),
            writes: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn groups(&self) -> Groups {
        self.groups_of(ROOT)
    }

    fn groups_of(&self, cgroup_root: &str) -> Groups {
        let config = ResctrlConfig::default();
        Groups::new(Box::new(self.clone()), config, Vendor::Intel, cgroup_root)
    }

    fn of(&self, group: Group) -> ([u64; 2], [u64; 2]) {
        self.state().groups[&group.directory(ROOT)]
    }

    fn tasks(&self, group: &str) -> Vec<u32> {
        let state = self.state();
        let in_it = state.tasks.iter().filter(|(_, of)| *of == group);
        in_it.map(|(task, _)| *task).collect()
    }
}

impl State {
    /// `rdtgroup_schemata_write`: all lines or none, masks of one run of ones, bandwidth rounded up to tens.
    fn set(&mut self, group: &str, text: &str) -> Result<(), String> {
        let mut values = self.groups.get(group).copied().ok_or("no group")?;
        for line in text.split_inclusive('\n') {
            let whole = line.strip_suffix('\n').ok_or("no newline")?;
            let lines = Line::all(whole);
            let line = lines.first().ok_or("no line")?;
            for (cache, value) in &line.domains {
                let cache = usize::try_from(*cache).map_err(|_| "no cache")?;
                match line.resource.as_str() {
                    "L3" => {
                        let mask = u64::from_str_radix(value, 16).map_err(|_| "no mask")?;
                        let run = mask >> mask.trailing_zeros().min(63);
                        if mask & !ALL != 0 || run & (run + 1) != 0 {
                            return Err(format!("mask {value} has non-consecutive 1-bits"));
                        }
                        if mask.count_ones() < LEAST_WAYS {
                            return Err(format!("need at least {LEAST_WAYS} bits in the mask"));
                        }
                        *values.0.get_mut(cache).ok_or("no cache")? = mask;
                    }
                    "MB" => {
                        let percent: u64 = value.parse().map_err(|_| "no number")?;
                        if !(LEAST_BANDWIDTH..=100).contains(&percent) {
                            return Err(format!("MB value {percent} out of range"));
                        }
                        *values.1.get_mut(cache).ok_or("no cache")? = percent.div_ceil(10) * 10;
                    }
                    other => return Err(format!("unknown or unsupported resource name '{other}'")),
                }
            }
        }
        self.groups.insert(group.to_owned(), values);
        Ok(())
    }
}

impl Files for Kernel {
    fn read(&self, path: &str) -> io::Result<String> {
        let state = self.state();
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        match (group, file) {
            ("info/L3", "cbm_mask") => return Ok(format!("{ALL:x}\n")),
            ("info/L3", "min_cbm_bits") => return Ok(format!("{LEAST_WAYS}\n")),
            ("info/MB", "min_bandwidth") => return Ok(format!("{LEAST_BANDWIDTH}\n")),
            ("info", "last_cmd_status") => return Ok(format!("{}\n", state.status)),
            _ => {}
        }
        let (masks, bandwidth) = state.groups.get(group).ok_or(ErrorKind::NotFound)?;
        Ok(match file {
            "schemata" => format!(
                "    L3:0={:03x};1={:03x}\n    MB:0={:3};1={:3}\n",
                masks[0], masks[1], bandwidth[0], bandwidth[1]
            ),
            "tasks" => {
                let tasks = state.tasks.iter().filter(|(_, of)| *of == group);
                tasks.map(|(task, _)| format!("{task}\n")).collect()
            }
            _ => return Err(ErrorKind::NotFound.into()),
        })
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut state = self.state();
        state.writes.push(format!("{path} {text}"));
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        match file {
            "schemata" => match state.set(group, text) {
                Ok(()) => {
                    state.status = "ok".to_owned();
                    Ok(())
                }
                Err(status) => {
                    state.status = status;
                    Err(ErrorKind::InvalidInput.into())
                }
            },
            "tasks" => {
                let task = text.parse().map_err(|_| ErrorKind::InvalidInput)?;
                match state.tasks.get_mut(&task) {
                    Some(of) => {
                        group.clone_into(of);
                        Ok(())
                    }
                    None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                }
            }
            _ => Err(ErrorKind::PermissionDenied.into()),
        }
    }

    fn make(&self, group: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.groups.contains_key(group) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        if state.groups.len() == state.classes {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        // A new group has what the root has no exclusive part of: all.
        state.groups.insert(group.to_owned(), ([ALL; 2], [100; 2]));
        Ok(())
    }

    fn remove(&self, group: &str) -> io::Result<()> {
        let mut state = self.state();
        state.groups.remove(group).ok_or(ErrorKind::NotFound)?;
        for of in state.tasks.values_mut().filter(|of| *of == group) {
            of.clear();
        }
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        let groups = state
            .groups
            .keys()
            .filter(|group| !group.is_empty())
            .cloned();
        Ok(groups
            .chain(["info".to_owned(), "schemata".to_owned()])
            .collect())
    }
}

#[test]
fn groups_have_the_ranges_of_their_classes() {
    let kernel = Kernel::new(&[]);
    let groups = kernel.groups();
    groups.settle().unwrap();
    // 30 % of 12 ways, rounded up.
    assert_eq!(kernel.of(Group::Be), ([0xf; 2], [100; 2]));
    assert_eq!(kernel.of(Group::Ls), ([ALL; 2], [100; 2]));
    assert_eq!(kernel.of(Group::Lsr), ([ALL; 2], [100; 2]));
    // Nothing is written that is there already.
    let written = kernel.state().writes.len();
    groups.settle().unwrap();
    assert_eq!(kernel.state().writes.len(), written);
    // Another program's write is put right.
    kernel
        .state()
        .set(&Group::Be.directory(ROOT), "L3:0=ff0\n")
        .unwrap();
    groups.settle().unwrap();
    assert_eq!(kernel.of(Group::Be).0, [0xf; 2]);
}

#[test]
fn bandwidth_is_within_what_the_kernel_takes() {
    let kernel = Kernel::new(&[]);
    let mut config = ResctrlConfig::default();
    config.be.bandwidth = Some(1);
    config.ls.bandwidth = Some(75);
    let groups = Groups::new(Box::new(kernel.clone()), config, Vendor::Intel, ROOT);
    groups.settle().unwrap();
    assert_eq!(kernel.of(Group::Be).1, [10; 2]);
    assert_eq!(kernel.of(Group::Ls).1, [80; 2]);
}

#[test]
fn tasks_are_in_one_group_and_go_back_with_it() {
    let kernel = Kernel::new(&[1, 2, 3, 4]);
    let groups = kernel.groups();
    groups.settle().unwrap();
    assert_eq!(
        groups.assign(Group::Be, &[2, 3, 99]).unwrap(),
        2,
        "one has ended"
    );
    assert_eq!(groups.assign(Group::Be, &[2, 3]).unwrap(), 0);
    assert_eq!(groups.assign(Group::Ls, &[3]).unwrap(), 1);
    assert_eq!(kernel.tasks(&Group::Be.directory(ROOT)), [2]);
    assert_eq!(kernel.tasks(&Group::Ls.directory(ROOT)), [3]);
    groups.remove();
    assert_eq!(kernel.tasks(""), [1, 2, 3, 4]);
    let left: BTreeSet<_> = kernel.state().groups.keys().cloned().collect();
    assert_eq!(left, BTreeSet::from([String::new()]));
}

#[test]
fn agents_with_different_cgroup_roots_have_groups_of_their_own() {
    let kernel = Kernel::new(&[1, 2]);
    kernel.state().classes = 7;
    let (ours, others) = (kernel.groups(), kernel.groups_of("/"));
    for groups in [&ours, &others] {
        groups.settle().unwrap();
    }
    ours.assign(Group::Be, &[1]).unwrap();
    others.assign(Group::Be, &[2]).unwrap();
    ours.remove();
    assert_eq!(kernel.tasks("podwarden-be"), [2]);
    assert_eq!(kernel.state().groups.len(), 4);
    assert_ne!(Group::Ls.directory("a"), Group::Ls.directory("a/b"));
}

#[test]
fn what_is_not_to_be_had_is_said() {
    let kernel = Kernel::new(&[]);
    for group in ["a", "b"] {
        kernel.make(group).unwrap();
    }
    let error = kernel.groups().settle().unwrap_err();
    assert!(
        matches!(&error, ResctrlError::NoneLeft(group) if *group == Group::Ls.directory(ROOT)),
        "{error}"
    );
    kernel.groups().remove();
    assert_eq!(kernel.state().groups.len(), 3, "those of others stay");

    let kernel = Kernel::new(&[]);
    let mut config = ResctrlConfig::default();
    (config.be.start, config.be.end) = (0, 5);
    let groups = Groups::new(Box::new(kernel.clone()), config, Vendor::Intel, ROOT);
    let error = groups.settle().unwrap_err().to_string();
    assert_eq!(
        error,
        "L3: 0 % to 5 % are 1 ways, and the kernel takes 2 at least"
    );

    // 2048 is no percentage.
    let groups = Groups::new(
        Box::new(Kernel::new(&[])),
        ResctrlConfig::default(),
        Vendor::Amd,
        ROOT,
    );
    let error = groups.settle().unwrap_err().to_string();
    assert!(
        error.contains("podwarden-a%2Fb-lsr/schemata")
            && error.contains("(MB value 2048 out of range)"),
        "{error}"
    );
}
