//! What the API server learns of evictions: after the kill, once, and about the evicted pod alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::{EventKind, Eviction};
use serde_json::{Value, json};

use super::apiserver::{NAMESPACE, World};
use super::eviction::small;
use super::recorder::{logging, restart};
use super::{Case, Context, portable};
use crate::harness::{NODE, Options, PodSpec, Workload, eventually, sleep, until};
use killed::eviction_status_killed_at_steps;

mod killed;

pub(super) const CASES: &[Case] = &[
    portable("eviction_status_status", eviction_status_status),
    portable("eviction_status_after_kill", eviction_status_after_kill),
    portable("eviction_status_replaced_pod", eviction_status_replaced_pod),
    portable("eviction_status_eviction_api", eviction_status_eviction_api),
    portable("eviction_status_taken_back", eviction_status_taken_back),
    portable(
        "eviction_status_killed_at_steps",
        eviction_status_killed_at_steps,
    ),
];

const MIB: u64 = 1 << 20;

/// For what must not happen again.
pub(super) const A_WHILE: Duration = Duration::from_secs(1);

/// A server and an agent on a small node, with these pods.
pub(super) fn world(context: &Context, options: Options, specs: &[&PodSpec]) -> Result<World> {
    let mut world = World::with(context, options, |_| Ok(()))?;
    world.ready(context)?;
    for spec in specs {
        world.add(spec)?;
    }
    world.node.expect_pods(specs)?;
    Ok(world)
}

/// Starts a process in a pod that the server has.
pub(super) fn start(world: &World, spec: &PodSpec, args: &[&str]) -> Result<Workload> {
    let cgroup = world.node.cgroup_of(spec);
    until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
    let main = cgroup.child("main");
    main.create()?;
    Workload::start(&main, args)
}

/// Starts the victim.
fn start_hog(world: &World, spec: &PodSpec) -> Result<Workload> {
    let mib = (world.node.level()? / MIB + 64).to_string();
    let args = ["fill", "--mib", &mib, "--rate", "800", "--step-kib", "64"];
    start(world, spec, &args)
}

/// Lets a pod be evicted.
pub(crate) fn evict(context: &Context, world: &World, spec: &PodSpec) -> Result<Eviction> {
    let mut hog = start_hog(world, spec)?;
    let status = hog.wait(context.limit(30)).context("it was not killed")?;
    ensure!(!status.success(), "it ended by itself");
    eventually(world.node.limit(), || {
        let mut evictions = world.node.agent.evictions()?.into_iter();
        let own = evictions.find(|eviction| *eviction.pod.uid == *spec.uid);
        own.context("no eviction is reported")
    })
}

/// The Events of a reason, by the object that they are about.
fn events(world: &World, reason: &str) -> Result<BTreeMap<String, Value>> {
    let all = world.server.events()?;
    let mut found = BTreeMap::new();
    for event in all.into_iter().filter(|event| event["reason"] == reason) {
        let uid = event["involvedObject"]["uid"].as_str().unwrap_or_default();
        let twice = found.insert(uid.to_owned(), event.clone()).is_some();
        ensure!(!twice, "two Events {reason} about {uid}");
    }
    Ok(found)
}

fn status(world: &World, spec: &PodSpec) -> Result<Value> {
    Ok(world.server.pod(NAMESPACE, &spec.name)?["status"].clone())
}

/// The queue on the agent's disk.
pub(super) fn waiting(world: &World) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(world.node.sandbox.dir().join("state/eviction-status"));
    let mut waiting = Vec::new();
    for file in files.into_iter().flatten() {
        let path = file?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            waiting.push(path);
        }
    }
    Ok(waiting)
}

/// Waits until a pod has its status.
pub(crate) fn expect_status(world: &World, spec: &PodSpec) -> Result<()> {
    eventually(world.node.limit(), || has_status(world, spec))
}

fn has_status(world: &World, spec: &PodSpec) -> Result<()> {
    let status = status(world, spec)?;
    ensure!(
        status["phase"] == "Failed" && status["reason"] == "Evicted",
        "{}: {status}",
        spec.name
    );
    Ok(())
}

/// Waits until these pods have their status and Event, and nothing is left to deliver.
pub(super) fn expect_delivered(world: &World, specs: &[&PodSpec]) -> Result<()> {
    eventually(world.node.limit(), || are_delivered(world, specs))
}

/// These pods have their status and Event, no others have, and nothing is left to deliver.
pub(super) fn are_delivered(world: &World, specs: &[&PodSpec]) -> Result<()> {
    for spec in specs {
        has_status(world, spec)?;
    }
    let about = events(world, "Evicted")?;
    let told = about.keys().map(String::as_str);
    let mut wanted: Vec<_> = specs.iter().map(|spec| spec.uid.as_str()).collect();
    wanted.sort_unstable();
    ensure!(told.eq(wanted), "Events are about {:?}", about.keys());
    let waiting = waiting(world)?;
    ensure!(waiting.is_empty(), "{waiting:?} wait");
    Ok(())
}

/// What was written since the last look: how often each.
fn writes(world: &World) -> BTreeMap<String, usize> {
    let mut verbs = world.verbs();
    let reads = ["get ", "list ", "watch "];
    verbs.retain(|verb, _| !reads.iter().any(|read| verb.starts_with(read)));
    verbs
}

pub(super) fn finish(world: World, specs: &[&PodSpec]) -> Result<()> {
    world.node.empty()?;
    for spec in specs {
        // It may have been deleted on the way.
        let _ = world.server.remove_pod(NAMESPACE, &spec.name);
    }
    world.node.expect_pods(&[])?;
    world.node.finish()
}

fn eviction_status_status(context: &Context) -> Result<()> {
    let (hog, calm) = (
        PodSpec::best_effort("hog"),
        PodSpec::guaranteed("calm", "64Mi"),
    );
    let mut world = world(context, small("enforce"), &[&hog, &calm])?;
    let containers = json!([{"name": "main", "ready": true, "restartCount": 3}]);
    world.server.change_pod(NAMESPACE, &hog.name, |pod| {
        pod["status"] = json!({
            "phase": "Running",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True"},
            ],
            "containerStatuses": containers,
        });
    })?;
    world.verbs();
    let eviction = evict(context, &world, &hog)?;
    ensure!(eviction.status_required, "{eviction:?}");
    expect_delivered(&world, &[&hog])?;

    let marked = status(&world, &hog)?;
    let message = marked["message"].as_str().unwrap_or_default();
    let begins = "The node was low on resource: memory. Threshold quantity: 128Mi, available: ";
    ensure!(
        message.starts_with(begins) && message.contains(&eviction.reason),
        "{message:?}"
    );
    ensure!(marked["containerStatuses"] == containers, "{marked}");
    let conditions = marked["conditions"].as_array().context("no conditions")?;
    let condition = |kind: &str| conditions.iter().find(|c| c["type"] == kind);
    ensure!(
        condition("Ready").is_some_and(|ready| ready["status"] == "False")
            && condition("Initialized").is_some_and(|c| c["status"] == "True"),
        "{conditions:?}"
    );
    let target = condition("DisruptionTarget").context("no DisruptionTarget")?;
    ensure!(
        target["status"] == "True" && target["reason"] == "TerminationByKubelet",
        "{target}"
    );
    let event = events(&world, "Evicted")?.remove(&hog.uid);
    let event = event.context("no Event")?;
    ensure!(
        event["type"] == "Warning"
            && event["message"] == message
            && event["metadata"]["namespace"] == NAMESPACE
            && event["reportingComponent"] == "podwarden",
        "{event}"
    );
    let pressure = events(&world, "EvictionThresholdMet")?;
    ensure!(pressure.keys().eq([NODE]), "{pressure:?}");
    let once = BTreeMap::from([
        ("create events".to_owned(), 2),
        ("patch pods/status".to_owned(), 1),
    ]);
    let written = writes(&world);
    ensure!(written == once, "{written:?}");
    let counted = world
        .node
        .agent
        .node()?
        .eviction_status
        .context("no eviction status is counted")?;
    ensure!(
        (counted.waiting, counted.delivered, counted.given_up) == (0, 2, 0),
        "{counted:?}"
    );
    let untouched = status(&world, &calm)?;
    ensure!(untouched["phase"] == "Pending", "{untouched}");

    // The next agent has nothing to add.
    world.node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    let options = world.options.clone();
    restart(context, &mut world.node, &options)?;
    sleep(A_WHILE)?;
    let written = writes(&world);
    ensure!(written.is_empty(), "{written:?}");
    finish(world, &[&hog, &calm])
}

/// The status is in the queue on disk when the agent is killed; and it is not, and the eviction is on record.
fn eviction_status_after_kill(context: &Context) -> Result<()> {
    let home = tempfile::tempdir_in("/var/tmp")?;
    let log = home.path().join("events.jsonl");
    let specs = [PodSpec::best_effort("kept"), PodSpec::best_effort("lost")];
    let mut world = world(context, logging(&log), &specs.each_ref())?;
    let options = world.options.clone();
    let mut marked = Vec::new();
    for spec in &specs {
        world.server.stop();
        evict(context, &world, spec)?;
        eventually(world.node.limit(), || {
            ensure!(!waiting(&world)?.is_empty(), "nothing is in the queue");
            let recorded = fs::read_to_string(&log)?;
            ensure!(recorded.contains(&spec.uid), "it is not on record");
            Ok(())
        })?;
        world.node.agent.signal(Signal::SIGKILL)?;
        world.node.agent.wait(world.node.limit())?;
        // With it the Node's Events.
        let is_lost = spec.name == "lost";
        if is_lost {
            for path in waiting(&world)? {
                fs::remove_file(path)?;
            }
        }
        world.verbs();
        world.server.resume()?;
        restart(context, &mut world.node, &options)?;
        marked.push(spec);
        expect_delivered(&world, &marked)?;
        let written = writes(&world);
        let once = BTreeMap::from([
            ("create events".to_owned(), usize::from(!is_lost) + 1),
            ("patch pods/status".to_owned(), 1),
        ]);
        // The first is on record for the second time around, and done.
        ensure!(written == once, "{}: {written:?}", spec.name);
    }
    finish(world, &specs.each_ref())
}

fn eviction_status_replaced_pod(context: &Context) -> Result<()> {
    let old = PodSpec::best_effort("hog");
    let mut world = world(context, small("enforce"), &[&old])?;
    world.server.stop();
    evict(context, &world, &old)?;
    eventually(world.node.limit(), || {
        ensure!(!waiting(&world)?.is_empty(), "nothing is in the queue");
        Ok(())
    })?;
    world.server.remove_pod(NAMESPACE, &old.name)?;
    let new = PodSpec::best_effort("hog");
    world.add(&new)?;
    let before = world.server.pod(NAMESPACE, &new.name)?;
    world.verbs();
    world.server.resume()?;
    eventually(world.node.limit(), || {
        let waiting = waiting(&world)?;
        ensure!(waiting.is_empty(), "{waiting:?} wait");
        Ok(())
    })?;
    sleep(A_WHILE)?;
    let after = world.server.pod(NAMESPACE, &new.name)?;
    ensure!(before == after, "{before} became {after}");
    let told = events(&world, "Evicted")?;
    ensure!(told.is_empty(), "{told:?}");
    let written = writes(&world);
    ensure!(!written.contains_key("patch pods/status"), "{written:?}");
    world.node.empty()?;
    world.node.expect_pods(&[&new])?;
    finish(world, &[&new])
}

fn eviction_status_eviction_api(context: &Context) -> Result<()> {
    let hog = PodSpec::best_effort("hog");
    let mut options = small("enforce");
    options.config = "evictionStatus: {how: evictionApi}\n".to_owned();
    let world = world(context, options, &[&hog])?;
    world.server.manners(|m| m.budget_spent = Some(1));
    world.verbs();
    evict(context, &world, &hog)?;
    // It is refused, and that is said.
    eventually(world.node.limit(), || {
        let events = world.node.agent.events(0)?;
        let said = events.iter().any(|event| match &event.kind {
            EventKind::Degraded { message } => message.contains("disruption budget"),
            _ => false,
        });
        ensure!(said, "nothing is said of the refusal");
        Ok(())
    })?;
    let pod = world.server.pod(NAMESPACE, &hog.name)?;
    ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
    world.server.manners(|m| m.budget_spent = None);
    eventually(world.node.limit(), || {
        let pod = world.server.pod(NAMESPACE, &hog.name)?;
        ensure!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
        let waiting = waiting(&world)?;
        ensure!(waiting.is_empty(), "{waiting:?} wait");
        Ok(())
    })?;
    let told = events(&world, "Evicted")?;
    ensure!(told.keys().eq([&hog.uid]), "{told:?}");
    let written = writes(&world);
    ensure!(
        written.get("create pods/eviction") >= Some(&2)
            && written.get("create events") == Some(&2)
            && !written.contains_key("patch pods/status"),
        "{written:?}"
    );
    finish(world, &[&hog])
}

/// A kubelet that has not seen the status writes its own status over it.
fn eviction_status_taken_back(context: &Context) -> Result<()> {
    let hog = PodSpec::best_effort("hog");
    let world = world(context, small("enforce"), &[&hog])?;
    world.verbs();
    evict(context, &world, &hog)?;
    // The last has seen the phase, and its status of the pod has no reason yet.
    for kubelets in [
        json!({"phase": "Running"}),
        json!({"phase": "Running"}),
        json!({"phase": "Failed"}),
    ] {
        expect_delivered(&world, &[&hog])?;
        // The agent has seen it.
        world.node.empty()?;
        world.node.expect_pods(&[])?;
        world.server.change_pod(NAMESPACE, &hog.name, |pod| {
            pod["status"] = kubelets.clone();
        })?;
    }
    expect_delivered(&world, &[&hog])?;
    let four_times = BTreeMap::from([
        ("create events".to_owned(), 2),
        ("patch pods/status".to_owned(), 4),
    ]);
    let written = writes(&world);
    ensure!(written == four_times, "{written:?}");
    finish(world, &[&hog])
}
