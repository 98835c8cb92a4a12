//! Keeps the program's own pages in memory.
//!
//! `mlockall` with `MCL_ONFAULT` keeps what was touched. Code that runs for the first time when the node is full was
//! not, and would be read from a disk then, behind everything else that waits for it. Pages of a file that no process
//! maps are the first that the kernel drops.

use std::{ffi::c_void, fs::File, io, ops::Range, ptr::NonNull};

use nix::sys::mman::{MmapAdvise, madvise, mlock};
use object::{
    Endianness, ReadCache,
    elf::{FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE},
    read::elf::{FileHeader as _, SectionHeader as _},
};

/// The program, also where its file was replaced or removed.
const PROGRAM: &str = "/proc/self/exe";

/// What is read once, as the program is loaded, or by a panic alone.
const RARE: [&str; 4] = [
    ".rela.dyn",
    ".gcc_except_table",
    ".eh_frame_hdr",
    ".eh_frame",
];

/// Where the running program's sections are in memory.
#[derive(Debug)]
pub(super) struct Program {
    code_and_constants: Vec<Range<usize>>,
    rare: Vec<Range<usize>>,
}

impl Program {
    /// Reads the section headers, nothing else of the file. Call it before memory is locked: what it allocates would
    /// stay (madvise(2), `MADV_DONTNEED`).
    pub(super) fn find() -> io::Result<Self> {
        let cache = ReadCache::new(File::open(PROGRAM)?);
        let header = FileHeader64::<Endianness>::parse(&cache).map_err(io::Error::other)?;
        let endian = header.endian().map_err(io::Error::other)?;
        let sections = header.sections(endian, &cache);
        let sections = sections.map_err(io::Error::other)?;
        // SAFETY: reads a value that the kernel passed to the program.
        let entry = unsafe { libc::getauxval(libc::AT_ENTRY) };
        // The program is loaded somewhere else than its file says, all of it by the same distance.
        let moved = entry.wrapping_sub(header.e_entry.get(endian));
        let mut found = Self {
            code_and_constants: Vec::new(),
            rare: Vec::new(),
        };
        for section in sections.iter() {
            let flags = section.sh_flags(endian);
            let has = |flag: u32| flags & u64::from(flag) != 0;
            if !has(SHF_ALLOC) || section.sh_size(endian) == 0 {
                continue;
            }
            let name = sections.section_name(endian, section);
            let name = name.map_err(io::Error::other)?;
            let into = if has(SHF_EXECINSTR) || name.starts_with(b".rodata") {
                &mut found.code_and_constants
            } else if !has(SHF_WRITE) && RARE.iter().any(|rare| rare.as_bytes() == name) {
                &mut found.rare
            } else {
                continue;
            };
            let start = moved.wrapping_add(section.sh_addr(endian));
            let end = start.checked_add(section.sh_size(endian));
            let (Ok(start), Some(Ok(end))) = (usize::try_from(start), end.map(usize::try_from))
            else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            into.push(start..end);
        }
        Ok(found)
    }

    /// Reads in and locks the code and the constants. The kernel may refuse that (`RLIMIT_MEMLOCK` without
    /// CAP_IPC_LOCK).
    pub(super) fn lock(&self) -> io::Result<()> {
        for range in &self.code_and_constants {
            // SAFETY: the range is mapped for as long as the program runs, and locking it changes no content.
            unsafe { mlock(address(range.start)?, range.len()) }?;
        }
        Ok(())
    }

    /// Has the kernel forget what is rarely read; it is read in again where it is needed. Call it before memory is
    /// locked: locked pages cannot be given back.
    pub(super) fn give_back_tables(&self) -> io::Result<()> {
        for range in &self.rare {
            // Whole pages of it, so that nothing beside it is touched.
            let (start, end) = (range.start.next_multiple_of(PAGE), range.end & !(PAGE - 1));
            if start < end {
                let advice = MmapAdvise::MADV_DONTNEED;
                // SAFETY: the section is not writable, so that its pages are those of the file.
                unsafe { madvise(address(start)?, end - start, advice) }?;
            }
        }
        Ok(())
    }
}

/// At least a page, everywhere.
const PAGE: usize = 64 << 10;

fn address(at: usize) -> io::Result<NonNull<c_void>> {
    NonNull::new(at as *mut c_void).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_constants_are_found_where_they_are() {
        static CONSTANT: [u8; 64] = [7; 64];
        let parts = Program::find().unwrap().code_and_constants;
        let code = Program::find as fn() -> _ as usize;
        let of = |address| parts.iter().filter(move |part| part.contains(&address));
        assert_eq!(of(code).count(), 1, "{parts:x?}");
        assert_eq!(of(CONSTANT.as_ptr() as usize).count(), 1, "{parts:x?}");
        let local = 0_u8;
        assert_eq!(of(&raw const local as usize).count(), 0, "{parts:x?}");
    }

    #[test]
    fn a_panic_finds_its_tables_again() {
        Program::find().unwrap().give_back_tables().unwrap();
        assert!(std::panic::catch_unwind(|| panic!("as it is meant to")).is_err());
    }

    #[test]
    fn this_programs_code_is_in_memory_and_locked() {
        if let Err(error) = Program::find().unwrap().lock() {
            println!("skipped: memory cannot be locked ({error})");
            return;
        }
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::env::current_exe().unwrap().display().to_string();
        // Each mapping begins with its range and ends with its flags.
        let mappings = maps.split("\nVmFlags: ");
        let mut code = mappings
            .clone()
            .zip(mappings.skip(1))
            .filter(|(mapping, _)| mapping.contains(" r-xp ") && mapping.contains(&program));
        let (mapping, flags) = code.next().expect("the program has code");
        let figure = |name: &str| {
            let line = mapping.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(figure("Rss:"), figure("Size:"));
        let flags = flags.lines().next().unwrap();
        assert!(flags.split(' ').any(|flag| flag == "lo"), "{flags}");
    }
}
