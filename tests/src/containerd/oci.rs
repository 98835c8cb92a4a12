//! What the OCI runtimes that are installed make of a container's values, by their versions.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The first runc with the logarithmic curve (`ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups `utils.go`).
const LOGARITHMIC: [u32; 3] = [1, 3, 2];
/// The first crun that tells systemd of a container's CPU and memory limits (its commits 6494b69b and 8b446994). Before,
/// it writes them to the files alone, where systemd takes them back.
const LIMITS_TOLD: [u32; 3] = [1, 11, 0];

/// Whether runc takes shares to a weight by the linear curve; the crun of the same Debian does the same.
pub(crate) fn weighs_linearly() -> Result<bool> {
    Ok(installed("runc")? < LOGARITHMIC)
}

/// Whether a container's limits stay by crun where systemd is the cgroup driver.
pub(crate) fn crun_limits_stay() -> Result<bool> {
    Ok(installed("crun")? >= LIMITS_TOLD)
}

/// `ConvertCPUSharesToCgroupV2Value` of runc 1.1.
pub(crate) fn linear_weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

fn installed(runtime: &str) -> Result<[u32; 3]> {
    let output = Command::new(runtime).arg("--version").output();
    let output = output.with_context(|| format!("start {runtime}"))?;
    ensure!(
        output.status.success(),
        "{runtime} --version: {}",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    version(&text, runtime).with_context(|| format!("no version of {runtime} in {text:?}"))
}

/// Of `runc version 1.1.5+ds1` or `crun version 1.21`, and more.
fn version(text: &str, runtime: &str) -> Option<[u32; 3]> {
    let rest = text.strip_prefix(runtime)?.strip_prefix(" version ")?;
    let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit());
    let mut numbers = rest[..end.unwrap_or(rest.len())].split('.');
    let [major, minor] = [numbers.next()?, numbers.next()?];
    let patch = numbers.next().unwrap_or("0");
    Some([
        major.parse().ok()?,
        minor.parse().ok()?,
        patch.parse().ok()?,
    ])
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
            let found = version(text, "runc").unwrap();
            assert_eq!(found, wanted, "{text}");
            assert_eq!(found < LOGARITHMIC, linear, "{text}");
        }
        for (text, stay) in [
            ("crun version 1.8.1\ncommit: 1\n", false),
            ("crun version 1.21\n", true),
        ] {
            let found = version(text, "crun").unwrap();
            assert_eq!(found >= LIMITS_TOLD, stay, "{text}");
        }
        assert_eq!(version("crun version 1.8", "runc"), None);
    }

    #[test]
    fn one_cpu_weighs_39_by_the_linear_curve() {
        assert_eq!([2, 1024, 262_144].map(linear_weight), [1, 39, 10_000]);
    }
}
