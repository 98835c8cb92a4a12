//! Small reads and writes on cgroup files, with the crate's errors.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::{Errno, pread, read, retry_on_intr, write},
};

pub(crate) use podwarden_policy::settings::value::parse_u64;

use crate::{Error, Result};

pub(crate) fn open_read(path: &Path) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY)
}

/// Opens for writing; cgroup files are never created or truncated.
pub(crate) fn open_write(path: &Path) -> Result<OwnedFd> {
    open(path, OFlags::WRONLY)
}

/// Opens a directory, to work relative to it.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    retry_on_intr(|| openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()))
        .map_err(|e| Error::os("open", path, e))
}

/// Reads a whole file as text.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let fd = open_read(path)?;
    let mut bytes = Vec::with_capacity(512);
    let mut chunk = [0_u8; 4096];
    loop {
        match retry_on_intr(|| read(&fd, &mut chunk)) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) => return Err(Error::os("read", path, e)),
        }
    }
    String::from_utf8(bytes).map_err(|_| Error::malformed(path, "text"))
}

/// Bytes of the largest value that [`read_value`] reads.
const VALUE: usize = 128;

/// What a file of one value holds.
pub(crate) struct Small {
    bytes: [u8; VALUE],
    len: usize,
}

impl Small {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads a file of one value: the kernel gives it in one piece.
pub(crate) fn read_value(path: &Path) -> Result<Small> {
    let fd = open_read(path)?;
    let mut bytes = [0; VALUE];
    let len = retry_on_intr(|| read(&fd, &mut bytes)).map_err(|e| Error::os("read", path, e))?;
    match len {
        VALUE => Err(Error::malformed(path, "one value")),
        len => Ok(Small { bytes, len }),
    }
}

/// The names in a directory that are text, in no order.
pub(crate) fn names_in(path: &Path) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        Error::os("list", path, errno)
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Writes a value with one `write`, as cgroup files want it.
pub(crate) fn write_text(path: &Path, value: &str) -> Result<()> {
    let fd = open_write(path)?;
    write_fd(&fd, value.as_bytes()).map_err(|e| Error::os("write", path, e))
}

/// As [`write_text`], by a write that does not wait where the kernel can do without.
pub(crate) fn write_text_nonblocking(path: &Path, value: &str) -> Result<()> {
    let fd = open(path, OFlags::WRONLY | OFlags::NONBLOCK)?;
    write_fd(&fd, value.as_bytes()).map_err(|e| Error::os("write", path, e))
}

/// Writes to an open file; allocates nothing.
pub(crate) fn write_fd(fd: impl AsFd, value: &[u8]) -> std::result::Result<(), Errno> {
    let fd = fd.as_fd();
    match retry_on_intr(|| write(fd, value)) {
        Ok(n) if n == value.len() => Ok(()),
        // A cgroup file takes a value whole or not at all.
        Ok(_) => Err(Errno::IO),
        Err(e) => Err(e),
    }
}

/// An open file that is read again and again from its start, without allocating.
#[derive(Debug)]
pub(crate) struct Reread {
    fd: OwnedFd,
    path: Arc<Path>,
}

impl Reread {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            fd: open_read(path)?,
            path: path.into(),
        })
    }

    /// Reads up to `buffer.len()` bytes from `offset`.
    pub(crate) fn read_at<'b>(&self, buffer: &'b mut [u8], offset: u64) -> Result<&'b [u8]> {
        let n = retry_on_intr(|| pread(&self.fd, &mut *buffer, offset))
            .map_err(|e| Error::os("read", Arc::clone(&self.path), e))?;
        Ok(&buffer[..n])
    }

    /// Reads a file that holds one number.
    pub(crate) fn number(&self) -> Result<u64> {
        let mut buffer = [0_u8; 32];
        parse_u64(self.read_at(&mut buffer, 0)?).ok_or_else(|| self.malformed("a number"))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn malformed(&self, expected: &'static str) -> Error {
        Error::malformed(Arc::clone(&self.path), expected)
    }
}

/// Writes `value` in decimal into the end of `buffer`. Allocates nothing.
pub(crate) fn decimal(mut value: u32, buffer: &mut [u8; 10]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        // A remainder of 10 fits.
        buffer[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &buffer[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{decimal, parse_u64};

    #[test]
    fn numbers() {
        let cases: [(&[u8], Option<u64>); 8] = [
            (b"0\n", Some(0)),
            (b"18446744073709551615\n", Some(u64::MAX)),
            (b"18446744073709551616\n", None),
            (b" 42 ", Some(42)),
            (b"", None),
            (b"\n", None),
            (b"max\n", None),
            (b"-1\n", None),
        ];
        for (input, want) in cases {
            assert_eq!(parse_u64(input), want, "{input:?}");
        }
    }

    #[test]
    fn decimals() {
        for value in [0, 7, 10, 4_194_304, u32::MAX] {
            assert_eq!(decimal(value, &mut [0; 10]), value.to_string().as_bytes());
        }
    }
}
