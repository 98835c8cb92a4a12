//! Names of cgroups: the kubelet's abstract names, and what they are called on disk.
//!
//! An abstract name is a list of components (`kubepods`, `burstable`, `pod<UID>`). The cgroupfs
//! driver joins them with `/`; the systemd driver makes each a slice whose name repeats its
//! ancestors, with `-` inside a component written as `_`
//! (kubelet `pkg/kubelet/cm/cgroup_manager_linux.go`).

use alloc::{borrow::ToOwned, format, string::String, vec::Vec};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{PodUid, QosClass};

const SLICE: &str = ".slice";
const SCOPE: &str = ".scope";
const POD: &str = "pod";

/// An abstract cgroup name; displayed as the cgroupfs driver writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// The root, which has no components.
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// From components, outermost first.
    pub fn new<I>(components: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self(components.into_iter().map(Into::into).collect())
    }

    /// The components, outermost first.
    pub fn components(&self) -> &[String] {
        &self.0
    }

    /// The last component; `None` for the root.
    pub fn last(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    /// How many components there are: 0 for the root.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// The cgroup that this one is in; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        let (_, parents) = self.0.split_last()?;
        Some(Self(parents.to_vec()))
    }

    /// A cgroup below this one.
    #[must_use]
    pub fn child(&self, component: impl Into<String>) -> Self {
        let mut components = self.0.clone();
        components.push(component.into());
        Self(components)
    }

    /// True when `self` is `ancestor` or somewhere below it.
    pub fn is_within(&self, ancestor: &Self) -> bool {
        self.0.starts_with(&ancestor.0)
    }

    /// The tier of a class below the `kubepods` cgroup `self`; `self` for Guaranteed.
    #[must_use]
    pub fn tier(&self, class: QosClass) -> Self {
        match class.tier() {
            Some(tier) => self.child(tier),
            None => self.clone(),
        }
    }

    /// A pod of a class below the `kubepods` cgroup `self`.
    #[must_use]
    pub fn pod(&self, class: QosClass, uid: &PodUid) -> Self {
        self.tier(class).child(pod_component(uid))
    }

    /// `/kubepods/burstable/pod123-456`; the root is `/`.
    pub fn to_cgroupfs(&self) -> String {
        format!("/{}", self.0.join("/"))
    }

    /// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod123_456.slice`; the root is
    /// `/`.
    pub fn to_systemd(&self) -> String {
        let mut path = String::new();
        for depth in 1..=self.depth() {
            path.push('/');
            path.push_str(&slice(&self.0[..depth]));
        }
        if path.is_empty() {
            path.push('/');
        }
        path
    }

    /// `kubepods-burstable-pod123_456.slice`: the systemd unit; the root is `/`.
    pub fn to_systemd_unit(&self) -> String {
        if self.0.is_empty() {
            "/".to_owned()
        } else {
            slice(&self.0)
        }
    }

    /// Reads a path as the cgroupfs driver writes it. Empty components are kept, as the kubelet
    /// keeps them; the leading slash is no component.
    pub fn parse_cgroupfs(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        if path.is_empty() {
            return Self::root();
        }
        Self::new(path.split('/'))
    }

    /// Reads a path or unit name as the systemd driver writes it: the last component says it all.
    /// `_` is read as `-`, so that a name which had `_` in it comes back different; uids have none.
    pub fn parse_systemd(path: &str) -> Self {
        let unit = path.trim_end_matches('/').rsplit('/').next().unwrap_or("");
        let unit = unit.strip_suffix(SLICE).unwrap_or(unit);
        if unit.is_empty() || unit == "-" {
            return Self::root();
        }
        Self::new(unit.split('-').map(unescape))
    }
}

impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|c| write!(f, "/{c}"))
    }
}

/// Reads the cgroupfs form.
impl From<String> for CgroupName {
    fn from(path: String) -> Self {
        Self::parse_cgroupfs(&path)
    }
}

impl From<CgroupName> for String {
    fn from(name: CgroupName) -> Self {
        name.to_cgroupfs()
    }
}

/// `pod<UID>`: the last component of a pod's name
/// (`GetPodCgroupNameSuffix` of kubelet `pkg/kubelet/cm/helpers_linux.go`).
pub fn pod_component(uid: &PodUid) -> String {
    format!("{POD}{uid}")
}

/// The name of the `kubepods` cgroup below a configured root
/// (`NodeAllocatableRoot` of kubelet `pkg/kubelet/cm/node_container_manager_linux.go`).
pub fn kubepods(root: &CgroupName) -> CgroupName {
    root.child("kubepods")
}

/// Reads one directory name below `kubepods` or a tier, of either driver. The class is known when
/// the name tells it, as the systemd driver's does: a slice of a pod that names no tier is
/// Guaranteed. `None` for what is no pod.
pub fn parse_pod(component: &str) -> Option<(Option<QosClass>, PodUid)> {
    match component.strip_suffix(SLICE) {
        Some(unit) => {
            let (parents, pod) = unit.rsplit_once('-')?;
            let class = parents.rsplit('-').next().and_then(tier_class);
            let uid = uid(&unescape(pod))?;
            Some((Some(class.unwrap_or(QosClass::Guaranteed)), uid))
        }
        None => Some((None, uid(component)?)),
    }
}

/// Reads the path of a pod's cgroup, of either driver, absolute or relative: class and uid. The
/// class comes from the parent directory where the last component does not tell it.
pub fn parse_pod_path(path: &str) -> Option<(QosClass, PodUid)> {
    let mut components = path.trim_end_matches('/').rsplit('/');
    let (class, uid) = parse_pod(components.next()?)?;
    let class = class
        .or_else(|| components.next().and_then(tier_class))
        .unwrap_or(QosClass::Guaranteed);
    Some((class, uid))
}

/// A directory name below a pod's cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerName<'a> {
    /// What created it, where the name tells: `cri-containerd`, `crio`, `docker`, `libpod`.
    pub runtime: Option<&'a str>,
    /// The runtime's id for the container; the whole name where no runtime is known.
    pub id: &'a str,
}

/// Reads one directory name below a pod: `cri-containerd-ID.scope`, `crio-ID.scope`,
/// `docker-ID.scope`, `libpod-ID.scope`, `crio-ID`, `SLICE:cri-containerd:ID` (containerd with its
/// driver set otherwise than the kubelet's), or a plain id. `None` for what is no container:
/// CRI-O's monitor, slices and unknown scopes.
pub fn parse_container(component: &str) -> Option<ContainerName<'_>> {
    if let Some((rest, id)) = component.rsplit_once(':') {
        let runtime = rest.rsplit(':').next();
        return nonempty(id).map(|id| ContainerName { runtime, id });
    }
    let scope = component.strip_suffix(SCOPE);
    let name = scope.unwrap_or(component);
    if name.starts_with("crio-conmon-") || name.ends_with(SLICE) {
        return None;
    }
    for runtime in ["cri-containerd", "crio", "docker", "libpod"] {
        let id = name.strip_prefix(runtime).and_then(|r| r.strip_prefix('-'));
        if let Some(id) = id.and_then(nonempty) {
            return Some(ContainerName {
                runtime: Some(runtime),
                id,
            });
        }
    }
    if scope.is_some() {
        return None;
    }
    nonempty(name).map(|id| ContainerName { runtime: None, id })
}

/// The class whose tier a directory is, of either driver: `burstable`,
/// `kubepods-burstable.slice`.
fn tier_class(component: &str) -> Option<QosClass> {
    let unit = component.strip_suffix(SLICE).unwrap_or(component);
    let tier = unit.rsplit('-').next()?;
    QosClass::ALL.into_iter().find(|c| c.tier() == Some(tier))
}

fn uid(component: &str) -> Option<PodUid> {
    let uid = component.strip_prefix(POD).and_then(nonempty)?;
    Some(PodUid::from(uid))
}

fn nonempty(text: &str) -> Option<&str> {
    Some(text).filter(|t| !t.is_empty())
}

fn slice(components: &[String]) -> String {
    let mut unit = String::new();
    for (i, component) in components.iter().enumerate() {
        if i > 0 {
            unit.push('-');
        }
        unit.push_str(&component.replace('-', "_"));
    }
    unit.push_str(SLICE);
    unit
}

fn unescape(component: &str) -> String {
    component.replace('_', "-")
}
