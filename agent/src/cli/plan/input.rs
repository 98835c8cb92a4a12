//! From a file, standard input or the agent to a policy snapshot.

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use podwarden_cgroup::{CgroupLayout, Driver};
use podwarden_policy::{
    Bytes, MilliCpu, Node,
    colocation::{reclaimed::Inputs, strategies::Strategies},
    name::{self, CgroupName},
    plan::{Ownership, Snapshot},
    reserve,
    settings::{CpuShare, Observed},
};
use serde_json::Value;

use super::{
    found::Found,
    objects::Read,
    schema::{DriverName, RawSnapshot},
    usage,
};
use crate::{
    config::{API_VERSION, Config, ConfigError, Cpu, Machine, Memory, Overrides, from_yaml},
    hierarchy::recorded::{KIND, Version},
    pods::{Problem, manifest},
};

/// What is planned for, beside the pods; each overrides what the snapshot says.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct NodeArgs {
    /// Configuration of the agent (YAML, `kind: AgentConfig`): reserves, thresholds, ranking
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// CPUs of the node [default: the snapshot's, or this machine's]
    #[arg(long, value_name = "CPU")]
    cpu: Option<Cpu>,
    /// Memory of the node [default: the snapshot's, or this machine's]
    #[arg(long, value_name = "MEMORY")]
    memory: Option<Memory>,
    /// Which files the cgroups have [default: the snapshot's, or v2]
    #[arg(long, value_enum)]
    cgroup_version: Option<Version>,
    /// Who names the cgroups [default: the snapshot's, or cgroupfs]
    #[arg(long, value_enum)]
    cgroup_driver: Option<DriverName>,
}

impl NodeArgs {
    fn cpu(&self) -> Option<MilliCpu> {
        self.cpu.as_ref().map(|cpu| cpu.0)
    }

    fn memory(&self) -> Option<Bytes> {
        self.memory.as_ref().map(|memory| memory.0)
    }
}

/// What can be planned, and what could not be made sense of.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) snapshot: Snapshot,
    pub(crate) version: Version,
    pub(crate) layout: CgroupLayout,
    /// What the node's reclaimed resources are from, where they are recorded.
    pub(crate) reclaimed: Option<Inputs>,
    /// What the CPU strategies go by.
    pub(crate) cpu_strategies: Strategies,
    /// One sentence each: a pod that is left out, and why.
    pub(crate) errors: Vec<String>,
}

impl Input {
    /// Reads a file, or standard input for `-`.
    pub(crate) fn read(file: &Path, args: &NodeArgs) -> anyhow::Result<Self> {
        let (name, text) = if file == Path::new("-") {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.context("read standard input")?;
            ("(standard input)".to_owned(), text)
        } else {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("read {name}"))?;
            (name, text)
        };
        Self::parse(&name, &text, args)
    }

    /// Reads a text; `name` is what errors call it.
    pub(crate) fn parse(name: &str, text: &str, args: &NodeArgs) -> anyhow::Result<Self> {
        let config = args.config.as_deref();
        let config = config.map(|file| Config::load(Some(file), Overrides::default()));
        let reader = Reader {
            name,
            args,
            config: config.transpose()?,
        };
        let documents: Vec<_> = manifest::documents(text).collect();
        if let [document] = &documents[..]
            && is_snapshot(document)
        {
            return reader.snapshot(document);
        }
        reader.manifests(&documents)
    }
}

fn is_snapshot(document: &str) -> bool {
    // What is no YAML at all is reported as a manifest.
    serde_saphyr::from_str::<Value>(document)
        .is_ok_and(|value| value.get("kind").and_then(Value::as_str) == Some(KIND))
}

struct Reader<'a> {
    name: &'a str,
    args: &'a NodeArgs,
    /// `--config`.
    config: Option<Config>,
}

impl Reader<'_> {
    fn manifests(self, documents: &[String]) -> anyhow::Result<Input> {
        let mut found = Found::default();
        for (number, document) in (1..).zip(documents) {
            let options = serde_saphyr::options! { with_snippet: false };
            match serde_saphyr::from_str_with_options::<Value>(document, options) {
                Ok(Value::Null) => {}
                Ok(value) => found.add(self.name, number, value),
                Err(e) => {
                    found.documents += 1;
                    found.error(self.name, number, Problem::Syntax(e.to_string()));
                }
            }
        }
        anyhow::ensure!(found.documents > 0, "{}: it holds no document", self.name);
        let config = self.config_or(None)?;
        let (errors, pods) = found.finish(self.name)?;
        let snapshot = self.assemble(
            &config,
            &Machine::probe()?,
            BTreeMap::new(),
            self.driver(None),
            pods,
        );
        let cpu_strategies = config.colocation.cpu_strategies(&snapshot.node);
        Ok(Input {
            cpu_strategies,
            ..self.input(snapshot, None, None, errors)
        })
    }

    fn snapshot(self, document: &str) -> anyhow::Result<Input> {
        let mut raw: RawSnapshot = from_yaml(self.name, document)?;
        if raw.api_version.value != API_VERSION {
            let wrong = format!("this version reads {API_VERSION}");
            return Err(
                ConfigError::value(self.name, "apiVersion", &raw.api_version, wrong).into(),
            );
        }
        let reclaimed = taken(self.name, "reclaimed", &mut raw.reclaimed)?;
        let found: Option<Strategies> = taken(self.name, "cpuStrategies", &mut raw.cpu_strategies)?;
        let found = found.unwrap_or_default();
        let input = match raw.recorded {
            Some(_) if raw.is_written_by_hand() => anyhow::bail!(
                "snapshot {}: `recorded` says everything; remove the keys beside it, or change \
                 the values inside it",
                self.name
            ),
            Some(recorded) => {
                let snapshot = decode::<Snapshot>(self.name, "recorded", recorded)?;
                let snapshot = self.changed(snapshot, self.driver(raw.cgroup_driver));
                let mut input =
                    self.input(snapshot, raw.cgroup_version, raw.cgroup_driver, Vec::new());
                let node = &input.snapshot.node;
                input.cpu_strategies = match &self.config {
                    Some(config) => config.colocation.cpu_strategies(node),
                    None => found.clone().on(node.cpu_capacity),
                };
                input
            }
            None => self.written(raw)?,
        };
        Ok(Input {
            reclaimed,
            cpu_strategies: input.cpu_strategies.measured_as(&found),
            ..input
        })
    }

    /// A snapshot written by hand.
    fn written(self, raw: RawSnapshot) -> anyhow::Result<Input> {
        let mut found = Found::default();
        if !raw.pods.is_empty() {
            let list =
                serde_json::json!({"apiVersion": "v1", "kind": "PodList", "items": raw.pods});
            found.add(self.name, 1, list);
        }
        let own = raw.config.map(|raw| Config::embedded(self.name, raw));
        let config = self.config_or(own.transpose()?)?;
        let (machine, hugepages) = match raw.node {
            Some(node) => node.read(self.name, &Machine::probe()?)?,
            None => (Machine::probe()?, BTreeMap::new()),
        };
        let (mut errors, pods) = found.finish(self.name)?;
        let mut snapshot = self.assemble(
            &config,
            &machine,
            hugepages,
            self.driver(raw.cgroup_driver),
            pods,
        );
        if let Some(cgroups) = raw.cgroups {
            snapshot.cgroups = decode(self.name, "cgroups", cgroups)?;
        }
        let version = self.args.cgroup_version.or(raw.cgroup_version);
        let version = version.unwrap_or_else(|| seen_version(&snapshot));
        for (pod, usage) in &raw.usage {
            let field = format!("usage.{pod}.memory");
            let used = usage.memory.value.parse::<Memory>().map_err(|wrong| {
                ConfigError::value(self.name, &field, &usage.memory, wrong).into()
            });
            let noted =
                used.and_then(|Memory(used)| usage::note(&mut snapshot, version, pod, used));
            if let Err(error) = noted {
                errors.push(format!("{}: usage: {error}", self.name));
            }
        }
        usage::complete(&mut snapshot, version);
        if let Some(Memory(available)) = raw.memory_available {
            snapshot.crossing = usage::crossing(&config, &snapshot.node, available);
        }
        let cpu_strategies = config.colocation.cpu_strategies(&snapshot.node);
        Ok(Input {
            cpu_strategies,
            ..self.input(snapshot, Some(version), raw.cgroup_driver, errors)
        })
    }

    /// `--config`, else what the snapshot says, else the defaults.
    fn config_or(&self, own: Option<Config>) -> anyhow::Result<Config> {
        let mut config = match self.config.clone().or(own) {
            Some(config) => config,
            None => Config::load(None, Overrides::default())?,
        };
        config.capacity_cpu = self.args.cpu().or(config.capacity_cpu);
        config.capacity_memory = self.args.memory().or(config.capacity_memory);
        Ok(config)
    }

    fn assemble(
        &self,
        config: &Config,
        machine: &Machine,
        hugepages: BTreeMap<Bytes, Bytes>,
        driver: Driver,
        mut pods: Vec<Read>,
    ) -> Snapshot {
        // Beside a kubelet its static pods come as mirror pods, which say so themselves.
        if config.ownership != Ownership::Own {
            for pod in pods.iter_mut().filter(|pod| !pod.of_api) {
                pod.pod.static_pod = false;
            }
        }
        let kubepods = name::kubepods(&CgroupName::root());
        let mut snapshot = Snapshot::new(Node::default(), kubepods);
        snapshot.node.hugepages = hugepages;
        snapshot.pods = pods.into_iter().map(|read| read.pod).collect();
        configure(&mut snapshot, config, machine, driver);
        snapshot
    }

    /// A recorded snapshot under the command line's values: what would be, if.
    fn changed(&self, mut snapshot: Snapshot, driver: Driver) -> Snapshot {
        let node = &mut snapshot.node;
        node.cpu_capacity = self.args.cpu().unwrap_or(node.cpu_capacity);
        node.memory_capacity = self.args.memory().unwrap_or(node.memory_capacity);
        if let Some(config) = &self.config {
            let machine = Machine {
                cpu: node.cpu_capacity,
                memory: node.memory_capacity,
                swap: node.swap_capacity,
                pids: node.pids_capacity,
                hugepages: node.hugepages.clone(),
                ephemeral_storage: node.ephemeral_storage_capacity,
            };
            configure(&mut snapshot, config, &machine, driver);
        }
        snapshot
    }

    /// Who names the cgroups: the command line, else the document.
    fn driver(&self, written: Option<DriverName>) -> Driver {
        match self.args.cgroup_driver.or(written).unwrap_or_default() {
            DriverName::Cgroupfs => Driver::Cgroupfs,
            DriverName::Systemd => Driver::Systemd,
        }
    }

    fn input(
        &self,
        snapshot: Snapshot,
        version: Option<Version>,
        driver: Option<DriverName>,
        mut errors: Vec<String>,
    ) -> Input {
        errors.extend(self.reserves(&snapshot));
        let version = self.args.cgroup_version.or(version);
        Input {
            version: version.unwrap_or_else(|| seen_version(&snapshot)),
            layout: CgroupLayout::of(self.driver(driver), snapshot.kubepods.clone()),
            snapshot,
            reclaimed: None,
            cpu_strategies: Strategies::default(),
            errors,
        }
    }

    /// What is wrong with the reserves; a cgroup is missing only where others are known to exist.
    fn reserves(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut found: Vec<_> = reserve::validate(&snapshot.node)
            .err()
            .into_iter()
            .collect();
        if !snapshot.cgroups.is_empty() {
            found.extend(reserve::cgroup_errors(snapshot));
        }
        let sentences = found.into_iter().map(|e| format!("{}: {e}", self.name));
        sentences.collect()
    }
}

/// What the configuration decides, over what the machine has.
fn configure(snapshot: &mut Snapshot, config: &Config, machine: &Machine, driver: Driver) {
    snapshot.node = Node {
        hugepages: std::mem::take(&mut snapshot.node.hugepages),
        ..config.node(machine, driver)
    };
    config.decide(snapshot);
}

/// By what the cgroups hold.
fn seen_version(snapshot: &Snapshot) -> Version {
    let shares = |observed: &Observed| matches!(observed.cpu, Some(CpuShare::Shares(_)));
    if snapshot.cgroups.values().any(shares) {
        Version::V1
    } else {
        Version::default()
    }
}

fn decode<T: serde::de::DeserializeOwned>(
    name: &str,
    field: &str,
    value: Value,
) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(value)
        .map_err(|e| anyhow::anyhow!("snapshot {name}: {field}.{}: {}", e.path(), e.inner()))
}

/// The same of a key that may be left out.
fn taken<T: serde::de::DeserializeOwned>(
    name: &str,
    field: &str,
    value: &mut Option<Value>,
) -> anyhow::Result<Option<T>> {
    let value = value.take();
    value.map(|value| decode(name, field, value)).transpose()
}
