//! A benchmark in a virtual machine: built, booted, and what it measured shown.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use crate::paths::Workspace;
use crate::vm::Machine;
use crate::{build, cmd, setup};

/// Sees to what a machine takes, and builds what runs in it.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    setup::for_machines(workspace)?;
    build::kernel_programs(workspace)?;
    build::release(workspace)
}

/// What the command line says, as words for a kernel's. Each option is one word with its value: systemd
/// reads the words as well, and takes a 1 for a runlevel.
pub(crate) fn words(args: &[OsString]) -> Result<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    for arg in args {
        let arg = arg.to_string_lossy();
        ensure!(
            !arg.contains(|c: char| c.is_whitespace() || c == '"'),
            "{arg:?} does not fit on a kernel's command line"
        );
        match words.last_mut() {
            Some(option) if !arg.starts_with("--") => {
                option.push('=');
                option.push_str(&arg);
            }
            _ => words.push(arg.into_owned()),
        }
    }
    Ok(words)
}

/// Boots the machine, shows what is measured as it comes, and returns and says where all of it is.
pub(crate) fn run(machine: &Machine<'_>) -> Result<PathBuf> {
    let ended = machine.run(|line| println!("{line}"))?;
    match ended.exit_code {
        Some(0) => println!("every run as JSON: {}", ended.results.display()),
        Some(code) => bail!("the benchmark ended with exit code {code}"),
        None => bail!(
            "the benchmark did not come to an end{}; the end of {}:\n{}",
            if ended.timed_out { " in time" } else { "" },
            ended.console.display(),
            cmd::tail(&ended.console)
        ),
    }
    Ok(ended.results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_stands_alone() {
        let given = ["--runs", "1", "--load=cache", "--json"].map(OsString::from);
        assert_eq!(
            words(&given).unwrap(),
            ["--runs=1", "--load=cache", "--json"]
        );
        assert!(words(&["two words".into()]).is_err());
    }
}
