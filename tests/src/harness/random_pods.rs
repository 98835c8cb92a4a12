//! Random pods: whatever decides what a cgroup is to hold, in every combination that an API server
//! takes. The same seed gives the same pods.

use anyhow::{Context as _, Result};
use podwarden_policy::{
    Bytes, Container, ContainerKind, MilliCpu, Pod, PodUid, QosClass, Resources, limits,
    model::Overhead, qos, validate,
};
use serde_json::{Map, Value, json};

use super::manifest::fresh_uid;

/// No limit is below this: a limit is kept 16 MiB above usage, and then it would not be the pod's.
const LEAST_LIMIT: Bytes = Bytes::mebi(32);

/// Tries for one pod before it counts as impossible; every class comes about in a few.
const TRIES: usize = 1000;

/// See the module.
#[derive(Debug)]
pub(crate) struct RandomPods {
    random: fastrand::Rng,
    page_sizes: Vec<Bytes>,
    made: usize,
}

impl RandomPods {
    /// `page_sizes` are those of huge pages that pods may ask for.
    pub(crate) fn new(seed: u64, page_sizes: Vec<Bytes>) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            page_sizes,
            made: 0,
        }
    }

    /// The source of chance, for what else depends on the seed.
    pub(crate) fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    /// A new pod of a class, as its manifest says it: nothing is defaulted yet.
    pub(crate) fn pod(&mut self, class: QosClass) -> Result<Pod> {
        self.made += 1;
        let mut containers = Vec::new();
        for n in 0..self.random.usize(0..=2) {
            let kind = *self
                .random
                .choice(&[ContainerKind::Init, ContainerKind::Sidecar])
                .context("two kinds")?;
            containers.push(container(&format!("init-{n}"), kind));
        }
        for n in 0..self.random.usize(1..=3) {
            containers.push(container(&format!("main-{n}"), ContainerKind::App));
        }
        let class_name = class.as_str().to_ascii_lowercase();
        let mut pod = Pod {
            uid: PodUid::new(fresh_uid()),
            name: format!("{class_name}-{}", self.made),
            namespace: "e2e".to_owned(),
            priority: self.random.i32(0..1000),
            static_pod: true,
            containers,
            ..Pod::default()
        };
        if self.one_in(5) {
            pod.overhead = Some(Overhead {
                cpu: self.maybe(|r| MilliCpu(r.u64(1..=250))),
                memory: self.maybe(|r| Bytes::mebi(r.u64(1..=64))),
            });
        }
        if class != QosClass::BestEffort && !self.page_sizes.is_empty() && self.one_in(3) {
            let size = self.page_sizes[self.random.usize(..self.page_sizes.len())];
            let amount = Bytes(size.0 * self.random.u64(1..=4));
            let last = pod.containers.last_mut().context("no container")?;
            last.resources.hugepages.insert(size, amount);
        }
        self.fill(&pod, class)
    }

    /// The same pod after a resize in place: other CPU and memory, the same class and all else.
    pub(crate) fn resized(&mut self, pod: &Pod) -> Result<Pod> {
        self.fill(pod, qos::classify(&defaulted(pod)))
    }

    /// Other CPU and memory for the containers and the pod, such that it is valid, of the class,
    /// and where the class allows it not the same as before.
    fn fill(&mut self, pod: &Pod, class: QosClass) -> Result<Pod> {
        for _ in 0..TRIES {
            let mut filled = pod.clone();
            let pod_level = class != QosClass::BestEffort && self.one_in(4);
            for container in &mut filled.containers {
                let hugepages = std::mem::take(&mut container.resources.hugepages);
                // Beside pod-level resources the containers are free to ask for less, or nothing.
                container.resources = match class {
                    QosClass::Guaranteed if !pod_level => self.guaranteed(),
                    QosClass::Guaranteed | QosClass::Burstable => self.burstable(),
                    QosClass::BestEffort => self.best_effort(),
                };
                container.resources.hugepages = hugepages;
            }
            filled.pod_resources = None;
            if pod_level {
                filled.pod_resources = Some(self.pod_level(&filled, class));
            }
            let taken = defaulted(&filled);
            if qos::classify(&taken) == class
                && validate::validate(&taken).is_empty()
                && filled.containers.iter().all(has_what_huge_pages_take)
                && (class == QosClass::BestEffort || filled != *pod)
            {
                return Ok(filled);
            }
        }
        anyhow::bail!("no {class} pod like {pod:?} came about in {TRIES} tries")
    }

    fn guaranteed(&mut self) -> Resources {
        let (cpu, memory) = (self.cpu(), self.memory_limit());
        Resources {
            cpu_request: self.maybe(|_| cpu),
            cpu_limit: Some(cpu),
            memory_request: self.maybe(|_| memory),
            memory_limit: Some(memory),
            ..Resources::default()
        }
    }

    fn burstable(&mut self) -> Resources {
        let (cpu, memory) = (self.cpu(), self.memory_limit());
        Resources {
            cpu_request: self.maybe(|r| MilliCpu(r.u64(0..=cpu.0))),
            cpu_limit: self.maybe(|_| cpu),
            memory_request: self.maybe(|r| Bytes(r.u64(0..=memory.0))),
            memory_limit: self.maybe(|_| memory),
            ..Resources::default()
        }
    }

    /// Nothing; or zeros, which ask for nothing either.
    fn best_effort(&mut self) -> Resources {
        Resources {
            cpu_request: self.one_in(8).then_some(MilliCpu::ZERO),
            memory_request: self.one_in(8).then_some(Bytes::ZERO),
            ..Resources::default()
        }
    }

    /// Above all that the containers have.
    fn pod_level(&mut self, pod: &Pod, class: QosClass) -> Resources {
        let pod = defaulted(pod);
        let (requests, limits) = (limits::pod_requests(&pod), limits::pod_limits(&pod));
        let cpu = requests.cpu.max(limits.cpu).saturating_add(self.cpu());
        let memory = requests.memory.max(limits.memory);
        let memory = memory.saturating_add(self.memory_limit());
        let guaranteed = class == QosClass::Guaranteed;
        let both = |this: &mut Self| guaranteed || this.random.bool();
        Resources {
            cpu_request: both(self).then_some(if guaranteed { cpu } else { requests.cpu }),
            cpu_limit: both(self).then_some(cpu),
            memory_request: both(self).then_some(if guaranteed { memory } else { requests.memory }),
            memory_limit: both(self).then_some(memory),
            ..Resources::default()
        }
    }

    /// Round figures, and odd ones at both ends of what shares and quotas can express.
    fn cpu(&mut self) -> MilliCpu {
        const ROUND: [u64; 8] = [1, 2, 10, 100, 250, 500, 1000, 2000];
        MilliCpu(match self.random.usize(..ROUND.len() + 2) {
            n if n < ROUND.len() => ROUND[n],
            _ => self.random.u64(1..=3999),
        })
    }

    /// Whole mebibytes, and figures that are no whole page.
    fn memory_limit(&mut self) -> Bytes {
        let odd = if self.one_in(3) {
            self.random.u64(1..1 << 20)
        } else {
            0
        };
        let whole = LEAST_LIMIT.saturating_add(Bytes::mebi(self.random.u64(0..=96)));
        whole.saturating_add(Bytes(odd))
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut fastrand::Rng) -> T) -> Option<T> {
        self.random.bool().then(|| value(&mut self.random))
    }
}

/// As an API server would complete it.
pub(crate) fn defaulted(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    pod.apply_defaults();
    pod
}

fn container(name: &str, kind: ContainerKind) -> Container {
    Container {
        name: name.to_owned(),
        kind,
        resources: Resources::default(),
    }
}

/// The v1 Pod that says what `pod` does.
pub(crate) fn manifest(pod: &Pod) -> Value {
    let list = |init: bool| -> Vec<Value> {
        let of_list = |c: &&Container| (c.kind != ContainerKind::App) == init;
        let all = pod.containers.iter().filter(of_list);
        all.map(|c| {
            let mut value = json!({
                "name": c.name,
                "image": "none",
                "resources": resources(&c.resources),
            });
            if c.kind == ContainerKind::Sidecar {
                value["restartPolicy"] = "Always".into();
            }
            value
        })
        .collect()
    };
    let mut spec = json!({
        "priority": pod.priority,
        "containers": list(false),
        "initContainers": list(true),
    });
    if let Some(own) = &pod.pod_resources {
        spec["resources"] = resources(own);
    }
    if let Some(overhead) = &pod.overhead {
        spec["overhead"] = amounts(overhead.cpu, overhead.memory).into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid.as_str()},
        "spec": spec,
    })
}

/// An API server takes no huge pages of a container that names neither CPU nor memory.
fn has_what_huge_pages_take(container: &Container) -> bool {
    let its = &container.resources;
    let named = its.cpu_request.or(its.cpu_limit).is_some();
    its.hugepages.is_empty() || named || its.memory_request.or(its.memory_limit).is_some()
}

fn resources(from: &Resources) -> Value {
    let mut requests = amounts(from.cpu_request, from.memory_request);
    let mut limits = amounts(from.cpu_limit, from.memory_limit);
    for (size, amount) in &from.hugepages {
        for list in [&mut requests, &mut limits] {
            list.insert(format!("hugepages-{size}"), amount.to_string().into());
        }
    }
    json!({"requests": requests, "limits": limits})
}

fn amounts(cpu: Option<MilliCpu>, memory: Option<Bytes>) -> Map<String, Value> {
    let cpu = cpu.map(|cpu| ("cpu".to_owned(), cpu.to_string().into()));
    let memory = memory.map(|memory| ("memory".to_owned(), memory.to_string().into()));
    cpu.into_iter().chain(memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manifest is read back by the agent's own converter, which must see the pod that was meant.
    #[test]
    fn manifests_say_what_the_pods_are() {
        let mut pods = RandomPods::new(1, vec![Bytes::mebi(2), Bytes::gibi(1)]);
        for class in QosClass::ALL.into_iter().cycle().take(600) {
            let pod = pods.pod(class).unwrap();
            let other = pods.resized(&pod).unwrap();
            for pod in [pod, other] {
                let text = manifest(&pod).to_string();
                let read = podwarden::pods::manifest::parse(&text);
                assert_eq!(read, [(1, Ok((defaulted(&pod), class)))], "{text}");
            }
        }
    }

    #[test]
    fn every_kind_of_pod_comes_about() {
        let mut pods = RandomPods::new(2, vec![Bytes::mebi(2)]);
        let all: Vec<_> = QosClass::ALL
            .into_iter()
            .cycle()
            .take(300)
            .map(|class| pods.pod(class).unwrap())
            .collect();
        let kind = |kind| move |p: &&Pod| p.containers.iter().any(|c| c.kind == kind);
        let some = |what: &str, found: usize| assert!(found > 10, "{found} pods with {what}");
        some(
            "sidecars",
            all.iter().filter(kind(ContainerKind::Sidecar)).count(),
        );
        some(
            "init containers",
            all.iter().filter(kind(ContainerKind::Init)).count(),
        );
        some(
            "overhead",
            all.iter().filter(|p| p.overhead.is_some()).count(),
        );
        let hugepages = |p: &&Pod| {
            p.containers
                .iter()
                .any(|c| !c.resources.hugepages.is_empty())
        };
        some("huge pages", all.iter().filter(hugepages).count());
        for class in [QosClass::Guaranteed, QosClass::Burstable] {
            let own = |p: &&Pod| p.pod_resources.is_some() && qos::classify(&defaulted(p)) == class;
            some("own resources", all.iter().filter(own).count());
        }
    }
}
