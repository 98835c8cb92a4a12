//! Where a run takes place: the same cgroups, bystanders and CPU hogs for every daemon. podwarden
//! makes the cgroups of its pods itself; for the others they are made here, alike.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::{convert::shares_to_weight, units::CpuShares};
use tempfile::TempDir;
use workload::stamps::Stamps;

use super::measure::Process;
use super::report::Setting;
use super::scope::Scope;
use super::{MIB, run::Sizes};
use crate::cases::Context;
use crate::harness::{
    Cgroup, Node, Options, PodSpec, Sandbox, Workload, eventually, sleep, thread_id, until,
};

/// Held by the two bystanders, MiB.
pub(super) const BYSTANDERS: [(&str, u64); 2] =
    [("the Guaranteed pod", 64), ("the other BestEffort pod", 32)];
/// On a tmpfs: pages of a file on a disk are made read-only now and then, to be written.
const SHARED_MEMORY: &str = "/dev/shm";
/// Once all is in place, until the victim may go: the daemon is to find a quiet node.
const SETTLE: Duration = Duration::from_millis(400);

/// See the module. Fields are dropped in order: processes end before their cgroups go.
#[derive(Debug)]
pub(in crate::bench) struct Ground {
    victim: Option<Victim>,
    bystanders: Vec<(&'static str, Workload)>,
    hogs: Option<Workload>,
    hogs_cgroup: Cgroup,
    /// podwarden, where it is the one to be measured.
    pub(super) node: Option<Node>,
    /// The scope that the victim is in, where systemd is to make it.
    scope: Option<Scope>,
    /// Where podwarden has none, below it are all of the cgroups; they go with it.
    _sandbox: Option<Sandbox>,
    /// All pods.
    pub(super) kubepods: Cgroup,
    guaranteed: Cgroup,
    /// The victim's pod.
    pub(super) pod: Cgroup,
    main: Cgroup,
}

/// The victim's processes.
#[derive(Debug)]
struct Victim {
    workload: Workload,
    stamps: Vec<Stamps>,
    _dir: TempDir,
}

impl Ground {
    /// Everything but the victim, with podwarden.
    pub(in crate::bench) fn of_podwarden(
        context: &Context,
        setting: Setting,
        sizes: &Sizes,
    ) -> Result<Self> {
        let options = Options {
            memory: format!("{}Mi", sizes.node / MIB),
            eviction_hard: Some(format!("{}Mi", sizes.reserve / MIB)),
            ..Options::default()
        };
        let node = Node::start(context, &options)?;
        let pods = node.pods(vec![
            PodSpec::guaranteed("guaranteed", "96Mi"),
            PodSpec::best_effort("well-behaved"),
            PodSpec::best_effort("victim"),
        ])?;
        let mut ground = Self {
            victim: None,
            bystanders: Vec::new(),
            hogs: None,
            hogs_cgroup: node.sandbox.root.child("hogs"),
            kubepods: node.kubepods(),
            guaranteed: pods[0].main.clone(),
            pod: pods[2].cgroup.clone(),
            main: pods[2].main.clone(),
            node: Some(node),
            scope: None,
            _sandbox: None,
        };
        ground.start_others([&pods[0].main, &pods[1].main], setting)?;
        Ok(ground)
    }

    /// The same without a daemon.
    pub(in crate::bench) fn alike(setting: Setting) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let kubepods = sandbox.root.child("kubepods");
        let tier = kubepods.child("besteffort");
        let [guaranteed, other, pod] = [
            kubepods.child("guaranteed"),
            tier.child("well-behaved"),
            tier.child("victim"),
        ];
        let main = pod.child("main");
        for cgroup in [&guaranteed, &other, &main] {
            cgroup.create_below(&sandbox.root)?;
        }
        // Two CPUs' worth for all pods, the least there is for BestEffort: as the kubelet has it.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        for (cgroup, shares) in [
            (&kubepods, 1024 * cpus),
            (&guaranteed, 512),
            (&tier, 2),
            (&other, 2),
            (&pod, 2),
        ] {
            set_shares(cgroup, shares)?;
        }
        let mut ground = Self {
            victim: None,
            bystanders: Vec::new(),
            hogs: None,
            hogs_cgroup: sandbox.root.child("hogs"),
            node: None,
            scope: None,
            _sandbox: Some(sandbox),
            kubepods,
            guaranteed: guaranteed.clone(),
            pod,
            main,
        };
        ground.start_others([&guaranteed, &other], setting)?;
        Ok(ground)
    }

    /// The same, but with the victim in a scope of systemd's that is throttled at the threshold:
    /// systemd-oomd acts on the pressure that this makes.
    pub(super) fn with_scope(setting: Setting, sizes: &Sizes) -> Result<Self> {
        let mut ground = Self::alike(setting)?;
        let scope = Scope::start(ground.kubepods.mounts(), sizes.victim)?;
        ground.kubepods = scope.cgroup.clone();
        ground.pod = scope.cgroup.clone();
        ground.main = scope.cgroup.clone();
        ground.scope = Some(scope);
        Ok(ground)
    }

    fn start_others(&mut self, cgroups: [&Cgroup; 2], setting: Setting) -> Result<()> {
        for ((name, mib), cgroup) in BYSTANDERS.into_iter().zip(cgroups) {
            let workload = Workload::start(cgroup, &["anon", "--mib", &mib.to_string()])?;
            self.bystanders.push((name, workload));
            until(Duration::from_secs(30), "a bystander's memory", || {
                cgroup.memory().is_ok_and(|memory| memory.rss >= mib * MIB)
            })?;
        }
        if setting.hogs > 0 {
            self.hogs_cgroup.create()?;
            let threads = setting.hogs.to_string();
            let hogs = Workload::start(&self.hogs_cgroup, &["burn", "--threads", &threads])?;
            self.hogs = Some(hogs);
        }
        Ok(())
    }

    /// The reactor's thread id.
    pub(in crate::bench) fn reactor(&self) -> Result<u32> {
        let node = self.node.as_ref().context("podwarden does not run")?;
        thread_id(node.agent.pid(), "reactor")
    }

    /// The level that podwarden has armed for all pods, bytes.
    pub(super) fn level(&self) -> Result<u64> {
        let node = self.node.as_ref().context("podwarden does not run")?;
        node.level()
    }

    /// Starts the victim, which holds all but the lead and waits, and returns when all is quiet.
    pub(in crate::bench) fn start_victim(
        &mut self,
        context: &Context,
        setting: Setting,
        sizes: &Sizes,
    ) -> Result<u32> {
        let hold = match &self.node {
            Some(_) => {
                let used = self.kubepods.memory()?.working_set();
                self.level()?.saturating_sub(used + sizes.lead)
            }
            None => sizes.victim - sizes.lead,
        };
        let fill = sizes.lead + sizes.bound + 64 * MIB;
        let dir = tempfile::Builder::new()
            .prefix(&format!("podwarden-e2e-{}-", crate::harness::owner()))
            .tempdir_in(SHARED_MEMORY)?;
        let stamps = (0..setting.processes)
            .map(|number| Stamps::create(&dir.path().join(number.to_string())))
            .collect::<Result<Vec<_>>>()?;
        // Steps of the same time: together they are known to 256 KiB.
        let step_kib = (256 / setting.processes).clamp(16, 64);
        let [processes, hold, fill, rate, step] = [
            setting.processes as u64,
            hold / MIB,
            fill / MIB,
            setting.rate.unwrap_or(0),
            step_kib as u64,
        ]
        .map(|number| number.to_string());
        let prefix = format!("{}/", dir.path().display());
        let workload = Workload::start(
            &self.main,
            &[
                "victim",
                "--processes",
                &processes,
                "--hold-mib",
                &hold,
                "--fill-mib",
                &fill,
                "--rate",
                &rate,
                "--step-kib",
                &step,
                "--stamps",
                &prefix,
            ],
        )?;
        let pid = workload.pid();
        let victim = self.victim.insert(Victim {
            workload,
            stamps,
            _dir: dir,
        });
        until(context.limit(60), "the victim's memory", || {
            victim.stamps.iter().all(Stamps::is_ready)
        })?;
        sleep(SETTLE)?;
        Ok(pid)
    }

    /// Whether the victim's first process has not ended.
    pub(in crate::bench) fn victim_is_alive(&mut self) -> bool {
        let victim = self.victim.as_mut();
        victim.is_some_and(|victim| victim.workload.is_alive())
    }

    /// Whether no process is left where the victim was.
    pub(super) fn pod_is_empty(&self) -> bool {
        self.main.procs().is_empty()
    }

    /// Where the Guaranteed pod's processes are.
    pub(in crate::bench) fn guaranteed(&self) -> &Cgroup {
        &self.guaranteed
    }

    /// The victim's pod and its container.
    pub(in crate::bench) fn victim_cgroups(&self) -> [&Cgroup; 2] {
        [&self.pod, &self.main]
    }

    /// Lets the victim fill.
    pub(in crate::bench) fn let_go(&self) {
        for stamps in self.victim.iter().flat_map(|victim| &victim.stamps) {
            stamps.let_go();
        }
    }

    /// What the victim's processes have noted.
    pub(super) fn processes(&self) -> Vec<Process> {
        let stamps = self.victim.iter().flat_map(|victim| &victim.stamps);
        stamps
            .map(|stamps| Process {
                stamps: stamps.read(),
                touched: stamps.last_touched(),
            })
            .collect()
    }

    /// Another process that has ended.
    pub(in crate::bench) fn lost(&mut self) -> Option<&'static str> {
        for (name, workload) in &mut self.bystanders {
            if !workload.is_alive() {
                return Some(name);
            }
        }
        let hogs = self.hogs.as_mut()?;
        (!hogs.is_alive()).then_some("the CPU hogs")
    }

    /// Ends everything and removes the cgroups.
    pub(in crate::bench) fn finish(mut self) -> Result<()> {
        self.victim = None;
        self.bystanders.clear();
        self.hogs = None;
        self.scope = None;
        if let Some(node) = self.node.take() {
            eventually(node.limit(), || self.hogs_cgroup.remove())?;
            node.finish()?;
        }
        Ok(())
    }
}

/// CPU shares, as a weight on cgroup v2.
fn set_shares(cgroup: &Cgroup, shares: u64) -> Result<()> {
    let weight = shares_to_weight(CpuShares(shares)).0;
    let mut set = false;
    for dir in cgroup.dirs() {
        for (file, value) in [("cpu.shares", shares), ("cpu.weight", weight)] {
            let path = dir.join(file);
            if path.exists() {
                fs::write(&path, value.to_string())
                    .with_context(|| format!("write {}", path.display()))?;
                set = true;
            }
        }
    }
    ensure!(set, "{} has no cpu controller", cgroup.path());
    Ok(())
}
