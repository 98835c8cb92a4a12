//! `podwarden check`: what this node supports, and what is lost.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use podwarden_policy::plan::Ownership;
use serde::Serialize;

use super::output::{self, Format};
use crate::{
    config::{CgroupRoot, Config, Overrides},
    kernel::{
        hooks,
        support::{self, Decision, Level, Profile},
    },
};

const EXAMPLES: &str = "\
Examples:
  podwarden check                     every fact, what it enables, what is lost without it
  podwarden check -o json | jq '.facts[] | select(.level != \"ok\")'
  podwarden check --cgroup-root /sandbox
  podwarden check --config /etc/podwarden/config.yaml   the configuration alone, on any machine

Exit code: 0 everything works, 1 something is lost, 2 podwarden cannot run here, 3 not looked at
(a wrong argument). With --config: 0 valid, 1 valid and a key changes nothing, 3 not valid.
JSON: {profile, facts: [{fact, found, enables, lostWithout, level}]}; with --config {valid, mode, ownership,
changesNothing}, or {valid, problem}.
Loads and attaches programs that do nothing, for an instant, to see whether they are taken; nothing
is left behind. Works without root: what cannot be told is `unknown`.";

/// Exit code for a configuration that is not valid.
const INVALID: u8 = 3;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Parent of kubepods, relative to each controller's mount point
    #[arg(long, value_name = "PATH", default_value = "/")]
    cgroup_root: CgroupRoot,
    /// Check this configuration instead of the node; runs anywhere
    #[arg(long, value_name = "FILE", conflicts_with = "cgroup_root")]
    config: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.config {
        return configuration(file, args.output);
    }
    let decision = support::decide(&support::probe(&args.cgroup_root.0, &hooks::kernel_types()));
    match args.output {
        Format::Table => output::print(&table(&decision))?,
        Format::Json => output::print_json(&decision)?,
    }
    Ok(ExitCode::from(exit_code(&decision)))
}

/// What `--config` finds.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Checked {
    Valid {
        valid: bool,
        mode: &'static str,
        ownership: &'static str,
        changes_nothing: Vec<&'static str>,
    },
    Invalid {
        valid: bool,
        problem: String,
    },
}

/// 0 valid, 1 valid with keys that change nothing; an error ends with 3.
fn configuration(file: &Path, output: Format) -> anyhow::Result<ExitCode> {
    let config = match Config::load(Some(file), Overrides::default()) {
        Ok(config) => config,
        Err(error) if output == Format::Json => {
            output::print_json(&Checked::Invalid {
                valid: false,
                problem: error.to_string(),
            })?;
            return Ok(ExitCode::from(INVALID));
        }
        Err(error) => return Err(error.into()),
    };
    let (mode, changes_nothing) = (config.mode.as_str(), config.not_acted_on());
    let ownership = match config.ownership {
        Ownership::Own => "own",
        Ownership::Assist => "assist",
    };
    // `load` has logged each.
    let code = u8::from(!changes_nothing.is_empty());
    match output {
        Format::Table => output::print(&format!(
            "{}: valid: mode {mode}, ownership {ownership}\n",
            file.display(),
        ))?,
        Format::Json => output::print_json(&Checked::Valid {
            valid: true,
            mode,
            ownership,
            changes_nothing,
        })?,
    }
    Ok(ExitCode::from(code))
}

/// 0 usable, 1 degraded, 2 unusable.
fn exit_code(decision: &Decision) -> u8 {
    match (decision.profile, decision.level()) {
        (Profile::Unusable, _) => 2,
        (_, Level::Ok) => 0,
        _ => 1,
    }
}

/// One line a fact and one below it for what is lost, then the profile.
fn table(decision: &Decision) -> String {
    let width = |of: fn(&support::Row) -> usize| decision.facts.iter().map(of).max().unwrap_or(0);
    let fact = width(|row| row.fact.chars().count());
    // The text of a refusal is long: it moves the rest of its own line only.
    let found = width(|row| row.found.chars().count()).min(24);
    let mut text = String::new();
    for row in &decision.facts {
        let mark = match row.level {
            Level::Ok => "ok  ",
            Level::Degraded => "lost",
            Level::Fatal => "FAIL",
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{mark}  {:fact$}  {:found$}  {}",
            row.fact, row.found, row.enables
        );
        if row.level > Level::Ok {
            let _ = writeln!(text, "      {:fact$}  -> {}", "", row.lost_without);
        }
    }
    let _ = writeln!(
        text,
        "\nprofile: {} ({})",
        decision.profile,
        meaning(decision.profile)
    );
    text
}

fn meaning(profile: Profile) -> &'static str {
    match profile {
        Profile::Full => "accounts from the kernel, levels checked at every charge",
        Profile::Standard => {
            "accounts from the kernel, levels checked at context switches, by eventfd and sampling"
        }
        Profile::Sampling => "no kernel programs, figures and levels from the cgroup files",
        Profile::Unusable => "podwarden cannot run here",
    }
}

#[cfg(test)]
mod tests;
