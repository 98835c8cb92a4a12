//! Waits for a kubepods cgroup that another program makes.

use std::{path::PathBuf, time::Duration};

use podwarden_cgroup::{CgroupPath, Controller, Hierarchies, Tree};

use super::StartError;
use crate::base::directory::DirectoryWatch;

/// kubepods is made in one hierarchy after the other; which of them tasks will be in is known once all
/// are there.
const SETTLE: Duration = Duration::from_millis(300);

/// A bound on missing the creation where it cannot be watched.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The tree below `root` once `kubepods` is in it.
pub(super) async fn wait(
    hierarchies: &Hierarchies,
    root: &str,
    kubepods: &CgroupPath,
) -> Result<Tree, StartError> {
    let tree = || Tree::new(hierarchies.clone(), root).map_err(StartError::Cgroup);
    let present = tree()?;
    if present.id(kubepods).is_ok() {
        // Without a watch, whose end waits for the kernel: an agent that takes over has no time for that.
        return Ok(present);
    }
    loop {
        // The watches before the look, so that no creation falls in between.
        let current = tree()?;
        let watches = places(&current, kubepods);
        let watches = watches
            .iter()
            .filter_map(|p| DirectoryWatch::of_new(p).ok());
        let watches: Vec<_> = watches.collect();
        if current.id(kubepods).is_ok() {
            tokio::time::sleep(SETTLE).await;
            return tree();
        }
        let any = async {
            match watches.as_slice() {
                [] => std::future::pending().await,
                [one] => drop(one.changed().await),
                [one, other, ..] => {
                    tokio::select! {
                        _ = one.changed() => {}
                        _ = other.changed() => {}
                    }
                }
            }
        };
        let _ = tokio::time::timeout(LOOK_AGAIN, any).await;
    }
}

/// The deepest directories that exist towards kubepods: where its next part will appear.
fn places(tree: &Tree, kubepods: &CgroupPath) -> Vec<PathBuf> {
    let paths = [
        tree.identity_path(kubepods),
        tree.path(Controller::Memory, kubepods),
    ];
    let mut places: Vec<PathBuf> = paths
        .into_iter()
        .flatten()
        .filter_map(|p| Some(p.ancestors().find(|a| a.is_dir())?.to_owned()))
        .collect();
    places.dedup();
    places
}
