//! `oom_score_adj` of the processes of containers, given to them as they appear.
//!
//! A process gets its container's value once, when it is first seen, and its children inherit it. One
//! whose parent had it already is left alone: whatever it holds it inherited or has chosen itself, as
//! a database does for its workers. Where there is a runtime that sets the value at the start, as for
//! a kubelet, nothing differs and nothing is written.

mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use podwarden_cgroup::{CgroupPath, Error, Tree};
use podwarden_policy::{PodUid, container};

use process::{Process, ProcessError, Stat};

/// How often the processes of a container are read again because there were new ones: what forks
/// meanwhile forks from processes that have the value, but for a few in the first rounds.
const ROUNDS: u32 = 6;

/// What came of a look at a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// Processes whose value was written.
    pub written: u32,
    /// Processes that were refused it: lowering takes `CAP_SYS_RESOURCE`.
    pub refused: u32,
}

/// A container whose processes are followed.
#[derive(Debug, Clone)]
struct Followed {
    uid: PodUid,
    id: String,
    /// Process id to start time, which together name a process.
    seen: BTreeMap<u32, u64>,
}

/// The containers, by their cgroup below the tree's root.
#[derive(Debug, Default)]
pub struct OomScores {
    containers: BTreeMap<CgroupPath, Followed>,
}

impl OomScores {
    /// A container is there.
    pub fn appeared(&mut self, path: &CgroupPath, uid: &PodUid, id: &str) {
        self.containers
            .entry(path.to_owned())
            .or_insert_with(|| Followed {
                uid: uid.clone(),
                id: id.to_owned(),
                seen: BTreeMap::new(),
            });
    }

    /// A container is gone.
    pub fn gone(&mut self, path: &CgroupPath) {
        self.containers.remove(path);
    }

    /// The containers that are there: cgroup, pod and container.
    pub fn containers(&self) -> impl Iterator<Item = (&CgroupPath, &PodUid, &str)> {
        self.containers
            .iter()
            .map(|(path, c)| (path, &c.uid, c.id.as_str()))
    }

    /// The pod and the container whose cgroup this is.
    pub fn owner(&self, path: &CgroupPath) -> Option<(&PodUid, &str)> {
        let container = self.containers.get(path)?;
        Some((&container.uid, &container.id))
    }

    /// Gives `score` to the processes of a container that are new in it. A container that is gone has none.
    pub fn settle(&mut self, tree: &Tree, path: &CgroupPath, score: i32) -> Result<Settled, Error> {
        let mut settled = Settled::default();
        let Some(container) = self.containers.get_mut(path) else {
            return Ok(settled);
        };
        // Processes that got the value in an earlier look: their children need none.
        let before = container.seen.clone();
        for _ in 0..ROUNDS {
            let present = processes(tree, path)?;
            container.seen.retain(|pid, _| present.contains(pid));
            let new: Vec<_> = present
                .into_iter()
                .filter(|pid| !container.seen.contains_key(pid))
                .collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                match give(tree, path, pid, score, &before) {
                    Ok(Given::Later) => {}
                    Ok(Given::Now(start, written)) => {
                        container.seen.insert(pid, start);
                        settled.written += u32::from(written);
                    }
                    Ok(Given::Refused(start)) => {
                        container.seen.insert(pid, start);
                        settled.refused += 1;
                    }
                    // It has ended.
                    Err(error) if error.is_gone() => {}
                    Err(error) => tracing::debug!(pid, %error, "its oom_score_adj stays unknown"),
                }
            }
        }
        Ok(settled)
    }
}

enum Given {
    /// The process has it, or needs none; whether it was written.
    Now(u64, bool),
    /// The kernel does not let us.
    Refused(u64),
    /// It is the runtime still, or a process that has left meanwhile.
    Later,
}

fn give(
    tree: &Tree,
    path: &CgroupPath,
    pid: u32,
    score: i32,
    before: &BTreeMap<u32, u64>,
) -> Result<Given, ProcessError> {
    let process = Process::open(pid)?;
    let stat = process.stat()?;
    // Between reading the list and opening, its id may have gone to another process.
    if stat.is_runtime() || !process.is_in(tree.root(), path)? {
        return Ok(Given::Later);
    }
    if stat.is_sandbox() || has_inherited(&stat, before) || process.score()? == score {
        return Ok(Given::Now(stat.start, false));
    }
    match process.set_score(score) {
        Ok(()) => Ok(Given::Now(stat.start, true)),
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => {
            Ok(Given::Refused(stat.start))
        }
        Err(error) => Err(error),
    }
}

/// True when its parent was given its value before. A parent that is younger than its child is
/// another process with the parent's id.
fn has_inherited(stat: &Stat, before: &BTreeMap<u32, u64>) -> bool {
    before
        .get(&stat.parent)
        .is_some_and(|parent| *parent <= stat.start)
}

/// The processes in a container and below it that this process can see.
fn processes(tree: &Tree, path: &CgroupPath) -> Result<BTreeSet<u32>, Error> {
    let mut all = BTreeSet::new();
    let cgroups = match tree.list(path) {
        Err(error) if error.is_gone() => return Ok(all),
        cgroups => cgroups?,
    };
    for cgroup in cgroups {
        match tree.procs(&cgroup.path) {
            Err(error) if error.is_gone() => {}
            // 0 is a process of another pid namespace.
            pids => all.extend(pids?.into_iter().filter(|pid| *pid != 0)),
        }
    }
    Ok(all)
}

/// The value for a container of a pod by the container's name, or for one that is not known by name.
/// See [`container::oom_score_adj`] and [`container::unnamed_oom_score_adj`].
pub fn score_of(
    pod: &podwarden_policy::Pod,
    id: &str,
    node: &podwarden_policy::Node,
) -> Option<i32> {
    let capacity = node.memory_capacity;
    match pod.containers.iter().find(|c| c.name == id) {
        Some(named) => container::oom_score_adj(pod, named, capacity),
        None => container::unnamed_oom_score_adj(pod, capacity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_a_process_that_has_it_has_inherited_it() {
        let before = BTreeMap::from([(10, 100)]);
        let stat = |parent, start| Stat {
            command: "sh".to_owned(),
            parent,
            start,
        };
        assert!(has_inherited(&stat(10, 100), &before));
        assert!(has_inherited(&stat(10, 200), &before));
        assert!(!has_inherited(&stat(10, 99), &before), "another 10");
        assert!(!has_inherited(&stat(1, 200), &before), "from outside");
        assert!(!has_inherited(&stat(10, 200), &BTreeMap::new()));
    }
}
