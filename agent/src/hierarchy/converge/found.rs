//! The former limits of tiers, and of pods that were slowed in a tier's stead, see [`crate::base::found`].

use std::path::{Path, PathBuf};

use podwarden_cgroup::root_as_file_name;
use podwarden_policy::{Bytes, limits::Limit};
use serde::{Deserialize, Serialize};

use crate::base::found;

/// Limits of one cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Found {
    /// The cgroup's id in the memory controller's hierarchy.
    pub(super) id: u64,
    /// The hard limit; `None` of a pod, whose hard limit is not convergence's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<Limit<Bytes>>,
    /// `memory.high`; `None` on v1.
    pub(super) high: Option<Limit<Bytes>>,
}

impl found::Found for Found {
    fn id(&self) -> u64 {
        self.id
    }
}

/// The file with the tiers' limits.
pub(super) type Originals = found::Originals<Found>;

/// The name of the file for a cgroup root.
pub fn file(directory: &Path, root: &str) -> PathBuf {
    let name = root_as_file_name(root);
    directory.join(format!("podwarden-{name}.limits.json"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn limits(id: u64, max: u64) -> Found {
        Found {
            id,
            max: Some(Limit::At(Bytes(max))),
            high: Some(Limit::Unlimited),
        }
    }

    #[test]
    fn what_was_found_first_outlives_a_kill_but_not_the_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "/a/b");
        assert!(path.ends_with("podwarden-a%2Fb.limits.json"));
        let mut originals = Originals::open(path.clone());
        assert_eq!(
            originals.of(&"x".into(), limits(1, 10)),
            (limits(1, 10), false)
        );
        // Another process.
        let mut originals = Originals::open(path.clone());
        assert_eq!(
            originals.of(&"x".into(), limits(1, 30)),
            (limits(1, 10), true)
        );
        let anew = (limits(2, 40), false);
        assert_eq!(originals.of(&"x".into(), limits(2, 40)), anew, "made anew");
        originals.close();
        assert!(!path.exists());
        Originals::open(path.clone()).close();
        fs::write(&path, "{\"x\":{\"id\":1").unwrap();
        let (found, _) = Originals::open(path).of(&"x".into(), limits(1, 50));
        assert_eq!(found, limits(1, 50));
    }
}
