//! `kubectl podwarden` by a real kubectl, through a real API server and kubelet.

use anyhow::{Result, ensure};

use super::LIMIT;
use crate::cases::{Case, Context, case};
use crate::harness::eventually;

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_plugin", kubernetes_plugin)];

/// The agent's answers come by `kubectl exec`, and a wrong namespace is an error that names it.
fn kubernetes_plugin(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(str::to_owned)?;
    let run = |args: &[&str]| -> Result<(Option<i32>, String, String)> {
        let done = cluster.plugin(context.agent(), args)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((done.status.code(), text(&done.stdout), text(&done.stderr)))
    };
    eventually(LIMIT, || {
        let (code, text, said) = run(&["top", "--all"])?;
        ensure!(code == Some(0), "{code:?}: {said}");
        ensure!(
            text.contains("NODE") && text.contains("podwarden/podwarden-"),
            "{text}"
        );
        Ok(())
    })?;
    let own = cluster.agent_pod()?;
    let own = format!(
        "podwarden/{}",
        own["metadata"]["name"].as_str().unwrap_or_default()
    );
    let (code, text, said) = run(&["explain", &own])?;
    ensure!(
        code == Some(0) && text.contains("podwarden's own pod"),
        "{code:?}: {text}{said}"
    );
    let (code, text, said) = run(&["events", "-o", "json"])?;
    ensure!(
        code == Some(0) && text.contains("\"node\":"),
        "{code:?}: {text}{said}"
    );
    let (code, _, said) = run(&["top", "--namespace", "default"])?;
    ensure!(
        code == Some(3) && said.contains("in the namespace default"),
        "{code:?}: {said}"
    );
    cluster.clear()
}
