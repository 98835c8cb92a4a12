//! `podwarden explain`: every value of one pod and its tier, and what would change it.

use std::{borrow::Cow, fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use podwarden_policy::{
    Container, ContainerKind, Node, Pod, QosClass, Resources,
    desired::{self, Desired},
    limits,
    plan::{self, Action, Ownership},
    qos,
    reason::Reason,
    reserve,
    settings::Setting,
};

use self::change::{Scope, changes_with};
use super::{
    connect::Connect,
    human,
    plan::{
        files::{File, files},
        input::{Input, NodeArgs},
        report::{columns, ranking},
        write,
    },
    select,
};

mod change;
mod class;

const EXAMPLES: &str = "\
Examples:
  podwarden explain web                        by name, from the running agent
  podwarden explain shop/web                   by namespace and name
  podwarden explain 6f1c0e4a-5b7e-4c0e-9d53-0f4f7c1d2a3b
  podwarden explain web -f node.json           from a snapshot, see `podwarden plan --help`

Exit code: 0 explained, 2 no such pod or nothing to read, 3 a wrong argument or no answer from the
agent.";

/// Arguments of `podwarden explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// NAME, NAMESPACE/NAME or uid
    pod: String,
    /// Snapshot, v1 Pod manifests or PodList instead of the running agent; `-` for standard input
    #[arg(short, long, value_name = "SNAPSHOT")]
    file: Option<PathBuf>,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    connect: Connect,
}

/// Prints the explanation.
///
/// # Errors
/// No answer from the agent, or output that cannot be written.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let input = match &args.file {
        Some(file) => Input::read(file, &args.node),
        None => {
            let recorded = args.connect.client().get_bytes("/v1/plan").await?;
            let text = std::str::from_utf8(&recorded).context("read the agent's answer")?;
            Input::parse("(the agent's)", text, &args.node)
        }
    };
    let text = input.and_then(|input| {
        for error in &input.errors {
            eprintln!("podwarden: {error}");
        }
        let pod = select::pod(&input.snapshot.pods, &args.pod)?;
        Ok(explain(&input, pod))
    });
    match text {
        Ok(text) => write(&text)?,
        Err(error) => {
            eprintln!("podwarden: {error:#}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(input: &Input, pod: &Pod) -> String {
    let class = qos::classify(pod);
    let mut text = format!(
        "{}, uid {}: {class}\n  {}\n\n{}",
        name(pod),
        pod.uid,
        class::why(pod),
        resources(pod)
    );
    let kubepods = &input.snapshot.kubepods;
    let of_pod = kubepods.pod(class, &pod.uid);
    let of_tier = kubepods.tier(class);
    let tree = desired::tree(&input.snapshot);
    let actions = plan::plan(&input.snapshot);
    let tier = match class {
        QosClass::Guaranteed => Scope::Node,
        QosClass::Burstable | QosClass::BestEffort => Scope::Tier,
    };
    for (wanted, scope) in [(&of_pod, Scope::Pod), (&of_tier, tier)] {
        if let Some(cgroup) = tree.iter().find(|cgroup| cgroup.name == *wanted) {
            text.push_str(&values(input, cgroup, scope, &actions));
        }
    }
    if input.snapshot.ownership == Ownership::Assist {
        text.push_str(
            "\nA kubelet owns the tree (ownership: assist): shown is what podwarden writes there; \
             the rest is the kubelet's.\n",
        );
    }
    text + &place(input, pod)
}

fn name(pod: &Pod) -> String {
    human::printable(&format!("{}/{}", pod.namespace, pod.name))
}

/// What the containers ask for, and what the pod comes to.
fn resources(pod: &Pod) -> String {
    let amount = |amount: Option<String>| Cow::from(amount.unwrap_or_else(|| "-".to_owned()));
    let row = |name: String, from: &Resources| {
        [
            Cow::from(name),
            amount(from.cpu_request.map(|a| a.to_string())),
            amount(from.cpu_limit.map(|a| a.to_string())),
            amount(from.memory_request.map(|a| a.to_string())),
            amount(from.memory_limit.map(|a| a.to_string())),
        ]
    };
    let container = |container: &Container| match container.kind {
        ContainerKind::App => container.name.clone(),
        ContainerKind::Init => format!("{} (init)", container.name),
        ContainerKind::Sidecar => format!("{} (sidecar)", container.name),
    };
    let mut rows = vec![
        [
            "CONTAINER",
            "CPU REQUEST",
            "CPU LIMIT",
            "MEMORY REQUEST",
            "MEMORY LIMIT",
        ]
        .map(Cow::from),
    ];
    rows.extend(
        pod.containers
            .iter()
            .map(|c| row(human::printable(&container(c)), &c.resources)),
    );
    if let Some(own) = &pod.pod_resources {
        rows.push(row("spec.resources".to_owned(), own));
    }
    if let Some(overhead) = &pod.overhead {
        rows.push(row(
            "spec.overhead".to_owned(),
            &Resources {
                cpu_request: overhead.cpu,
                memory_request: overhead.memory,
                ..Resources::default()
            },
        ));
    }
    // A sum of nothing is no limit.
    let set = |is_zero: bool, text: String| amount((!is_zero).then_some(text));
    let (requests, limits) = (limits::pod_requests(pod), limits::pod_limits(pod));
    rows.push([
        "the pod".into(),
        requests.cpu.to_string().into(),
        set(limits.cpu.is_zero(), limits.cpu.to_string()),
        requests.memory.to_string().into(),
        set(limits.memory.is_zero(), limits.memory.to_string()),
    ]);
    columns(&rows)
}

/// Every file of one cgroup: value, formula, what would change it, and whether it is to be written.
fn values(input: &Input, cgroup: &Desired, scope: Scope, actions: &[Action]) -> String {
    let mut text = format!("\n/{}\n", input.naming.rel(&cgroup.name));
    for (setting, reason) in &cgroup.settings {
        let pending = pending(input, cgroup, setting, actions);
        for file in files(setting, reason, input.version) {
            let File {
                name,
                value,
                reason: formula,
            } = &file;
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {name} = {value}\n    {formula}");
            if let Reason::TierReserve { .. } = reason {
                let _ = writeln!(text, "    {}", allocatable(&input.snapshot.node));
            }
            let changes = changes_with(scope, setting, reason);
            let _ = writeln!(text, "    changes with {changes}");
            match pending.iter().find(|p| p.name == *name) {
                Some(now) if now == &file => text.push_str("    not in force yet: to be written\n"),
                Some(now) => {
                    let File { value, reason, .. } = now;
                    let _ = writeln!(
                        text,
                        "    not in force yet: to be written {value}: {reason}"
                    );
                }
                None => {}
            }
        }
    }
    text
}

/// How much memory the tiers' reserve is computed from.
fn allocatable(node: &Node) -> String {
    format!(
        "allocatable: capacity {} - kubeReserved {} - systemReserved {} = {}",
        node.memory_capacity,
        node.kube_reserved.memory,
        node.system_reserved.memory,
        reserve::allocatable(node).kubepods_memory
    )
}

/// The files that the plan writes for a setting of a cgroup.
fn pending(input: &Input, cgroup: &Desired, setting: &Setting, actions: &[Action]) -> Vec<File> {
    let written = actions.iter().filter_map(|action| match action {
        Action::Write {
            cgroup: name,
            setting: written,
            reason,
        } if *name == cgroup.name && same_files(written, setting) => {
            Some(files(written, reason, input.version))
        }
        _ => None,
    });
    written.flatten().collect()
}

fn same_files(a: &Setting, b: &Setting) -> bool {
    match (a, b) {
        (
            Setting::HugetlbLimit { page_size: a, .. },
            Setting::HugetlbLimit { page_size: b, .. },
        ) => a == b,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

/// Where the pod stands in the order of eviction, and why.
fn place(input: &Input, pod: &Pod) -> String {
    let snapshot = &input.snapshot;
    if let Some(protection) = snapshot.immunity.of(pod) {
        return format!("\nEviction: never ({protection})\n");
    }
    let order = ranking(snapshot);
    let Some(index) = order.iter().position(|r| r.pod.uid == pod.uid) else {
        return "\nEviction: not among the candidates, for it has no cgroup\n".to_owned();
    };
    let mut text = format!(
        "\nEviction: place {} of {}\n  {}\n",
        index + 1,
        order.len(),
        order[index].rank
    );
    let mut neighbour = |word: &str, ranked: Option<&podwarden_policy::evict::Ranked<'_>>| {
        if let Some(ranked) = ranked {
            let _ = writeln!(text, "  {word} {}: {}", name(ranked.pod), ranked.rank);
        }
    };
    neighbour("after", index.checked_sub(1).and_then(|i| order.get(i)));
    neighbour("before", order.get(index + 1));
    text.push_str(match snapshot.ranking {
        podwarden_policy::evict::Ranking::QosFirst => {
            "  changes with its class, its working set against its memory request, its priority\n"
        }
        podwarden_policy::evict::Ranking::Kubelet => {
            "  changes with its working set against its memory request, its priority\n"
        }
    });
    text
}
