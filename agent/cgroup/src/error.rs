//! The crate's one error type. It holds shared paths so that the real-time readers can fail
//! without allocating.

use std::{path::Path, sync::Arc, time::Duration};

use rustix::io::Errno;

/// What went wrong, with the operation and the path; the kernel's word is the source.
///
/// Whatever takes a cgroup may answer [`Error::NotFound`], [`Error::NoController`], [`Error::InvalidName`],
/// [`Error::Malformed`] and [`Error::Os`], and [`Error::Gone`] once a file of it is open. What the documentation of a
/// function says of errors comes on top of that.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cgroup, or this file of it, does not exist.
    #[error("cannot {operation} {}: it does not exist", path.display())]
    NotFound {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: Arc<Path>,
    },
    /// The cgroup was removed while its files were open.
    #[error("cannot {operation} {}: its cgroup was removed", path.display())]
    Gone {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: Arc<Path>,
    },
    /// Any other refusal of the kernel.
    #[error("cannot {operation} {}", path.display())]
    Os {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: Arc<Path>,
        /// Why.
        source: Errno,
    },
    /// A file does not hold what its documentation says.
    #[error("{} does not hold {expected}", path.display())]
    Malformed {
        /// The file.
        path: Arc<Path>,
        /// What should be there.
        expected: &'static str,
    },
    /// The kernel took a value and shows another: another process wrote the file as well, or the
    /// kernel bounds what it takes.
    #[error("{} holds {found} after {wanted} was written to it", path.display())]
    NotKept {
        /// The file.
        path: Arc<Path>,
        /// What was written, rounded as the kernel documents it.
        wanted: String,
        /// What was read then.
        found: String,
    },
    /// A name that cannot be a cgroup below the root.
    #[error("{name:?} is not a cgroup name: {reason}")]
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// cgroup v2 lets a cgroup either hold processes or hand controllers to its children.
    #[error(
        "cannot {operation} {}: on cgroup v2 a cgroup that hands controllers to its children \
         holds no processes of its own",
        path.display()
    )]
    InternalProcesses {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: Arc<Path>,
        /// Always `EBUSY`.
        source: Errno,
    },
    /// systemd.
    #[error(transparent)]
    Systemd(#[from] crate::SystemdError),
    /// No hierarchy carries this controller.
    #[error("the {controller} controller is on no mounted cgroup hierarchy")]
    NoController {
        /// Its name, as on v2 where the two versions differ.
        controller: &'static str,
    },
    /// Neither version is mounted.
    #[error("no cgroup hierarchy is mounted")]
    NoHierarchy,
    /// This kernel or hierarchy has no such interface.
    #[error("{what} is not available: {reason}")]
    Unsupported {
        /// The interface.
        what: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// The calling process is in the cgroup that it wants to kill.
    #[error("{} holds this process itself", path.display())]
    OwnCgroup {
        /// The cgroup.
        path: Arc<Path>,
    },
    /// The kernel has not come back from a call in time. What was asked may still be done.
    #[error("cannot {operation} {}: no answer within {limit:?}", path.display())]
    Unanswered {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The cgroup.
        path: Arc<Path>,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The kernel has not come back from an earlier call for the same cgroup: none is made.
    #[error("cannot {operation} {}: an earlier call waits inside the kernel", path.display())]
    StillWaiting {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The cgroup.
        path: Arc<Path>,
    },
    /// Another agent works on the same cgroup root.
    #[error(
        "{} is held by {}: only one agent may work on a cgroup root",
        path.display(),
        Holder(*holder)
    )]
    Locked {
        /// The lock file.
        path: Arc<Path>,
        /// The process that holds it; `None` when it has not written its id yet.
        holder: Option<u32>,
    },
}

/// The crate's results.
pub type Result<T> = std::result::Result<T, Error>;

struct Holder(Option<u32>);

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

impl Error {
    /// Sorts what the kernel answered: `ENOENT` and `ENODEV` mean a cgroup that is not there
    /// (`kernfs` answers `ENODEV` on open files of a removed directory).
    pub(crate) fn os(operation: &'static str, path: impl Into<Arc<Path>>, source: Errno) -> Self {
        let path = path.into();
        match source {
            Errno::NOENT => Self::NotFound { operation, path },
            Errno::NODEV => Self::Gone { operation, path },
            source => Self::Os {
                operation,
                path,
                source,
            },
        }
    }

    pub(crate) fn malformed(path: impl Into<Arc<Path>>, expected: &'static str) -> Self {
        Self::Malformed {
            path: path.into(),
            expected,
        }
    }

    /// True when the cgroup is not there, whether it never was or has just been removed.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Gone { .. })
    }

    /// True when the caller lacks the right: also a cgroup file system mounted read-only, as
    /// containers get it.
    pub fn is_permission(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)
        ) || matches!(self, Self::Systemd(crate::SystemdError::Denied { .. }))
    }

    /// True when systemd, or the kernel, has not answered in time: the next call may wait as long.
    pub fn is_silence(&self) -> bool {
        use crate::SystemdError::{TimedOut, Unreachable};
        matches!(
            self,
            Self::Systemd(TimedOut { .. } | Unreachable { .. }) | Self::Unanswered { .. }
        )
    }

    /// The kernel's error number, where one is the cause.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::NotFound { .. } => Some(Errno::NOENT),
            Self::Gone { .. } => Some(Errno::NODEV),
            Self::Os { source, .. } | Self::InternalProcesses { source, .. } => Some(*source),
            _ => None,
        }
    }
}
