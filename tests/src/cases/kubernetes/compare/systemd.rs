//! What systemd makes of a kubelet's and a runtime's values, where it is their cgroup driver.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::harness::Cgroup;
use crate::harness::values::{self, Values};
use crate::kubernetes::{Cluster, Driver};

/// systemd's own limit of tasks for a scope, which a container's is and no kubelet sets; `None` with the other driver.
pub(super) fn tasks_of_scopes(cluster: &Cluster) -> Result<Option<String>> {
    if cluster.driver() != Driver::Systemd {
        return Ok(None);
    }
    let mut command = Command::new("systemctl");
    command.args(["show", "--property=DefaultTasksMax", "--value"]);
    let output = command.output().context("start systemctl")?;
    ensure!(output.status.success(), "systemctl show: {}", output.status);
    let text = String::from_utf8(output.stdout).context("DefaultTasksMax is no text")?;
    Ok(Some(text.trim().to_owned()))
}

/// Puts the quota that the file holds in place of the one that is said, where it is what systemd makes of that; whether it
/// did. systemd keeps whole percents of a CPU, rounded up (`addCPUQuota` of opencontainers/cgroups `systemd/common.go`),
/// and writes its value before or after the one that told it.
pub(super) fn round_quota(cgroup: &Cgroup, said: &mut Values) -> Result<bool> {
    let Some(quota) = said.get_mut("cpu.max") else {
        return Ok(false);
    };
    let Some(rounded) = rounded(quota) else {
        return Ok(false);
    };
    let held = values::read(cgroup)?.remove("cpu.max");
    let is_rounded = held.as_ref() == Some(&rounded) && rounded != *quota;
    if is_rounded {
        *quota = rounded;
    }
    Ok(is_rounded)
}

/// A quota with its period, microseconds, as systemd keeps it.
fn rounded(quota: &str) -> Option<String> {
    const SECOND: u64 = 1_000_000;
    const PERCENT: u64 = SECOND / 100;
    let (quota, period) = quota.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    let a_second = (quota * SECOND / period).next_multiple_of(PERCENT);
    Some(format!("{} {period}", a_second * period / SECOND))
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn a_quota_is_whole_percents() {
        for (said, kept) in [
            ("6500 100000", Some("7000 100000")),
            ("7000 100000", Some("7000 100000")),
            ("33333 100000", Some("34000 100000")),
            ("650 10000", Some("700 10000")),
            ("max", None),
        ] {
            assert_eq!(rounded(said).as_deref(), kept, "{said}");
        }
    }
}
