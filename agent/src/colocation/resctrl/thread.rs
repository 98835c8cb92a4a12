//! The thread: groups and tasks as they are to be, every few seconds and whenever the pods change.

use std::{
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use podwarden_cgroup::{CgroupPath, Tree};

use super::{Group, Member, ResctrlError, groups::Groups};

/// As often as the koordlet (`ResctrlReconcileInterval` of `pkg/koordlet/qosmanager/framework/config.go`).
const ROUND: Duration = Duration::from_secs(10);
/// A task that forks while its pod is listed leaves a child behind, which another pass finds.
const PASSES: usize = 3;

pub(super) struct Thread {
    tree: Tree,
    groups: Groups,
    members: Vec<Member>,
    /// The error that was logged last, until all is well.
    failed: Option<String>,
}

impl Thread {
    pub(super) fn new(tree: Tree, groups: Groups) -> Self {
        Self {
            tree,
            groups,
            members: Vec::new(),
            failed: None,
        }
    }

    /// Runs until the channel closes; then removes the groups.
    pub(super) fn run(mut self, messages: &Receiver<Vec<Member>>) {
        loop {
            match messages.recv_timeout(ROUND) {
                Ok(members) => self.members = members,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            match self.round() {
                Ok(()) => self.failed = None,
                Err(error) => self.report(&error),
            }
        }
        self.groups.remove();
    }

    fn round(&self) -> Result<(), ResctrlError> {
        self.groups.settle()?;
        for group in Group::ALL {
            for _ in 0..PASSES {
                let members = self.members.iter().filter(|member| member.group == group);
                let tasks: Vec<_> = members
                    .flat_map(|member| tasks(&self.tree, &member.path))
                    .collect();
                if self.groups.assign(group, &tasks)? == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, error: &ResctrlError) {
        let text = error.to_string();
        if self.failed.as_ref() != Some(&text) {
            tracing::warn!("cache and memory bandwidth of pods are not as configured: {text}");
            self.failed = Some(text);
        }
    }
}

/// The threads of a cgroup and of all below it.
fn tasks(tree: &Tree, cgroup: &CgroupPath) -> Vec<u32> {
    // What is gone has none.
    let cgroups = tree.list(cgroup).unwrap_or_default();
    let processes = cgroups
        .iter()
        .flat_map(|entry| tree.procs(&entry.path).unwrap_or_default());
    processes.flat_map(threads).collect()
}

fn threads(process: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{process}/task"));
    let entries = entries.into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}
