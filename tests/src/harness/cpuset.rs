//! Which CPUs a cgroup has.

use std::fs;

use anyhow::{Context as _, Result};
use podwarden_policy::settings::Controller;

use super::Cgroup;

impl Cgroup {
    /// The CPUs that were written to it.
    pub(crate) fn cpus(&self) -> Result<String> {
        self.cpuset("cpuset.cpus")
    }

    /// The CPUs that its tasks may run on.
    pub(crate) fn effective_cpus(&self) -> Result<String> {
        self.cpuset(match self.mounts().is_on_v2(Controller::CpuSet) {
            true => "cpuset.cpus.effective",
            false => "cpuset.effective_cpus",
        })
    }

    fn cpuset(&self, name: &str) -> Result<String> {
        let mount = self
            .mounts()
            .of(Controller::CpuSet)
            .context("no cpuset controller")?;
        let file = mount.join(self.path()).join(name);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.trim().to_owned())
    }
}
