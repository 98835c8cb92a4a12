//! How a kubelet names cgroups by its driver (`pkg/kubelet/cm/cgroup_manager_linux.go`), and containerd those of
//! containers below.

/// `cgroupDriver` of a kubelet's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Directories.
    Cgroupfs,
    /// Slices and scopes, which systemd makes.
    Systemd,
}

impl Driver {
    pub(super) const ALL: [Self; 2] = [Self::Cgroupfs, Self::Systemd];

    /// As the configuration has it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The cgroup of all pods, below the root.
    pub(super) const fn kubepods(self) -> &'static str {
        match self {
            Self::Cgroupfs => "kubepods",
            Self::Systemd => "kubepods.slice",
        }
    }

    /// A tier's, below that of all pods.
    pub(super) fn tier(self, name: &str) -> String {
        match self {
            Self::Cgroupfs => name.to_owned(),
            Self::Systemd => format!("kubepods-{name}.slice"),
        }
    }

    /// Whether a directory of this name, in a tier or in the cgroup of all pods, is a pod's.
    pub(super) fn is_pod(self, name: &str) -> bool {
        match self {
            Self::Cgroupfs => name.starts_with("pod"),
            Self::Systemd => name.contains("-pod") && name.ends_with(".slice"),
        }
    }

    /// Whether a path is of the pod with this uid.
    pub(crate) fn is_of(self, path: &str, uid: &str) -> bool {
        path.ends_with(&match self {
            Self::Cgroupfs => format!("/pod{uid}"),
            Self::Systemd => format!("-pod{}.slice", uid.replace('-', "_")),
        })
    }

    /// A container's, below its pod's.
    pub(crate) fn container(self, id: &str) -> String {
        match self {
            Self::Cgroupfs => id.to_owned(),
            Self::Systemd => format!("cri-containerd-{id}.scope"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_told_from_tiers() {
        let uid = "0f1c-22";
        for (driver, path, is_pod) in [
            (Driver::Cgroupfs, "kubepods/burstable", false),
            (Driver::Cgroupfs, "kubepods/burstable/pod0f1c-22", true),
            (
                Driver::Systemd,
                "kubepods.slice/kubepods-besteffort.slice",
                false,
            ),
            (
                Driver::Systemd,
                "kubepods.slice/kubepods-pod0f1c_22.slice",
                true,
            ),
            (
                Driver::Systemd,
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f1c_22.slice",
                true,
            ),
        ] {
            let name = path.rsplit('/').next().unwrap_or_default();
            assert_eq!(driver.is_pod(name), is_pod, "{path}");
            assert_eq!(driver.is_of(path, uid), is_pod, "{path}");
        }
    }
}
