//! `podwarden guard`: the process that the agent starts beside itself, see [`crate::hierarchy::converge::guard`].

use std::{path::PathBuf, process::ExitCode};

use nix::{
    sys::{
        prctl,
        signal::{SigHandler, Signal, signal},
    },
    unistd::setsid,
};

use crate::{
    colocation,
    hierarchy::converge::guard::{self, Place},
};

/// Arguments of `podwarden guard`; the agent gives them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Parent of kubepods, relative to each controller's mount point
    #[arg(long)]
    cgroup_root: String,
    /// What was found, as the agent has noted it
    #[arg(long)]
    found: Option<PathBuf>,
    /// What the agent has frozen, as it has noted it
    #[arg(long)]
    frozen: Option<PathBuf>,
    /// CPU quotas as they were found
    #[arg(long)]
    quotas: Option<PathBuf>,
    /// Where groups of resctrl are
    #[arg(long)]
    resctrl: Option<PathBuf>,
    /// The cgroups are systemd's
    #[arg(long)]
    systemd: bool,
}

/// Waits for the agent's end, on standard input.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // For ps, which would show the name of the link that it was started by.
    let _ = prctl::set_name(c"podwarden-guard");
    // A terminal's signals go to the agent's session. Refused to the leader of a group, which this is not.
    let _ = setsid();
    // After a signal to all its processes the agent takes its limits back itself.
    for number in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: to ignore a signal runs no code of ours.
        unsafe { signal(number, SigHandler::SigIgn) }?;
    }
    let cgroup_root = args.cgroup_root;
    let place = Place {
        cgroup_root: cgroup_root.clone(),
        found: args.found,
        frozen: args.frozen,
        quotas: None,
        resctrl: None,
        systemd: args.systemd,
    };
    let killed = guard::run(place, std::io::stdin())?;
    if let (Some(tree), Some(quotas)) = (&killed, args.quotas) {
        if let Some(cpus) = colocation::cpus_beside(&quotas) {
            colocation::restore_cpus(tree, cpus);
        }
        colocation::restore(tree, quotas);
    }
    if let (Some(_), Some(dir)) = (&killed, args.resctrl) {
        colocation::resctrl::remove_left(&dir, &cgroup_root);
    }
    Ok(ExitCode::SUCCESS)
}
