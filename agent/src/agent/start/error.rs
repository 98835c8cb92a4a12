//! Why the agent could not start.

use podwarden_policy::reserve;

use super::LOCK_DIR;
use crate::{
    accounting::AccountingError, api::server::HttpError, config::MachineError, pods::DirError,
    pods::runtime::RuntimeError, reactor,
};

/// Each step of the start has its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("taking the cgroup root for this agent")]
    Lock(#[source] podwarden_cgroup::Error),
    #[error("making {LOCK_DIR}, where agents lock their root (root privileges?)")]
    LockDir(#[source] std::io::Error),
    #[error(
        "thawing what an agent before this one left frozen, and making a record of what this one freezes"
    )]
    Frozen(#[source] podwarden_cgroup::Error),
    #[error("opening the API")]
    Http(#[source] HttpError),
    #[error("reading the machine's size")]
    Machine(#[source] MachineError),
    #[error(
        "keeping from pods what is reserved: lower kubeReserved, systemReserved or evictionHard, or \
         set the node's true size with capacity"
    )]
    Reserve(#[source] reserve::ReserveError),
    #[error(
        "evictionHard asks for at least as much available memory as this machine has, {memory}: every pod would be \
         evicted; lower memory.available"
    )]
    Threshold { memory: podwarden_policy::Bytes },
    #[error("finding the cgroup hierarchies")]
    Cgroup(#[source] podwarden_cgroup::Error),
    #[error("finding the container runtime")]
    Runtime(#[source] RuntimeError),
    #[error("watching the manifest directory")]
    Pods(#[source] DirError),
    #[error("connecting to systemd, which makes the cgroups under the systemd driver")]
    Systemd(#[source] podwarden_cgroup::Error),
    #[error(
        "--cgroup-root {root} is not the path of a slice, and under the systemd driver every cgroup is \
         in one: use / or a path such as /name.slice (a kubelet's cgroupRoot /name is that), or \
         --cgroup-driver cgroupfs"
    )]
    RootIsNoSlice { root: String },
    #[error("starting the accounts")]
    Accounting(#[source] AccountingError),
    #[error("starting the thread that judges the others")]
    Watchdog(#[source] std::io::Error),
    #[error("the reactor has ended by itself: the agent has to be started anew")]
    ReactorEnded,
    #[error(transparent)]
    Reactor(#[from] reactor::StartError),
}
