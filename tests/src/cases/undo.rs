//! `podwarden undo`: what a killed agent leaves goes, and nothing else.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec};

pub(super) const CASES: &[Case] = &[portable("undo_after_kill", undo_after_kill)];

/// The exit code and the answer of `podwarden undo` below the node's root.
pub(super) fn undo(context: &Context, node: &Node, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let root = format!("/{}", node.sandbox.root.path().trim_matches('/'));
    let output = Command::new(context.agent())
        .args(["undo", "-o", "json", "--cgroup-driver", "cgroupfs"])
        .args(["--cgroup-root", &root])
        .args(more)
        .output()
        .context("run podwarden undo")?;
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok((output.status.code(), answer))
}

/// The steps by name.
pub(super) fn steps(answer: &Value) -> Result<Vec<&str>> {
    let steps = answer["steps"].as_array().context("steps")?;
    let names = steps.iter().map(|step| step["step"].as_str());
    names.map(|name| name.context("the step's name")).collect()
}

/// What a step found: those that go, and those that stay.
pub(super) fn found(answer: &Value, step: &str) -> Result<(Vec<String>, Vec<String>)> {
    let steps = answer["steps"].as_array().context("steps")?;
    let step = steps.iter().find(|found| found["step"] == step);
    let step = step.context("the step")?;
    ensure!(step["problem"].is_null(), "{step}");
    let items = step["items"].as_array().context("items")?;
    let (gone, stays): (Vec<_>, Vec<_>) = items.iter().partition(|item| item["stays"].is_null());
    let what = |items: Vec<&Value>| {
        let text = |item: &&Value| item["what"].as_str().unwrap_or_default().to_owned();
        items.iter().map(text).collect()
    };
    Ok((what(gone), what(stays)))
}

fn undo_after_kill(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let empty = node.pod(PodSpec::best_effort("empty"))?;
    let busy = node.pod(PodSpec::burstable("busy", "64Mi"))?;
    empty.main.remove()?;
    let mut runs = busy.start(&["anon", "--mib", "1"])?;
    let (code, answer) = undo(context, &node, &[])?;
    ensure!(code == Some(3), "beside an agent: {code:?} {answer}");
    ensure!(empty.cgroup.exists(), "it undid beside an agent");

    node.agent.signal(Signal::SIGKILL)?;
    node.agent.wait(node.limit())?;
    let (code, answer) = undo(context, &node, &["--dry-run"])?;
    ensure!(code == Some(1), "a busy cgroup stays: {code:?} {answer}");
    let (gone, stays) = found(&answer, "cgroups")?;
    let is_of = |list: &[String], uid: &str| list.iter().any(|path| path.contains(uid));
    ensure!(is_of(&gone, empty.uid()), "would go: {gone:?}");
    ensure!(is_of(&stays, busy.uid()), "would stay: {stays:?}");
    ensure!(empty.cgroup.exists(), "a dry run removed it");

    let (_, answer) = undo(context, &node, &[])?;
    ensure!(found(&answer, "cgroups")? == (gone, stays), "{answer}");
    ensure!(!empty.cgroup.exists(), "the empty cgroup is there");
    ensure!(
        busy.cgroup.exists() && runs.is_alive(),
        "the busy pod is gone"
    );

    drop(runs);
    busy.main.remove()?;
    let (code, answer) = undo(context, &node, &[])?;
    ensure!(code == Some(0), "{code:?} {answer}");
    node.ensure_nothing_left()?;
    let (code, answer) = undo(context, &node, &[])?;
    ensure!(
        code == Some(0) && found(&answer, "cgroups")?.0.is_empty(),
        "twice: {answer}"
    );
    Ok(())
}
