//! The pods' part of `/metrics`: written, and compressed, once for a sampling pass.

use std::{
    io, mem,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;

use super::{Figures, Published, compressed::Compressed};

/// The text of one pass.
#[derive(Debug)]
pub(crate) struct Series {
    text: Bytes,
    compressed: OnceLock<io::Result<Compressed>>,
}

impl Series {
    /// Has `write` write the text, in the room of the pass before where that is free.
    pub(super) fn written(room: &Room, write: impl FnOnce(&mut String)) -> Self {
        let mut text = room.take();
        write(&mut text);
        let text = Bytes::from(text);
        room.keep(&text);
        Self {
            text,
            compressed: OnceLock::new(),
        }
    }

    /// The text; a reference, no copy.
    pub(crate) fn text(&self) -> Bytes {
        self.text.clone()
    }

    /// The text as the last part of a compressed one, compressed for the first scrape that asks.
    ///
    /// # Errors
    /// As [`Compressed::of`].
    pub(crate) fn compressed(&self) -> Result<&Compressed, &io::Error> {
        let compressed = self
            .compressed
            .get_or_init(|| Compressed::of(&self.text, true));
        compressed.as_ref()
    }
}

/// The last pass's text. A thousand pods take megabytes, which the next pass's text has again: memory that the system
/// gives anew for each costs more than the writing.
#[derive(Debug, Default)]
pub(super) struct Room(Mutex<Bytes>);

impl Room {
    /// Empty, with the last text's memory, or with as much where that is still read.
    fn take(&self) -> String {
        let last = mem::take(&mut *self.last());
        if !last.is_unique() {
            return String::with_capacity(last.len());
        }
        let mut room = Vec::from(last);
        room.clear();
        String::from_utf8(room).unwrap_or_default()
    }

    fn keep(&self, text: &Bytes) {
        *self.last() = text.clone();
    }

    fn last(&self) -> MutexGuard<'_, Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Published {
    /// The pods' part of `/metrics` of these figures, which `write` writes for the first scrape of the pass.
    pub(crate) fn series<'a>(
        &self,
        figures: &'a Figures,
        write: impl FnOnce(&mut String, &Figures),
    ) -> &'a Series {
        figures.series(&self.series_room, write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_text_without_readers_is_that_of_the_next() {
        let room = Room::default();
        let written = |what: &str| {
            let series = Series::written(&room, |text| text.push_str(what));
            assert_eq!(series.text(), what);
            series
        };
        let long = "podwarden_pod_oom_kills_total 0\n".repeat(1000);
        let first = written(&long);
        let begin = first.text().as_ptr();
        drop(first);
        let second = written("short\n");
        assert_eq!(second.text().as_ptr(), begin);
        // An answer is still being sent.
        let answer = second.text();
        drop(second);
        let third = written(&long);
        assert_ne!(third.text().as_ptr(), begin);
        assert_eq!(answer, "short\n");
    }
}
