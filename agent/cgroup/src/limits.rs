//! Reading and writing the settings of a cgroup, whose files and formats are in
//! [`podwarden_policy::settings::table`].
//!
//! Every value is read again after it was written: a value that the kernel took and does not hold
//! is an error ([`Error::NotKept`]), what it documents to round is rounded before it is compared.

mod memory;

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use podwarden_policy::{
    Bytes,
    limits::{CpuMax, Limit},
    settings::{
        Controller, Observed, Property, Row, Setting, Value, Version,
        table::{self, Format},
    },
};
use rustix::io::Errno;

use crate::{CgroupPath, Error, MemoryReader, Result, Tree, UsageReader, io};

pub use memory::Reclaims;

impl Tree {
    /// What a cgroup holds; a value that cannot be read is unknown. Whose the cgroup is, the caller
    /// notes.
    pub fn read(&self, cgroup: &CgroupPath) -> Observed {
        // What has no file is unknown: to list a directory of some sixty files takes longer.
        let huge = page_sizes().iter().copied().map(Property::HugetlbLimit);
        let mut observed = self.values(cgroup, Property::COMMON.into_iter().chain(huge));
        if let Ok(memory) = MemoryReader::open(self, cgroup) {
            let (usage, stat) = (memory.usage().ok(), memory.stat().ok());
            observed.memory_usage = usage.map(Bytes);
            observed.memory_working_set = usage
                .zip(stat)
                .map(|(usage, stat)| Bytes(stat.working_set(usage)));
        }
        observed
    }

    /// As [`Tree::read`], these values and the memory usage alone: without `memory.stat`, for which the kernel adds up
    /// the figures of every CPU.
    pub fn read_some(&self, cgroup: &CgroupPath, properties: &[Property]) -> Observed {
        let mut observed = self.values(cgroup, properties.iter().copied());
        let usage = UsageReader::open(self, cgroup).and_then(|memory| memory.usage());
        observed.memory_usage = usage.ok().map(Bytes);
        observed
    }

    fn values(&self, cgroup: &CgroupPath, properties: impl Iterator<Item = Property>) -> Observed {
        let mut observed = Observed::default();
        for property in properties {
            if let Ok(value) = self.value_of(cgroup, property.row(), property.page_size()) {
                observed.set(property, value);
            }
        }
        observed
    }

    /// Sets one value and reads it back.
    ///
    /// A memory limit below usage is dangerous: v1 reclaims and answers `EBUSY` when that is not
    /// enough, v2 takes the limit and kills processes in the cgroup until usage is below it. The caller
    /// keeps the limit above usage. Should usage outgrow it meanwhile, v2 from Linux 6.16 on leaves that
    /// to the cgroup's next charge, for the file is opened with `O_NONBLOCK` (`memory_max_write`,
    /// `mm/memcontrol.c`).
    ///
    /// # Errors
    /// [`Error::NotFound`], also for a size of huge pages that this kernel does not have;
    /// [`Error::NoController`]; [`Error::Unsupported`] for what this version has no file for; what the
    /// kernel refuses: `EINVAL` for a quota out of range, or on v1 above the parent's, and for a limit
    /// above `memory.memsw.limit_in_bytes`, `EBUSY` as said; [`Error::NotKept`].
    pub fn write(&self, cgroup: &CgroupPath, setting: &Setting) -> Result<()> {
        let property = setting.property();
        let row = property.row();
        let value = setting.value(self.version_of(row.controller));
        let size = property.page_size();
        self.put(cgroup, row, size, value)?;
        match property {
            Property::HugetlbLimit(_) => {
                match self.put(cgroup, &table::HUGETLB_RESERVED, size, value) {
                    Err(error) if error.is_gone() => Ok(()),
                    written => written,
                }
            }
            _ => Ok(()),
        }
    }

    /// What the files of a row hold. [`Error::Unsupported`] where this version has no such file.
    pub fn value(&self, cgroup: &CgroupPath, row: &Row) -> Result<Value> {
        self.value_of(cgroup, row, None)
    }

    /// The sizes of huge pages that can be limited.
    pub fn huge_page_sizes(&self, cgroup: &CgroupPath) -> Result<Vec<Bytes>> {
        let row = &table::HUGETLB_LIMIT;
        let [pattern, ..] = row.files(self.version_of(row.controller)) else {
            return Ok(Vec::new());
        };
        let names = io::names_in(&self.path(row.controller, cgroup)?)?;
        let sizes = names
            .iter()
            .filter_map(|name| table::size_in(pattern, name));
        Ok(sizes.collect())
    }

    pub(crate) fn version_of(&self, controller: Controller) -> Version {
        if self.hierarchies().is_on_v2(controller) {
            Version::V2
        } else {
            Version::V1
        }
    }

    fn value_of(&self, cgroup: &CgroupPath, row: &Row, size: Option<Bytes>) -> Result<Value> {
        let directory = self.path(row.controller, cgroup)?;
        read_files(&directory, row, size, self.version_for(row)?)
    }

    pub(crate) fn put(
        &self,
        cgroup: &CgroupPath,
        row: &Row,
        size: Option<Bytes>,
        value: Value,
    ) -> Result<()> {
        let directory = self.path(row.controller, cgroup)?;
        let version = self.version_for(row)?;
        let page = size.unwrap_or(Bytes(rustix::param::page_size() as u64));
        let wanted = value.rounded(page);
        // Without a quota there is no period: what is written does not depend on it.
        let written = match value {
            Value::CpuMax(_) => wanted,
            value => value,
        };
        if let (Value::CpuMax(max), Version::V1) = (written, version) {
            write_v1_quota(&directory, row, max)?;
        } else {
            for (name, text) in row.texts(version, size, written) {
                let file = directory.join(name);
                match row.format {
                    Format::Limit => io::write_text_nonblocking(&file, &text)?,
                    _ => io::write_text(&file, &text)?,
                }
            }
        }
        let found = read_files(&directory, row, size, version)?;
        let file = row.files(version).last().copied().unwrap_or_default();
        kept(directory.join(table::named(file, size)), wanted, found)
    }

    /// The version whose files a row has here.
    fn version_for(&self, row: &Row) -> Result<Version> {
        let version = self.version_of(row.controller);
        match row.files(version) {
            [] => Err(Error::Unsupported {
                what: row.name,
                reason: "the memory controller is on cgroup v1",
            }),
            _ => Ok(version),
        }
    }
}

/// The sizes of huge pages that this kernel has: they stay the same while it runs.
fn page_sizes() -> &'static [Bytes] {
    static SIZES: OnceLock<Vec<Bytes>> = OnceLock::new();
    SIZES.get_or_init(|| {
        let names = io::names_in(Path::new("/sys/kernel/mm/hugepages")).unwrap_or_default();
        let sizes = names.iter().filter_map(|name| table::size_of_pages(name));
        sizes.collect()
    })
}

fn read_files(directory: &Path, row: &Row, size: Option<Bytes>, version: Version) -> Result<Value> {
    let names = row.files(version).iter();
    let files: Vec<PathBuf> = names
        .map(|name| directory.join(table::named(name, size)))
        .collect();
    let texts = files.iter().map(|file| io::read_value(file));
    let texts = texts.collect::<Result<Vec<_>>>()?;
    let texts: Vec<_> = texts.iter().map(io::Small::as_bytes).collect();
    let expected = match row.format {
        Format::Share => "a number",
        Format::Quota => "a quota and a period",
        _ => "a limit or max",
    };
    row.parse(version, &texts).ok_or_else(|| {
        Error::malformed(files.into_iter().next_back().unwrap_or_default(), expected)
    })
}

fn write_v1_quota(directory: &Path, row: &Row, max: CpuMax) -> Result<()> {
    let [period_file, quota_file] = row.v1 else {
        return Ok(());
    };
    let texts: Vec<_> = row.texts(Version::V1, None, Value::CpuMax(max)).collect();
    let [(_, period), (_, quota)] = texts.as_slice() else {
        // No quota, and so no period.
        let text = texts.first().map_or("", |(_, text)| text);
        return io::write_text(&directory.join(quota_file), text);
    };
    let write_quota = || io::write_text(&directory.join(quota_file), quota);
    let write_period = || io::write_text(&directory.join(period_file), period);
    // A period that stays is not written: a watcher of the file would see a change, again and again
    // while the quota is refused.
    if io::read_text(&directory.join(period_file))?.trim_ascii() == period {
        return write_quota();
    }
    match write_period() {
        // The new period may be refused together with the old quota: then the quota goes first.
        Err(error) if error.errno() == Some(Errno::INVAL) => {
            write_quota()?;
            write_period()
        }
        Err(error) => Err(error),
        Ok(()) => write_quota(),
    }
}

/// Compares what is in a file with what was written to it.
fn kept(path: PathBuf, wanted: Value, found: Value) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::NotKept {
        path: path.into(),
        wanted: wanted.text(Version::V2),
        found: found.text(Version::V2),
    })
}

/// What lifts a limit, or sets one.
pub(crate) fn limit_text(limit: Limit<Bytes>, version: Version) -> String {
    Value::Limit(limit).text(version)
}
