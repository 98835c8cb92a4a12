//! The wall clock of what is written down, and the kernel that figures are from.

use anyhow::{Context as _, Result};

/// What `uname -r` prints.
pub(crate) fn kernel_release() -> String {
    let names = nix::sys::utsname::uname();
    names.map_or_else(
        |_| "unknown".to_owned(),
        |names| names.release().to_string_lossy().into_owned(),
    )
}

/// An RFC 3339 time as nanoseconds since 1970.
pub(crate) fn wall_nanos(time: &str) -> Result<i128> {
    let time: jiff::Timestamp = time.parse().with_context(|| format!("time {time:?}"))?;
    Ok(time.as_nanosecond())
}
