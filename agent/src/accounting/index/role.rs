//! What a cgroup below kubepods is, from its name and its parent's role.

use podwarden_policy::{PodUid, QosClass, name};

/// What a cgroup is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// kubepods.
    Root,
    /// The burstable or besteffort tier.
    Tier(QosClass),
    Pod {
        uid: PodUid,
        /// Its class by its place.
        class: QosClass,
    },
    /// A container: directly below its pod.
    Container {
        uid: PodUid,
        /// The runtime's id, or the cgroup's name.
        id: String,
    },
    /// Anything inside a container; counts to it.
    Nested {
        uid: PodUid,
        /// The container's id.
        id: String,
    },
    /// Something else below kubepods or a tier.
    Other,
    /// Of a pod, or of something else, that went while no agent ran.
    Former {
        /// The pod's class; `None` where it is not known, and for what was no pod's.
        class: Option<QosClass>,
    },
}

impl Role {
    /// The role of a child with this name.
    pub fn child(&self, component: &str) -> Self {
        let pod = |class| {
            name::parse_pod(component).map_or(Self::Other, |(_, uid)| Self::Pod { uid, class })
        };
        match self {
            Self::Root => match tier(component) {
                Some(class) => Self::Tier(class),
                None => pod(QosClass::Guaranteed),
            },
            Self::Tier(class) => pod(*class),
            Self::Pod { uid, .. } => Self::Container {
                uid: uid.clone(),
                // Whatever a runtime puts below a pod counts; an unknown name stands for itself.
                id: name::parse_container(component)
                    .map_or(component, |container| container.id)
                    .to_owned(),
            },
            Self::Container { uid, id } | Self::Nested { uid, id } => Self::Nested {
                uid: uid.clone(),
                id: id.clone(),
            },
            Self::Other => Self::Other,
            Self::Former { class } => Self::Former { class: *class },
        }
    }

    /// The pod's uid and the container's id that it belongs to.
    pub fn owner(&self) -> Option<(&PodUid, Option<&str>)> {
        match self {
            Self::Pod { uid, .. } => Some((uid, None)),
            Self::Container { uid, id } | Self::Nested { uid, id } => Some((uid, Some(id))),
            Self::Root | Self::Tier(_) | Self::Other | Self::Former { .. } => None,
        }
    }
}

/// The tier that a directory below kubepods is, as either driver names it.
fn tier(component: &str) -> Option<QosClass> {
    let parsed;
    let last = if component.ends_with(".slice") {
        parsed = name::CgroupName::parse_systemd(component);
        parsed.last()?
    } else {
        component
    };
    QosClass::ALL
        .into_iter()
        .find(|class| class.tier() == Some(last))
}
