//! A level is reached, and no pod is what grew: says so with the largest cgroups outside the pods, as an event and,
//! once in a pressure period, as an Event about the Node.

use std::{sync::Arc, time::Instant};

use podwarden_cgroup::{CgroupPath, Large, Tree, largest_outside};
use podwarden_policy::{Bytes, signal::ScopeName};

use super::reports::{Listeners, degraded};
use crate::reactor::report::Crossing;

/// Cgroups that are named.
const NAMED: usize = 3;

/// Where to look.
pub(super) struct Outside<'a> {
    pub(super) tree: &'a Tree,
    pub(super) kubepods: CgroupPath,
}

/// Tells of `crossing` with `message`. Outside the pods there may be thousands of cgroups: a thread that may block
/// reads them.
pub(super) fn held_back(listeners: &mut Listeners<'_>, crossing: &Crossing, message: String) {
    let at = crossing.wake;
    let status = listeners.status.as_mut();
    // Periods of pressure are the memory's.
    let status = status.filter(|_| crossing.scope.is_of_memory());
    let event = status.and_then(|status| status.held_back(crossing, Instant::now()));
    if crossing.scope != ScopeName::Node {
        degraded(listeners.published, at, None, message.clone());
        if let Some(event) = event {
            event.tell(message);
        }
        return;
    }
    let published = Arc::clone(listeners.published);
    let tree = listeners.outside.tree.clone();
    let kubepods = listeners.outside.kubepods.clone();
    tokio::task::spawn_blocking(move || {
        let found = largest_outside(&tree, &kubepods, NAMED);
        let largest = found.map_or_else(
            |error| format!("what is outside the pods cannot be read: {error}"),
            |found| named(&found),
        );
        let message = format!("{message}; {largest}");
        degraded(&published, at, None, message.clone());
        if let Some(event) = event {
            event.tell(message);
        }
    });
}

fn named(largest: &[Large]) -> String {
    if largest.is_empty() {
        return "no cgroup outside the pods has memory".to_owned();
    }
    let each = largest
        .iter()
        .map(|Large { path, bytes }| format!("{path} {}", Bytes(*bytes)));
    format!(
        "the largest cgroups outside the pods: {}",
        each.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_named_with_their_memory() {
        let large = |path: &str, mib: u64| Large {
            path: path.to_owned(),
            bytes: mib << 20,
        };
        let text = named(&[
            large("/system.slice/leaks.service", 512),
            large("/init.scope", 3),
        ]);
        assert_eq!(
            text,
            "the largest cgroups outside the pods: /system.slice/leaks.service 512Mi, /init.scope 3Mi"
        );
        assert!(named(&[]).contains("no cgroup"));
    }
}
