//! The test machines: a kernel and its first process.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use xtask::cases::Share;
use xtask::paths::Workspace;

use super::debian::{self, Debian};
use super::initramfs;
use super::kernels::Kernel;
use super::message::Selection;
use super::vm::Clock;

/// What is enough for the cases, MiB.
pub(super) const MEMORY: u32 = 2048;

/// What runs as PID 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// The cases themselves, in a file system that has little else.
    Cases,
    /// systemd, in this Debian; the cases are a unit.
    Systemd(&'static Debian),
}

/// A test machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guest {
    /// What `--kernels` calls it.
    pub(super) name: &'static str,
    /// The kernel's series.
    series: &'static str,
    /// Its first process.
    pub(super) first: First,
    /// What the cases have in their names that it is for; all cases without.
    about: Option<&'static str>,
    /// CPUs that it could have, beside those that it has: what a program keeps for each CPU is kept for these as well.
    possible_cpus: Option<u32>,
    /// What its time is, and whether its CPUs work at the same time.
    pub(super) clock: Clock,
    /// Huge pages of 2 MiB that are set aside for pods.
    huge_pages: u32,
    /// Its memory, MiB.
    pub(super) memory: u32,
}

/// Every one.
pub(super) const GUESTS: [Guest; 7] = [
    Guest::plain("6.1"),
    // One machine whose CPUs do work at the same time, with every program that there is.
    Guest {
        clock: Clock::Host,
        ..Guest::plain("6.12")
    },
    Guest::plain("7.2"),
    Guest {
        name: "6.12-systemd",
        first: First::Systemd(&debian::SYSTEMD),
        about: Some("systemd"),
        ..Guest::plain("6.12")
    },
    Guest {
        name: "6.1-256cpus",
        about: Some("accounts_memory"),
        possible_cpus: Some(256),
        // Later kernels have as many as the firmware tells of.
        ..Guest::plain("6.1")
    },
    Guest::kubernetes("6.12-kubernetes", &debian::KUBERNETES),
    Guest::kubernetes("6.12-kubernetes-13", &debian::KUBERNETES_13),
];

impl Guest {
    const fn plain(series: &'static str) -> Self {
        Self {
            name: series,
            series,
            first: First::Cases,
            about: None,
            possible_cpus: None,
            clock: Clock::HostInTurn,
            huge_pages: 0,
            memory: MEMORY,
        }
    }

    const fn kubernetes(name: &'static str, debian: &'static Debian) -> Self {
        Self {
            name,
            first: First::Systemd(debian),
            about: Some("kubernetes_plan_v2"),
            clock: Clock::Host,
            // Its file system, the control plane, and 40 pods with a copy of their image for each container.
            memory: 8192,
            // More than 40 pods ask for.
            huge_pages: 256,
            ..Self::plain("6.12")
        }
    }

    /// The machine of that name.
    pub(super) fn of(name: &str) -> Result<Self> {
        let mut guests = GUESTS.into_iter();
        guests
            .find(|guest| guest.name == name)
            .with_context(|| format!("there is no machine {name}"))
    }

    /// Whether it is for all cases.
    pub(super) const fn is_for_all(&self) -> bool {
        self.about.is_none()
    }

    /// The cases that run here beside the machines `requested`: only those that the machine is for, where it is for
    /// some; what takes the same way on every kernel in one of them, unless a filter names it or it is to run
    /// `everywhere`.
    pub(super) fn selection(
        self,
        mut all: Selection,
        requested: &[&str],
        everywhere: bool,
    ) -> Selection {
        if let Some(about) = self.about {
            all.filter.push(about.to_owned());
        } else if all.filter.is_empty() && !everywhere {
            let sharing = || {
                let guests = GUESTS.iter().filter(|guest| guest.is_for_all());
                guests.filter(|guest| requested.contains(&guest.name))
            };
            if let Some(part) = sharing().position(|guest| *guest == self) {
                let of = sharing().count();
                all.portable = Share { part, of };
            }
        }
        all
    }

    /// What the kernel's command line says besides what it says everywhere.
    pub(super) fn kernel_arguments(self) -> String {
        let mut arguments = match self.first {
            First::Cases => String::new(),
            First::Systemd(_) => debian::kernel_arguments(),
        };
        if let Some(cpus) = self.possible_cpus {
            arguments.push_str(&format!(" possible_cpus={cpus}"));
        }
        if self.huge_pages > 0 {
            arguments.push_str(&format!(" hugepages={}", self.huge_pages));
        }
        arguments
    }

    /// The bootable kernel; fetched when this is the first time.
    pub(super) fn kernel(self, workspace: &Workspace) -> Result<PathBuf> {
        Kernel::of(self.series)
            .with_context(|| format!("there is no kernel {}", self.series))?
            .fetch(workspace)
    }

    /// The file system that it boots into, with the release binaries.
    pub(super) fn initramfs(self, workspace: &Workspace) -> Result<PathBuf> {
        match self.first {
            First::Cases => initramfs::pack(workspace),
            First::Systemd(debian) => debian::pack(workspace, debian),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_kernel_and_a_name_of_its_own() {
        assert_eq!(GUESTS.map(|guest| guest.name), xtask::cases::GUESTS);
        for guest in &GUESTS {
            assert!(Kernel::of(guest.series).is_some(), "{}", guest.name);
            assert_eq!(Guest::of(guest.name).unwrap(), *guest);
        }
    }

    #[test]
    fn where_a_machine_is_for_some_cases_a_filter_only_narrows() {
        let all = Selection {
            filter: vec!["churn".to_owned()],
            ..Selection::default()
        };
        let of = |name| {
            Guest::of(name)
                .unwrap()
                .selection(all.clone(), &["6.12"], false)
        };
        assert_eq!(of("6.12-systemd").filter, ["churn", "systemd"]);
        assert_eq!(of("6.1-256cpus").filter, ["churn", "accounts_memory"]);
        assert_eq!(of("6.12"), all);
    }

    #[test]
    fn what_takes_the_same_way_everywhere_runs_in_one_machine() {
        let all = ["6.1", "6.12", "7.2"];
        let share = |name, requested: &[&str], everywhere| {
            let guest = Guest::of(name).unwrap();
            let selection = guest.selection(Selection::default(), requested, everywhere);
            selection.portable
        };
        for case in ["ctrl_c", "hand_over", "bad_config", "undo_after_kill"] {
            let machines = all.map(|name| share(name, &all, false).has(case));
            assert_eq!(machines.iter().filter(|runs| **runs).count(), 1, "{case}");
            assert!(all.iter().all(|name| share(name, &all, true).has(case)));
        }
        assert_eq!(share("7.2", &["7.2", "6.12-systemd"], false), Share::ALL);
    }
}
