//! Text compressed in parts, each when it changes: one gzip member is put together from them.

use std::io;

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// A header without name, time and options (RFC 1952, section 2.3); the last byte says that no system is meant.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// A text as deflate blocks (RFC 1951), with its checksum.
#[derive(Debug)]
pub(crate) struct Compressed {
    blocks: Bytes,
    crc: Crc,
}

/// Compresses text that is written piece by piece.
#[derive(Debug)]
pub(crate) struct Compressor {
    deflate: Compress,
    blocks: Vec<u8>,
    crc: Crc,
}

/// Compressed text that there is room for at least before each call of deflate.
const ROOM: usize = 16 << 10;

impl Compressor {
    /// At the fastest level: names and labels repeat, so that more effort gains little.
    pub(crate) fn new() -> Self {
        Self {
            deflate: Compress::new(Compression::fast(), false),
            blocks: Vec::new(),
            crc: Crc::new(),
        }
    }

    /// The next piece. Never an error, by what deflate promises of valid calls.
    pub(crate) fn add(&mut self, text: &[u8]) -> io::Result<()> {
        self.take(text, FlushCompress::None)
    }

    /// All that was added. After the `last` text none may follow.
    pub(crate) fn finish(mut self, last: bool) -> io::Result<Compressed> {
        let flush = match last {
            true => FlushCompress::Finish,
            // To a byte's end, so that other blocks may follow.
            false => FlushCompress::Sync,
        };
        self.take(&[], flush)?;
        self.blocks.shrink_to_fit();
        Ok(Compressed {
            blocks: self.blocks.into(),
            crc: self.crc,
        })
    }

    fn take(&mut self, text: &[u8], flush: FlushCompress) -> io::Result<()> {
        self.crc.update(text);
        let mut rest = text;
        loop {
            self.blocks.reserve(ROOM);
            let before = self.deflate.total_in();
            let status = self.deflate.compress_vec(rest, &mut self.blocks, flush)?;
            let read = usize::try_from(self.deflate.total_in() - before);
            rest = &rest[read.map_err(io::Error::other)?..];
            // Room that is left says that all is taken, and a flush whole (zlib.h).
            let is_taken = rest.is_empty() && self.blocks.len() < self.blocks.capacity();
            let is_whole = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => is_taken,
            };
            if is_whole {
                return Ok(());
            }
        }
    }
}

/// The gzip member of `first` and `last` together, in parts that follow one another.
pub(crate) fn gzip(first: &Compressed, last: &Compressed) -> [Bytes; 4] {
    let mut crc = Crc::new();
    crc.combine(&first.crc);
    crc.combine(&last.crc);
    let trailer = [crc.sum().to_le_bytes(), crc.amount().to_le_bytes()];
    [
        Bytes::from_static(&HEADER),
        first.blocks.clone(),
        last.blocks.clone(),
        trailer.concat().into(),
    ]
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// In pieces of some length.
    fn compressed(text: &str, last: bool) -> Compressed {
        let mut compressor = Compressor::new();
        for piece in text.as_bytes().chunks(70_000) {
            compressor.add(piece).unwrap();
        }
        compressor.finish(last).unwrap()
    }

    #[test]
    fn one_member_holds_both_texts() {
        let long = "podwarden_pod_cpu_usage_seconds_total{uid=\"1\"} 1\n".repeat(20_000);
        let random: String = std::iter::repeat_with(|| fastrand::char(' '..='\u{ff}'))
            .take(100_000)
            .collect();
        for (first, last) in [
            ("", ""),
            ("a\n", ""),
            ("", "b\n"),
            ("a\n", &long),
            (&long, "b\n"),
            (&random, &random),
        ] {
            let parts = [(first, false), (last, true)];
            let [head, tail] = parts.map(|(text, last)| compressed(text, last));
            let member = gzip(&head, &tail).concat();
            let mut decoder = flate2::bufread::GzDecoder::new(&member[..]);
            let mut read = String::new();
            decoder.read_to_string(&mut read).unwrap();
            assert_eq!(read, first.to_owned() + last);
            assert!(decoder.into_inner().is_empty(), "one member");
        }
    }
}
