//! Pods from a kubelet's `/pods`.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Case, Context, portable, skip};
use crate::harness::{NODE, Node, Options, PodSpec, Sandbox, eventually};
use crate::kubelet::Kubelet;

pub(super) const CASES: &[Case] = &[portable("kubelet_pods", kubelet_pods)];

/// A pod as a kubelet tells of it.
fn running(spec: &PodSpec) -> Value {
    let mut pod = spec.manifest();
    pod["spec"]["nodeName"] = NODE.into();
    pod["status"]["phase"] = "Running".into();
    pod
}

/// Waits until the source has a problem that says this, or none.
fn expect_problem(node: &Node, said: Option<&str>) -> Result<()> {
    eventually(node.limit(), || {
        let problem = node.source("kubelet")?.problem;
        let as_expected = match (&problem, said) {
            (Some(problem), Some(said)) => problem.contains(said),
            (problem, said) => problem.is_none() == said.is_none(),
        };
        ensure!(as_expected, "its problem is {problem:?}, not {said:?}");
        Ok(())
    })
}

/// From the first answer to a token and a certificate that are renewed.
fn kubelet_pods(context: &Context) -> Result<()> {
    if context.emulated() {
        skip("what a source of pods does is seen on a machine that is not emulated")?;
    }
    let mut kubelet = Kubelet::start(NODE, "first")?;
    let sandbox = Sandbox::new()?;
    let (token, ca) = (sandbox.dir().join("token"), sandbox.dir().join("ca"));
    fs::write(&token, "first")?;
    fs::write(&ca, kubelet.certificates())?;
    let (web, batch) = (
        PodSpec::guaranteed("web", "64Mi"),
        PodSpec::best_effort("batch"),
    );
    let (first, second) = (running(&web), running(&batch));
    kubelet.run(vec![first.clone(), second]);
    let options = Options {
        config: format!(
            "kubelet: {{url: \"{}\", tokenFile: {}, certificateAuthority: {}, interval: 1s}}\n",
            kubelet.url(),
            token.display(),
            ca.display()
        ),
        ..Options::default()
    };
    let node = Node::on(context, sandbox, &options)?;
    node.expect_pods(&[&web, &batch])?;
    let stats = node.agent.pod(&web.uid)?;
    ensure!(
        stats.pod_ref.name == "web" && stats.source == "kubelet" && stats.qos_class == "Guaranteed",
        "{stats:?}"
    );
    ensure!(node.cgroup_of(&web).exists(), "the pod has no cgroup");
    kubelet.run(vec![first]);
    node.expect_pods(&[&web])?;
    ensure!(!node.cgroup_of(&batch).exists(), "a cgroup is left");

    // What it told stays in force while it does not answer.
    kubelet.take_token("second");
    expect_problem(&node, Some("renew it"))?;
    ensure!(node.cgroup_of(&web).exists(), "the pod's cgroup is gone");
    fs::write(&token, "second")?;
    expect_problem(&node, None)?;
    kubelet.renew(NODE)?;
    expect_problem(&node, Some("certificate"))?;
    fs::write(&ca, kubelet.certificates())?;
    expect_problem(&node, None)?;
    // Its own certificate is no good for another name.
    kubelet.renew("another-node")?;
    fs::write(&ca, kubelet.certificates())?;
    expect_problem(&node, Some("certificate"))?;
    let asked = kubelet.asked();
    kubelet.renew(NODE)?;
    fs::write(&ca, kubelet.certificates())?;
    expect_problem(&node, None)?;
    ensure!(kubelet.asked() > asked, "it was not asked again");
    node.expect_pods(&[&web])?;
    kubelet.run(Vec::new());
    node.expect_pods(&[])?;
    node.finish()
}
