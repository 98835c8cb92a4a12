//! The driver's own logic, against a systemd that makes directories in a temporary one. What the
//! real one does is tested in a virtual machine.
//!
//! More than 400 lines: every case runs against the one stand-in that is declared here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{Arc, Mutex},
};

use podwarden_policy::{Bytes, CpuShares, limits::CpuMax, limits::Limit};
use tempfile::TempDir;

use super::{property::Value, *};
use crate::{CgroupPath, Controller, Hierarchies, Version};

/// What the fake was asked for, in order.
type Calls = Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct Fake {
    mount: PathBuf,
    units: Mutex<BTreeMap<String, State>>,
    descriptions: Mutex<BTreeMap<String, String>>,
    calls: Calls,
    /// Units that have files of their own.
    not_transient: BTreeSet<String>,
    /// The state that a start leads to.
    start_leads_to: State,
    has_job: bool,
    /// What systemd writes to `cpu.max` whenever a property is set.
    writes_quota: Mutex<Option<&'static str>>,
}

impl Fake {
    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn go(&self, unit: &str, state: State) {
        self.units.lock().unwrap().insert(unit.to_owned(), state);
        let directory = directory(&self.mount, unit);
        match state {
            State::Active => make_cgroup(&directory),
            // Files of cgroups are no obstacle for rmdir.
            _ => drop(fs::remove_dir_all(directory)),
        }
    }
}

impl Manager for Fake {
    fn version(&self) -> std::result::Result<u32, SystemdError> {
        Ok(252)
    }

    fn start_transient(
        &self,
        unit: &str,
        properties: &Properties,
    ) -> std::result::Result<(), SystemdError> {
        self.note(format!("transient {unit}"));
        if self.not_transient.contains(unit) || self.state(unit)? != State::Inactive {
            let unit = unit.to_owned();
            return Err(SystemdError::Exists { unit });
        }
        for (name, value) in properties.iter() {
            if let ("Description", Value::Text(text)) = (name, value) {
                let mut descriptions = self.descriptions.lock().unwrap();
                descriptions.insert(unit.to_owned(), text.clone());
            }
        }
        self.go(unit, self.start_leads_to);
        for (name, value) in properties.iter() {
            let file = match name {
                "MemoryMax" => "memory.max",
                "TasksMax" => "pids.max",
                _ => continue,
            };
            if let Value::Number(number) = value {
                let path = directory(&self.mount, unit).join(file);
                fs::write(path, format!("{number}\n")).unwrap();
            }
        }
        Ok(())
    }

    fn start(&self, unit: &str) -> std::result::Result<(), SystemdError> {
        self.note(format!("start {unit}"));
        self.go(unit, self.start_leads_to);
        Ok(())
    }

    fn set_properties(
        &self,
        unit: &str,
        properties: &Properties,
    ) -> std::result::Result<(), SystemdError> {
        let shown: Vec<_> = properties
            .iter()
            .filter_map(|(name, value)| match value {
                Value::Number(u64::MAX) => Some(format!("{name}=infinity")),
                Value::Number(number) => Some(format!("{name}={number}")),
                _ => None,
            })
            .collect();
        self.note(format!("set {unit} {}", shown.join(" ")));
        if let Some(quota) = *self.writes_quota.lock().unwrap() {
            fs::write(directory(&self.mount, unit).join("cpu.max"), quota).unwrap();
        }
        Ok(())
    }

    fn stop(&self, unit: &str) -> std::result::Result<(), SystemdError> {
        self.note(format!("stop {unit}"));
        self.go(unit, State::Inactive);
        Ok(())
    }

    fn reset_failed(&self, unit: &str) -> std::result::Result<(), SystemdError> {
        let mut units = self.units.lock().unwrap();
        match units.get(unit) {
            Some(State::Failed) => drop(units.insert(unit.to_owned(), State::Inactive)),
            _ => {
                let unit = unit.to_owned();
                return Err(SystemdError::NoUnit { unit });
            }
        }
        Ok(())
    }

    fn state(&self, unit: &str) -> std::result::Result<State, SystemdError> {
        let units = self.units.lock().unwrap();
        Ok(units.get(unit).copied().unwrap_or(State::Inactive))
    }

    fn description(&self, unit: &str) -> std::result::Result<String, SystemdError> {
        let descriptions = self.descriptions.lock().unwrap();
        Ok(descriptions
            .get(unit)
            .map_or(unit, String::as_str)
            .to_owned())
    }

    fn has_job(&self, _: &str) -> std::result::Result<bool, SystemdError> {
        Ok(self.has_job)
    }
}

/// Where a slice is: `a-b.slice` in `a.slice`.
fn directory(mount: &Path, unit: &str) -> PathBuf {
    let stem = unit.strip_suffix(".slice").unwrap();
    let ends = stem.match_indices('-').map(|(at, _)| at);
    ends.chain([stem.len()])
        .fold(mount.to_owned(), |path, end| {
            path.join(format!("{}.slice", &stem[..end]))
        })
}

fn make_cgroup(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for (file, text) in [
        ("cgroup.procs", ""),
        ("cgroup.controllers", "cpu memory pids"),
        ("cgroup.subtree_control", "cpu memory pids"),
        ("cpu.weight", "100\n"),
        ("cpu.max", "max 100000\n"),
        ("memory.max", "max\n"),
        ("memory.high", "max\n"),
        ("pids.max", "max\n"),
    ] {
        let path = directory.join(file);
        if !path.exists() {
            fs::write(path, text).unwrap();
        }
    }
}

struct Setup {
    _dir: TempDir,
    tree: Tree,
    systemd: Systemd,
    calls: Calls,
}

fn setup(change: impl FnOnce(&mut Fake)) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().to_owned();
    make_cgroup(&mount);
    let controllers = [Controller::Cpu, Controller::Memory, Controller::Pids];
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some(mount.clone()),
        controllers: controllers.map(|c| (c, mount.clone())).into(),
    };
    let calls = Calls::default();
    let mut fake = Fake {
        mount,
        units: Mutex::default(),
        descriptions: Mutex::default(),
        calls: Arc::clone(&calls),
        not_transient: BTreeSet::new(),
        start_leads_to: State::Active,
        has_job: false,
        writes_quota: Mutex::new(None),
    };
    change(&mut fake);
    let mut systemd = Systemd::with(Box::new(fake)).unwrap();
    systemd.job_limit = Duration::ZERO;
    Setup {
        _dir: dir,
        tree: Tree::new(hierarchies, "").unwrap(),
        systemd,
        calls,
    }
}

impl Setup {
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn file(&self, cgroup: &CgroupPath, name: &str) -> PathBuf {
        self.tree.v2_path(cgroup).unwrap().join(name)
    }
}

const POD: &str = "k.slice/k-burstable.slice/k-burstable-pod1.slice";

#[test]
fn missing_slices_are_started_outermost_first_and_stopped_innermost_first() {
    let s = setup(|_| {});
    let created = s.systemd.create(&s.tree, &POD.into(), &[]).unwrap();
    let units = ["k.slice", "k-burstable.slice", "k-burstable-pod1.slice"];
    assert_eq!(s.calls(), units.map(|unit| format!("transient {unit}")));
    assert_eq!(created.directories.len(), 3);
    assert!(s.tree.id(&POD.into()).is_ok());

    // A slice that exists is not removed here.
    assert!(
        s.systemd
            .create(&s.tree, &POD.into(), &[])
            .unwrap()
            .is_empty()
    );
    s.calls();

    s.systemd.remove(&s.tree, &created).unwrap();
    let stopped: Vec<_> = units.iter().rev().map(|u| format!("stop {u}")).collect();
    assert_eq!(s.calls(), stopped);
    assert!(s.tree.id(&"k.slice".into()).is_err());
}

#[test]
fn slices_of_an_earlier_agent_are_known_and_others_are_not() {
    let s = setup(|_| {});
    let created = s.systemd.create(&s.tree, &POD.into(), &[]).unwrap();
    for directory in &created.directories {
        let path = s.tree.beneath_mount(directory).unwrap();
        let found = s
            .systemd
            .made_before(&s.tree, &path.to_string_lossy().as_ref().into());
        assert_eq!(found.unwrap().directories, std::slice::from_ref(directory));
    }
    // Another process started this one.
    s.systemd.manager.start("k-foreign.slice").unwrap();
    let foreign = "k.slice/k-foreign.slice";
    assert!(s.tree.id(&foreign.into()).is_ok());
    assert!(
        s.systemd
            .made_before(&s.tree, &foreign.into())
            .unwrap()
            .is_empty()
    );
    s.systemd.stop("k-burstable-pod1.slice").unwrap();
    assert!(
        s.systemd
            .made_before(&s.tree, &POD.into())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn only_what_is_missing_is_started() {
    let s = setup(|_| {});
    let above = s.systemd.create(&s.tree, &"k.slice".into(), &[]).unwrap();
    s.calls();
    let created = s.systemd.create(&s.tree, &POD.into(), &[]).unwrap();
    assert_eq!(
        s.calls(),
        [
            "transient k-burstable.slice",
            "transient k-burstable-pod1.slice"
        ]
    );
    assert!(!created.directories.contains(&above.directories[0]));
}

#[test]
fn a_unit_with_files_of_its_own_is_started_and_given_the_properties() {
    let s = setup(|fake| {
        fake.not_transient.insert("k.slice".to_owned());
    });
    let created = s.systemd.create(&s.tree, &"k.slice".into(), &[]).unwrap();
    assert_eq!(
        s.calls(),
        ["transient k.slice", "start k.slice", "set k.slice "]
    );
    assert_eq!(created.directories.len(), 1);
}

#[test]
fn a_slice_in_use_is_not_stopped() {
    let s = setup(|_| {});
    let created = s.systemd.create(&s.tree, &"k.slice".into(), &[]).unwrap();
    s.calls();
    fs::write(s.file(&"k.slice".into(), "cgroup.procs"), "1\n").unwrap();
    let refused = s.systemd.remove(&s.tree, &created).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::BUSY));
    fs::write(s.file(&"k.slice".into(), "cgroup.procs"), "").unwrap();
    fs::create_dir(s.file(&"k.slice".into(), "foreign")).unwrap();
    assert!(s.systemd.remove(&s.tree, &created).is_err());
    assert_eq!(s.calls(), [""; 0]);
    assert!(s.tree.id(&"k.slice".into()).is_ok());
}

#[test]
fn a_job_that_fails_and_one_that_does_not_end_are_told_apart() {
    let s = setup(|fake| fake.start_leads_to = State::Failed);
    let failed = s
        .systemd
        .create(&s.tree, &"k.slice".into(), &[])
        .unwrap_err();
    let is_job = matches!(
        failed,
        Error::Systemd(SystemdError::Job {
            state: State::Failed,
            ..
        })
    );
    assert!(is_job, "{failed}");

    let s = setup(|fake| {
        fake.start_leads_to = State::Changing;
        fake.has_job = true;
    });
    let late = s
        .systemd
        .create(&s.tree, &"k.slice".into(), &[])
        .unwrap_err();
    let is_late = matches!(late, Error::Systemd(SystemdError::TimedOut { .. }));
    assert!(is_late, "{late}");
}

#[test]
fn a_change_states_what_is_in_force_besides() {
    let s = setup(|_| {});
    // A foreign one: nothing is known of it.
    s.systemd.manager.start("k.slice").unwrap();
    s.calls();
    for (file, text) in [
        ("cpu.max", "33300 100000\n"),
        ("memory.max", "4096\n"),
        ("memory.high", "max\n"),
        ("pids.max", "7\n"),
    ] {
        fs::write(s.file(&"k.slice".into(), file), text).unwrap();
    }
    let shares = Setting::CpuShares(CpuShares(1024));
    s.systemd
        .set(&s.tree, &"k.slice".into(), &shares, || Ok(()))
        .unwrap();
    assert_eq!(
        s.calls(),
        [
            "set k.slice CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=340000 MemoryHigh=infinity \
          MemoryMax=4096 TasksMax=7 CPUWeight=39"
        ]
    );
    // From then on it is, but for what others write to the files; the fake does not write them.
    let pids = Setting::PidsLimit(Limit::At(8));
    fs::write(s.file(&"k.slice".into(), "memory.high"), "8192\n").unwrap();
    fs::write(s.file(&"k.slice".into(), "cpu.weight"), "39\n").unwrap();
    s.systemd
        .set(&s.tree, &"k.slice".into(), &pids, || Ok(()))
        .unwrap();
    assert_eq!(s.calls(), ["set k.slice MemoryHigh=8192 TasksMax=8"]);
}

#[test]
fn a_slice_is_made_with_its_first_values() {
    let s = setup(|_| {});
    let first = [
        Setting::MemoryLimit(Limit::At(Bytes(4097))),
        Setting::PidsLimit(Limit::At(5)),
    ];
    let _ = s
        .systemd
        .create(&s.tree, &"k.slice".into(), &first)
        .unwrap();
    let held = |name| fs::read_to_string(s.file(&"k.slice".into(), name)).unwrap();
    assert_eq!(
        (held("memory.max"), held("pids.max")),
        ("4096\n".into(), "5\n".into())
    );
    s.calls();
    for setting in first {
        let mut written = false;
        let write = || {
            written = true;
            Ok(())
        };
        s.systemd
            .set(&s.tree, &"k.slice".into(), &setting, write)
            .unwrap();
        assert!(written, "the exact value is written in any case");
    }
    assert_eq!(s.calls(), [""; 0], "systemd knows them already");
    // A foreign write to a file: systemd receives the wanted value and the foreign one.
    fs::write(s.file(&"k.slice".into(), "pids.max"), "9\n").unwrap();
    s.systemd
        .set(&s.tree, &"k.slice".into(), &first[1], || Ok(()))
        .unwrap();
    assert_eq!(s.calls(), ["set k.slice TasksMax=5"]);
}

#[test]
fn a_quota_that_systemd_rounds_is_put_back() {
    let s = setup(|fake| fake.writes_quota = Mutex::new(Some("34000 100000\n")));
    let _ = s.systemd.create(&s.tree, &"k.slice".into(), &[]).unwrap();
    let exact = CpuMax {
        quota_us: Limit::At(33_300),
        period_us: 100_000,
    };
    let setting = Setting::CpuMax(exact);
    let write = || s.tree.write(&"k.slice".into(), &setting);
    let held = || s.tree.read(&"k.slice".into()).cpu_max;
    s.systemd
        .set(&s.tree, &"k.slice".into(), &setting, write)
        .unwrap();
    assert_eq!(held(), Some(exact));
    // Another value, and systemd writes its own quota again.
    let pids = Setting::PidsLimit(Limit::At(5));
    s.systemd
        .set(&s.tree, &"k.slice".into(), &pids, || Ok(()))
        .unwrap();
    assert_eq!(held(), Some(exact));
}

#[test]
fn a_slice_that_was_stopped_is_started_by_the_next_change() {
    let s = setup(|_| {});
    let _ = s.systemd.create(&s.tree, &"k.slice".into(), &[]).unwrap();
    s.systemd.stop("k.slice").unwrap();
    make_cgroup(&s.file(&"k.slice".into(), ""));
    s.calls();
    let pids = Setting::PidsLimit(Limit::At(5));
    s.systemd
        .set(&s.tree, &"k.slice".into(), &pids, || Ok(()))
        .unwrap();
    let calls = s.calls();
    assert_eq!(calls.last().map(String::as_str), Some("transient k.slice"));
    assert_eq!(s.systemd.manager.state("k.slice").unwrap(), State::Active);
}

#[test]
fn a_cgroup_that_is_not_there_or_is_no_slice_is_an_error() {
    let s = setup(|_| {});
    let pids = Setting::PidsLimit(Limit::At(5));
    let gone = s.systemd.set(&s.tree, &"k.slice".into(), &pids, || Ok(()));
    assert!(gone.unwrap_err().is_gone());
    let no_slice = s.systemd.create(&s.tree, &"kubepods".into(), &[]);
    assert!(matches!(no_slice, Err(Error::InvalidName { .. })));
    assert_eq!(s.calls(), [""; 0]);
}
