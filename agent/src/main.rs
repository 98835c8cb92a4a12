//! The podwarden binary.

use std::process::ExitCode;

use clap::Parser;
use podwarden::cli::{Cli, kubectl::Plugin};

/// Exit code when a subcommand could not do its work, or was not understood; beyond those that
/// `check` gives a meaning.
const FAILED: u8 = 3;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    match Plugin::is_named(&program) {
        true => run(Plugin::run),
        false => run(Cli::run),
    }
}

fn run<C: Parser>(act: impl FnOnce(C) -> anyhow::Result<ExitCode>) -> ExitCode {
    let parsed = match C::try_parse() {
        Ok(parsed) => parsed,
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
    match act(parsed) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("podwarden: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}
