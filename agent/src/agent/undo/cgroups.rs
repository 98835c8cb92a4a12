//! Cgroups that an agent made and in which nothing runs. A cgroup with processes, and what is above it, stays.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use podwarden_cgroup::{CgroupLayout, CgroupPath, Driver, Systemd};

use super::{Item, Place, Step};
use crate::hierarchy::act::{Backend, Files, Slices};

pub(super) const STEP: Step = Step {
    name: "cgroups",
    about: "empty cgroups that the agent made",
    run,
};

fn run(place: &Place) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    for driver in &place.drivers {
        items.extend(of_driver(place, *driver)?);
    }
    Ok(items)
}

/// What the agent made of one cgroup.
struct Made {
    path: CgroupPath,
    directories: Vec<PathBuf>,
}

fn of_driver(place: &Place, driver: Driver) -> anyhow::Result<Vec<Item>> {
    let layout = CgroupLayout::new(driver, &place.cgroup_root);
    let kubepods = layout.path(&layout.kubepods);
    let names = place.tree.names_anywhere(&kubepods)?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let backend: Arc<dyn Backend> = match driver {
        Driver::Cgroupfs => Arc::new(Files),
        Driver::Systemd => Arc::new(Slices(Systemd::connect()?)),
    };
    let mut made = Vec::new();
    for path in std::iter::once(CgroupPath::ROOT).chain(names.iter().cloned()) {
        let created = backend.made_before(&place.tree, &path)?;
        if !created.is_empty() {
            let directories = created.directories;
            made.push(Made { path, directories });
        }
    }
    let unused = unused(place, &names, &made);
    if !place.dry_run {
        let unused = made.iter().filter(|made| unused.contains(&made.path));
        let mut directories: Vec<_> = unused.flat_map(|made| made.directories.clone()).collect();
        // Parents before children, as the backend takes them.
        directories.sort();
        backend.remove_unused(&place.tree, directories);
    }
    let item = |made: &Made| {
        let what = format!("/{}", made.path);
        if !unused.contains(&made.path) {
            return Item::stays(what, "a process or a cgroup of others is in it");
        }
        match place.dry_run || !made.directories.iter().any(|directory| directory.exists()) {
            true => Item::gone(what),
            false => Item::stays(what, "it came into use meanwhile, or the kernel refused"),
        }
    };
    Ok(made.iter().map(item).collect())
}

/// Those of `made` without a process and without a child that stays.
fn unused(place: &Place, names: &BTreeSet<CgroupPath>, made: &[Made]) -> BTreeSet<CgroupPath> {
    let is_made = |path: &CgroupPath| made.iter().any(|made| made.path == *path);
    let runs = |path: &CgroupPath| match place.tree.procs(path) {
        Ok(pids) => !pids.is_empty(),
        Err(error) => !error.is_gone(),
    };
    // A cgroup keeps itself and all above it.
    let keeps: Vec<&CgroupPath> = names
        .iter()
        .filter(|path| !is_made(path) || runs(path))
        .collect();
    let kept = |path: &CgroupPath| {
        let below = |other: &&CgroupPath| path.is_root() || is_within(other, path);
        keeps.iter().any(below)
    };
    let unused = made.iter().map(|made| &made.path);
    unused.filter(|path| !kept(path)).cloned().collect()
}

fn is_within(path: &CgroupPath, above: &CgroupPath) -> bool {
    let rest = path.as_str().strip_prefix(above.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_within_itself_and_what_is_above_it() {
        let within = |a: &str, b: &str| is_within(&a.into(), &b.into());
        assert!(within("a/b/c", "a/b") && within("a/b", "a/b"));
        assert!(!within("a/bc", "a/b") && !within("a", "a/b"));
    }
}
