//! The pod that this agent runs in: it never evicts itself.

use podwarden_policy::{PodUid, name::parse_pod};

/// Of this process, in every hierarchy (cgroups(7)).
const CGROUPS: &str = "/proc/self/cgroup";
/// The pod's uid by the downward API: in a cgroup namespace of its own a process sees no path.
const UID: &str = "POD_UID";

/// Its uid; `None` outside a pod.
pub(super) fn find() -> Option<PodUid> {
    let cgroups = std::fs::read_to_string(CGROUPS).unwrap_or_default();
    of_cgroups(&cgroups).or_else(|| {
        let uid = std::env::var(UID).ok()?;
        (!uid.is_empty()).then(|| uid.as_str().into())
    })
}

/// The pod in lines of `hierarchy:controllers:path`.
fn of_cgroups(text: &str) -> Option<PodUid> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .flat_map(|path| {
            let mut names = path.split('/');
            // `pod` alone begins other names as well.
            names.find(|name| name.contains("kubepods"));
            names
        })
        .find_map(|name| Some(parse_pod(name)?.1))
}

#[cfg(test)]
mod tests {
    use super::of_cgroups;

    #[test]
    fn the_cgroup_of_a_container_names_the_pod() {
        let uid = "1b2c3d4e-0000-4000-8000-000000000001";
        let slice = uid.replace('-', "_");
        for text in [
            format!("0::/kubepods/burstable/pod{uid}/4f1\n"),
            format!("3:cpu,cpuacct:/kubepods/pod{uid}/4f1\n0::/\n"),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-4f1.scope\n"),
            format!("0::/kubelet/kubepods/besteffort/pod{uid}/4f1/child\n"),
        ] {
            assert_eq!(of_cgroups(&text), Some(uid.into()), "{text}");
        }
    }

    #[test]
    fn elsewhere_there_is_no_pod() {
        for text in [
            "",
            "0::/\n",
            "0::/system.slice/podwarden.service\n",
            "0::/podwarden\n",
            "1:name=systemd:/kubepods/burstable\n",
        ] {
            assert_eq!(of_cgroups(text), None, "{text}");
        }
    }
}
