//! The node's CPUs as the kernel numbers them.

use std::{fs, path::Path};

use podwarden_cgroup::CpuList;
use podwarden_policy::colocation::suppress::cpuset::Cpu;

const SYSTEM: &str = "/sys/devices/system";

/// The CPUs that are online, `None` where the kernel does not list them. One whose place is not known counts as a
/// core of its own on the first socket.
pub(super) fn online() -> Option<Vec<Cpu>> {
    read(Path::new(SYSTEM))
}

fn read(system: &Path) -> Option<Vec<Cpu>> {
    let list = |path: &str| CpuList::parse(&fs::read_to_string(system.join(path)).ok()?);
    let online = list("cpu/online").filter(|online| !online.0.is_empty())?;
    let nodes: Vec<(u32, CpuList)> = list("node/online")
        .unwrap_or_default()
        .0
        .into_iter()
        .filter_map(|node| Some((node, list(&format!("node/node{node}/cpulist"))?)))
        .collect();
    let number = |id: u32, name: &str| -> Option<u32> {
        let file = system.join(format!("cpu/cpu{id}/topology/{name}"));
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    let cpu = |id: u32| Cpu {
        id,
        core: number(id, "core_id").unwrap_or(id),
        socket: number(id, "physical_package_id").unwrap_or(0),
        node: nodes
            .iter()
            .find(|(_, cpus)| cpus.0.contains(&id))
            .map_or(0, |(node, _)| *node),
    };
    Some(online.0.into_iter().map(cpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_are_online_with_their_places() {
        let system = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let file = system.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        put("cpu/online", "0-1,3\n");
        put("node/online", "0-1\n");
        put("node/node0/cpulist", "0-1\n");
        put("node/node1/cpulist", "3\n");
        for (id, core, socket) in [(0, 0, 0), (1, 0, 0), (3, 7, 1)] {
            put(
                &format!("cpu/cpu{id}/topology/core_id"),
                &format!("{core}\n"),
            );
            let socket_file = format!("cpu/cpu{id}/topology/physical_package_id");
            put(&socket_file, &format!("{socket}\n"));
        }
        let cpu = |id, core, socket, node| Cpu {
            id,
            core,
            socket,
            node,
        };
        let found = read(system.path()).unwrap();
        assert_eq!(found, [cpu(0, 0, 0, 0), cpu(1, 0, 0, 0), cpu(3, 7, 1, 1)]);
        // CPU 3 goes offline.
        put("cpu/online", "0-1\n");
        assert_eq!(read(system.path()).unwrap().len(), 2);
        put("cpu/online", "\n");
        assert_eq!(read(system.path()), None);
        assert!(online().is_some_and(|cpus| !cpus.is_empty()));
    }
}
