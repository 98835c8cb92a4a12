//! Bad input: a clear error, and everything else goes on.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::{Case, Context, portable};
use crate::harness::{Agent, Node, Options, PodSpec, Sandbox, eventually, sleep};

pub(super) const CASES: &[Case] = &[
    portable("bad_manifests", bad_manifests),
    portable("duplicate_uid", duplicate_uid),
    portable("bad_config", bad_config),
    portable("second_agent_refused", second_agent_refused),
];

/// Waits until the agent's log has every one of `words` in one line.
fn expect_log(agent: &Agent, context: &Context, words: &[&str]) -> Result<()> {
    eventually(context.limit(10), || {
        let lines = agent.log.tail(400);
        let found = lines
            .iter()
            .any(|line| words.iter().all(|word| line.contains(word)));
        ensure!(found, "no line of the log has {words:?}");
        Ok(())
    })
}

fn bad_manifests(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let quantity = PodSpec::burstable("bad-quantity", "64Mi")
        .manifest()
        .to_string();
    for (name, text) in [
        ("not-yaml.yaml", "apiVersion: v1\nkind: [Pod\n".to_owned()),
        (
            "deployment.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n".to_owned(),
        ),
        ("quantity.json", quantity.replace("64Mi", "64Mx")),
        ("binary.yaml", "\u{0}\u{1}\u{2}".to_owned()),
        (".hidden.yaml", "kind: [".to_owned()),
    ] {
        fs::write(sandbox.pods_dir().join(name), text).context("write a manifest")?;
    }
    let node = Node::on(context, sandbox, &Options::default())?;
    let good = node.pod(PodSpec::burstable("good", "64Mi"))?;
    for words in [
        &["not-yaml.yaml"][..],
        &["deployment.yaml", "Deployment"],
        &["quantity.json", "64Mx"],
        &["binary.yaml"],
    ] {
        expect_log(&node.agent, context, words)?;
    }
    ensure!(
        !node.agent.log.text().contains(".hidden"),
        "a hidden file was read"
    );
    let listed = node.agent.pods()?;
    ensure!(
        listed.len() == 1 && listed[0].pod_ref.uid == good.uid(),
        "listed: {listed:?}"
    );
    // A manifest that is put right is taken.
    let mut right = PodSpec::burstable("right", "64Mi");
    right.name = "bad-quantity".to_owned();
    fs::remove_file(node.sandbox.pods_dir().join("quantity.json"))?;
    node.pod(right)?;
    node.finish()
}

fn duplicate_uid(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let first = PodSpec::burstable("first", "64Mi");
    let mut second = PodSpec::best_effort("second");
    second.uid.clone_from(&first.uid);
    for (name, spec) in [("a-first.json", &first), ("b-second.json", &second)] {
        let path = sandbox.pods_dir().join(name);
        fs::write(path, spec.manifest().to_string()).context("write a manifest")?;
    }
    let node = Node::on(context, sandbox, &Options::default())?;
    expect_log(&node.agent, context, &["a-first.json", "b-second.json"])?;
    let stats = node.expect(&first.uid, |_| Ok(()))?;
    ensure!(
        stats.pod_ref.name == "first",
        "the pod is {}",
        stats.pod_ref.name
    );
    ensure!(
        stats.qos_class == "Burstable",
        "its class is {}",
        stats.qos_class
    );
    node.finish()
}

fn bad_config(context: &Context) -> Result<()> {
    for (line, words) in [
        (
            "evictionHart: {memory.available: 1Gi}\n",
            &["evictionHart", "config.yaml"][..],
        ),
        (
            "ranking: byName\n",
            &["config.yaml:5", "byName", "qosFirst"],
        ),
        (
            "evictionHard: {memory.available: 1Gx}\n",
            &["memory.available", "1Gx"],
        ),
    ] {
        let sandbox = Sandbox::new()?;
        let options = Options {
            config: line.to_owned(),
            ..Options::default()
        };
        let mut agent = Agent::spawn(context.agent(), &sandbox, &options)?;
        context.watch(&agent.log);
        let status = agent
            .wait(context.limit(20))
            .with_context(|| format!("with {line}"))?;
        ensure!(
            status.code().is_some_and(|code| code != 0 && code != 101),
            "{line}: {status}"
        );
        for word in words {
            ensure!(
                agent.log.text().contains(word),
                "{line}: the error does not name {word}"
            );
        }
        ensure!(
            sandbox.root.children().is_empty(),
            "{line}: it made cgroups"
        );
    }
    Ok(())
}

fn second_agent_refused(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let other = node.sandbox.dir().join("other.sock").display().to_string();
    let options = Options {
        socket: Some(other.into()),
        ..Options::default()
    };
    let mut second = Agent::spawn(context.agent(), &node.sandbox, &options)?;
    let status = second
        .wait(context.limit(20))
        .context("the second agent runs")?;
    let text = second.log.text();
    ensure!(
        status.code().is_some_and(|code| code != 0 && code != 101),
        "it ended with {status}"
    );
    let pid = node.agent.pid().to_string();
    ensure!(
        text.contains(&pid),
        "it does not name process {pid}: {text}"
    );
    drop(second);
    sleep(std::time::Duration::from_millis(100))?;
    let pod = node.pod(PodSpec::burstable("still-works", "64Mi"))?;
    pod.start(&["storm", "--count", "2"])?
        .done(context.limit(20))?;
    node.expect(pod.uid(), |stats| {
        ensure!(stats.exits.total == 3, "{} exits", stats.exits.total);
        Ok(())
    })?;
    node.agent.wait_ready(context.limit(5))?;
    node.finish()
}
