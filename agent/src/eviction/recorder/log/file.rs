//! One append-only file of bounded size, with the generation before it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::rotated;

/// Writes lines to a file. Never leaves half a line: what could not be written whole is taken back.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// Bytes that one generation may have.
    generation: u64,
    /// The first line of every generation; with its newline.
    head: Vec<u8>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    len: u64,
}

impl LogFile {
    /// A log at `path` whose two generations together have at most `max` bytes. Opens nothing yet.
    pub fn new(path: PathBuf, max: u64) -> Self {
        Self {
            path,
            generation: max / 2,
            head: Vec::new(),
            open: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the generation that is written to; 0 while it is not open.
    pub fn size(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.len)
    }

    /// Replaces the line that every generation begins with, and writes it. After an error generations begin with it
    /// from now on all the same.
    pub fn set_head(&mut self, line: &[u8]) -> io::Result<()> {
        self.head = with_newline(line);
        self.append(line)
    }

    /// Appends one line, without a newline in it, and waits until the disk has it. After an error nothing of the line
    /// is in the file, which is opened anew with the next line. `FileTooLarge` for a line that would not fit in a
    /// generation of its own.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let line = with_newline(line);
        let size = line.len() as u64;
        if size + self.head.len() as u64 > self.generation {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let done = self.try_append(&line, size);
        if done.is_err() {
            self.open = None;
        }
        done
    }

    fn try_append(&mut self, line: &[u8], size: u64) -> io::Result<()> {
        if self.open.is_none() {
            self.open = Some(self.reopen()?);
        }
        if self.size() + size > self.generation {
            self.open = None;
            fs::rename(&self.path, rotated(&self.path))?;
            self.open = Some(self.reopen()?);
        }
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        if open.len == 0 && line != self.head {
            open.append(&self.head)?;
        }
        open.append(line)
    }

    /// Opens or makes the file, cuts off what a crash left of a last line.
    fn reopen(&self) -> io::Result<Open> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another process writes to it"),
            TryLockError::Error(error) => error,
        })?;
        let mut open = Open { file, len: 0 };
        open.len = open.whole_lines()?;
        open.file.set_len(open.len)?;
        if open.len == 0
            && let Some(directory) = self.path.parent()
        {
            // Its name is to survive a crash, too.
            File::open(directory)?.sync_all()?;
        }
        Ok(open)
    }
}

impl Open {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self
            .file
            .write_all(line)
            .and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.len += line.len() as u64,
            // Half a line is worse than none. Where even that fails the next opening cuts it off.
            Err(_) => self.file.set_len(self.len).unwrap_or_default(),
        }
        written
    }

    /// Where the last whole line ends.
    fn whole_lines(&mut self) -> io::Result<u64> {
        const STEP: u64 = 4096;
        let mut end = self.file.seek(SeekFrom::End(0))?;
        let mut chunk = Vec::new();
        while end > 0 {
            let start = end.saturating_sub(STEP);
            self.file.seek(SeekFrom::Start(start))?;
            chunk.clear();
            (&self.file).take(end - start).read_to_end(&mut chunk)?;
            if let Some(at) = chunk.iter().rposition(|b| *b == b'\n') {
                return Ok(start + at as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }
}

fn with_newline(line: &[u8]) -> Vec<u8> {
    [line, b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Both generations, the older first.
    fn both(path: &Path) -> String {
        text(&rotated(path)) + &text(path)
    }

    #[test]
    fn a_torn_last_line_is_cut_off_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/events.jsonl");
        fs::create_dir(dir.path().join("sub")).unwrap();
        for (before, after) in [
            ("", "new\n"),
            ("torn", "new\n"),
            ("a\nb\n", "a\nb\nnew\n"),
            ("a\ntorn", "a\nnew\n"),
        ] {
            fs::write(&path, before).unwrap();
            LogFile::new(path.clone(), 1 << 20).append(b"new").unwrap();
            assert_eq!(text(&path), after);
        }
        // Longer than one step back through the file.
        fs::write(&path, format!("a\n{}", "x".repeat(10_000))).unwrap();
        LogFile::new(path.clone(), 1 << 20).append(b"new").unwrap();
        assert_eq!(text(&path), "a\nnew\n");
    }

    #[test]
    fn a_directory_that_is_missing_is_made_and_the_file_is_roots_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/events.jsonl");
        let mut log = LogFile::new(path.clone(), 1 << 20);
        log.append(b"x").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn two_writers_never_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut first = LogFile::new(path.clone(), 1 << 20);
        first.append(b"x").unwrap();
        let error = LogFile::new(path.clone(), 1 << 20).append(b"y");
        assert!(error.unwrap_err().to_string().contains("another process"));
        drop(first);
        LogFile::new(path.clone(), 1 << 20).append(b"y").unwrap();
        assert_eq!(text(&path), "x\ny\n");
    }

    #[test]
    fn a_line_that_can_never_fit_is_refused_and_others_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut log = LogFile::new(path.clone(), 40);
        let error = log.append(&[b'x'; 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        log.append(&[b'x'; 19]).unwrap();
        assert_eq!(log.size(), 20);
    }

    proptest! {
        // Every line is synced: few cases, and small ones.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_there_is_whole_bounded_and_the_latest(
            sizes in proptest::collection::vec(1usize..200, 1..40),
            reopen_every in 1usize..40,
        ) {
            const MAX: u64 = 1024;
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("events.jsonl");
            let mut log = LogFile::new(path.clone(), MAX);
            log.set_head(b"head").unwrap();
            let mut written = Vec::new();
            for (number, size) in sizes.into_iter().enumerate() {
                let line = format!("{number}:{}", "x".repeat(size));
                if number % reopen_every == reopen_every - 1 {
                    drop(log);
                    log = LogFile::new(path.clone(), MAX);
                    log.set_head(b"head").unwrap();
                }
                log.append(line.as_bytes()).unwrap();
                written.push(line);
                let held = both(&path);
                prop_assert!(held.len() as u64 <= MAX);
                prop_assert!(held.ends_with('\n'));
                prop_assert!(text(&path).starts_with("head\n"));
                let held: Vec<_> = held.lines().filter(|l| *l != "head").collect();
                prop_assert!(written.ends_with(&held.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>()));
                // Never less than what fits in one generation.
                let bytes: usize = held.iter().map(|l| l.len() + 1).sum();
                prop_assert!(held.len() == written.len() || bytes as u64 + 450 > MAX / 2, "{bytes} bytes are left");
            }
        }
    }
}
