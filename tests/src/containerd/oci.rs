//! Which weight runc gives a container on cgroup v2.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The first version with the logarithmic curve (`ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups `utils.go`).
const LOGARITHMIC: [u32; 3] = [1, 3, 2];

/// Whether the one that is installed takes shares to a weight by the linear curve.
pub(crate) fn weighs_linearly() -> Result<bool> {
    let output = Command::new("runc").arg("--version").output();
    let output = output.context("start runc")?;
    ensure!(output.status.success(), "runc --version: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(version(&text).with_context(|| format!("no version in {text:?}"))? < LOGARITHMIC)
}

/// `ConvertCPUSharesToCgroupV2Value` of runc 1.1.
pub(crate) fn linear_weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// Of `runc version 1.1.5+ds1` and more.
fn version(text: &str) -> Option<[u32; 3]> {
    let rest = text.strip_prefix("runc version ")?;
    let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit());
    let numbers = rest[..end.unwrap_or(rest.len())].split('.');
    let numbers: Vec<_> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_numbers() {
        for (text, wanted, linear) in [
            ("runc version 1.1.5+ds1\ncommit: 1\n", [1, 1, 5], true),
            ("runc version 1.3.2\n", [1, 3, 2], false),
            ("runc version 1.10.0-rc.1\n", [1, 10, 0], false),
        ] {
            let found = version(text).unwrap();
            assert_eq!(found, wanted, "{text}");
            assert_eq!(found < LOGARITHMIC, linear, "{text}");
        }
        assert_eq!(version("crun version 1.8"), None);
    }

    #[test]
    fn one_cpu_weighs_39_by_the_linear_curve() {
        assert_eq!([2, 1024, 262_144].map(linear_weight), [1, 39, 10_000]);
    }
}
