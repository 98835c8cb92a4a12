//! Whether runc is starting a container.
//!
//! On v1 runc reads `cpu.shares` after it wrote it, and fails the container's start where it finds another value
//! (`CpuGroup.Set` of opencontainers/cgroups `fs/cpu.go`; there is no such check on v2, nor of other files). From when
//! its init is in the container's cgroup until that executes the container's program, the shares are left alone.

use std::fs;

use podwarden_cgroup::{CgroupPath, Controller, Tree};
use podwarden_policy::{name, settings::Setting};

/// What the threads of runc's init are called (`prctl(PR_SET_NAME)` in `libcontainer/nsenter/nsexec.c`).
const INIT: &str = "runc:[";

/// True where writing `setting` now could fail the start of the container whose cgroup this is.
pub(super) fn holds_back(tree: &Tree, cgroup: &CgroupPath, setting: &Setting) -> bool {
    matches!(setting, Setting::CpuShares(_))
        && !tree.hierarchies().is_on_v2(Controller::Cpu)
        && is_container(cgroup)
        && has_init(tree, cgroup)
}

/// A cgroup of a runtime's, below a pod's.
fn is_container(cgroup: &CgroupPath) -> bool {
    let mut components = cgroup.as_str().rsplit('/');
    components.next().and_then(name::parse_pod).is_none()
        && components.next().and_then(name::parse_pod).is_some()
}

/// A process of another PID namespace, which is listed as 0, may be one.
fn has_init(tree: &Tree, cgroup: &CgroupPath) -> bool {
    let Ok(directory) = tree.path(Controller::Cpu, cgroup) else {
        return false;
    };
    let procs = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    procs.lines().any(|pid| match pid {
        "0" => true,
        // One that has ended is none.
        pid => fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.starts_with(INIT)),
    })
}

#[cfg(test)]
mod tests {
    use std::{path::Path, thread};

    use nix::sys::prctl::set_name;
    use podwarden_cgroup::{Hierarchies, Version};
    use podwarden_policy::{
        CpuShares,
        limits::{CpuMax, Limit},
    };

    use super::*;

    fn tree(mount: &Path, version: Version) -> Tree {
        let hierarchies = Hierarchies {
            version,
            v2_mount: (version == Version::V2).then(|| mount.to_owned()),
            controllers: [Controller::Cpu, Controller::Memory]
                .map(|c| (c, mount.to_owned()))
                .into(),
        };
        Tree::new(hierarchies, "").unwrap()
    }

    #[test]
    fn shares_of_v1_are_left_alone_while_runcs_init_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = "kubepods/besteffort/poda/c1";
        let procs = dir.path().join(path).join("cgroup.procs");
        fs::create_dir_all(procs.parent().unwrap()).unwrap();
        let (container, pod) = (
            CgroupPath::from(path),
            CgroupPath::from("kubepods/besteffort/poda"),
        );
        let shares = Setting::CpuShares(CpuShares(512));
        let v1 = tree(dir.path(), Version::V1);
        assert!(!holds_back(&v1, &container, &shares), "it is not there yet");
        // A thread has a name of its own, and /proc/TID is there though it is not listed.
        thread::spawn(move || {
            set_name(c"runc:[2:INIT]").unwrap();
            fs::write(&procs, format!("{}\n", nix::unistd::gettid())).unwrap();
            assert!(holds_back(&v1, &container, &shares));
            assert!(!holds_back(&v1, &pod, &shares));
            let limit = Setting::MemoryLimit(Limit::Unlimited);
            assert!(!holds_back(&v1, &container, &limit));
            assert!(!holds_back(
                &v1,
                &container,
                &Setting::CpuMax(CpuMax::UNLIMITED)
            ));
            let v2 = tree(dir.path(), Version::V2);
            assert!(!holds_back(&v2, &container, &shares));
            // The container's own program.
            set_name(c"sleep").unwrap();
            assert!(!holds_back(&v1, &container, &shares));
            fs::write(&procs, "0\n").unwrap();
            assert!(holds_back(&v1, &container, &shares), "it may be");
        })
        .join()
        .unwrap();
    }
}
