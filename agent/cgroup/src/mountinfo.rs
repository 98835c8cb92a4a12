//! The lines of `/proc/PID/mountinfo` that are about cgroups (proc(5)).

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use crate::Controller;

/// One cgroup mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    /// Which directory of the hierarchy is at the mount point, as seen from our cgroup namespace.
    root: &'a str,
    point: PathBuf,
    writable: bool,
    fs_type: &'a str,
    super_options: &'a str,
}

/// Reads one line; `None` for a mount that is not a cgroup hierarchy.
///
/// `36 35 98:0 /root /point options [optional fields...] - type source super_options`
pub(crate) fn parse_line(line: &str) -> Option<Mount<'_>> {
    // The separator cannot be part of a field: spaces inside fields are escaped.
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point, options) = (left.next()?, left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (fs_type, super_options) = (right.next()?, right.nth(1)?);
    matches!(fs_type, "cgroup" | "cgroup2").then(|| Mount {
        root,
        point: unescape(point),
        writable: !has_option(options, "ro") && !has_option(super_options, "ro"),
        fs_type,
        super_options,
    })
}

impl Mount<'_> {
    pub(crate) fn is_v2(&self) -> bool {
        self.fs_type == "cgroup2"
    }

    /// The same for every mount of one hierarchy, and for no other.
    pub(crate) fn hierarchy(&self) -> (bool, &str) {
        let options = if self.is_v2() { "" } else { self.super_options };
        (self.is_v2(), options)
    }

    /// The controllers of a v1 mount; v2 lists its own in `cgroup.controllers`.
    pub(crate) fn v1_controllers(&self) -> impl Iterator<Item = Controller> {
        let options = if self.is_v2() { "" } else { self.super_options };
        options.split(',').filter_map(Controller::from_name)
    }

    /// How much of the hierarchy the mount shows; more is greater.
    ///
    /// From inside a cgroup namespace its own root is `/`, what is above it `/..`, `/../..`, and
    /// so on (cgroup_namespaces(7)); a path with a name in it is a part further down.
    fn reach(&self) -> i64 {
        self.root
            .split('/')
            .filter(|component| !component.is_empty())
            .map(|component| if component == ".." { 1 } else { -1_i64 })
            .sum()
    }
}

/// The best mount of one hierarchy seen so far.
#[derive(Debug, Default)]
pub(crate) struct Best(Option<((i64, bool), PathBuf)>);

impl Best {
    pub(crate) fn offer(&mut self, mount: &Mount<'_>) {
        let rank = (mount.reach(), mount.writable);
        if self.0.as_ref().is_none_or(|(best, _)| rank > *best) {
            self.0 = Some((rank, mount.point.clone()));
        }
    }

    pub(crate) fn into_path(self) -> Option<PathBuf> {
        self.0.map(|(_, path)| path)
    }
}

fn has_option(options: &str, option: &str) -> bool {
    options.split(',').any(|o| o == option)
}

/// Undoes the kernel's escapes: space, tab, newline and backslash are `\` and three octal digits.
fn unescape(field: &str) -> PathBuf {
    if !field.contains('\\') {
        return Path::new(field).to_owned();
    }
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let octal = (byte == b'\\')
            .then(|| bytes.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(octal.unwrap_or(byte));
        at += if octal.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        for (field, want) in [
            ("/sys/fs/cgroup", "/sys/fs/cgroup"),
            (r"/a\040b\134c", r"/a b\c"),
            (r"/a\04", r"/a\04"),
            (r"/a\999", r"/a\999"),
        ] {
            assert_eq!(unescape(field), Path::new(want), "{field}");
        }
    }

    #[test]
    fn other_mounts_and_broken_lines_are_passed_over() {
        for line in [
            "",
            "25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw",
            "25 30 0:23 / /cgroup rw,nosuid",
            "25 30 - cgroup2",
            "25 30 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
