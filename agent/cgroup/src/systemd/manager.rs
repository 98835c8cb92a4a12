//! Requests to systemd and its answers (org.freedesktop.systemd1(5)).

use std::fmt;

use super::property::Properties;

podwarden_policy::names! {
    /// What was tried.
    pub enum Operation {
        /// Starting a unit.
        Start = "start",
        /// Setting properties of one.
        Set = "set properties of",
        /// Stopping one.
        Stop = "stop",
        /// Reading a property.
        Read = "read",
    }
}

podwarden_policy::names! {
    /// `ActiveState` of a unit.
    pub enum State {
        /// `active`.
        Active = "active",
        /// `inactive`; also what systemd says of a unit that it does not know.
        Inactive = "inactive",
        /// `failed`.
        Failed = "failed",
        /// On the way from one to the other.
        Changing = "changing its state",
    }
}

impl State {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "active" => Self::Active,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            _ => Self::Changing,
        }
    }
}

/// What went wrong between podwarden and systemd.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SystemdError {
    /// No way to talk to it.
    #[error(
        "systemd does not answer, neither on the system bus ({bus}) nor on {} ({socket}): run on a \
         node that was booted with systemd, in a container with the host's /run/dbus or \
         /run/systemd/private mounted, or use --cgroup-driver cgroupfs",
        super::bus::PRIVATE
    )]
    Unreachable {
        /// Why not on the bus.
        bus: String,
        /// Why not on the socket.
        socket: String,
    },
    /// The bus or systemd refuses us.
    #[error(
        "systemd does not let podwarden {operation} {unit} ({message}): run as root of the host, or \
         allow org.freedesktop.systemd1.manage-units by polkit"
    )]
    Denied {
        /// What was tried.
        operation: Operation,
        /// On which unit.
        unit: String,
        /// What systemd says.
        message: String,
    },
    /// There is such a unit already.
    #[error("{unit} exists already")]
    Exists {
        /// The unit.
        unit: String,
    },
    /// There is no such unit.
    #[error("{unit} is not known to systemd")]
    NoUnit {
        /// The unit.
        unit: String,
    },
    /// The job ended and the unit is not where it was to go.
    #[error(
        "systemd took the job to {operation} {unit} and the unit is {state}: \
         `systemctl status {unit}` and the journal say why"
    )]
    Job {
        /// What was tried.
        operation: Operation,
        /// On which unit.
        unit: String,
        /// What it is now.
        state: State,
    },
    /// The job did not end.
    #[error(
        "systemd did not {operation} {unit} within {seconds} s: `systemctl list-jobs` shows what it \
         waits for"
    )]
    TimedOut {
        /// What was tried.
        operation: Operation,
        /// On which unit.
        unit: String,
        /// How long it had.
        seconds: u64,
    },
    /// Any other answer.
    #[error("systemd refuses to {operation} {unit}: {message} ({name})")]
    Refused {
        /// What was tried.
        operation: Operation,
        /// On which unit.
        unit: String,
        /// The name of the D-Bus error.
        name: String,
        /// What it says.
        message: String,
    },
    /// The connection broke, and a new one did not help.
    #[error("the connection to systemd broke while it was to {operation} {unit}: {message}")]
    Broken {
        /// What was tried.
        operation: Operation,
        /// On which unit.
        unit: String,
        /// How.
        message: String,
    },
}

/// systemd, or what stands in for it in tests.
pub(super) trait Manager: fmt::Debug + Send + Sync {
    /// The first number of its version.
    fn version(&self) -> Result<u32, SystemdError>;

    /// `StartTransientUnit`; [`SystemdError::Exists`] when there is such a unit.
    fn start_transient(&self, unit: &str, properties: &Properties) -> Result<(), SystemdError>;

    /// `StartUnit`.
    fn start(&self, unit: &str) -> Result<(), SystemdError>;

    /// `SetUnitProperties`, until the next boot.
    fn set_properties(&self, unit: &str, properties: &Properties) -> Result<(), SystemdError>;

    /// `StopUnit`.
    fn stop(&self, unit: &str) -> Result<(), SystemdError>;

    /// `ResetFailedUnit`.
    fn reset_failed(&self, unit: &str) -> Result<(), SystemdError>;

    /// `ActiveState`.
    fn state(&self, unit: &str) -> Result<State, SystemdError>;

    /// `Description`; of a unit that systemd does not know, its name.
    fn description(&self, unit: &str) -> Result<String, SystemdError>;

    /// Whether a job is queued or runs for it.
    fn has_job(&self, unit: &str) -> Result<bool, SystemdError>;
}
