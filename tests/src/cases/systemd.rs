//! The systemd driver: slices that systemd knows, whose files hold the plan, whatever systemd or
//! others do to them.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden_policy::name::CgroupName;

use super::{Case, Context, case, skip};
use crate::harness::{Agent, Cgroup, Node, Options, Pod, PodSpec, Qos, eventually, until, values};

pub(super) const CASES: &[Case] = &[
    case("systemd_driver_makes_slices", driver_makes_slices),
    case("systemd_driver_adopts_slices", driver_adopts_slices),
];

/// Ends a case as skipped where systemd is not the first process.
pub(super) fn needs_systemd() -> Result<()> {
    let comm = std::fs::read_to_string("/proc/1/comm").context("read the name of PID 1")?;
    match comm.trim() {
        "systemd" => Ok(()),
        other => skip(format!("PID 1 is {other}, not systemd")),
    }
}

fn options() -> Options {
    Options {
        driver: "systemd",
        ..Options::default()
    }
}

/// One pod of each class; the first has a quota of 33.3 percents, which systemd cannot keep.
fn specs() -> Vec<PodSpec> {
    vec![
        PodSpec::new("odd", Qos::Guaranteed, "333m", "64Mi"),
        PodSpec::limited("limited", "48Mi"),
        PodSpec::best_effort("free"),
    ]
}

/// Made as units with the values of the plan, kept through a reload of systemd, and gone in the end;
/// what others made there stays.
fn driver_makes_slices(context: &Context) -> Result<()> {
    needs_systemd()?;
    let mut node = Node::start(context, &options())?;
    let pods = node.pods(specs())?;
    for pod in &pods {
        let unit = unit(&pod.cgroup);
        for (property, wanted) in [
            ("ActiveState", "active"),
            ("Transient", "yes"),
            ("DefaultDependencies", "no"),
            ("MemoryAccounting", "yes"),
        ] {
            let found = property_of(&unit, property)?;
            ensure!(found == wanted, "{property} of {unit} is {found}");
        }
        agree(&pod.cgroup)?;
    }
    let odd = &pods[0].cgroup;
    let quota = || file(odd, "cpu.max", "cpu.cfs_quota_us");
    let exact = quota()?;
    ensure!(exact.starts_with("33300"), "the quota is {exact}");
    let known = property_of(&unit(odd), "CPUQuotaPerSecUSec")?;
    ensure!(known == "340ms", "systemd's quota is {known}");

    let before = all_values(&pods)?;
    systemctl(&["daemon-reload"])?;
    eventually(node.limit(), || {
        ensure!(
            all_values(&pods)? == before,
            "systemd's reload undid values"
        );
        Ok(())
    })?;

    let foreign = foreign_slice(&node)?;
    node.empty()?;
    node.agent.stop(Signal::SIGTERM, node.limit())?;
    ensure!(
        property_of(&unit(&foreign), "ActiveState")? == "active" && foreign.exists(),
        "the agent stopped {}, which it did not make",
        foreign.path()
    );
    for pod in &pods {
        ensure!(!pod.cgroup.exists(), "{} is left", pod.cgroup.path());
    }
    systemctl(&["stop", &unit(&foreign)])?;
    systemctl(&["stop", node.sandbox.root.path()])?;
    no_units_left(&node)
}

/// An agent that is killed leaves its slices as they are; the next one takes them over with whatever
/// they hold by then, and removes them when their pods go.
fn driver_adopts_slices(context: &Context) -> Result<()> {
    needs_systemd()?;
    let mut node = Node::start(context, &options())?;
    let pods = node.pods(specs())?;
    let before = all_values(&pods)?;
    node.agent.signal(Signal::SIGKILL)?;
    node.agent.wait(node.limit())?;
    ensure!(
        all_values(&pods)? == before,
        "the agent's end changed values"
    );

    let (odd, limited) = (unit(&pods[0].cgroup), unit(&pods[1].cgroup));
    systemctl(&[
        "set-property",
        "--runtime",
        &odd,
        "MemoryMax=100M",
        "CPUWeight=7",
    ])?;
    systemctl(&["set-property", "--runtime", &limited, "TasksMax=77"])?;
    ensure!(all_values(&pods)? != before, "systemd set no properties");
    node.agent = Agent::spawn(context.agent(), &node.sandbox, &options())?;
    context.watch(&node.agent.log);
    node.agent.wait_ready(context.limit(30))?;
    eventually(node.limit(), || {
        for (pod, before) in pods.iter().zip(&before) {
            let now = values::read(&pod.cgroup)?;
            ensure!(
                now == *before,
                "{}: {now:?}, not {before:?}",
                pod.cgroup.path()
            );
        }
        Ok(())
    })?;
    for pod in &pods {
        agree(&pod.cgroup)?;
    }

    node.empty()?;
    for pod in &pods {
        node.withdraw(&pod.spec)?;
    }
    for pod in &pods {
        until(
            node.limit(),
            &format!("the end of {}", pod.cgroup.path()),
            || !pod.cgroup.exists(),
        )?;
    }
    node.agent.stop(Signal::SIGTERM, node.limit())?;
    no_units_left(&node)
}

/// A slice in kubepods that is not the agent's.
fn foreign_slice(node: &Node) -> Result<Cgroup> {
    let (kubepods, _): (CgroupName, _) = node.sandbox.kubepods("systemd");
    let foreign = node.sandbox.cgroup("systemd", &kubepods.child("foreign"));
    systemctl(&["start", &unit(&foreign)])?;
    ensure!(foreign.exists(), "systemd made no {}", foreign.path());
    Ok(foreign)
}

/// What systemd knows of limits is what the files hold; as numbers, since `show` writes them so.
fn agree(cgroup: &Cgroup) -> Result<()> {
    let unit = unit(cgroup);
    for (property, v2, v1) in [
        ("MemoryMax", "memory.max", "memory.limit_in_bytes"),
        ("CPUWeight", "cpu.weight", "cpu.shares"),
        ("TasksMax", "pids.max", "pids.max"),
    ] {
        let on_v1 = !cgroup.mounts().memory_on_v2();
        let property = match property {
            "MemoryMax" if on_v1 => "MemoryLimit",
            "CPUWeight" if on_v1 => "CPUShares",
            property => property,
        };
        let known = property_of(&unit, property)?;
        let held = file(cgroup, v2, v1)?;
        let held = if held == "max" { "infinity" } else { &held };
        ensure!(
            known == held,
            "{property} of {unit} is {known}, its file holds {held}"
        );
    }
    Ok(())
}

fn all_values(pods: &[Pod]) -> Result<Vec<values::Values>> {
    pods.iter().map(|pod| values::read(&pod.cgroup)).collect()
}

fn file(cgroup: &Cgroup, v2: &str, v1: &str) -> Result<String> {
    let values = values::read(cgroup)?;
    let found = values.get(v2).or_else(|| values.get(v1));
    found
        .cloned()
        .with_context(|| format!("{} has neither {v2} nor {v1}", cgroup.path()))
}

fn unit(cgroup: &Cgroup) -> String {
    let path = cgroup.path();
    path.rsplit_once('/')
        .map_or(path, |(_, unit)| unit)
        .to_owned()
}

fn property_of(unit: &str, property: &str) -> Result<String> {
    let text = systemctl(&["show", "--property", property, "--value", unit])?;
    Ok(text.trim().to_owned())
}

/// Neither cgroups nor units, nor files of units.
fn no_units_left(node: &Node) -> Result<()> {
    let root = node.sandbox.root.path();
    let name = root.strip_suffix(".slice").unwrap_or(root);
    eventually(node.limit(), || {
        ensure!(!node.sandbox.root.exists(), "{root} is left");
        let units = systemctl(&[
            "list-units",
            "--all",
            "--plain",
            "--no-legend",
            &format!("{name}*"),
        ])?;
        ensure!(units.trim().is_empty(), "units are left: {units}");
        for dir in ["/run/systemd/transient", "/run/systemd/system.control"] {
            for entry in std::fs::read_dir(dir).into_iter().flatten() {
                let file = entry?.file_name();
                ensure!(
                    !file.to_string_lossy().starts_with(name),
                    "{dir} has {} left",
                    file.display()
                );
            }
        }
        Ok(())
    })
}

fn systemctl(args: &[&str]) -> Result<String> {
    let output = Command::new("systemctl")
        .arg("--no-pager")
        .args(args)
        .output()
        .context("start systemctl")?;
    ensure!(
        output.status.success(),
        "systemctl {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
