//! Why a configuration cannot be used, with what to write instead.

use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Not the YAML that is expected: syntax, an unknown key, a wrong type.
    #[error("configuration {origin}")]
    Syntax {
        /// File and line.
        origin: String,
        /// What the parser says.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A value that cannot be used.
    #[error("configuration {origin}: {field} is `{value}`: {problem}; {remedy}")]
    Value {
        /// File and line, or `command line`.
        origin: String,
        /// The key, with its parents.
        field: String,
        /// What is written.
        value: String,
        /// What is wrong with it.
        problem: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// A key of an earlier version.
    #[error("configuration {origin}: {old} is now {new}; write {new} instead of {old}")]
    Renamed {
        /// File and line.
        origin: String,
        /// The old key.
        old: &'static str,
        /// The new one.
        new: &'static str,
    },
    /// A key is needed because of another.
    #[error("configuration {path}: {missing} is not set, but {because} is; set both or none")]
    Incomplete {
        /// The file.
        path: String,
        /// The missing key.
        missing: String,
        /// The key that needs it.
        because: String,
    },
}
