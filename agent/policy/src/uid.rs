//! Names of pods.

use alloc::{string::String, sync::Arc};
use core::{
    fmt,
    hash::{Hash, Hasher},
};

use serde::{Deserialize, Serialize};

/// `metadata.uid` of a pod, as the API server wrote it. Ordering is by text; it is the last
/// tie-break of every ranking. Copies share the text.
#[derive(Debug, Clone, Default, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Wraps a uid.
    pub fn new(uid: impl Into<String>) -> Self {
        Self::from(uid.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::ops::Deref for PodUid {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Maps by uid are searched by its text, too.
impl core::borrow::Borrow<str> for PodUid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Copies are the same without a look at their text.
impl PartialEq for PodUid {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Hash for PodUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq<str> for PodUid {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for PodUid {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl From<&str> for PodUid {
    fn from(uid: &str) -> Self {
        Self(uid.into())
    }
}

impl From<String> for PodUid {
    fn from(uid: String) -> Self {
        Self(uid.into())
    }
}
