//! Mounted cgroup hierarchies and the cgroup driver.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub use podwarden_policy::settings::Controller;

use crate::{Error, Result, io, mountinfo, slice};

podwarden_policy::names! {
    /// Where the controllers are.
    pub enum Version {
        /// v1 controllers and no v2 mount.
        V1 = "v1",
        /// v1 controllers beside a v2 mount.
        Hybrid = "hybrid",
        /// Only v2.
        V2 = "v2",
    }
}

/// The mounted hierarchies, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    /// Where the controllers are.
    pub version: Version,
    /// Where v2 is mounted, with or without controllers.
    pub v2_mount: Option<PathBuf>,
    /// The mount point of every controller that can be used; several v1 controllers may share one.
    pub controllers: BTreeMap<Controller, PathBuf>,
}

impl Hierarchies {
    /// Reads `/proc/self/mountinfo` and, where v2 is mounted, its `cgroup.controllers`.
    pub fn detect() -> Result<Self> {
        let mountinfo = io::read_text(Path::new("/proc/self/mountinfo"))?;
        let mut found = Self::parse(&mountinfo)?;
        if let Some(mount) = &found.v2_mount {
            let controllers = io::read_text(&mount.join("cgroup.controllers"))?;
            found.add_v2_controllers(&controllers);
        }
        Ok(found)
    }

    /// The v1 controllers and the v2 mount, from the text of a `mountinfo` file (proc(5)).
    ///
    /// Where a hierarchy is mounted more than once (a container with the host's mounts bound beside
    /// its own), the mount that shows most of it is taken, and of equal ones a writable one.
    pub fn parse(mountinfo: &str) -> Result<Self> {
        let mut v2_mount = mountinfo::Best::default();
        let mut controllers = BTreeMap::<Controller, mountinfo::Best>::new();
        for mount in mountinfo.lines().filter_map(mountinfo::parse_line) {
            if mount.is_v2() {
                v2_mount.offer(&mount);
            }
            for controller in mount.v1_controllers() {
                controllers.entry(controller).or_default().offer(&mount);
            }
        }
        let v2_mount = v2_mount.into_path();
        let controllers: BTreeMap<_, _> = controllers
            .into_iter()
            .filter_map(|(controller, best)| Some((controller, best.into_path()?)))
            .collect();
        let version = match (&v2_mount, controllers.is_empty()) {
            (None, true) => return Err(Error::NoHierarchy),
            (None, false) => Version::V1,
            (Some(_), true) => Version::V2,
            (Some(_), false) => Version::Hybrid,
        };
        Ok(Self {
            version,
            v2_mount,
            controllers,
        })
    }

    /// Adds the controllers that the text of a `cgroup.controllers` file lists.
    pub fn add_v2_controllers(&mut self, list: &str) {
        let Some(mount) = &self.v2_mount else {
            return;
        };
        for controller in list
            .split_ascii_whitespace()
            .filter_map(Controller::from_name)
        {
            // The kernel binds a controller to one hierarchy only, so nothing is replaced here.
            self.controllers
                .entry(controller)
                .or_insert_with(|| mount.clone());
        }
    }

    /// The mount point of `controller`.
    pub fn mount_of(&self, controller: Controller) -> Result<&Path> {
        self.controllers
            .get(&controller)
            .map(PathBuf::as_path)
            .ok_or(Error::NoController {
                controller: controller.as_str(),
            })
    }

    /// True when `controller` is on the v2 hierarchy.
    pub fn is_on_v2(&self, controller: Controller) -> bool {
        self.v2_mount.is_some() && self.controllers.get(&controller) == self.v2_mount.as_ref()
    }
}

podwarden_policy::names! {
    /// Who names the cgroups: the kubelet's `cgroupDriver`.
    pub enum Driver {
        /// `kubepods/burstable/podUID`.
        Cgroupfs = "cgroupfs",
        /// `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`.
        Systemd = "systemd",
    }
}

/// Facts that select the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverFacts {
    /// `kubepods` exists.
    pub has_kubepods: bool,
    /// `kubepods.slice` exists, or that of the root's name.
    pub has_kubepods_slice: bool,
    /// The node was booted with systemd (`/run/systemd/system`, see sd_booted(3)).
    pub booted_with_systemd: bool,
}

impl DriverFacts {
    /// Looks below `root` on every hierarchy.
    pub fn probe(hierarchies: &Hierarchies, root: &str) -> Self {
        let root = root.trim_matches('/');
        let exists = |name: &str| {
            hierarchies
                .v2_mount
                .iter()
                .chain(hierarchies.controllers.values())
                .any(|mount| mount.join(root).join(name).is_dir())
        };
        Self {
            has_kubepods: exists("kubepods"),
            has_kubepods_slice: exists(&slice::child_of(root, "kubepods")),
            booted_with_systemd: Path::new("/run/systemd/system").is_dir(),
        }
    }

    /// An existing tree decides. Without one, or with both (a node whose driver was changed keeps
    /// the old tree until it reboots), the init system does, as kubeadm recommends.
    pub fn guess(self) -> Driver {
        match (self.has_kubepods, self.has_kubepods_slice) {
            (false, true) => Driver::Systemd,
            (true, false) => Driver::Cgroupfs,
            _ if self.booted_with_systemd => Driver::Systemd,
            _ => Driver::Cgroupfs,
        }
    }
}

#[cfg(test)]
mod tests;
