//! Groups of tasks, and what they may use of cache and memory bandwidth.

use std::{collections::HashSet, io};

use podwarden_cgroup::root_as_file_name;
use podwarden_policy::{
    colocation::resctrl::{ResctrlError as PolicyError, Vendor, l3_mask, memory_bandwidth},
    names,
};

use super::files::{Files, Line};
use crate::config::{ResctrlClass, ResctrlConfig};

names! {
    /// A group of pods; the name is the last part of its directory's.
    pub enum Group {
        /// LSE and LSR pods.
        Lsr = "lsr",
        /// LS pods.
        Ls = "ls",
        /// BE pods.
        Be = "be",
    }
}

impl Group {
    /// Its directory in the mount. Two agents on one machine have different cgroup roots, so groups of their own.
    pub(super) fn directory(self, cgroup_root: &str) -> String {
        match root_as_file_name(cgroup_root).as_str() {
            "" => format!("podwarden-{}", self.as_str()),
            root => format!("podwarden-{root}-{}", self.as_str()),
        }
    }
}

/// Why the groups are not as configured.
#[derive(Debug, thiserror::Error)]
pub enum ResctrlError {
    /// No such file system.
    #[error(
        "resctrl is not mounted on {0}: the processor or the kernel may lack it, else mount -t resctrl resctrl {0}"
    )]
    Absent(String),
    #[error("{path}: {source}{said}")]
    File {
        /// Relative to the mount.
        path: String,
        #[source]
        source: io::Error,
        /// `info/last_cmd_status`, in brackets.
        said: String,
    },
    /// A file does not hold what the kernel's documentation says.
    #[error("{path} holds `{text}`")]
    Form {
        /// Relative to the mount.
        path: String,
        /// What was read.
        text: String,
    },
    #[error("{resource}: {source}")]
    Mask {
        /// `L3` and its like.
        resource: String,
        #[source]
        source: PolicyError,
    },
    /// A range of less than `min_cbm_bits`.
    #[error(
        "{resource}: {start} % to {end} % are {ways} ways, and the kernel takes {least} at least"
    )]
    Narrow {
        /// `L3` and its like.
        resource: String,
        /// As configured.
        start: i32,
        /// As configured.
        end: i32,
        /// Ways of the range.
        ways: u32,
        /// `min_cbm_bits`.
        least: u32,
    },
    /// Another program uses them all.
    #[error(
        "the processor has no class of service left for {0}: remove a group of another program"
    )]
    NoneLeft(String),
    /// No thread.
    #[error("no thread ({0})")]
    Thread(#[source] io::Error),
}

pub(crate) struct Groups {
    files: Box<dyn Files>,
    config: ResctrlConfig,
    vendor: Vendor,
    cgroup_root: String,
}

impl Groups {
    /// Groups of this cgroup root on these files; none is made yet.
    pub(crate) fn new(
        files: Box<dyn Files>,
        config: ResctrlConfig,
        vendor: Vendor,
        cgroup_root: &str,
    ) -> Self {
        Self {
            files,
            config,
            vendor,
            cgroup_root: cgroup_root.to_owned(),
        }
    }

    /// Makes the groups and has their schemata as configured; writes only what differs.
    pub(crate) fn settle(&self) -> Result<(), ResctrlError> {
        let root = Line::all(&self.read("schemata")?);
        for group in Group::ALL {
            let directory = group.directory(&self.cgroup_root);
            self.make(&directory)?;
            let path = format!("{directory}/schemata");
            let found = Line::all(&self.read(&path)?);
            for line in &root {
                let Some(wanted) = self.wanted(line, class(&self.config, group))? else {
                    continue;
                };
                if !found.iter().any(|found| wanted.means(found)) {
                    self.write(&path, &wanted.text())?;
                }
            }
        }
        Ok(())
    }

    fn make(&self, directory: &str) -> Result<(), ResctrlError> {
        match self.files.make(directory) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                Err(ResctrlError::NoneLeft(directory.to_owned()))
            }
            Err(source) => Err(self.refused(directory, source)),
        }
    }

    /// The root's line with this class's values; `None` for what is not configured.
    fn wanted(&self, root: &Line, class: ResctrlClass) -> Result<Option<Line>, ResctrlError> {
        let value = if root.is_cache() {
            Some(format!("{:x}", self.mask(&root.resource, class)?))
        } else if root.resource == "MB" {
            self.bandwidth(class)?.map(|value| value.to_string())
        } else {
            None
        };
        Ok(value.map(|value| Line {
            resource: root.resource.clone(),
            domains: (root.domains.iter())
                .map(|(id, _)| (*id, value.clone()))
                .collect(),
        }))
    }

    fn mask(&self, resource: &str, class: ResctrlClass) -> Result<u64, ResctrlError> {
        let ResctrlClass { start, end, .. } = class;
        let all = self.number(&format!("info/{resource}/cbm_mask"), 16)?;
        let mask = l3_mask(all, start, end).map_err(|source| ResctrlError::Mask {
            resource: resource.to_owned(),
            source,
        })?;
        let least = self.number(&format!("info/{resource}/min_cbm_bits"), 10)?;
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        if mask.count_ones() < least {
            return Err(ResctrlError::Narrow {
                resource: resource.to_owned(),
                start,
                end,
                ways: mask.count_ones(),
                least,
            });
        }
        Ok(mask)
    }

    /// Not below `min_bandwidth`, which the kernel would refuse.
    fn bandwidth(&self, class: ResctrlClass) -> Result<Option<u64>, ResctrlError> {
        let Some(value) = memory_bandwidth(self.vendor, class.bandwidth) else {
            return Ok(None);
        };
        let least = self.number("info/MB/min_bandwidth", 10)?;
        Ok(Some(u64::from(value).max(least)))
    }

    /// Puts tasks into a group; those that have ended are left out. How many were moved.
    pub(crate) fn assign(&self, group: Group, tasks: &[u32]) -> Result<usize, ResctrlError> {
        let path = format!("{}/tasks", group.directory(&self.cgroup_root));
        let there = self.read(&path)?;
        let there: HashSet<u32> = there
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect();
        let mut moved = 0;
        for task in tasks.iter().filter(|task| !there.contains(task)) {
            match self.files.write(&path, &task.to_string()) {
                Ok(()) => moved += 1,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(source) => return Err(self.refused(&path, source)),
            }
        }
        Ok(moved)
    }

    fn read(&self, path: &str) -> Result<String, ResctrlError> {
        self.files.read(path).map_err(|source| ResctrlError::File {
            path: path.to_owned(),
            source,
            said: String::new(),
        })
    }

    fn write(&self, path: &str, text: &str) -> Result<(), ResctrlError> {
        let written = self.files.write(path, text);
        written.map_err(|source| self.refused(path, source))
    }

    fn number(&self, path: &str, radix: u32) -> Result<u64, ResctrlError> {
        let text = self.read(path)?;
        u64::from_str_radix(text.trim(), radix).map_err(|_| ResctrlError::Form {
            path: path.to_owned(),
            text,
        })
    }

    /// With the kernel's own words.
    fn refused(&self, path: &str, source: io::Error) -> ResctrlError {
        let said = self.files.read("info/last_cmd_status").unwrap_or_default();
        ResctrlError::File {
            path: path.to_owned(),
            source,
            said: match said.trim() {
                "" | "ok" => String::new(),
                said => format!(" ({said})"),
            },
        }
    }

    /// Removes the groups: their tasks are in the root group again.
    pub(crate) fn remove(&self) {
        remove(&*self.files, &self.cgroup_root);
    }
}

/// Removes what an agent of this cgroup root has made; returns which groups are left.
pub(super) fn remove(files: &dyn Files, cgroup_root: &str) -> Vec<String> {
    let names = files.names().unwrap_or_default();
    let directories = Group::ALL.map(|group| group.directory(cgroup_root));
    let ours = names.into_iter().filter(|name| directories.contains(name));
    let left = ours.filter(|group| match files.remove(group) {
        Ok(()) => false,
        Err(error) => {
            tracing::warn!(%error, group, "a resctrl group is left");
            true
        }
    });
    left.collect()
}

fn class(config: &ResctrlConfig, group: Group) -> ResctrlClass {
    match group {
        Group::Lsr => config.lsr,
        Group::Ls => config.ls,
        Group::Be => config.be,
    }
}
