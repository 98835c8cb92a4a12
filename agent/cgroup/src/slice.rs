//! Paths of slices. A slice's name repeats the names of all above it: `a-b.slice` is in `a.slice`
//! (systemd.slice(5)), so that the last component of a path says all of it.

use crate::{Error, Result};

const SUFFIX: &str = ".slice";
/// Longest unit name, the terminating NUL included (`UNIT_NAME_MAX`, systemd
/// `src/basic/unit-name.h`).
const NAME_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Its path below a mount point, without a slash at either end.
    pub(crate) path: String,
    pub(crate) unit: String,
    /// The unit of the slice that it is in; none at the top.
    pub(crate) parent: Option<String>,
}

/// True for the path of a slice and for the root: where systemd can make slices of its own.
/// Slashes at either end are ignored.
pub fn is_slice_path(path: &str) -> bool {
    chain(path.trim_matches('/')).is_ok()
}

/// The slice of that name in the slice `root`, or at the top below any other root: what is made there
/// is only found, and its names are those of another root.
pub(crate) fn child_of(root: &str, name: &str) -> String {
    let root = root.trim_matches('/');
    let above = chain(root).ok().and_then(|mut slices| slices.pop());
    match above.as_ref().and_then(|a| a.unit.strip_suffix(SUFFIX)) {
        Some(prefix) => format!("{prefix}-{name}{SUFFIX}"),
        None => format!("{name}{SUFFIX}"),
    }
}

/// The slices on the way to `path`, the outermost first; none for the root.
pub(crate) fn chain(path: &str) -> Result<Vec<Slice>> {
    let mut slices: Vec<Slice> = Vec::new();
    if path.is_empty() {
        return Ok(slices);
    }
    for unit in path.split('/') {
        let above = slices.last();
        check(unit, above).map_err(|reason| Error::InvalidName {
            name: path.to_owned(),
            reason,
        })?;
        slices.push(Slice {
            path: above.map_or_else(|| unit.to_owned(), |a| format!("{}/{unit}", a.path)),
            unit: unit.to_owned(),
            parent: above.map(|a| a.unit.clone()),
        });
    }
    Ok(slices)
}

fn check(unit: &str, above: Option<&Slice>) -> std::result::Result<(), &'static str> {
    let Some(name) = unit.strip_suffix(SUFFIX) else {
        return Err("a component does not end in .slice, as every cgroup of systemd's driver does");
    };
    let last = match above {
        None => Some(name),
        Some(above) => above
            .unit
            .strip_suffix(SUFFIX)
            .and_then(|prefix| name.strip_prefix(prefix)?.strip_prefix('-')),
    };
    match last {
        None => Err("a slice is in another one than its name says: a-b.slice is in a.slice"),
        Some("") => Err("a slice has no name of its own"),
        Some(last) if last.contains('-') => {
            Err("a slice is in another one than its name says: a-b.slice is in a.slice")
        }
        _ if unit.len() >= NAME_MAX => Err("a slice's name is longer than 255 bytes"),
        // VALID_CHARS of systemd src/basic/unit-name.c.
        Some(last) if !last.chars().all(is_valid) => {
            Err("a slice's name has other characters than letters, digits and :_.\\")
        }
        Some(_) => Ok(()),
    }
}

const fn is_valid(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, ':' | '_' | '.' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slices_on_the_way_to_a_pod() {
        let path = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";
        let slices = chain(path).unwrap();
        let units: Vec<_> = slices
            .iter()
            .map(|s| (s.unit.as_str(), s.parent.as_deref()))
            .collect();
        assert_eq!(
            units,
            [
                ("kubepods.slice", None),
                ("kubepods-burstable.slice", Some("kubepods.slice")),
                (
                    "kubepods-burstable-pod1_2.slice",
                    Some("kubepods-burstable.slice")
                ),
            ]
        );
        assert_eq!(slices[1].path, "kubepods.slice/kubepods-burstable.slice");
        assert_eq!(slices[2].path, path);
        assert_eq!(chain("").unwrap(), []);
    }

    #[test]
    fn what_is_no_slice_is_refused() {
        let long = format!("{}.slice", "x".repeat(250));
        for path in [
            "kubepods",
            "a.slice/b.slice",
            "a.slice/b-c.slice",
            "a-b.slice",
            "a.slice/a-b-c.slice",
            "a.slice/a-.slice",
            "a.slice/a--b.slice",
            ".slice",
            "-.slice",
            "a b.slice",
            "docker/a.slice",
            "a.slice//a-b.slice",
            &long,
        ] {
            assert!(chain(path).is_err(), "{path}");
            assert!(!is_slice_path(path), "{path}");
        }
    }

    #[test]
    fn a_slice_below_a_root() {
        for (root, want) in [
            ("", "kubepods.slice"),
            ("/kubelet.slice", "kubelet-kubepods.slice"),
            ("/a.slice/a-b.slice", "a-b-kubepods.slice"),
            ("docker/x", "kubepods.slice"),
        ] {
            assert_eq!(child_of(root, "kubepods"), want, "{root}");
        }
    }

    #[test]
    fn a_root_may_have_slashes_around_it() {
        for path in ["", "/", "/kubelet.slice", "/a.slice/a-b.slice/"] {
            assert!(is_slice_path(path), "{path}");
        }
        assert!(!is_slice_path("/podwarden-test"));
    }
}
