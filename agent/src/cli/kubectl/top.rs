//! Figures of many nodes: a line for each, then a line for each pod.

use std::cmp::Reverse;

use serde::Deserialize;
use serde_json::{Value, json};

use super::agents::Answers;
use crate::{
    api::types::{NodeStats, PodRef},
    cli::{
        events::text::name,
        output::{self, Format},
    },
};

/// What `podwarden top -o json` prints, as far as it is shown here.
#[derive(Debug, Deserialize)]
struct Answer {
    node: NodeStats,
    pods: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    pod_ref: PodRef,
    qos_class: String,
    usage_nano_cores: Option<u64>,
    working_set_bytes: Option<u64>,
    run_queue_wait_p99_nano_seconds: Option<u64>,
    stall_nanos_per_second: Option<u64>,
}

/// The text, and the nodes without an answer.
pub(super) fn text(
    answers: Answers,
    format: Format,
) -> anyhow::Result<(String, Vec<(String, String)>)> {
    let mut failed = Vec::new();
    let (mut whole, mut typed) = (Vec::new(), Vec::new());
    for (node, answer) in answers {
        let read = answer.and_then(|text| {
            let value: Value = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
            let answer: Answer = serde_json::from_value(value.clone())
                .map_err(|e| format!("its answer is that of another version: {e}"))?;
            Ok((value, answer))
        });
        match read {
            Ok((value, answer)) => {
                whole.push(json!({"name": &node, "node": value["node"], "pods": value["pods"]}));
                typed.push((node, answer));
            }
            Err(problem) => failed.push((node, problem)),
        }
    }
    let text = match format {
        Format::Json => {
            let failed: Vec<_> = failed
                .iter()
                .map(|(node, problem)| json!({"name": node, "error": problem}))
                .collect();
            serde_json::to_string_pretty(&json!({"nodes": whole, "failed": failed}))? + "\n"
        }
        Format::Table => table(&typed),
    };
    Ok((text, failed))
}

fn table(answers: &[(String, Answer)]) -> String {
    const NODES: [&str; 8] = [
        "NODE",
        "MODE",
        "PROFILE",
        "PODS",
        "CPU",
        "MEMORY",
        "ALLOCATABLE",
        "DEGRADATIONS",
    ];
    const PODS: [&str; 7] = ["NODE", "POD", "TIER", "CPU", "MEMORY", "P99", "STALL"];
    let mut nodes = Vec::new();
    let mut pods = Vec::new();
    for (of, Answer { node, pods: found }) in answers {
        let sum = |of: fn(&Pod) -> Option<u64>| found.iter().filter_map(of).sum::<u64>();
        nodes.push([
            output::printable(of),
            node.mode.clone(),
            node.profile.clone(),
            found.len().to_string(),
            output::cores(sum(|pod| pod.usage_nano_cores)),
            output::bytes(sum(|pod| pod.working_set_bytes)),
            output::bytes(node.allocatable_memory_bytes),
            node.degradations.len().to_string(),
        ]);
        pods.extend(
            found
                .iter()
                .map(|pod| (pod.usage_nano_cores.unwrap_or(0), row(of, pod))),
        );
    }
    // The busiest first.
    pods.sort_by(|a, b| Reverse(a.0).cmp(&Reverse(b.0)).then_with(|| a.1.cmp(&b.1)));
    let pods = pods.into_iter().map(|(_, row)| row);
    let [nodes, pods] = [output::table(NODES, nodes), output::table(PODS, pods)];
    format!("{nodes}\n{pods}")
}

fn row(node: &str, pod: &Pod) -> [String; 7] {
    let shown = |value: Option<u64>, text: fn(u64) -> String| value.map_or("-".to_owned(), text);
    [
        output::printable(node),
        name(&pod.pod_ref),
        pod.qos_class.clone(),
        shown(pod.usage_nano_cores, output::cores),
        shown(pod.working_set_bytes, output::bytes),
        shown(pod.run_queue_wait_p99_nano_seconds, output::nanos),
        shown(pod.stall_nanos_per_second, output::millis_per_second),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(mode: &str, cpu: u64) -> Vec<u8> {
        let node = NodeStats {
            mode: mode.to_owned(),
            profile: "standard".to_owned(),
            allocatable_memory_bytes: 1 << 30,
            ..NodeStats::default()
        };
        let pod = json!({
            "podRef": {"namespace": "shop", "name": format!("web-{mode}"), "uid": "u"}, "qosClass": "Burstable",
            "usageNanoCores": cpu, "workingSetBytes": 64 << 20, "exits": {}, "containers": 1,
        });
        json!({"node": node, "pods": [pod]})
            .to_string()
            .into_bytes()
    }

    fn answers() -> Answers {
        [
            ("node-1", Ok(answer("observe", 5_000_000))),
            ("node-2", Ok(answer("enforce", 250_000_000))),
            ("node-3", Err("refused".to_owned())),
            ("node-4", Ok(b"{}".to_vec())),
        ]
        .map(|(node, answer)| (node.to_owned(), answer))
        .into()
    }

    #[test]
    fn nodes_come_first_then_pods_by_their_cpu() {
        let (text, failed) = text(answers(), Format::Table).unwrap();
        let expected = "\
NODE    MODE     PROFILE   PODS  CPU   MEMORY  ALLOCATABLE  DEGRADATIONS
node-1  observe  standard  1     5m    64.0Mi  1.00Gi       0
node-2  enforce  standard  1     250m  64.0Mi  1.00Gi       0

NODE    POD               TIER       CPU   MEMORY  P99  STALL
node-2  shop/web-enforce  Burstable  250m  64.0Mi  -    -
node-1  shop/web-observe  Burstable  5m    64.0Mi  -    -
";
        assert_eq!(text, expected);
        assert_eq!(failed[0], ("node-3".to_owned(), "refused".to_owned()));
        assert!(failed[1].1.contains("another version"), "{failed:?}");
    }

    #[test]
    fn json_has_the_agents_answers_as_they_are() {
        let (text, _) = text(answers(), Format::Json).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["nodes"][1]["name"], "node-2");
        assert_eq!(value["nodes"][1]["pods"][0]["containers"], 1);
        assert_eq!(
            value["failed"][0],
            json!({"name": "node-3", "error": "refused"})
        );
    }
}
