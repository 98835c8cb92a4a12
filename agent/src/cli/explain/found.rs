//! Explains a pod that only its cgroup shows.

use podwarden_policy::{
    PodUid, QosClass,
    name::{self, CgroupName},
    plan::{self, Action},
    settings::Observed,
};

use super::explanation::{Cgroup, Eviction, Explained, Explanation, cgroups, notes};
use crate::{
    cli::plan::{files::held, input::Input},
    pods::PodIdentity,
};

/// The pod of that uid, if it has a cgroup.
pub(super) fn explain(input: &Input, uid: &str) -> Option<Explanation> {
    let uid = PodUid::from(uid);
    let (class, cgroup, observed) = find(input, &uid)?;
    let identity = PodIdentity::of_cgroup(&uid);
    let mut above = cgroups(input, class, cgroup);
    above.insert(0, found(input, cgroup, observed));
    let mut notes = notes(input);
    notes.push(format!(
        "No manifest names this pod: its name, what it asks for and its containers are not known. \
         {}",
        fate(input, cgroup, observed)
    ));
    Some(Explanation {
        colocation: None,
        pod_ref: identity.pod,
        known_by: identity.known_by.as_str(),
        qos_class: class.as_str(),
        class_reason: "by where its cgroup is".to_owned(),
        resources: Vec::new(),
        cgroups: above,
        containers: Vec::new(),
        eviction: Eviction::NoCandidate {
            reason: "only pods with a manifest are evicted".to_owned(),
        },
        notes,
    })
}

fn find<'a>(input: &'a Input, uid: &PodUid) -> Option<(QosClass, &'a CgroupName, &'a Observed)> {
    let snapshot = &input.snapshot;
    snapshot.cgroups.iter().find_map(|(name, observed)| {
        let (_, found) = name.last().and_then(name::parse_pod)?;
        let parent = name.parent()?;
        let mut classes = QosClass::ALL.into_iter();
        let class = classes.find(|class| snapshot.kubepods.tier(*class) == parent)?;
        (found == *uid).then_some((class, name, observed))
    })
}

/// What becomes of the cgroup.
fn fate(input: &Input, cgroup: &CgroupName, observed: &Observed) -> &'static str {
    let removed = plan::plan(&input.snapshot)
        .iter()
        .any(|action| matches!(action, Action::RemoveCgroup { cgroup: c, .. } if c == cgroup));
    match (removed, observed.ours) {
        (true, _) => "podwarden made its cgroup and removes it.",
        (false, true) => "podwarden made its cgroup and leaves it.",
        (false, false) => "podwarden did not make its cgroup and leaves it as it is.",
    }
}

/// What the files held when they were read.
fn found(input: &Input, name: &CgroupName, observed: &Observed) -> Cgroup {
    const FOUND: &str = "found, and left as it is";
    let files = observed
        .values()
        .flat_map(|(property, value)| held(property, value, FOUND, input.version));
    let values = files.map(|file| Explained::new(file, "the cgroup's owner"));
    Cgroup {
        path: format!("/{}", input.layout.path(name)),
        exists: Some(true),
        values: values.collect(),
    }
}
