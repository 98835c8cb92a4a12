//! Paths of cgroups below a root, and how the two drivers spell them.

use std::{borrow::Borrow, fmt};

use arcstr::ArcStr;
use podwarden_policy::name::{self, CgroupName};

use crate::{Driver, Error, Result, is_slice_path};

/// Longest file name the kernel takes, in bytes (`NAME_MAX`, `linux/limits.h`).
const NAME_MAX: usize = 255;

/// A cgroup's path relative to the root of a [`crate::Tree`], as the driver spells it, without a slash at
/// either end (`kubepods/besteffort/podUID`); the empty path is the root. A path that leaves the root is
/// refused where it is used ([`Error::InvalidName`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(ArcStr);

impl CgroupPath {
    /// The root of the tree.
    pub const ROOT: Self = Self(ArcStr::new());

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the root of the tree.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The last component; `None` for the root.
    pub fn last(&self) -> Option<&str> {
        self.0.rsplit('/').next().filter(|name| !name.is_empty())
    }

    /// The cgroup that it is directly below; the root for the root.
    #[must_use]
    pub fn parent(&self) -> Self {
        let parent = self.0.rsplit_once('/');
        parent.map_or(Self::ROOT, |(parent, _)| parent.into())
    }

    /// The cgroup `component` directly in this one.
    #[must_use]
    pub fn child(&self, component: &str) -> Self {
        if self.is_root() {
            return component.into();
        }
        Self(arcstr::format!("{}/{component}", self.0))
    }

    /// Checks that the path stays below the root.
    pub(crate) fn check(&self) -> Result<()> {
        check_relative(&self.0)
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for CgroupPath {
    fn from(path: &str) -> Self {
        Self(path.into())
    }
}

impl From<String> for CgroupPath {
    fn from(path: String) -> Self {
        Self(path.into())
    }
}

impl Borrow<str> for CgroupPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// How a driver spells the cgroups of pods, and where kubepods is.
#[derive(Debug, Clone)]
pub struct CgroupLayout {
    /// The driver that names the cgroups.
    pub driver: Driver,
    /// The `kubepods` cgroup.
    pub kubepods: CgroupName,
    /// What the names of all cgroups begin with and their paths below the tree's root do not.
    root: String,
}

impl CgroupLayout {
    /// The layout below the tree's root. The systemd driver repeats a root that is a slice in all names,
    /// as it does with a kubelet's `cgroupRoot`: `/a.slice` holds `a-kubepods.slice`.
    pub fn new(driver: Driver, root: &str) -> Self {
        let root = root.trim_matches('/');
        let name = match driver {
            Driver::Systemd if is_slice_path(root) => CgroupName::parse_systemd(root),
            _ => CgroupName::root(),
        };
        Self {
            driver,
            kubepods: name::kubepods(&name),
            root: name.to_systemd(),
        }
    }

    /// The layout below the mount points.
    pub fn of(driver: Driver, kubepods: CgroupName) -> Self {
        Self {
            driver,
            kubepods,
            root: CgroupName::root().to_systemd(),
        }
    }

    /// A cgroup's path below the tree's root.
    pub fn path(&self, name: &CgroupName) -> CgroupPath {
        // Below a pod the runtime's names stand as they are.
        if let (Some(parent), Some(last)) = (name.parent(), name.last())
            && parent.is_within(&self.kubepods)
            && parent.last().and_then(name::parse_pod).is_some()
        {
            return self.path(&parent).child(last);
        }
        let path = match self.driver {
            Driver::Cgroupfs => name.to_cgroupfs(),
            Driver::Systemd => name.to_systemd(),
        };
        let below = path.strip_prefix(&self.root).unwrap_or(&path);
        below.trim_start_matches('/').into()
    }
}

/// Checks a cgroup below the root; the empty name is the root itself.
fn check_relative(name: &str) -> Result<()> {
    let fail = |reason| {
        Err(Error::InvalidName {
            name: name.to_owned(),
            reason,
        })
    };
    if name.is_empty() {
        return Ok(());
    }
    for component in name.split('/') {
        match component {
            "" => return fail("it has an empty component"),
            "." | ".." => return fail("it has a . or .. component"),
            c if c.len() > NAME_MAX => return fail("a component is longer than 255 bytes"),
            // cgroup_mkdir refuses a newline: it would break /proc/PID/cgroup.
            c if c.contains(['\0', '\n']) => return fail("it contains a NUL or a newline"),
            _ => {}
        }
    }
    Ok(())
}

/// Normalises a cgroup root, which is often written with slashes around it.
pub(crate) fn root(name: &str) -> Result<String> {
    let trimmed = name.trim_matches('/');
    check_relative(trimmed)?;
    Ok(trimmed.to_owned())
}

/// A cgroup root as the name of a file, different for different roots; slashes around it do not count.
pub fn root_as_file_name(root: &str) -> String {
    let root = root.trim_matches('/');
    root.replace('%', "%25").replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use podwarden_policy::QosClass;

    use super::*;

    #[test]
    fn a_child_is_directly_below_its_parent() {
        let parent = |path: &str| CgroupPath::from(path).parent();
        assert_eq!(parent("kubepods/besteffort"), "kubepods".into());
        assert_eq!(parent("kubepods"), CgroupPath::ROOT);
        assert_eq!(parent(""), CgroupPath::ROOT);
    }

    #[test]
    fn file_names_of_roots_differ() {
        assert_eq!(root_as_file_name("/a/b/"), "a%2Fb");
        assert_ne!(root_as_file_name("a%2Fb"), root_as_file_name("a/b"));
        assert_eq!(root_as_file_name("/"), "");
    }

    #[test]
    fn names_that_leave_the_root_are_refused() {
        for good in [
            "",
            "kubepods",
            "kubepods/besteffort/pod1",
            "a.slice/b:c",
            "..x",
        ] {
            assert!(check_relative(good).is_ok(), "{good:?}");
        }
        let long = "x".repeat(256);
        for bad in [
            "/", "/a", "a/", "a//b", "..", "a/../b", "a/.", "a\nb", "a\0", &long,
        ] {
            assert!(check_relative(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn roots_are_normalised() {
        assert_eq!(root("/").unwrap(), "");
        assert_eq!(root("").unwrap(), "");
        assert_eq!(root("/a/b/").unwrap(), "a/b");
        assert!(root("/a/../..").is_err());
    }

    #[test]
    fn a_root_that_is_a_slice_is_in_the_names_and_not_in_the_relative_paths() {
        for (root, kubepods, tier) in [
            (
                "/",
                "kubepods.slice",
                "kubepods.slice/kubepods-burstable.slice",
            ),
            (
                "/a_b.slice",
                "a_b-kubepods.slice",
                "a_b-kubepods.slice/a_b-kubepods-burstable.slice",
            ),
            // It is no pod: no pod is above kubepods.
            (
                "/pod_x.slice",
                "pod_x-kubepods.slice",
                "pod_x-kubepods.slice/pod_x-kubepods-burstable.slice",
            ),
            // Not systemd's: the tree was made in a container that sees another root.
            (
                "/docker/x",
                "kubepods.slice",
                "kubepods.slice/kubepods-burstable.slice",
            ),
        ] {
            let layout = CgroupLayout::new(Driver::Systemd, root);
            assert_eq!(layout.path(&layout.kubepods).as_str(), kubepods);
            let burstable = layout.kubepods.tier(QosClass::Burstable);
            assert_eq!(layout.path(&burstable).as_str(), tier);
        }
        let layout = CgroupLayout::new(Driver::Cgroupfs, "/a_b.slice");
        assert_eq!(layout.path(&layout.kubepods).as_str(), "kubepods");
    }
}
