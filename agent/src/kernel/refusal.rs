//! Why the kernel refused a program.

use aya::programs::ProgramError;

use crate::base::error::chain;

/// What the kernel said of a program that it refused; of the verifier's log the line that says why.
pub(super) fn refusal(error: &ProgramError) -> String {
    /// How the lines after that one begin.
    const FIGURES: [&str; 3] = ["verification time", "stack depth", "processed "];
    let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    else {
        return chain(error);
    };
    let log = verifier_log.to_string();
    tracing::debug!(log, "the verifier refused a program");
    let mut lines = log.lines().rev().map(str::trim);
    let why = lines
        .find(|line| !line.is_empty() && FIGURES.iter().all(|figure| !line.starts_with(figure)));
    why.map_or_else(|| io_error.to_string(), |why| format!("{io_error}: {why}"))
}
