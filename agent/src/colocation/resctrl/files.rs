//! The files of a `resctrl` mount, and their lines.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// What the kernel answers. Paths are relative to the mount.
pub(crate) trait Files: Send {
    /// A whole file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// One `write`, which the kernel takes whole or refuses.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    fn make(&self, group: &str) -> io::Result<()>;
    /// Removes a group; its tasks go back to the root group.
    fn remove(&self, group: &str) -> io::Result<()>;
    /// The names of what is in the root group.
    fn names(&self) -> io::Result<Vec<String>>;
}

/// A directory where it is mounted.
#[derive(Debug, Clone)]
pub(crate) struct Mount(pub(crate) PathBuf);

impl Mount {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Files for Mount {
    fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.path(path))
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut file = fs::File::options().write(true).open(self.path(path))?;
        file.write_all(text.as_bytes())
    }

    fn make(&self, group: &str) -> io::Result<()> {
        fs::create_dir(self.path(group))
    }

    fn remove(&self, group: &str) -> io::Result<()> {
        fs::remove_dir(self.path(group))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }
}

/// A line of `schemata`: `L3:0=ff;1=ff`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// `L3`, `L3CODE`, `L3DATA`, `L2`, `MB` and others.
    pub(super) resource: String,
    /// The id of each cache, and its value as written.
    pub(super) domains: Vec<(u32, String)>,
}

impl Line {
    /// The lines of a file; what is no such line is left out.
    pub(super) fn all(text: &str) -> Vec<Self> {
        text.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let (resource, domains) = line.trim().split_once(':')?;
        let domain = |text: &str| {
            let (id, value) = text.split_once('=')?;
            Some((id.trim().parse().ok()?, value.trim().to_owned()))
        };
        let domains: Option<Vec<_>> = domains.split(';').map(domain).collect();
        Some(Self {
            resource: resource.trim().to_owned(),
            domains: domains?,
        })
    }

    /// As it is written.
    pub(super) fn text(&self) -> String {
        let domains = self.domains.iter();
        let domains: Vec<_> = domains.map(|(id, value)| format!("{id}={value}")).collect();
        format!("{}:{}\n", self.resource, domains.join(";"))
    }

    /// True for a cache, whose values are masks in hexadecimal.
    pub(super) fn is_cache(&self) -> bool {
        self.resource.starts_with("L3")
    }

    /// Whether both stand for the same: the kernel pads masks with zeros and percentages with spaces.
    pub(super) fn means(&self, other: &Self) -> bool {
        let radix = if self.is_cache() { 16 } else { 10 };
        let value = |text: &str| u64::from_str_radix(text, radix).ok();
        self.resource == other.resource
            && self.domains.len() == other.domains.len()
            && self.domains.iter().all(|(id, wanted)| {
                other.domains.iter().any(|(other, found)| {
                    id == other && value(wanted).is_some() && value(wanted) == value(found)
                })
            })
    }
}

/// Where the kernel mounts it, if it is mounted there.
pub(super) fn mounted(dir: &Path) -> bool {
    dir.join("schemata").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_compared_by_their_values() {
        let lines = Line::all("    MB:0= 90;1=100\n    L3:0=00ff;1=0fff\nodd\n");
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].text(), "MB:0=90;1=100\n");
        assert_eq!(lines[1].text(), "L3:0=00ff;1=0fff\n");
        let means = |text: &str| Line::all(text)[0].means(&lines[1]);
        assert!(means("L3:1=fff;0=ff"));
        assert!(!means("L3:0=ff;1=ff"));
        assert!(!means("L3:0=ff"));
        assert!(!means("L2:0=ff;1=fff"));
    }
}
