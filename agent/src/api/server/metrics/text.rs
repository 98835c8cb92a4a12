//! The text of `/metrics` while it is written.

use std::io;

use crate::api::published::compressed::{Compressed, Compressor};

/// A piece that is compressed at once: megabytes of text are nowhere together.
const PIECE: usize = 64 << 10;

/// Text that is being written: whole, or compressed as it grows.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// Without what is compressed already.
    written: String,
    compressor: Option<io::Result<Compressor>>,
}

impl Text {
    /// Compressed text.
    pub(super) fn compressed() -> Self {
        Self {
            written: String::with_capacity(PIECE + (PIECE >> 3)),
            compressor: Some(Ok(Compressor::new())),
        }
    }

    /// What was written, where it is not compressed.
    pub(super) fn whole(self) -> String {
        self.written
    }

    /// What was written, compressed. After the `last` text none may follow.
    pub(super) fn finish(mut self, last: bool) -> io::Result<Compressed> {
        let compressor = self.compressor.take();
        let mut compressor = compressor.unwrap_or_else(|| Ok(Compressor::new()))?;
        compressor.add(self.written.as_bytes())?;
        compressor.finish(last)
    }

    /// Whole lines of others.
    pub(super) fn push(&mut self, lines: &str) {
        self.written.push_str(lines);
        self.line_ended();
    }

    /// To write lines to; [`Text::line_ended`] comes after each.
    pub(super) fn lines(&mut self) -> &mut String {
        &mut self.written
    }

    /// A whole line was written.
    pub(super) fn line_ended(&mut self) {
        if self.written.len() >= PIECE {
            self.compress();
        }
    }

    fn compress(&mut self) {
        let Some(Ok(compressor)) = &mut self.compressor else {
            return;
        };
        if let Err(error) = compressor.add(self.written.as_bytes()) {
            self.compressor = Some(Err(error));
        }
        self.written.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::{
        super::family::{Family, labels},
        *,
    };
    use crate::api::published::compressed::gzip;

    #[test]
    fn compressed_text_is_the_whole_text_and_is_compressed_as_it_grows() {
        let write = |text: &mut Text| {
            let pod = labels([("pod", "a")]);
            text.push("# of others\n");
            for name in ["one", "two"] {
                let mut family = Family::gauge(text, name, "");
                (0..20_000_u64).for_each(|value| family.add(&pod, value));
            }
        };
        let (mut whole, mut compressed) = (Text::default(), Text::compressed());
        write(&mut whole);
        write(&mut compressed);
        assert!(compressed.written.len() < PIECE);
        let first = Text::compressed().finish(false).unwrap();
        let parts = gzip(&first, &compressed.finish(true).unwrap());
        let mut read = String::new();
        let member = parts.concat();
        let mut decoder = flate2::bufread::GzDecoder::new(&member[..]);
        decoder.read_to_string(&mut read).unwrap();
        assert!(read.len() > 4 * PIECE);
        assert_eq!(read, whole.whole());
    }
}
