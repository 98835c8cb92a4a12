//! `kernelLog`: which lines of the kernel programs reach the agent's log.

/// The least severe lines that the kernel programs write; the verifier removes the others. Default: `warn`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "camelCase")]
pub enum KernelLog {
    /// No line.
    Off,
    /// Lines about failures.
    Error,
    /// Also lines about losses, such as a full table.
    #[default]
    Warn,
    /// Also lines about what is rare and expected.
    Info,
    /// Also a line for each new cgroup, moved process and exit.
    Debug,
    /// Everything.
    Trace,
}
