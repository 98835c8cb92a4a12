//! The podwarden binary.

use std::process::ExitCode;

use clap::Parser as _;
use podwarden::cli::Cli;

/// Exit code when a subcommand could not do its work, or was not understood; beyond those that
/// `check` gives a meaning.
const FAILED: u8 = 3;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Nothing is left to say it with when this fails.
            let _ = message.print();
            let help = !message.use_stderr();
            return if help {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(FAILED)
            };
        }
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("podwarden: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}
