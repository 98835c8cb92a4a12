//! Process ids that run out: a fork bomb is evicted before nothing can fork any more.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{EventKind, Eviction};
use podwarden_policy::settings::Controller;

use super::victims::{first_evicted, forget, stranger};
use super::{Case, Context, case, portable};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Workload, eventually, fresh_uid, until};

pub(super) const CASES: &[Case] = &[
    portable("pids_fork_bomb", fork_bomb),
    portable("pids_restless_fork_bomb", restless_fork_bomb),
    portable("pids_not_known_yet", not_known_yet),
    portable("pids_refused_forks", refused_forks),
    case("tasks_equal_files", tasks_equal_files),
];

/// What pods together may have, by `kubeReserved`, and what is to stay available of it.
const LIMIT: u64 = 1000;
const KEPT: u64 = 600;
/// Should the agent fail, the bomb's own limit holds it.
const SAFETY_NET: i64 = 800;

/// As the kubelet counts them.
fn capacity() -> Result<u64> {
    let read = |name: &str| -> Result<u64> {
        let path = format!("/proc/sys/kernel/{name}");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        text.trim().parse().with_context(|| path)
    };
    Ok(read("pid_max")?.min(read("threads-max")?))
}

fn node(context: &Context) -> Result<Node> {
    let reserved = capacity()?.saturating_sub(LIMIT);
    let options = Options {
        config: format!(
            "evictionHard: {{memory.available: 100Mi, pid.available: \"{KEPT}\"}}\n\
             kubeReserved: {{pid: \"{reserved}\"}}\n"
        ),
        ..Options::default()
    };
    Node::start(context, &options)
}

/// Pods with some processes each, one of which a lower class, and the one that is to be the bomb.
fn pods(node: &Node) -> Result<(Pod, Vec<Workload>)> {
    let pods = node.pods(vec![
        PodSpec::burstable("bomb", "16Mi"),
        PodSpec::best_effort("few"),
        PodSpec::burstable("more", "16Mi"),
    ])?;
    let [bomb, few, more]: [Pod; 3] = pods.try_into().ok().context("three pods")?;
    bomb.main.limit_pids(SAFETY_NET)?;
    let rest = vec![
        few.start(&["forkbomb", "--max", "5"])?,
        more.start(&["forkbomb", "--max", "50"])?,
    ];
    until(node.limit(), "the bystanders' processes", || {
        more.main.procs().len() == 50
    })?;
    Ok((bomb, rest))
}

fn explode(context: &Context, args: &[&str]) -> Result<()> {
    let node = node(context)?;
    let (bomb, mut rest) = pods(&node)?;
    let mut explodes = bomb.start(args)?;
    let evictions: Vec<Eviction> = eventually(node.limit(), || {
        let evictions = node.agent.evictions()?;
        ensure!(!evictions.is_empty(), "no eviction is reported");
        Ok(evictions)
    })?;
    let [eviction] = &*evictions else {
        anyhow::bail!("{} evictions: {evictions:?}", evictions.len());
    };
    ensure!(
        eviction.pod.uid == bomb.uid() && eviction.scope.as_str() == "pids",
        "{eviction:?}"
    );
    ensure!(
        eviction.level_bytes == LIMIT - KEPT && eviction.usage_bytes >= LIMIT - KEPT,
        "{eviction:?}"
    );
    ensure!(eviction.reason.contains("processes"), "{eviction:?}");
    until(node.limit(), "the end of every process of the bomb", || {
        bomb.main.procs().is_empty()
    })?;
    // A restless one has left its first process long ago.
    let _ = explodes.wait(node.limit())?;
    ensure!(
        rest.iter_mut().all(Workload::is_alive),
        "a bystander was killed as well"
    );
    context.figure("processes_at_the_kill", eviction.usage_bytes as f64, "");
    let timeline = &eviction.timeline;
    if let Some(killed) = timeline.killed_nanos {
        let took = killed.saturating_sub(timeline.crossing_nanos);
        context.figure("wake_to_kill", took as f64 / 1e6, "ms");
    }
    drop((rest, explodes));
    node.finish()
}

fn fork_bomb(context: &Context) -> Result<()> {
    explode(context, &["forkbomb", "--max", "700"])
}

/// Its processes come and go, so that no list of them is true when it is read.
fn restless_fork_bomb(context: &Context) -> Result<()> {
    explode(context, &["forkbomb", "--restless"])
}

/// The bomb is in a pod of which no source has told yet: no other pod goes for it, and it goes once it may.
fn not_known_yet(context: &Context) -> Result<()> {
    let node = node(context)?;
    let (known, mut rest) = pods(&node)?;
    let uid = fresh_uid();
    let main = stranger(&node, &uid)?;
    main.limit_pids(SAFETY_NET)?;
    until(node.limit(), "the agent sees its cgroup", || {
        node.agent.pod(&uid).is_ok()
    })?;
    let bomb = Workload::start(&main, &["forkbomb", "--max", "700"])?;
    let evicted = first_evicted(&node)?;
    ensure!(evicted == uid, "{evicted} was evicted, not {uid}");
    until(node.limit(), "the end of every process of the bomb", || {
        main.procs().is_empty()
    })?;
    ensure!(rest.iter_mut().all(Workload::is_alive), "a known pod ended");
    drop((known, rest, bomb));
    forget(&node, &main, &uid)?;
    node.finish()
}

/// A number in a file of the pids controller: of the line that begins with `name`.
fn pids_file(cgroup: &Cgroup, file: &str, name: &str) -> Result<u64> {
    let mount = cgroup.mounts().of(Controller::Pids);
    let directory = mount.context("no pids controller")?.join(cgroup.path());
    let text = fs::read_to_string(directory.join(file))?;
    let number = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(number.context("no such line")?.trim().parse()?)
}

/// A node without what `disabled` says.
fn node_without(context: &Context, disabled: &str) -> Result<Node> {
    let options = Options {
        env: vec![("PODWARDEN_DISABLE".to_owned(), disabled.to_owned())],
        ..Options::default()
    };
    Node::start(context, &options)
}

fn refused_forks(context: &Context) -> Result<()> {
    for disabled in ["", "iterator"] {
        refused_without(context, disabled).with_context(|| format!("without {disabled:?}"))?;
    }
    Ok(())
}

/// A container at its own limit: each fork that the kernel refuses is counted for its pod, and an event of it alone. What
/// is told is `pids.events`, from the kernel's pass and from the files.
fn refused_without(context: &Context, disabled: &str) -> Result<()> {
    let node = node_without(context, disabled)?;
    let pods = node.pods(vec![
        PodSpec::burstable("full", "16Mi"),
        PodSpec::best_effort("beside"),
    ])?;
    let [full, beside]: [Pod; 2] = pods.try_into().ok().context("two pods")?;
    full.main.limit_pids(8)?;
    let forks = [
        full.start(&["forkbomb", "--max", "20"])?,
        beside.start(&["forkbomb", "--max", "5"])?,
    ];
    let refused = eventually(node.limit(), || {
        let events = node.agent.events(0)?;
        let refused = events.into_iter().filter_map(|event| match event.kind {
            EventKind::ForksRefused { container, count } => {
                Some((event.pod.map(|pod| pod.uid), container, count))
            }
            _ => None,
        });
        let refused: Vec<_> = refused.collect();
        ensure!(!refused.is_empty(), "no ForksRefused event");
        Ok(refused)
    })?;
    for (uid, container, count) in &refused {
        ensure!(
            uid.as_ref().is_some_and(|uid| uid.as_str() == full.uid()) && *count > 0,
            "{refused:?}"
        );
        ensure!(container.is_some(), "it is one container's: {refused:?}");
    }
    // Nothing is refused from now on.
    drop(forks);
    for (pod, any) in [(&full, true), (&beside, false)] {
        let file = |cgroup| pids_file(cgroup, "pids.events", "max ");
        node.expect(pod.uid(), |stats| {
            let main = stats.containers.first().context("no container")?;
            let told = [stats.refused_forks, main.refused_forks];
            let (pod, main) = (file(&pod.cgroup)?, file(&pod.main)?);
            ensure!(
                (main > 0) == any && told == [Some(pod.max(main)), Some(main)],
                "{told:?} are told, the files say {pod} and {main}"
            );
            Ok(())
        })?;
    }
    node.finish()
}

/// What is told is `pids.current`, from the kernel's pass and from the files.
fn tasks_equal_files(context: &Context) -> Result<()> {
    for disabled in ["", "iterator"] {
        let node = node_without(context, disabled)?;
        let pods = node.pods(vec![
            PodSpec::burstable("many", "16Mi"),
            PodSpec::best_effort("few"),
        ])?;
        let mut forks = Vec::new();
        for (pod, most) in pods.iter().zip(["40", "3"]) {
            forks.push(pod.start(&["forkbomb", "--max", most])?);
        }
        for (pod, least) in pods.iter().zip([40, 3]) {
            let file = |cgroup| pids_file(cgroup, "pids.current", "");
            node.expect(pod.uid(), |stats| {
                let main = stats.containers.first().context("no container")?;
                let told = [stats.tasks, main.tasks];
                let files = [file(&pod.cgroup)?, file(&pod.main)?];
                ensure!(
                    files[0] >= least && told == files.map(Some),
                    "{told:?} are told, the files say {files:?} ({disabled})"
                );
                Ok(())
            })?;
        }
        drop(forks);
        node.finish()?;
    }
    Ok(())
}
