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

impl Compressed {
    /// Compresses at the fastest level: names and labels repeat, so that more effort gains little. After the `last` text
    /// none may follow.
    ///
    /// # Errors
    /// Never, by what deflate promises of valid calls.
    pub(crate) fn of(text: &[u8], last: bool) -> io::Result<Self> {
        let flush = match last {
            true => FlushCompress::Finish,
            // To a byte's end, so that other blocks may follow.
            false => FlushCompress::Sync,
        };
        let mut crc = Crc::new();
        crc.update(text);
        let mut deflate = Compress::new(Compression::fast(), false);
        // A tenth is what it comes to.
        let mut blocks = Vec::with_capacity(text.len() / 8 + 64);
        let mut rest = text;
        loop {
            let before = deflate.total_in();
            let status = deflate.compress_vec(rest, &mut blocks, flush)?;
            let read = usize::try_from(deflate.total_in() - before).map_err(io::Error::other)?;
            rest = &rest[read..];
            // Room that is left says that a flush is whole (zlib.h).
            let is_flushed = !last && rest.is_empty() && blocks.len() < blocks.capacity();
            if is_flushed || status == Status::StreamEnd {
                let blocks = blocks.into();
                return Ok(Self { blocks, crc });
            }
            blocks.reserve(text.len() / 8 + 64);
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
            let [head, tail] =
                parts.map(|(text, last)| Compressed::of(text.as_bytes(), last).unwrap());
            let member = gzip(&head, &tail).concat();
            let mut decoder = flate2::bufread::GzDecoder::new(&member[..]);
            let mut read = String::new();
            decoder.read_to_string(&mut read).unwrap();
            assert_eq!(read, first.to_owned() + last);
            assert!(decoder.into_inner().is_empty(), "one member");
        }
    }
}
