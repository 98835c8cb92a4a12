//! What is still to be told, in a directory that outlives the agent.
//!
//! One file for each entry, there whole or not at all; and the ids of those that are done with, so that an
//! eviction that is found on record later is known to have been told. An entry leaves in this order: its
//! id is written down, then its file goes. Whenever the agent ends, the next one finds it still to be
//! told, which is harmless, or done.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use indexmap::IndexSet;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{deliveries::DeliveryCounts, entry::Entry};
use crate::base::durable;

/// The directory below the state directory.
const NAME: &str = "eviction-status";

/// Its name in version 0.1.0.
const OLD_NAME: &str = "marks";

/// Entries that may wait: a quarter of an hour of evictions at the fastest.
pub(super) const MOST: usize = 1024;

/// The ids of those that are done with; what is on record goes back no further.
const DONE: &str = "done";

/// So many of them are remembered, and for the sake of a file that is rarely written anew up to twice as many.
const REMEMBERED: usize = 8192;

#[derive(Debug)]
pub(super) struct Queue {
    /// `None` where nothing is kept.
    dir: Option<PathBuf>,
    /// By their numbers, the oldest first.
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// Ids in the order in which they came.
    done: IndexSet<String>,
    /// Lines of their file, where an id may stand more than once.
    lines: usize,
}

/// A queue with many users.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    queue: Arc<Mutex<Queue>>,
    deliveries: Arc<DeliveryCounts>,
}

impl Shared {
    /// Those that wait are counted there from now on.
    pub(super) fn new(queue: Queue, deliveries: Arc<DeliveryCounts>) -> Self {
        deliveries.waits(queue.entries.len());
        Self {
            queue: Arc::new(Mutex::new(queue)),
            deliveries,
        }
    }

    /// Does something to it. That may wait for a disk: on a runtime's thread its other tasks go on elsewhere
    /// meanwhile, where there is another thread for them.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        let act = || {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let result = act(&mut queue);
            self.deliveries.waits(queue.entries.len());
            result
        };
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::CurrentThread) => act(),
            _ => tokio::task::block_in_place(act),
        }
    }

    /// Whether the status of this pod waits to be written.
    pub(super) fn is_unwritten(&self, uid: &str) -> bool {
        let own = self.with(|queue| queue.of(uid));
        own.iter().any(|(_, entry)| !entry.status_written)
    }
}

/// What became of a new entry.
#[derive(Debug)]
pub(super) enum Added {
    /// It waits, and outlives the agent, if nothing is kept by choice or all is well.
    Kept,
    /// It waits, and is lost when the agent ends.
    Forgetful(io::Error),
    /// It waits already, or is done with.
    Known,
    /// There are too many.
    Full,
}

impl Queue {
    /// What agents before this one have left below the state directory, with a sentence for whatever is
    /// wrong with it. Without a directory nothing is kept.
    pub(super) fn open(state_dir: Option<&Path>) -> (Self, Vec<String>) {
        let mut queue = Self {
            dir: state_dir.map(|dir| dir.join(NAME)),
            entries: BTreeMap::new(),
            next: 1,
            done: IndexSet::new(),
            lines: 0,
        };
        let mut problems = Vec::new();
        if let Some(dir) = queue.dir.clone()
            && let Err(error) = adopt(&dir).and_then(|()| queue.read(&dir, &mut problems))
        {
            problems.push(format!(
                "the eviction status that an agent before this one left in {} cannot be read ({error}): it is \
                 not delivered; let this agent read and write there",
                dir.display()
            ));
        }
        (queue, problems)
    }

    fn read(&mut self, dir: &Path, problems: &mut Vec<String>) -> io::Result<()> {
        let files = match fs::read_dir(dir) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let done = dir.join(DONE);
        match read_done(&done) {
            Ok(ids) => {
                self.lines = ids.len();
                self.done.extend(ids);
            }
            Err(error) => problems.push(format!(
                "{} cannot be read ({error}): evictions on record may be told again",
                done.display()
            )),
        }
        for file in files {
            let path = file?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name else { continue };
            let unfinished = name.strip_suffix(durable::UNFINISHED);
            if unfinished.is_some_and(|name| name == "done." || number(name, ".json.").is_some()) {
                // Of a write that the end of an agent cut short; where it cannot be removed it stays
                // without effect.
                let _ = fs::remove_file(&path);
                continue;
            }
            let Some(number) = number(name, ".json") else {
                continue;
            };
            self.next = self.next.max(number.saturating_add(1));
            if let Err(problem) = self.read_entry(number, &path) {
                problems.push(problem);
            }
        }
        Ok(())
    }

    fn read_entry(&mut self, number: u64, path: &Path) -> Result<(), String> {
        let text = fs::read(path);
        let text = text.map_err(|error| {
            format!(
                "the eviction status in {} cannot be read ({error}); it is not delivered",
                path.display()
            )
        })?;
        match Entry::parse(&text) {
            // Its end was written down, and not seen by its file.
            Ok(entry) if self.done.contains(&entry.id) => drop(fs::remove_file(path)),
            Ok(entry) => drop(self.entries.insert(number, entry)),
            Err(problem) => {
                let aside = path.with_extension("unreadable");
                let moved = match fs::rename(path, &aside) {
                    Ok(()) => format!("it is set aside as {}", aside.display()),
                    Err(error) => format!("it cannot be set aside ({error})"),
                };
                return Err(format!(
                    "the eviction status in {} is not understood ({problem}) and not delivered; {moved}",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// Where the entries are; `None` where nothing is kept.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// True for an entry that waits or is done with.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.done.contains(id) || self.entries.values().any(|entry| entry.id == id)
    }

    /// One more.
    pub(super) fn add(&mut self, entry: Entry) -> Added {
        if self.knows(&entry.id) {
            return Added::Known;
        }
        if self.entries.len() >= MOST {
            return Added::Full;
        }
        let number = self.next;
        self.next += 1;
        let written = self.write(number, &entry);
        self.entries.insert(number, entry);
        match written {
            Ok(()) => Added::Kept,
            Err(error) => Added::Forgetful(error),
        }
    }

    /// An entry has changed: some of it is done. Where that cannot be written, what it was stays on disk; in memory it
    /// is changed.
    pub(super) fn update(&mut self, number: u64, entry: Entry) -> io::Result<()> {
        let written = self.write(number, &entry);
        self.entries.insert(number, entry);
        written
    }

    /// The status of an entry has to be written once more; it may wait for something else, or be done with.
    pub(super) fn again(&mut self, mut entry: Entry) -> io::Result<()> {
        let mut waiting = self.entries.iter();
        let waits = waiting.find(|(_, known)| known.id == entry.id);
        let number = waits.map_or(self.next, |(number, _)| *number);
        self.next = self.next.max(number + 1);
        entry.status_written = false;
        entry.written_over = true;
        // Should the agent end now, the next one takes its file for one that is done with: it was.
        self.update(number, entry)
    }

    fn write(&self, number: u64, entry: &Entry) -> io::Result<()> {
        match self.path(number) {
            Some(path) => durable::replace(&path, &entry.text()),
            None => Ok(()),
        }
    }

    fn path(&self, number: u64) -> Option<PathBuf> {
        let dir = self.dir.as_ref()?;
        Some(dir.join(format!("{number:016}.json")))
    }

    /// An entry is done with. Where that cannot be written down, the next agent tries it again.
    pub(super) fn done(&mut self, number: u64) -> io::Result<()> {
        let Some(entry) = self.entries.remove(&number) else {
            return Ok(());
        };
        self.done.insert(entry.id.clone());
        self.lines += 1;
        let forgets = self.lines >= 2 * REMEMBERED;
        if forgets {
            let old = self.done.len().saturating_sub(REMEMBERED);
            self.done.drain(..old);
            self.lines = self.done.len();
        }
        let Some(path) = self.path(number) else {
            return Ok(());
        };
        let done = path.with_file_name(DONE);
        if forgets {
            let lines: String = self.done.iter().map(|id| format!("{id}\n")).collect();
            durable::replace(&done, lines.as_bytes())?;
        } else {
            let mut file = OpenOptions::new().create(true).append(true).open(&done)?;
            file.write_all(format!("{}\n", entry.id).as_bytes())?;
            file.sync_all()?;
        }
        durable::remove(&path)
    }

    /// The entries of one key, the oldest first.
    pub(super) fn of(&self, key: &str) -> Vec<(u64, Entry)> {
        let own = self.entries.iter().filter(|(_, entry)| entry.key() == key);
        own.map(|(number, entry)| (*number, entry.clone()))
            .collect()
    }

    /// All entries, the oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }
}

/// Gives the directory of version 0.1.0 the present name; its entries have the same form.
fn adopt(dir: &Path) -> io::Result<()> {
    match fs::rename(dir.with_file_name(OLD_NAME), dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The number in an entry's file name.
fn number(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_suffix(ending)?;
    let whole = digits.len() == 16 && digits.bytes().all(|c| c.is_ascii_digit());
    whole.then(|| digits.parse().ok())?
}

/// A last line that is not whole is of a write that was cut short: it is cut off, for the next to begin a
/// line of its own.
fn read_done(path: &Path) -> io::Result<Vec<String>> {
    let Some(text) = durable::read(path)? else {
        return Ok(Vec::new());
    };
    let whole = text
        .iter()
        .rposition(|c| *c == b'\n')
        .map_or(0, |end| end + 1);
    if whole < text.len() {
        let file = File::options().write(true).open(path)?;
        file.set_len(whole as u64)?;
        file.sync_all()?;
    }
    // What is no id, as of a bad disk, is none of ours.
    let text = String::from_utf8_lossy(&text[..whole]);
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
