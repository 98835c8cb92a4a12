//! Why a configuration cannot be used, with what to write instead.

use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading configuration {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Not the YAML that is expected: syntax, an unknown key, a wrong type.
    #[error("{origin}")]
    Syntax {
        /// File and line.
        origin: String,
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A value that cannot be used.
    #[error("{origin}: {field} {problem}")]
    Value {
        /// File and line.
        origin: String,
        /// The key, with its parents.
        field: String,
        /// What is written, what is wrong with it, and what to write instead.
        problem: String,
    },
    /// The flags are not those of the keys.
    #[error("the command line")]
    Flags(#[source] Box<clap::Error>),
    /// A key is needed because of another.
    #[error("{path}: {missing} is not set, but {because} is; set both or none")]
    Incomplete {
        path: String,
        /// The missing key.
        missing: String,
        /// The key that needs it.
        because: String,
    },
}
