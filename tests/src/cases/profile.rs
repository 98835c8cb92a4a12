//! What a kernel allows, what is lost without it, and that the rest still works.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;
use rustix::thread::CapabilitySet;
use serde_json::Value;

use super::eviction::{Scene, small};
use super::{Case, Context, case, close_cpu, portable};
use crate::harness::{
    Agent, Cgroup, Node, Objects, Options, PodSpec, Sandbox, Workload, eventually,
};

pub(super) const CASES: &[Case] = &[
    case("check_names_profile", check_names_profile),
    case("no_fentry", no_fentry),
    case("no_bpf_capability", no_bpf_capability),
    portable("all_switched_off", all_switched_off),
    portable("unprivileged_user", unprivileged_user),
    case("ring_full", ring_full),
    portable("ring_full_container_unseen", ring_full_container_unseen),
];

/// The profile that this kernel should get, from its lockdown state alone: `integrity` refuses fentry.
fn expected_profile() -> Result<&'static str> {
    let state = lockdown()?;
    let locked = state.contains("[integrity]") || state.contains("[confidentiality]");
    Ok(if locked { "standard" } else { "full" })
}

/// What securityfs says (kernel `security/lockdown/lockdown.c`), mounted for the purpose where it is
/// not; empty on a kernel without lockdown.
fn lockdown() -> Result<String> {
    if let Ok(text) = fs::read_to_string("/sys/kernel/security/lockdown") {
        return Ok(text);
    }
    let dir = tempfile::tempdir()?;
    let kind = Some("securityfs");
    mount(kind, dir.path(), kind, MsFlags::empty(), None::<&str>).context("mount securityfs")?;
    let text = fs::read_to_string(dir.path().join("lockdown")).unwrap_or_default();
    umount2(dir.path(), MntFlags::MNT_DETACH).context("unmount securityfs")?;
    Ok(text)
}

fn check_names_profile(context: &Context) -> Result<()> {
    let output = Command::new(context.agent())
        .args(["check", "-o", "json"])
        .output()
        .context("run podwarden check")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = output.status.code();
    ensure!(
        matches!(code, Some(0 | 1)),
        "check ended with {}: {text}",
        output.status
    );
    let answer: Value = serde_json::from_str(&text).with_context(|| format!("check: {text}"))?;
    let profile = answer["profile"]
        .as_str()
        .unwrap_or_default()
        .to_lowercase();
    let expected = expected_profile()?;
    ensure!(
        profile == expected,
        "check names {profile:?}, not {expected}"
    );
    let node = Node::start(context, &Options::default())?;
    let running = node.agent.node()?.profile;
    ensure!(
        running == expected,
        "{running} runs, check names {expected}"
    );
    let table = Command::new(context.agent())
        .arg("check")
        .output()
        .context("run check")?;
    let table = String::from_utf8_lossy(&table.stdout).to_lowercase();
    ensure!(
        table.contains(expected),
        "the table does not name the profile: {table}"
    );
    node.finish()
}

/// One pod's CPU time and exits are right.
fn accounts_rightly(context: &Context, node: &Node) -> Result<()> {
    let pod = node.pod(PodSpec::burstable("storm", "64Mi"))?;
    pod.start(&["storm", "--count", "50", "--parallel", "2"])?
        .done(context.limit(30))?;
    node.expect(pod.uid(), |stats| {
        ensure!(stats.exits.total == 51, "{} exits of 51", stats.exits.total);
        close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
    })?;
    Ok(())
}

/// The hog crosses the level and is the one that is killed.
fn evicts_the_hog(context: &Context, scene: &mut Scene) -> Result<()> {
    let (mut hog, _stamps) = scene.start_hog(96 << 20, 300)?;
    let status = hog
        .wait(context.limit(30))
        .context("the hog was not killed")?;
    ensure!(!status.success(), "the hog ended by itself");
    let eviction = scene.first_eviction()?;
    ensure!(
        eviction.pod.uid == scene.hog.uid(),
        "the victim is {:?}",
        eviction.pod
    );
    if let Some(killed) = eviction.timeline.killed_nanos {
        let took = killed.saturating_sub(eviction.timeline.crossing_nanos);
        context.figure("crossing_to_kill", took as f64 / 1e6, "ms");
    }
    scene.ensure_bystanders_alive()
}

fn no_fentry(context: &Context) -> Result<()> {
    let without = || vec![("PODWARDEN_DISABLE".to_owned(), "fentry".to_owned())];
    let mut scene = Scene::new(
        context,
        &Options {
            env: without(),
            ..small("enforce")
        },
    )?;
    let profile = scene.node.agent.node()?.profile;
    ensure!(profile == "standard", "{profile} runs without fentry");
    evicts_the_hog(context, &mut scene)?;
    scene.finish()?;
    let node = Node::start(
        context,
        &Options {
            env: without(),
            ..Options::default()
        },
    )?;
    accounts_rightly(context, &node)?;
    node.finish()
}

/// A clear refusal: an error code, and a text that is one and no panic.
fn ensure_clear_refusal(agent: &mut Agent, context: &Context) -> Result<()> {
    let status = agent.wait(context.limit(30))?;
    let text = agent.log.text();
    ensure!(
        status.code().is_some_and(|code| code != 0 && code != 101),
        "it ended with {status}"
    );
    ensure!(!text.contains("panicked"), "it panicked: {text}");
    ensure!(!text.trim().is_empty(), "it gives no reason");
    Ok(())
}

fn no_bpf_capability(context: &Context) -> Result<()> {
    let without = CapabilitySet::BPF | CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON;
    let mut scene = Scene::new(
        context,
        &Options {
            without,
            ..small("enforce")
        },
    )?;
    let node = scene.node.agent.node()?;
    ensure!(
        node.profile == "sampling",
        "{} runs without CAP_BPF",
        node.profile
    );
    ensure!(!node.degradations.is_empty(), "no degradation is named");
    // From the cgroup's own files, CPU time of what runs long is right all the same.
    let status = scene
        .hog
        .start(&["burn", "--cpu-ms", "300"])?
        .wait(context.limit(30))?;
    ensure!(status.success(), "the burner ended with {status}");
    scene.node.expect(scene.hog.uid(), |stats| {
        close_cpu(
            stats.cpu.usage_core_nano_seconds,
            scene.hog.cgroup.cpu_ns()?,
        )
    })?;
    evicts_the_hog(context, &mut scene)?;
    scene.finish()
}

/// A context switch, a packet and a request to a disk cost what they do without an agent: it has no kernel program.
fn all_switched_off(context: &Context) -> Result<()> {
    let options = Options {
        env: vec![("PODWARDEN_DISABLE".to_owned(), "bpf".to_owned())],
        config: "sampling: {disk: false, network: false}\n".to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let pod = node.pod(PodSpec::best_effort("pod"))?;
    let status = pod
        .start(&["burn", "--cpu-ms", "300"])?
        .wait(context.limit(30))?;
    ensure!(status.success(), "the burner ended with {status}");
    node.expect(pod.uid(), |stats| {
        close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
    })?;
    let objects = Objects::of_process(node.agent.pid())?;
    ensure!(objects == Objects::default(), "the agent has {objects:?}");
    node.finish()
}

fn unprivileged_user(context: &Context) -> Result<()> {
    const UNPRIVILEGED: u32 = 65534;
    let sandbox = Sandbox::new()?;
    // The directory is root's alone; the agent must get as far as its own checks.
    fs::set_permissions(sandbox.dir(), fs::Permissions::from_mode(0o755))?;
    let program = sandbox.dir().join("podwarden");
    fs::copy(context.agent(), &program).context("copy the agent")?;
    let options = Options {
        user: Some(UNPRIVILEGED),
        ..Options::default()
    };
    let mut agent = Agent::spawn(&program, &sandbox, &options)?;
    context.watch(&agent.log);
    ensure_clear_refusal(&mut agent, context)?;
    let left = sandbox.root.children();
    ensure!(left.is_empty(), "it made {left:?}");
    Ok(())
}

fn ring_full(context: &Context) -> Result<()> {
    const RING_BYTES: u64 = 16 * 1024;
    const PROCESSES: u64 = 1_000;
    let env = vec![(
        "PODWARDEN_TELEMETRY_BYTES".to_owned(),
        RING_BYTES.to_string(),
    )];
    let node = Node::start(
        context,
        &Options {
            env,
            ..Options::default()
        },
    )?;
    let pods = node.pods(vec![
        PodSpec::burstable("one", "64Mi"),
        PodSpec::best_effort("two"),
    ])?;
    // Stopped, the agent reads nothing; the kernel side goes on.
    node.agent.signal(Signal::SIGSTOP)?;
    let count = (PROCESSES / 2).to_string();
    let args = [
        "storm",
        "--count",
        &count,
        "--busy-us",
        "0",
        "--parallel",
        "2",
    ];
    let storms = pods
        .iter()
        .map(|pod| pod.start(&args))
        .collect::<Result<Vec<_>>>();
    let ended = storms.and_then(|mut storms| {
        storms
            .iter_mut()
            .try_for_each(|storm| storm.done(context.limit(120)).map(drop))
    });
    node.agent.signal(Signal::SIGCONT)?;
    ended?;
    for pod in &pods {
        node.expect(pod.uid(), |stats| {
            let exits = stats.exits.total;
            ensure!(
                exits == PROCESSES / 2 + 1,
                "{exits} exits of {}",
                PROCESSES / 2 + 1
            );
            close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
        })?;
    }
    let drops = node.agent.node()?.kernel_drops;
    ensure!(
        drops.telemetry > 0,
        "{PROCESSES} exits fitted into the ring"
    );
    context.figure("telemetry_records_dropped", drops.telemetry as f64, "");
    // What comes after the flood is told again.
    pods[0]
        .start(&["storm", "--count", "1", "--codes", "42"])?
        .done(context.limit(20))?;
    eventually(node.limit(), || {
        let events = node.agent.events(0)?;
        let told = events.iter().any(|event| {
            matches!(
                event.kind,
                EventKind::ProcessExit {
                    exit_code: Some(42),
                    ..
                }
            )
        });
        ensure!(told, "no event of a process that ended after the flood");
        Ok(())
    })?;
    node.finish()
}

/// A container comes and goes, and the ring has no room to tell of it: what it used counts to its pod.
fn ring_full_container_unseen(context: &Context) -> Result<()> {
    let env = vec![("PODWARDEN_TELEMETRY_BYTES".to_owned(), "4096".to_owned())];
    let options = Options {
        env,
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let pod = node.pod(PodSpec::burstable("one", "64Mi"))?;
    let unseen = pod.cgroup.child("unseen");
    let storm = |cgroup: &Cgroup, count: u64| {
        let args = ["storm", "--count", &count.to_string(), "--busy-us", "100"];
        Workload::start(cgroup, &args)?
            .done(context.limit(60))
            .map(drop)
    };
    node.agent.signal(Signal::SIGSTOP)?;
    // The ring first, then who is not told of.
    let ended = storm(&pod.main, 100)
        .and_then(|()| unseen.create())
        .and_then(|()| storm(&unseen, 20))
        .and_then(|()| eventually(context.limit(10), || unseen.remove()));
    node.agent.signal(Signal::SIGCONT)?;
    ended?;
    node.expect(pod.uid(), |stats| {
        let exits = stats.exits.total;
        ensure!(exits == 101 + 21, "{exits} exits of 122");
        ensure!(stats.containers.len() == 1, "{:?}", stats.containers);
        close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
    })?;
    let drops = node.agent.node()?.kernel_drops;
    ensure!(drops.telemetry > 0, "100 exits fitted into the ring");
    node.finish()
}
