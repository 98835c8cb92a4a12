//! Which agents there are, and what they answer.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::Context as _;
use serde_json::Value;
use tokio::{process::Command, sync::Semaphore, task::JoinSet};

/// The label of the agents' pods, in the chart and the manifest.
const LABEL: &str = "app.kubernetes.io/name=podwarden";
/// Where the image has the program.
const PROGRAM: &str = "/usr/local/bin/podwarden";
/// The agents' container.
const CONTAINER: &str = "podwarden";

/// An agent has this long to answer.
const TIME: Duration = Duration::from_secs(30);
/// Agents that are asked at the same time: each is a process here and a stream through the API server.
const AT_ONCE: usize = 16;

/// Each node's answer, or why there is none.
pub(super) type Answers = BTreeMap<String, Result<Vec<u8>, String>>;

/// Whom to ask.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Agents {
    /// Namespace of the agents
    #[arg(
        long,
        short,
        global = true,
        value_name = "NAME",
        default_value = "podwarden"
    )]
    namespace: String,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig, as kubectl takes it
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The agent of this node alone
    #[arg(long, global = true, value_name = "NAME")]
    node: Option<String>,
    /// Every agent, as without --node
    #[arg(long, global = true, conflicts_with = "node")]
    all: bool,
}

impl Agents {
    /// True where one node is named.
    pub(super) fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// The one of this node alone.
    pub(super) fn on(self, node: String) -> Self {
        Self {
            node: Some(node),
            ..self
        }
    }

    /// Has every agent's program run with these arguments.
    pub(super) async fn ask(&self, args: &[&str]) -> anyhow::Result<Answers> {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut asked = JoinSet::new();
        for (node, pod) in self.pods().await? {
            let exec = [
                "exec",
                "--namespace",
                &self.namespace,
                &pod,
                "--container",
                CONTAINER,
            ];
            let mut command = self.kubectl();
            command.args(exec).args(["--", PROGRAM]).args(args);
            let turns = Arc::clone(&turns);
            asked.spawn(async move {
                // Never closed.
                let _turn = turns.acquire().await;
                (node, output(command).await)
            });
        }
        let mut answers = Answers::new();
        while let Some(answer) = asked.join_next().await {
            let (node, answer) = answer.context("ask an agent")?;
            answers.insert(node, answer);
        }
        Ok(answers)
    }

    /// The node of a pod; `None` before it has one.
    pub(super) async fn node_of(
        &self,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<Option<String>> {
        let pod = self.get(&["pod", "--namespace", namespace, name]).await?;
        Ok(pod["spec"]["nodeName"].as_str().map(str::to_owned))
    }

    /// The agents' pods by their nodes.
    async fn pods(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let of_node = self.node.as_ref();
        let of_node = of_node.map(|node| format!("--field-selector=spec.nodeName={node}"));
        let mut args = vec!["pods", "--namespace", &self.namespace, "--selector", LABEL];
        args.extend(of_node.as_deref());
        let list = self.get(&args).await?;
        let pods = agents_of(&list);
        let (namespace, node) = (&self.namespace, self.node.as_deref().unwrap_or("any"));
        anyhow::ensure!(
            !pods.is_empty(),
            "there is no agent on {node} node in the namespace {namespace} (pods with the label {LABEL}); name their \
             namespace with --namespace"
        );
        Ok(pods)
    }

    async fn get(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut command = self.kubectl();
        command.arg("get").args(args).args(["--output", "json"]);
        let text = output(command).await;
        let text = text.map_err(|problem| anyhow::anyhow!("kubectl get {}: {problem}", args[0]))?;
        serde_json::from_slice(&text).context("kubectl get: its answer is no JSON")
    }

    fn kubectl(&self) -> Command {
        let mut command = Command::new("kubectl");
        if let Some(context) = &self.context {
            command.arg("--context").arg(context);
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// One pod of each node: while an update hands over there are two, and the one that is ready answers.
fn agents_of(list: &Value) -> BTreeMap<String, String> {
    let mut agents = BTreeMap::new();
    let pods = list["items"].as_array().into_iter().flatten();
    for pod in pods {
        let names = (&pod["spec"]["nodeName"], &pod["metadata"]["name"]);
        let (Some(node), Some(name)) = (names.0.as_str(), names.1.as_str()) else {
            continue;
        };
        let conditions = pod["status"]["conditions"].as_array();
        let is_ready = conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        if is_ready || !agents.contains_key(node) {
            agents.insert(node.to_owned(), name.to_owned());
        }
    }
    agents
}

/// What a command writes, or in one line why it failed.
async fn output(mut command: Command) -> Result<Vec<u8>, String> {
    let done = tokio::time::timeout(TIME, command.output()).await;
    let done = done.map_err(|_| format!("no answer within {} s", TIME.as_secs()))?;
    let done =
        done.map_err(|error| format!("kubectl cannot be started ({error}); install it in PATH"))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said: Vec<_> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match said[..] {
        [] => Err(format!("kubectl ended with {}", done.status)),
        _ => Err(said.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_node_has_one_agent_and_the_ready_one_answers() {
        let pod = |name: &str, node: Option<&str>, ready: &str| {
            json!({
                "metadata": {"name": name}, "spec": {"nodeName": node},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        let list = json!({"items": [
            pod("old-1", Some("node-1"), "True"), pod("new-1", Some("node-1"), "False"),
            pod("old-2", Some("node-2"), "False"), pod("new-2", Some("node-2"), "True"),
            pod("stuck-3", Some("node-3"), "False"), pod("pending", None, "False"),
        ]});
        let expected = [
            ("node-1", "old-1"),
            ("node-2", "new-2"),
            ("node-3", "stuck-3"),
        ];
        let expected = expected.map(|(node, pod)| (node.to_owned(), pod.to_owned()));
        assert_eq!(agents_of(&list), expected.into());
        assert_eq!(agents_of(&json!({})), BTreeMap::new());
    }

    #[tokio::test]
    async fn what_a_command_says_is_why_it_failed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a >&2; echo b >&2; exit 1"]);
        assert_eq!(output(command).await.unwrap_err(), "a; b");
        let missing = output(Command::new("/nowhere/kubectl")).await.unwrap_err();
        assert!(missing.contains("install it in PATH"), "{missing}");
    }
}
