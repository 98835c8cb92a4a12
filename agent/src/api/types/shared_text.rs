//! Text that the figures of many passes have in common.

use std::{borrow::Borrow, fmt, hash, ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text whose copies are the same memory: a pass over a thousand pods makes figures anew, and not their names.
#[derive(Clone)]
pub struct SharedText(Inner);

#[derive(Clone)]
enum Inner {
    Fixed(&'static str),
    Shared(Arc<str>),
}

impl SharedText {
    /// A word of the program's own.
    pub const fn fixed(word: &'static str) -> Self {
        Self(Inner::Fixed(word))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Inner::Fixed(word) => word,
            Inner::Shared(text) => text,
        }
    }
}

impl Default for SharedText {
    fn default() -> Self {
        Self::fixed("")
    }
}

impl From<&str> for SharedText {
    fn from(text: &str) -> Self {
        Self(Inner::Shared(text.into()))
    }
}

impl From<String> for SharedText {
    fn from(text: String) -> Self {
        Self(Inner::Shared(text.into()))
    }
}

impl Deref for SharedText {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

/// Maps by text are searched by a `&str`, too.
impl Borrow<str> for SharedText {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl PartialEq for SharedText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for SharedText {}

impl PartialEq<str> for SharedText {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for SharedText {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialOrd for SharedText {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SharedText {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl hash::Hash for SharedText {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Serialize for SharedText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for SharedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
