//! Pods that the test knows, an agent that follows their manifests, and what policy says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use nix::unistd::{SysconfVar, sysconf};
use podwarden_policy::{
    Bytes, MilliCpu, Node as PolicyNode, Pod, PodUid, QosClass,
    limits::LimitOptions,
    model::Reserved,
    name::{self, CgroupName},
    plan::Snapshot,
    qos,
};
use serde_json::Value;

use crate::cases::Context;
use crate::harness::values::{self, Values};
use crate::harness::{Cgroup, Node, Options, RandomPods, Writes, defaulted, eventually, manifest};

/// Memory that the agent's configuration tells; far above what the pods ask for, so that no tier's
/// limit comes near usage.
const MEMORY: Bytes = Bytes::gibi(64);

/// See the module.
#[derive(Debug)]
pub(super) struct World {
    node: Node,
    driver: &'static str,
    random: RandomPods,
    live: BTreeMap<PodUid, Pod>,
    /// Everything but the pods.
    base: Snapshot,
    writes: Writes,
    watched: BTreeSet<CgroupName>,
    /// Whose manifests were written or removed since the last look.
    changed: BTreeSet<PodUid>,
}

impl World {
    /// An agent without pods.
    pub(super) fn start(context: &Context, driver: &'static str, seed: u64) -> Result<Self> {
        let options = Options {
            driver,
            memory: MEMORY.to_string(),
            eviction_hard: Some("100Mi".to_owned()),
            config: "kubeReserved: {cpu: 150m, memory: 300Mi}\n\
                     systemReserved: {cpu: 50m, memory: 200Mi}\n\
                     qosReserved: {memory: 50%}\n\
                     sampling: {interval: 100ms}\n\
                     podPidsLimit: 1000\n\
                     cpuCFSQuotaPeriod: 50ms\n\
                     memoryReservationPolicy: TieredReservation\n"
                .to_owned(),
            ..Options::default()
        };
        let node = Node::start(context, &options)?;
        let hugepages = values::machine_hugepages()?;
        let policy_node = PolicyNode {
            cpu_capacity: MilliCpu(2000),
            memory_capacity: MEMORY,
            pids_capacity: Some(values::machine_pids()?),
            hugepages: hugepages.clone(),
            kube_reserved: Reserved {
                cpu: MilliCpu(150),
                memory: Bytes::mebi(300),
                ..Reserved::default()
            },
            system_reserved: Reserved {
                cpu: MilliCpu(50),
                memory: Bytes::mebi(200),
                ..Reserved::default()
            },
            eviction_hard_memory: Bytes::mebi(100),
            qos_reserved_memory_percent: Some(50),
            ..PolicyNode::default()
        };
        let (kubepods, _) = node.sandbox.kubepods(driver);
        let mut base = Snapshot::new(policy_node, kubepods);
        base.page_size = Bytes(page_size()?);
        base.controllers = values::controllers(&node.sandbox.root);
        base.limits = LimitOptions {
            enforce_cpu_limits: true,
            cpu_period_us: 50_000,
            pod_pids_limit: Some(1000),
            memory_reservation: true,
        };
        Ok(Self {
            node,
            driver,
            random: RandomPods::new(seed, hugepages.into_keys().collect()),
            live: BTreeMap::new(),
            base,
            writes: Writes::new()?,
            watched: BTreeSet::new(),
            changed: BTreeSet::new(),
        })
    }

    /// The node.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// The source of chance.
    pub(super) fn random(&mut self) -> &mut fastrand::Rng {
        self.random.random()
    }

    /// The pods whose manifests are there.
    pub(super) fn live(&self) -> &BTreeMap<PodUid, Pod> {
        &self.live
    }

    /// Puts a new pod's manifest in place.
    pub(super) fn add(&mut self, class: QosClass) -> Result<PodUid> {
        let pod = self.random.pod(class)?;
        let uid = pod.uid.clone();
        self.put(pod)?;
        Ok(uid)
    }

    /// Gives a pod other CPU and memory.
    pub(super) fn resize(&mut self, uid: &PodUid) -> Result<()> {
        let pod = self.pod(uid)?.clone();
        let pod = self.random.resized(&pod)?;
        self.put(pod)
    }

    /// Makes the empty cgroup of a container that a runtime left, where the pod has its own by now.
    pub(super) fn leave_container(&self, uid: &PodUid) -> Result<()> {
        for dir in self.cgroup_of(uid)?.dirs().filter(|dir| dir.exists()) {
            let left = dir.join("left");
            fs::create_dir(&left).with_context(|| format!("create {}", left.display()))?;
        }
        Ok(())
    }

    /// Takes a pod's manifest away.
    pub(super) fn remove(&mut self, uid: &PodUid) -> Result<()> {
        let path = self.manifest_of(uid);
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        self.live.remove(uid);
        self.changed.insert(uid.clone());
        Ok(())
    }

    fn pod(&self, uid: &PodUid) -> Result<&Pod> {
        self.live.get(uid).with_context(|| format!("no pod {uid}"))
    }

    /// Writes a pod's manifest, whole at once.
    pub(super) fn put(&mut self, pod: Pod) -> Result<()> {
        let draft = self.node.sandbox.dir().join("draft.json");
        fs::write(&draft, manifest(&pod).to_string()).context("write a manifest")?;
        fs::rename(&draft, self.manifest_of(&pod.uid)).context("put a manifest in place")?;
        self.changed.insert(pod.uid.clone());
        self.live.insert(pod.uid.clone(), pod);
        Ok(())
    }

    fn manifest_of(&self, uid: &PodUid) -> PathBuf {
        self.node.sandbox.pods_dir().join(format!("{uid}.json"))
    }

    /// A cgroup of the tree as the driver names it.
    pub(super) fn cgroup(&self, name: &CgroupName) -> Cgroup {
        self.node.sandbox.cgroup(self.driver, name)
    }

    /// A pod's cgroup.
    pub(super) fn cgroup_of(&self, uid: &PodUid) -> Result<Cgroup> {
        Ok(self.cgroup(&self.name_of(self.pod(uid)?)))
    }

    /// A tier's cgroup; kubepods for Guaranteed.
    pub(super) fn tier(&self, class: QosClass) -> Cgroup {
        self.cgroup(&self.base.kubepods.tier(class))
    }

    /// The path of every file that policy says something of, and what.
    pub(super) fn files(&self) -> Result<BTreeMap<PathBuf, String>> {
        let mut files = BTreeMap::new();
        for (name, said) in self.expected() {
            let cgroup = self.cgroup(&name);
            for (file, value) in said {
                files.insert(values::path(&cgroup, &file)?, value);
            }
        }
        Ok(files)
    }

    fn expected(&self) -> BTreeMap<CgroupName, Values> {
        let mut snapshot = self.base.clone();
        snapshot.pods = self.live.values().map(defaulted).collect();
        values::expected(&snapshot, &self.node.sandbox.mounts)
    }

    /// Waits until the kernel's files are what policy says of the pods, and no other cgroup is there.
    pub(super) fn settled(&self) -> Result<()> {
        self.settled_but(&[])
    }

    /// The same of all cgroups but some.
    pub(super) fn settled_but(&self, others: &[Cgroup]) -> Result<()> {
        let mut expected = self.expected();
        expected.retain(|name, _| {
            let path = self.cgroup(name).path().to_owned();
            others.iter().all(|other| other.path() != path)
        });
        eventually(self.node.limit(), || self.compare(&expected, others))
    }

    fn compare(&self, expected: &BTreeMap<CgroupName, Values>, but: &[Cgroup]) -> Result<()> {
        // Who is there first: it is quickly read, and most often what is still missing.
        let wanted: BTreeSet<_> = expected
            .keys()
            .map(|name| self.cgroup(name).path().to_owned())
            .chain(but.iter().map(|cgroup| cgroup.path().to_owned()))
            .collect();
        let found: BTreeSet<_> = self
            .parents()
            .iter()
            .flat_map(Cgroup::children)
            .map(|cgroup| cgroup.path().to_owned())
            .collect();
        let mut others = found.difference(&wanted);
        if let Some(path) = others.next() {
            anyhow::bail!(
                "{path} is there, and {} others that are not",
                others.count()
            );
        }
        for (name, said) in expected {
            let cgroup = self.cgroup(name);
            ensure!(cgroup.exists(), "{} is missing", cgroup.path());
            values::compare(&cgroup, said)?;
        }
        Ok(())
    }

    /// The cgroups that have the tiers and the pods in them, and what kubepods is in.
    fn parents(&self) -> Vec<Cgroup> {
        let tiers = QosClass::ALL.map(|class| self.cgroup(&self.base.kubepods.tier(class)));
        let mut parents = vec![self.node.sandbox.root.clone()];
        parents.extend(tiers);
        parents
    }

    /// The files that were written since the last look at them.
    pub(super) fn written(&mut self) -> Result<BTreeSet<PathBuf>> {
        self.writes.take()
    }

    /// Looks that of all pods that were there before, only those were written to whose manifests have
    /// changed, and watches those that have come. Call it when all is settled.
    pub(super) fn only_changed_were_written(&mut self) -> Result<()> {
        let changed: Vec<_> = std::mem::take(&mut self.changed)
            .iter()
            .map(name::pod_component)
            .collect();
        let pods: Vec<_> = self.live.values().map(|pod| self.name_of(pod)).collect();
        let mut may = BTreeSet::new();
        for name in QosClass::ALL.map(|class| self.base.kubepods.tier(class)) {
            may.extend(self.cgroup(&name).dirs());
        }
        for class in QosClass::ALL {
            for uid in &changed {
                let name = self.base.kubepods.tier(class).child(uid.as_str());
                may.extend(self.cgroup(&name).dirs());
            }
        }
        for file in &self.written()? {
            ensure!(
                file.parent().is_some_and(|dir| may.contains(dir)),
                "{} was written, and nothing had changed there",
                file.display()
            );
        }
        let tiers = QosClass::ALL.map(|class| self.base.kubepods.tier(class));
        for name in tiers.into_iter().chain(pods) {
            if !self.watched.contains(&name) {
                self.writes.watch(&self.cgroup(&name))?;
                self.watched.insert(name);
            }
        }
        Ok(())
    }

    fn name_of(&self, pod: &Pod) -> CgroupName {
        let class = qos::classify(&defaulted(pod));
        self.base.kubepods.pod(class, &pod.uid)
    }

    /// Makes the agent go through everything again without any reason to write, and looks that it
    /// writes nothing: neither by its own account nor by the kernel's.
    pub(super) fn second_pass_writes_nothing(&mut self) -> Result<()> {
        if self.live.is_empty() {
            return Ok(());
        }
        let passes = self.node.agent.node()?.reconciles;
        // A pass that is seen has begun, so all before it have ended.
        self.pass()?;
        let before = self.node.agent.node()?;
        self.pass()?;
        let after = self.node.agent.node()?;
        ensure!(
            after.reconciles > passes,
            "{} passes, and {passes} before",
            after.reconciles
        );
        ensure!(
            after.cgroup_writes == before.cgroup_writes,
            "a second pass counted {:?}, after {:?}",
            after.cgroup_writes,
            before.cgroup_writes
        );
        let written = self.written()?;
        ensure!(written.is_empty(), "a second pass wrote to {written:?}");
        self.changed.clear();
        self.compare(&self.expected(), &[])
    }

    /// Changes what no cgroup depends on, and waits until the agent has planned with it.
    pub(super) fn pass(&mut self) -> Result<()> {
        let mut pod = self.live.values().next().context("no pod")?.clone();
        pod.priority += 1;
        let (uid, priority) = (pod.uid.clone(), pod.priority);
        self.put(pod)?;
        eventually(self.node.limit(), || {
            let plan: Value = self.node.agent.get("/v1/plan")?;
            let pods = plan["recorded"]["pods"].as_array();
            let of_pod = |pod: &&Value| pod["uid"] == uid.as_str();
            let pod = pods.and_then(|pods| pods.iter().find(of_pod));
            let seen = pod.map(|pod| &pod["priority"]);
            ensure!(
                seen.is_some_and(|seen| *seen == priority),
                "the agent has not planned with {uid} at priority {priority}, but {seen:?}"
            );
            Ok(())
        })
    }

    /// Ends the agent, which must leave nothing.
    pub(super) fn finish(self) -> Result<()> {
        self.node.finish()
    }
}

fn page_size() -> Result<u64> {
    let size = sysconf(SysconfVar::PAGE_SIZE)?.context("the page size is unknown")?;
    Ok(u64::try_from(size)?)
}
