//! Why no pod is evicted, or few are, although a level is reached: an Event about the Node.

use super::{
    entry::Entry,
    wording,
    writer::{Adder, Writer},
};
use crate::base::clock;

/// An Event that waits for its message.
pub(crate) struct HeldBack {
    adder: Adder,
    node_name: String,
    at: u64,
}

impl HeldBack {
    /// For a level that was reached at `at`, `CLOCK_MONOTONIC` nanoseconds.
    pub(super) fn new(writer: &Writer, node_name: &str, at: u64) -> Self {
        Self {
            adder: writer.adder(),
            node_name: node_name.to_owned(),
            at,
        }
    }

    /// Has it sent; never waits.
    pub(crate) fn tell(self, mut message: String) {
        wording::shorten(&mut message);
        let time = clock::text_of(self.at);
        let entry = Entry::of_held_back(time, &self.node_name, self.at, message);
        self.adder.add(entry);
    }
}
