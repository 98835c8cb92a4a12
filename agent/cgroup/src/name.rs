//! What may be the name of a cgroup: a relative path that cannot leave the root.

use crate::{Error, Result};

/// Longest file name the kernel takes, in bytes (`NAME_MAX`, `linux/limits.h`).
const NAME_MAX: usize = 255;

/// Checks a cgroup below the root; the empty name is the root itself.
pub(crate) fn check_relative(name: &str) -> Result<()> {
    let fail = |reason| {
        Err(Error::InvalidName {
            name: name.to_owned(),
            reason,
        })
    };
    if name.is_empty() {
        return Ok(());
    }
    for component in name.split('/') {
        match component {
            "" => return fail("it has an empty component"),
            "." | ".." => return fail("it has a . or .. component"),
            c if c.len() > NAME_MAX => return fail("a component is longer than 255 bytes"),
            // cgroup_mkdir refuses a newline: it would break /proc/PID/cgroup.
            c if c.contains(['\0', '\n']) => return fail("it contains a NUL or a newline"),
            _ => {}
        }
    }
    Ok(())
}

/// Normalises a cgroup root, which is often written with slashes around it.
pub(crate) fn root(name: &str) -> Result<String> {
    let trimmed = name.trim_matches('/');
    check_relative(trimmed)?;
    Ok(trimmed.to_owned())
}

/// A cgroup root as the name of a file, different for different roots; slashes around it do not count.
pub fn root_as_file_name(root: &str) -> String {
    let root = root.trim_matches('/');
    root.replace('%', "%25").replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_of_roots_differ() {
        assert_eq!(root_as_file_name("/a/b/"), "a%2Fb");
        assert_ne!(root_as_file_name("a%2Fb"), root_as_file_name("a/b"));
        assert_eq!(root_as_file_name("/"), "");
    }

    #[test]
    fn names_that_leave_the_root_are_refused() {
        for good in [
            "",
            "kubepods",
            "kubepods/besteffort/pod1",
            "a.slice/b:c",
            "..x",
        ] {
            assert!(check_relative(good).is_ok(), "{good:?}");
        }
        let long = "x".repeat(256);
        for bad in [
            "/", "/a", "a/", "a//b", "..", "a/../b", "a/.", "a\nb", "a\0", &long,
        ] {
            assert!(check_relative(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn roots_are_normalised() {
        assert_eq!(root("/").unwrap(), "");
        assert_eq!(root("").unwrap(), "");
        assert_eq!(root("/a/b/").unwrap(), "a/b");
        assert!(root("/a/../..").is_err());
    }
}
