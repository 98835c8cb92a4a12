//! `podwarden plan` as the owner of the tree, beside the files of a real kubelet that owns it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden_policy::{Bytes, MilliCpu};
use serde_json::{Value, json};

use super::compare::Comparison;
use super::shapes::{Fate, From, Shape, Then, WITH_OVERHEAD};
use crate::cases::{Case, Context, skip, slow};
use crate::containerd::BUSYBOX;
use crate::harness::{eventually, sleep, values};
use crate::kubernetes::{Cluster, Driver, PODS, condition, uid};
use crate::machine::init::is_guest;

mod purposes;

pub(in crate::cases) const CASES: &[Case] = &[
    slow("kubernetes_plan", kubernetes_plan),
    slow("kubernetes_plan_v2_cgroupfs", |context| {
        on_v2(context, Driver::Cgroupfs)
    }),
    slow("kubernetes_plan_v2_systemd", |context| {
        on_v2(context, Driver::Systemd)
    }),
];

/// Pods of a run; `--repeat N` makes N.
const COUNT: u32 = 200;
/// So many at once, at most; and where every instruction is interpreted.
const AT_ONCE: usize = 40;
const AT_ONCE_EMULATED: usize = 25;
/// What those at once may request: this node has 2 CPUs and 1 GiB for pods.
const CPU: MilliCpu = MilliCpu(1900);
const MEMORY: Bytes = Bytes::mebi(960);
/// How long the pods of one time may take to start.
const TOGETHER: Duration = Duration::from_secs(420);
/// And to be gone.
const GONE: Duration = Duration::from_secs(120);
/// A kubelet computes its tiers anew once a minute (`periodicTask` of `pkg/kubelet/cm/qos_container_manager_linux.go`).
const SETTLED: Duration = Duration::from_secs(150);
/// How long a comparison of the pods of one time may take.
const COMPARED: Duration = Duration::from_secs(15);
/// Between two looks at all pods.
const LOOK: Duration = Duration::from_secs(2);
/// Between two lines about what is waited for.
const PROGRESS: Duration = Duration::from_secs(60);
const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// 200 pods of all shapes: every value of `plan` and `explain` is in the kubelet's and the runtime's files, nothing else
/// is, and no pod has a cgroup that is not planned.
fn kubernetes_plan(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.without_agent()?;
    compare_with(context, &cluster)
}

/// The same on cgroup v2 with either driver, in a machine that is for it: systemd names cgroups from the machine's root.
fn on_v2(context: &Context, driver: Driver) -> Result<()> {
    if !is_guest() {
        skip("it takes the test machine 6.12-kubernetes")?;
    }
    let cluster = Cluster::start(context, driver)?;
    let on_v2 = cluster.kubepods().mounts().memory_on_v2();
    ensure!(on_v2, "the memory controller is on v1");
    compare_with(context, &cluster).inspect_err(|_| cluster.print_logs())
}

fn compare_with(context: &Context, cluster: &Cluster) -> Result<()> {
    let seed = context.seed();
    cluster.clear()?;
    let class = json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": WITH_OVERHEAD},
        "handler": "runc",
        "overhead": {"podFixed": {"cpu": "15m", "memory": "6Mi"}},
    });
    cluster.api.create(CLASSES, &class)?;
    let mut huge = values::machine_hugepages()?;
    huge.retain(|_, total| *total > Bytes::ZERO);
    let page_sizes = huge.into_keys().collect();
    let shapes = purposes::all(seed, context.repetitions(COUNT) as usize, page_sizes);
    let compared = shapes.and_then(|mut shapes| {
        shapes = context.part().take_of(shapes);
        // A runtime's own process starts within the container's limit: below one of 1m, that takes minutes here. Those
        // wait together.
        if context.emulated() {
            shapes.sort_by_key(|shape| shape.cpu_limit.unwrap_or(MilliCpu(u64::MAX)));
            // A network of each pod's own takes four more processes of Go, and no cgroup.
            for shape in &mut shapes {
                shape.manifest["spec"]["hostNetwork"] = true.into();
            }
        }
        compare_all(context, cluster, &shapes)
    });
    cluster.api.delete(&format!("{CLASSES}/{WITH_OVERHEAD}"))?;
    compared.with_context(|| format!("with --seed {seed}"))
}

fn compare_all(context: &Context, cluster: &Cluster, shapes: &[Shape]) -> Result<()> {
    let mut total = Comparison::default();
    let at_once = match context.emulated() {
        true => AT_ONCE_EMULATED,
        false => AT_ONCE,
    };
    let mut left = shapes;
    while !left.is_empty() {
        let (now, later) = left.split_at(fitting(left, at_once)?);
        left = later;
        let compared = together(cluster, context.agent(), now);
        clear(cluster)?;
        let compared = compared?;
        total.values += compared.values;
        total.cgroups += compared.cgroups;
        total.containers += compared.containers;
        total.rounded += compared.rounded;
        for difference in &compared.differences {
            println!("     {difference}");
        }
        total.differences.extend(compared.differences);
        println!(
            "     {} of {} pods compared, {} values, {} differences",
            shapes.len() - left.len(),
            shapes.len(),
            total.values,
            total.differences.len()
        );
    }
    for (name, count) in [
        ("pods", shapes.len()),
        ("cgroups", total.cgroups),
        ("containers", total.containers),
        ("values", total.values),
        ("rounded_quotas", total.rounded),
        ("differences", total.differences.len()),
    ] {
        context.figure(name, count as f64, "");
    }
    ensure!(
        total.differences.is_empty(),
        "of {} values differ:\n{}",
        total.values,
        total.differences.join("\n")
    );
    Ok(())
}

/// How many of these, in their order, the node has room for.
fn fitting(shapes: &[Shape], at_once: usize) -> Result<usize> {
    let (mut cpu, mut memory) = (MilliCpu::ZERO, Bytes::ZERO);
    let fits = shapes.iter().take(at_once).take_while(|shape| {
        cpu = cpu.saturating_add(shape.cpu);
        memory = memory.saturating_add(shape.memory);
        cpu <= CPU && memory <= MEMORY
    });
    let count = fits.count();
    ensure!(count > 0, "{:?} is too large", shapes.first());
    Ok(count)
}

/// Has these pods run, and compares until nothing differs any more or the kubelet had its time.
fn together(cluster: &Cluster, program: &Path, shapes: &[Shape]) -> Result<Comparison> {
    for shape in shapes {
        make(cluster, shape).with_context(|| shape.name.clone())?;
    }
    patiently(cluster.limit(TOGETHER), || {
        let pods = cluster.api.list(PODS)?;
        shapes.iter().try_for_each(|shape| settled(&pods, shape))
    })?;
    for shape in shapes {
        change(cluster, shape).with_context(|| shape.name.clone())?;
    }
    patiently(cluster.limit(SETTLED), || {
        let pods = cluster.api.list(PODS)?;
        shapes.iter().try_for_each(|shape| changed(&pods, shape))
    })?;
    let resized = shapes
        .iter()
        .filter(|shape| matches!(shape.then, Then::Resize(_)));
    let started = resized
        .map(|shape| (shape.name.clone(), shape.manifest["spec"].clone()))
        .collect();
    let mut last = None;
    let same = patiently(SETTLED + cluster.limit(COMPARED), || {
        let compared = Comparison::after_resizes(cluster, program, &started)?;
        let count = compared.differences.len();
        last = Some(compared);
        ensure!(count == 0, "{count} differences");
        Ok(())
    });
    match (last, same) {
        // What differs to the end is for the end.
        (Some(last), _) => Ok(last),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => bail!("nothing was compared"),
    }
}

/// As [`eventually`], looking less often, with a line a minute about what is waited for.
fn patiently(limit: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let mut told = Instant::now();
    eventually(limit, || {
        let Err(why) = look() else {
            return Ok(());
        };
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            println!("     waits: {:.1500}", format!("{why:#}"));
        }
        sleep(LOOK)?;
        Err(why)
    })
}

fn make(cluster: &Cluster, shape: &Shape) -> Result<()> {
    match shape.from {
        From::Server => cluster.api.create(PODS, &shape.manifest).map(drop),
        From::File => cluster.write_static(&shape.name, &shape.manifest),
        From::Job => {
            let job = json!({
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": shape.name},
                "spec": {"template": {"spec": shape.manifest["spec"]}},
            });
            cluster.api.create(JOBS, &job).map(drop)
        }
    }
}

/// The pod of a shape among those of the server.
fn find<'a>(pods: &'a [Value], shape: &Shape) -> Result<&'a Value> {
    let found = pods.iter().find(|pod| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        match shape.from {
            From::Server => name == shape.name,
            // Both add to the name.
            From::File | From::Job => name.starts_with(&format!("{}-", shape.name)),
        }
    });
    found.with_context(|| format!("there is no pod {}", shape.name))
}

/// Whether a pod has met its fate.
fn settled(pods: &[Value], shape: &Shape) -> Result<()> {
    let pod = find(pods, shape)?;
    let status = &pod["status"];
    let runs = |status: &Value| status["state"]["running"].is_object();
    let mut app = status["containerStatuses"].as_array().into_iter().flatten();
    let met = match shape.fate {
        Fate::Runs => status["phase"] == "Running" && app.all(runs),
        Fate::Ends => status["phase"] == "Succeeded" || status["phase"] == "Failed",
        Fate::Waits => condition(pod, "PodReadyToStartContainers")
            .is_some_and(|condition| condition["status"] == "True"),
    };
    ensure!(
        met,
        "{}: {} {} {}",
        shape.name,
        status["phase"],
        states(status, "initContainerStatuses"),
        states(status, "containerStatuses")
    );
    Ok(())
}

/// What a pod's containers wait for.
fn states(status: &Value, kind: &str) -> Value {
    let all = status[kind].as_array().into_iter().flatten();
    all.map(|one| one["state"].clone()).collect()
}

fn change(cluster: &Cluster, shape: &Shape) -> Result<()> {
    let path = format!("{PODS}/{}", shape.name);
    let patch = |subresource: &str, body: &Value| {
        let kind = "application/strategic-merge-patch+json";
        let path = format!("{path}/{subresource}");
        let (code, said) = cluster.api.answer("PATCH", &path, kind, body)?;
        ensure!(code == 200, "{code}: {said:?}");
        Ok(())
    };
    match &shape.then {
        Then::Nothing => Ok(()),
        Then::Delete => cluster.api.delete(&path),
        Then::Resize(body) => patch("resize", body),
        Then::Debug => {
            let command = ["/bin/sleep", "1000000"];
            let container = json!({"name": "debug", "image": BUSYBOX, "command": command});
            patch(
                "ephemeralcontainers",
                &json!({"spec": {"ephemeralContainers": [container]}}),
            )
        }
    }
}

/// Whether the kubelet has seen the change.
fn changed(pods: &[Value], shape: &Shape) -> Result<()> {
    let pod = find(pods, shape)?;
    let status = &pod["status"];
    let seen = match &shape.then {
        Then::Nothing => true,
        Then::Delete => pod["metadata"]["deletionTimestamp"].is_string(),
        Then::Debug => status["ephemeralContainerStatuses"][0]["state"]["running"].is_object(),
        Then::Resize(_) => {
            status["observedGeneration"] == pod["metadata"]["generation"]
                && condition(pod, "PodResizeInProgress").is_none()
        }
    };
    ensure!(seen, "{}: {status}", shape.name);
    Ok(())
}

/// Removes all that was made.
fn clear(cluster: &Cluster) -> Result<()> {
    for pod in cluster.api.list(PODS)? {
        if pod["metadata"]["deletionTimestamp"].is_string() {
            kill_at_last(cluster, &uid(&pod)?);
        }
    }
    cluster
        .api
        .delete(&format!("{JOBS}?propagationPolicy=Background"))?;
    cluster.remove_static()?;
    cluster
        .api
        .delete(&format!("{PODS}?gracePeriodSeconds=1"))?;
    patiently(cluster.limit(GONE), || {
        let pods = cluster.api.list(PODS)?;
        if pods.is_empty() {
            return Ok(());
        }
        let left: Result<Vec<_>> = pods.iter().map(|pod| left_of(cluster, pod)).collect();
        bail!("pods are left: {}", left?.join("; "))
    })?;
    cluster.clear()
}

/// A pod that should be gone, with what runs in its cgroups.
fn left_of(cluster: &Cluster, pod: &Value) -> Result<String> {
    let processes = cluster.processes_of(&uid(pod)?);
    let processes: Vec<_> = processes
        .iter()
        .map(|(cgroup, pid)| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Its name and its state.
            let stat: Vec<_> = stat.split(' ').skip(1).take(2).collect();
            format!("{pid} {} in {}", stat.join(" "), cgroup.path())
        })
        .collect();
    let (name, phase) = (&pod["metadata"]["name"], &pod["status"]["phase"]);
    Ok(format!("{name} {phase} {processes:?}"))
}

/// Ends a pod that has a long time to end.
fn kill_at_last(cluster: &Cluster, uid: &str) {
    for (_, pid) in cluster.processes_of(uid) {
        // One that has ended is what it is for.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}
