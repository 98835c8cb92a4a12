//! A pod that no manifest names: what its cgroup tells, and what it does not.

use podwarden_policy::{
    PodUid, QosClass,
    name::{self, CgroupName},
    plan::{self, Action},
    settings::{CpuShare, Observed, Setting},
};

use super::explanation::{Cgroup, Eviction, Explained, Explanation, cgroups, notes};
use crate::{
    cli::plan::{files::files, input::Input},
    pods::PodIdentity,
};

/// The pod of that uid, if a cgroup tells of it.
pub(super) fn explain(input: &Input, uid: &str) -> Option<Explanation> {
    let (class, cgroup, observed) = find(input, &PodUid::from(uid))?;
    let identity = PodIdentity::of_cgroup(uid);
    let mut above = cgroups(input, class, cgroup);
    above.insert(0, found(input, cgroup, observed));
    let mut notes = notes(input);
    notes.push(format!(
        "No manifest names this pod: its name, what it asks for and its containers are not known. \
         {}",
        fate(input, cgroup, observed)
    ));
    Some(Explanation {
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
    let explained = |file: String, value: String| Explained {
        file,
        value,
        reason: FOUND.to_owned(),
        detail: None,
        changes_with: "whoever made the cgroup",
        pending: None,
    };
    let mut values = Vec::new();
    let settings = [
        match observed.cpu {
            Some(CpuShare::Shares(shares)) => Some(Setting::CpuShares(shares)),
            Some(CpuShare::Weight(weight)) => {
                // Settings are in shares, of which a weight keeps less.
                values.push(explained("cpu.weight".to_owned(), weight.to_string()));
                None
            }
            None => None,
        },
        observed.cpu_max.map(Setting::CpuMax),
        observed.memory_limit.map(Setting::MemoryLimit),
        observed.memory_min.map(Setting::MemoryMin),
        observed.memory_low.map(Setting::MemoryLow),
        observed.pids_limit.map(Setting::PidsLimit),
    ];
    let sizes = observed.hugetlb.iter();
    let hugetlb = sizes.map(|(&page_size, &limit)| Setting::HugetlbLimit { page_size, limit });
    let reason = podwarden_policy::reason::Reason::NoLimit;
    for setting in settings.into_iter().flatten().chain(hugetlb) {
        let files = files(&setting, &reason, input.version);
        values.extend(files.into_iter().map(|f| explained(f.name, f.value)));
    }
    Cgroup {
        path: format!("/{}", input.layout.path(name)),
        exists: Some(true),
        values,
    }
}
