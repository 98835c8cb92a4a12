//! The test machines there are to choose from: a kernel and what runs as its first process.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::kernels::Kernel;
use crate::paths::Workspace;
use crate::{debian, initramfs};

/// What runs as PID 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The cases themselves, in a file system that has little else.
    Cases,
    /// systemd, in a Debian; the cases are a unit.
    Systemd,
}

/// A test machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guest {
    /// What `--kernels` calls it.
    pub(crate) name: &'static str,
    /// The kernel's series.
    series: &'static str,
    /// Its first process.
    pub(crate) first: First,
}

/// Every one.
pub(crate) const GUESTS: &[Guest] = &[
    Guest::plain("6.1"),
    Guest::plain("6.12"),
    Guest::plain("7.2"),
    Guest {
        name: "6.12-systemd",
        series: "6.12",
        first: First::Systemd,
    },
];

/// What the cases that concern the systemd driver have in their names.
const ABOUT_SYSTEMD: &str = "systemd";

/// The kernel on which every case runs: the newest, whose verifier takes the least time to look at programs.
const THOROUGH: &str = "7.2";

impl Guest {
    const fn plain(series: &'static str) -> Self {
        Self {
            name: series,
            series,
            first: First::Cases,
        }
    }

    /// The machine of that name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        GUESTS.iter().copied().find(|guest| guest.name == name)
    }

    /// The arguments of the cases here: with systemd only those that it makes a difference to; what
    /// takes the same way on every kernel in one machine, unless it is asked for by name.
    pub(crate) fn arguments(self, all: &[String]) -> Vec<String> {
        let mut arguments = all.to_vec();
        if self.first == First::Systemd {
            arguments.extend(["--filter".to_owned(), ABOUT_SYSTEMD.to_owned()]);
        } else if self.series != THOROUGH && !arguments.iter().any(|a| a == "--filter") {
            arguments.push("--without-portable".to_owned());
        }
        arguments
    }

    /// What the kernel's command line says besides what it says everywhere.
    pub(crate) fn kernel_arguments(self) -> String {
        match self.first {
            First::Cases => String::new(),
            First::Systemd => debian::kernel_arguments(),
        }
    }

    /// The bootable kernel; fetched when this is the first time.
    pub(crate) fn kernel(self, workspace: &Workspace) -> Result<PathBuf> {
        Kernel::of(self.series)
            .with_context(|| format!("there is no kernel {}", self.series))?
            .fetch(workspace)
    }

    /// Fetches all of it that does not take a build of this project.
    pub(crate) fn fetch(self, workspace: &Workspace) -> Result<()> {
        self.kernel(workspace)?;
        match self.first {
            First::Cases => Ok(()),
            First::Systemd => debian::base(workspace, &debian::SYSTEMD).map(drop),
        }
    }

    /// The file system that it boots into, with the release binaries.
    pub(crate) fn initramfs(self, workspace: &Workspace) -> Result<PathBuf> {
        match self.first {
            First::Cases => initramfs::pack(workspace),
            First::Systemd => debian::pack(workspace, &debian::SYSTEMD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_kernel_and_a_name_of_its_own() {
        for guest in GUESTS {
            assert!(Kernel::of(guest.series).is_some(), "{}", guest.name);
            assert_eq!(Guest::of(guest.name), Some(*guest));
        }
    }

    #[test]
    fn with_systemd_a_filter_only_narrows() {
        let filter = ["--filter".to_owned(), "churn".to_owned()];
        let with = Guest::of("6.12-systemd").map(|guest| guest.arguments(&filter));
        let expected = ["--filter", "churn", "--filter", "systemd"].map(str::to_owned);
        assert_eq!(with.as_deref(), Some(&expected[..]));
        let without = Guest::of("6.12").map(|guest| guest.arguments(&filter));
        assert_eq!(without.as_deref(), Some(&filter[..]));
    }
}
