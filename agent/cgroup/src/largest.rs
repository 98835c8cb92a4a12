//! Which cgroups hold most memory outside a subtree: what grows when no pod does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{CgroupPath, Controller, Result, Tree, memory::usage_file, tree::sub_directories};

/// So many cgroups are read at most; a node has some hundred outside its pods.
const MOST_READ: usize = 10_000;

/// A cgroup, and what is charged to it without the cgroups below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Large {
    /// Its path from the mount point on, with a slash before it.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
}

/// The `most` cgroups outside `except` to which most memory is charged, the largest first; from the mount point on,
/// not from the tree's root. A read for each cgroup: nothing for a thread that is in a hurry. A cgroup that goes away
/// meanwhile is left out.
pub fn largest_outside(tree: &Tree, except: &CgroupPath, most: usize) -> Result<Vec<Large>> {
    let except = tree.path(Controller::Memory, except)?;
    let top = tree.hierarchies().mount_of(Controller::Memory)?;
    let is_v2 = tree.hierarchies().is_on_v2(Controller::Memory);
    let mut found = Walk {
        file: usage_file(is_v2),
        except,
        left: MOST_READ,
        found: Vec::new(),
    };
    found.visit(top, String::new());
    let mut found = found.found;
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    found.truncate(most);
    Ok(found)
}

struct Walk {
    file: &'static str,
    except: PathBuf,
    left: usize,
    found: Vec<Large>,
}

impl Walk {
    /// Notes a cgroup and all below it; returns what is charged to them together, where the kernel says so.
    fn visit(&mut self, directory: &Path, path: String) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let text = fs::read_to_string(directory.join(self.file)).ok();
        let usage = text.and_then(|text| text.trim().parse::<u64>().ok());
        if directory == self.except {
            return usage;
        }
        let mut below = 0_u64;
        for (name, _) in sub_directories(directory).unwrap_or_default() {
            let child = self.visit(&directory.join(&name), format!("{path}/{name}"));
            below = below.saturating_add(child.unwrap_or_default());
        }
        // The topmost cgroup of v2 has no such file.
        let bytes = usage?.saturating_sub(below);
        let path = if path.is_empty() {
            "/".to_owned()
        } else {
            path
        };
        self.found.push(Large { path, bytes });
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_below_counts_there_and_pods_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str, usage: u64| {
            let path = dir.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("memory.current"), format!("{usage}\n")).unwrap();
        };
        make("system.slice", 1000);
        make("system.slice/leaks.service", 800);
        make("system.slice/small.service", 50);
        make("kubepods", 5000);
        make("kubepods/pod1", 5000);
        make("user.slice", 300);
        make("vanishes", 9);
        fs::remove_file(dir.path().join("vanishes/memory.current")).unwrap();
        let mut walk = Walk {
            file: "memory.current",
            except: dir.path().join("kubepods"),
            left: MOST_READ,
            found: Vec::new(),
        };
        assert_eq!(
            walk.visit(dir.path(), String::new()),
            None,
            "v2 has none at the top"
        );
        walk.found.sort_by_key(|large| large.bytes);
        let found: Vec<_> = walk
            .found
            .iter()
            .map(|l| (l.path.as_str(), l.bytes))
            .collect();
        assert_eq!(
            found,
            [
                ("/system.slice/small.service", 50),
                ("/system.slice", 150),
                ("/user.slice", 300),
                ("/system.slice/leaks.service", 800),
            ]
        );
        // The topmost cgroup of v1 has one: what is left is that of its own processes.
        fs::write(dir.path().join("memory.current"), "7000").unwrap();
        walk.found.clear();
        assert_eq!(walk.visit(dir.path(), String::new()), Some(7000));
        let top = walk.found.iter().find(|large| large.path == "/");
        assert_eq!(top.map(|large| large.bytes), Some(700));
        // However many there are, it ends.
        (walk.left, walk.found) = (2, Vec::new());
        walk.visit(dir.path(), String::new());
        assert!(walk.found.len() <= 2);
    }
}
