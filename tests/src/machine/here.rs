//! The cases on the kernel that runs here.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use xtask::cases::Share;
use xtask::paths::Workspace;
use xtask::report::{Counts, Report};
use xtask::{cmd, setup};

use super::message::{Ended, Selection};
use super::pool::{Job, Outcome};
use super::tally::Tally;
use crate::cases::Pods;
use crate::runner;

/// What runs as one stage.
pub(super) struct Part {
    /// What the report calls it.
    stage: &'static str,
    /// Before each of its lines, and where its results are.
    name: &'static str,
    selection: Selection,
}

/// The parts of a selection that have cases. They run beside each other, since most cases wait most of the time; those
/// that a filter chooses are few, and not halved.
pub(super) fn parts(all: &Selection) -> Vec<Part> {
    let part = |stage, name, pods, lane| Part {
        stage,
        name,
        selection: Selection {
            pods: Some(pods),
            lane,
            ..all.clone()
        },
    };
    let cluster = || {
        let stage = "this kernel, a cluster";
        part(stage, "native-cluster", Pods::Cluster, Share::ALL)
    };
    let mut parts = match all.filter.is_empty() {
        true => {
            let [first, second] = [0, 1].map(|part| Share { part, of: 2 });
            vec![
                part("this kernel, 1 of 2", "native-1", Pods::Harness, first),
                part("this kernel, 2 of 2", "native-2", Pods::Harness, second),
                cluster(),
            ]
        }
        false => vec![
            part("this kernel", "native", Pods::Harness, Share::ALL),
            cluster(),
        ],
    };
    parts.retain(|part| runner::count(&part.selection) > 0);
    parts
}

/// The stages of these parts; none where they cannot run, with the reason in `report`.
pub(super) fn jobs<'a>(
    workspace: &'a Workspace,
    parts: &'a [Part],
    report: &mut Report,
) -> Vec<Job<'a>> {
    if !geteuid().is_root() {
        for part in parts {
            let why = "loading kernel programs takes root".to_owned();
            let cases = Counts::skipped(runner::count(&part.selection));
            report.add(part.stage, cases, Some(why));
        }
        return Vec::new();
    }
    setup::for_runtime(workspace);
    let job = |part: &'a Part| Job {
        name: part.stage.to_owned(),
        run: Box::new(|| part.run(workspace)),
    };
    parts.iter().map(job).collect()
}

impl Part {
    fn run(&self, workspace: &Workspace) -> Result<Outcome> {
        let dir = workspace.results().join(self.name);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let messages = dir.join("messages.jsonl");
        fs::write(&messages, "").with_context(|| format!("write {}", messages.display()))?;
        let mut e2e = Command::new(workspace.e2e());
        e2e.args(["machine", "cases", "--agent"])
            .arg(workspace.agent())
            .arg("--messages")
            .arg(&messages)
            .arg(serde_json::to_string(&self.selection).context("write the selection")?);
        // SAFETY: between fork and exec only one system call is made.
        unsafe {
            // The cases then clean up, also where this process alone is ended.
            e2e.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?));
        }
        let status = cmd::stream(&mut e2e, |text| println!("[{}] {text}", self.name))?;
        let tally = read(&messages)?;
        tally.write(&dir.join("results.json"))?;
        Ok(tally.ended(ended(status)))
    }
}

fn read(messages: &Path) -> Result<Tally> {
    let failed = || format!("read {}", messages.display());
    let mut tally = Tally::default();
    let file = fs::File::open(messages).with_context(failed)?;
    for line in BufReader::new(file).lines() {
        // A process that was killed may leave half a line.
        if let Ok(message) = serde_json::from_str(&line.with_context(failed)?) {
            tally.message(message);
        }
    }
    Ok(tally)
}

fn ended(status: ExitStatus) -> Option<Ended> {
    let exit = status.code().map(Ended::Exit);
    exit.or_else(|| status.signal().map(Ended::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_in_one_part() {
        let of = |filter: Option<&str>| {
            let all = Selection {
                filter: filter.into_iter().map(str::to_owned).collect(),
                ..Selection::default()
            };
            let parts = parts(&all);
            let mut cases: Vec<_> = parts
                .iter()
                .flat_map(|part| runner::chosen(&part.selection))
                .map(|case| case.name)
                .collect();
            let mut expected: Vec<_> = runner::chosen(&all).map(|case| case.name).collect();
            cases.sort_unstable();
            expected.sort_unstable();
            assert_eq!(cases, expected, "{filter:?}");
            parts.iter().map(|part| part.name).collect::<Vec<_>>()
        };
        assert_eq!(of(None), ["native-1", "native-2", "native-cluster"]);
        assert_eq!(of(Some("kubernetes_values")), ["native-cluster"]);
        assert_eq!(of(Some("accounts")), ["native", "native-cluster"]);
        assert!(of(Some("no such case")).is_empty());
    }
}
