//! The `e2e` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::main()
}
