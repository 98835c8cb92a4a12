//! Walking a cgroup and all below it with buffers on the stack only.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{FileType, Mode, OFlags, RawDir, openat},
    io::{Errno, read, retry_on_intr},
};

use super::spared::Spared;

/// The v1 freezer's control file; the topmost cgroup has none.
pub(super) const FREEZER_STATE: &str = "freezer.state";

/// How deep cgroups may be nested below the one that is walked.
const MAX_DEPTH: usize = 64;
/// Holds several directory entries; one takes 280 bytes at most.
pub(super) const ENTRIES: usize = 1024;
/// For process ids, some 600 at a time.
const IDS: usize = 4096;

/// Calls `found` with every process of the cgroup and all below it but for the child `spared`. False
/// when cgroups nested too deeply were left out.
///
/// Every call opens `cgroup.procs` anew: v1 answers a second read of an open file from a list that
/// it keeps for a second (`cgroup_pidlist_start`, `kernel/cgroup/cgroup-v1.c`). To keep a file open for each container
/// on v2 would save 3.5 us of each list, where the pidfd of each process takes 5 us (6.18, AMD EPYC), and would not spare
/// the kernel's allocations: lists and pidfds allocate too.
pub(super) fn processes(
    directory: BorrowedFd<'_>,
    spared: Option<&Spared>,
    found: &mut dyn FnMut(u32),
) -> Result<bool, Errno> {
    each(directory, spared, &mut |cgroup| {
        own_processes(cgroup, found)
    })
}

/// As [`processes`], without those below.
pub(super) fn own_processes(
    cgroup: BorrowedFd<'_>,
    found: &mut dyn FnMut(u32),
) -> Result<(), Errno> {
    let file = open(cgroup, crate::tree::PROCS, OFlags::RDONLY)?;
    match read_ids(file.as_fd(), found) {
        // A threaded cgroup: its processes are listed by the one above.
        Err(Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Whether the kernel counts a process in the cgroup or below it, on v2; with `spared`, in one of its
/// children but that one. See "populated" of `cgroup.events` in `Documentation/admin-guide/cgroup-v2.rst`.
pub(super) fn is_populated(
    directory: BorrowedFd<'_>,
    spared: Option<&Spared>,
) -> Result<bool, Errno> {
    if spared.is_none() {
        return says_populated(directory);
    }
    let mut populated = false;
    children(directory, spared, &mut |child| {
        populated |= says_populated(child)?;
        Ok(())
    })?;
    Ok(populated)
}

fn says_populated(cgroup: BorrowedFd<'_>) -> Result<bool, Errno> {
    let file = open(cgroup, "cgroup.events", OFlags::RDONLY)?;
    let mut text = [0; 64];
    let n = retry_on_intr(|| read(&file, &mut text))?;
    Ok(text[..n]
        .split(|byte| *byte == b'\n')
        .any(|line| line == b"populated 1"))
}

/// Calls `visit` with every child of a cgroup but `spared`. That one vanishes meanwhile is no error.
pub(super) fn children(
    directory: BorrowedFd<'_>,
    spared: Option<&Spared>,
    visit: &mut dyn FnMut(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    below(directory, spared, &mut |child| visit(child).map(|()| true)).map(|_| ())
}

/// Calls `found` with every `freezer.state` of the cgroup and all below it, open for writing.
pub(super) fn freezer_states(
    directory: BorrowedFd<'_>,
    found: &mut dyn FnMut(BorrowedFd<'_>),
) -> Result<bool, Errno> {
    each(directory, None, &mut |cgroup| {
        let file = open(cgroup, FREEZER_STATE, OFlags::WRONLY)?;
        found(file.as_fd());
        Ok(())
    })
}

pub(super) fn open(directory: BorrowedFd<'_>, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Visits a cgroup, then those below it but the child `spared`. That a nested one vanishes meanwhile is no error.
pub(super) fn each(
    directory: BorrowedFd<'_>,
    spared: Option<&Spared>,
    visit: &mut dyn FnMut(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<bool, Errno> {
    each_from(directory, 0, spared, visit)
}

fn each_from(
    directory: BorrowedFd<'_>,
    depth: usize,
    spared: Option<&Spared>,
    visit: &mut dyn FnMut(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<bool, Errno> {
    visit(directory)?;
    below(directory, spared, &mut |nested| {
        if depth == MAX_DEPTH {
            return Ok(false);
        }
        each_from(nested, depth + 1, None, visit)
    })
}

/// Calls `visit` with every child but `spared`; true when every call said so.
fn below(
    directory: BorrowedFd<'_>,
    spared: Option<&Spared>,
    visit: &mut dyn FnMut(BorrowedFd<'_>) -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    // Opened anew, because the position in a directory belongs to the open file.
    let listing = open(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = [MaybeUninit::uninit(); ENTRIES];
    let mut entries = RawDir::new(listing, &mut buffer);
    let mut whole = true;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory
            || matches!(name.to_bytes(), b"." | b"..")
            || spared.is_some_and(|spared| spared.is(name))
        {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let nested = retry_on_intr(|| openat(directory, name, flags, Mode::empty()))
            .and_then(|nested| visit(nested.as_fd()));
        match nested {
            Ok(nested_whole) => whole &= nested_whole,
            Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(whole)
}

fn read_ids(file: BorrowedFd<'_>, found: &mut dyn FnMut(u32)) -> Result<(), Errno> {
    let mut buffer = [0_u8; IDS];
    let mut ids = Ids::default();
    loop {
        match retry_on_intr(|| read(file, &mut buffer))? {
            0 => return Ok(()),
            n => ids.feed(&buffer[..n], found),
        }
    }
}

/// Reads lines of numbers that arrive in pieces.
#[derive(Default)]
struct Ids {
    partial: Option<u32>,
}

impl Ids {
    fn feed(&mut self, piece: &[u8], found: &mut dyn FnMut(u32)) {
        for byte in piece {
            if byte.is_ascii_digit() {
                let digit = u32::from(byte - b'0');
                let id = self.partial.unwrap_or(0);
                self.partial = Some(id.saturating_mul(10).saturating_add(digit));
            } else if let Some(id) = self.partial.take() {
                found(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the text is cut, the same ids come out.
        #[test]
        fn pieces_do_not_matter(
            want in prop::collection::vec(0_u32..4_194_304, 0..50),
            cut in 1_usize..20,
        ) {
            let text: String = want.iter().map(|id| format!("{id}\n")).collect();
            let mut got = Vec::new();
            let mut ids = Ids::default();
            for piece in text.as_bytes().chunks(cut) {
                ids.feed(piece, &mut |id| got.push(id));
            }
            prop_assert_eq!(got, want);
        }
    }
}
