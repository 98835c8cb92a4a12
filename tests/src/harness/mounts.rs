//! Where this machine's cgroup hierarchies are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use podwarden_cgroup::{Controller, Hierarchies};

/// The mounted hierarchies that a pod's processes are members of.
#[derive(Debug, Clone)]
pub(crate) struct Mounts {
    /// Every mount once.
    pub(crate) all: Vec<PathBuf>,
    controllers: BTreeMap<Controller, PathBuf>,
    cpuset: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    memory: PathBuf,
    v2: Option<PathBuf>,
    memory_on_v2: bool,
}

impl Mounts {
    /// Finds them.
    pub(crate) fn detect() -> Result<Self> {
        let found = Hierarchies::detect()?;
        let mut all: Vec<PathBuf> = found.controllers.values().cloned().collect();
        all.extend(found.v2_mount.clone());
        all.sort();
        all.dedup();
        let Some(memory) = found.controllers.get(&Controller::Memory).cloned() else {
            bail!("no cgroup hierarchy here has the memory controller");
        };
        let v1_of = |controller| {
            (!found.is_on_v2(controller))
                .then(|| found.controllers.get(&controller).cloned())
                .flatten()
        };
        Ok(Self {
            all,
            cpuset: v1_of(Controller::CpuSet),
            cpuacct: v1_of(Controller::CpuAcct),
            memory_on_v2: found.is_on_v2(Controller::Memory),
            memory,
            v2: found.v2_mount,
            controllers: found.controllers,
        })
    }

    /// The other v1 hierarchies instead of these: container runtimes make their cgroups there too.
    pub(crate) fn elsewhere(&self) -> Result<Self> {
        let mounted = std::fs::read_to_string("/proc/self/mounts")?;
        let v1 = mounted.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = PathBuf::from(fields.next()?);
            (fields.next()? == "cgroup").then_some(path)
        });
        Ok(Self {
            all: v1.filter(|path| !self.all.contains(path)).collect(),
            ..self.clone()
        })
    }

    /// A controller's mount.
    pub(crate) fn of(&self, controller: Controller) -> Option<&Path> {
        self.controllers.get(&controller).map(PathBuf::as_path)
    }

    /// Whether a controller is there and on v2.
    pub(crate) fn is_on_v2(&self, controller: Controller) -> bool {
        self.v2.is_some() && self.controllers.get(&controller) == self.v2.as_ref()
    }

    /// The memory controller's mount.
    pub(crate) fn memory(&self) -> &Path {
        &self.memory
    }

    /// Whether the memory controller is on v2.
    pub(crate) fn memory_on_v2(&self) -> bool {
        self.memory_on_v2
    }

    /// The v2 mount, with or without controllers.
    pub(crate) fn v2(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// The mount of the v1 `cpuacct` controller; without one, v2 accounts CPU time.
    pub(crate) fn cpuacct(&self) -> Option<&Path> {
        self.cpuacct.as_deref()
    }

    /// Whether new cgroups on this mount have neither CPUs nor memory nodes (v1 cpuset).
    pub(crate) fn is_v1_cpuset(&self, mount: &Path) -> bool {
        self.cpuset.as_deref() == Some(mount)
    }
}
