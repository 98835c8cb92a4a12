//! Hours of churn on one node: pods, forks and nested cgroups come and go, others write to kept files, the API
//! server is away for a while, one pod a minute fills memory, and for half of the time the agent is killed each
//! minute. `--repeat N` runs N minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::{Event, EventKind};

use super::figures::Figures;
use super::hog::Hog;
use super::load::Load;
use super::{Rig, take_away};
use crate::apiserver::{ApiServer, Outage};
use crate::cases::drift::kept_files;
use crate::cases::footprint::{Footprint, ensure_flat};
use crate::cases::recorder::records;
use crate::cases::{Context, skip};
use crate::harness::{NODE, Pod, PodSpec, Workload, eventually, sleep, until};

const ROUND: Duration = Duration::from_secs(60);
const MINUTES: u32 = 6;

pub(super) fn soak(context: &Context) -> Result<()> {
    if context.emulated() {
        skip("hours of churn take a machine that is not emulated")?;
    }
    let rounds = context.repetitions(MINUTES);
    let mut soak = Soak::begin(context)?;
    let mut load = Load::start(&soak.stays)?;
    let (mut killed, mut lasting) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let kills = round < rounds / 2;
        let footprint = soak
            .round(&mut load)
            .with_context(|| format!("minute {round}, seed {}", soak.seed))?;
        match kills {
            true => killed.push(footprint),
            false => lasting.push(footprint),
        }
        if kills {
            soak.kill()?;
        }
    }
    let made = load.stop(context.limit(60))?;
    soak.figures
        .look_after(&soak.rig.node, &soak.stays, &made)?;
    for (name, prints) in [("killed_each_minute", killed), ("same_agent", lasting)] {
        ensure_flat(context, name, &prints)?;
    }
    let counts = [
        ("minutes", rounds as usize),
        ("evictions", soak.hogs.len()),
        ("foreign_writes", soak.writes),
        ("pods_that_came_and_went", soak.came_and_went),
        ("figures_compared", soak.figures.compared()),
    ];
    for (name, count) in counts {
        context.figure(name, count as f64, "");
    }
    soak.rig.node.finish()
}

struct Soak<'a> {
    rig: Rig<'a>,
    server: ApiServer,
    random: fastrand::Rng,
    seed: u64,
    /// Pods that are there all the time.
    stays: Vec<Pod>,
    figures: Figures,
    /// The uids of pods that filled memory.
    hogs: BTreeSet<String>,
    writes: usize,
    came_and_went: usize,
}

impl<'a> Soak<'a> {
    fn begin(context: &'a Context) -> Result<Self> {
        let seed = context.seed();
        let server = ApiServer::start()?;
        let mut rig = Rig::with(context, |options, home| {
            let kubeconfig = home.join("kubeconfig");
            server.kubeconfig(&kubeconfig, None)?;
            options.kubeconfig = Some(kubeconfig);
            Ok(())
        })?;
        rig.node.agent.wait_ready(context.limit(30))?;
        let stays = rig.node.pods(vec![
            PodSpec::burstable("burns", "32Mi"),
            PodSpec::best_effort("storms"),
            PodSpec::guaranteed("nests", "64Mi"),
            PodSpec::burstable("churns", "32Mi"),
        ])?;
        Ok(Self {
            rig,
            server,
            random: fastrand::Rng::with_seed(seed),
            seed,
            stays,
            figures: Figures::default(),
            hogs: BTreeSet::new(),
            writes: 0,
            came_and_went: 0,
        })
    }

    /// A minute, in which everything happens once or more; the answer is what the agent holds at its end.
    fn round(&mut self, load: &mut Load) -> Result<Footprint> {
        let end = Instant::now() + ROUND;
        self.evict_one()?;
        while Instant::now() + Duration::from_secs(12) < end {
            match self.random.u8(0..3) {
                0 => self.pods_come_and_go()?,
                1 => self.write_to_a_kept_file()?,
                _ => self.cut_the_server()?,
            }
            let pause = self.random.u64(100..1500);
            sleep(Duration::from_millis(pause))?;
            let agent = &self.rig.node.agent;
            self.figures.look(agent, &self.stays, load)?;
            load.ensure_goes_on()?;
        }
        self.server.take_seen();
        self.server.take_written();
        sleep(end.saturating_duration_since(Instant::now()))?;
        self.ensure_right_victims()?;
        Footprint::of(self.rig.node.agent.pid())
    }

    fn kill(&mut self) -> Result<()> {
        self.rig.end(Signal::SIGKILL)?;
        let pause = self.random.u64(0..2000);
        sleep(Duration::from_millis(pause))?;
        self.rig.start()
    }

    /// A pod fills memory past the level and is gone within the limit; the agent tells of it.
    fn evict_one(&mut self) -> Result<()> {
        let mut hog = Hog::start(&self.rig)?;
        let limit = self.rig.context.limit(120);
        hog.evicted(&self.rig, limit)?;
        self.hogs.insert(hog.pod.uid().to_owned());
        eventually(limit, || {
            let told = self.evictions()?;
            ensure!(
                told.contains_key(hog.pod.uid()),
                "the eviction is not in the log"
            );
            Ok(())
        })?;
        take_away(&self.rig, &hog.pod)
    }

    /// Evictions in the event log: how many of each pod.
    fn evictions(&self) -> Result<BTreeMap<String, BTreeSet<u64>>> {
        let mut told: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for record in records(&self.rig.log)? {
            let Event { pod, kind, id, .. } = record.event;
            if let (Some(pod), EventKind::Eviction(_)) = (pod, kind) {
                told.entry(pod.uid.to_string()).or_default().insert(id);
            }
        }
        Ok(told)
    }

    fn ensure_right_victims(&self) -> Result<()> {
        for (uid, evictions) in self.evictions()? {
            ensure!(
                self.hogs.contains(&uid),
                "pod {uid} was evicted and is no hog"
            );
            ensure!(
                evictions.len() == 1,
                "hog {uid} was evicted {} times",
                evictions.len()
            );
        }
        Ok(())
    }

    /// Some from a manifest, some from the API, each with processes of its own.
    fn pods_come_and_go(&mut self) -> Result<()> {
        let specs = [
            PodSpec::best_effort("manifest"),
            PodSpec::burstable("object", "16Mi"),
            PodSpec::guaranteed("sized", "32Mi"),
        ];
        let spec = specs[self.random.usize(..specs.len())].clone();
        let of_api = self.random.bool();
        // After cuts in a row the agent asks the server again after up to a minute, as client-go's reflector does.
        let limit = self.rig.context.limit(90);
        let pod = match of_api {
            false => self.rig.node.pod(spec)?,
            true => {
                self.server.create_pod(NODE, spec.manifest())?;
                let cgroup = self.rig.node.cgroup_of(&spec);
                until(limit, "the cgroup of a pod of the API", || cgroup.exists())?;
                let main = cgroup.child("main");
                main.create()?;
                Pod { spec, cgroup, main }
            }
        };
        let storm = [
            "storm",
            "--count",
            "40",
            "--busy-us",
            "300",
            "--parallel",
            "4",
        ];
        Workload::start(&pod.main, &storm)?.done(self.rig.context.limit(30))?;
        match of_api {
            false => take_away(&self.rig, &pod)?,
            true => {
                self.server.remove_pod(pod.spec.namespace, &pod.spec.name)?;
                eventually(limit, || pod.main.remove())?;
                until(limit, "the end of a pod's cgroup", || !pod.cgroup.exists())?;
            }
        }
        self.came_and_went += 1;
        Ok(())
    }

    fn write_to_a_kept_file(&mut self) -> Result<()> {
        let files = kept_files(&self.rig.node, &self.stays)?;
        let file = &files[self.random.usize(..files.len())];
        file.spoil()?;
        eventually(self.rig.node.limit(), || {
            ensure!(
                file.is_kept()?,
                "{} holds a foreign value",
                file.path.display()
            );
            Ok(())
        })?;
        self.writes += 1;
        Ok(())
    }

    /// No pod goes because its source is away.
    fn cut_the_server(&mut self) -> Result<()> {
        let way = Outage::ALL[self.random.usize(..Outage::ALL.len())];
        self.server.go_away(way)?;
        let pause = self.random.u64(200..4000);
        sleep(Duration::from_millis(pause))?;
        for pod in &self.stays {
            ensure!(
                pod.cgroup.exists(),
                "{} went with its source",
                pod.spec.name
            );
        }
        self.server.come_back()
    }
}
