//! What happens, in its order, and how it ends.
//!
//! | module | purpose |
//! |---|---|
//! | `changes` | of pods |
//! | `faults` | of the servers, and the agent's ends |

mod changes;
mod faults;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use podwarden_policy::Pod;

use super::compare::Seen;
use crate::apiserver::ApiServer;
use crate::cases::Context;
use crate::cases::apiserver::World;
use crate::cases::static_url::Web;
use crate::harness::{Node, Options, RandomPods, Sandbox, sleep, values};

/// Pods of a source at a time, at most.
const MOST: usize = 40;

/// What happened, how often.
#[derive(Debug, Default)]
pub(super) struct Tally {
    changes: usize,
    faults: usize,
    restarts: usize,
}

impl Tally {
    /// All of it.
    pub(super) fn total(&self) -> usize {
        self.changes + self.faults + self.restarts
    }
}

/// A pod in the API.
#[derive(Debug)]
struct Object {
    pod: Pod,
    /// It runs or is to run.
    alive: bool,
}

/// See the module.
pub(super) struct History<'a> {
    context: &'a Context,
    world: World,
    web: Web,
    random: RandomPods,
    /// By name.
    objects: BTreeMap<String, Object>,
    /// Static pods by uid, in the directory and at the URL.
    files: BTreeMap<String, Pod>,
    page: BTreeMap<String, Pod>,
    /// Mirrors of static pods: their names by the uid of the static pod.
    mirrors: BTreeMap<String, String>,
    /// Names of pods in the API that make no sense now.
    spoilt: Vec<String>,
    tally: Tally,
}

impl<'a> History<'a> {
    /// Sources without pods, and an agent.
    pub(super) fn begin(context: &'a Context, seed: u64) -> Result<Self> {
        let web = Web::start()?;
        let hugepages = values::machine_hugepages()?;
        let random = RandomPods::new(seed, hugepages.into_keys().collect());
        let options = Options {
            memory: "64Gi".to_owned(),
            config: format!("qosReserved: {{memory: 50%}}\n{}", web.config()),
            ..Options::default()
        };
        let mut history = Self {
            context,
            world: World::with(context, options, |_| Ok(()))?,
            web,
            random,
            objects: BTreeMap::new(),
            files: BTreeMap::new(),
            page: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            spoilt: Vec::new(),
            tally: Tally::default(),
        };
        history.show_page();
        history.be_unpleasant();
        history.world.ready(context)?;
        Ok(history)
    }

    /// What has happened.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The node.
    pub(super) fn node(&self) -> &Node {
        &self.world.node
    }

    fn server(&self) -> &ApiServer {
        &self.world.server
    }

    fn rng(&mut self) -> &mut fastrand::Rng {
        self.random.random()
    }

    fn dice(&mut self) -> u32 {
        self.rng().u32(..100)
    }

    /// Some pods change, and now and then something goes wrong.
    pub(super) fn go_on(&mut self) -> Result<()> {
        for _ in 0..self.rng().usize(1..=25) {
            match self.dice() {
                0..84 => self.object_changes()?,
                84..94 => self.file_changes()?,
                _ => self.page_changes()?,
            }
            self.tally.changes += 1;
        }
        match self.dice() {
            0..86 => {}
            86..96 => {
                self.fault()?;
                self.tally.faults += 1;
            }
            _ => {
                self.restart()?;
                self.tally.restarts += 1;
            }
        }
        let pause = self.rng().u64(0..50);
        sleep(Duration::from_millis(pause))
    }

    /// Everything works again, and every pod makes sense.
    pub(super) fn calm_down(&mut self) -> Result<()> {
        self.server().manners(|m| {
            m.refuse.clear();
            (m.cut_after, m.repeat, m.late) = (None, false, Duration::ZERO);
        });
        while !self.spoilt.is_empty() {
            self.repair()?;
        }
        self.show_page();
        let Tally {
            changes,
            faults,
            restarts,
        } = self.tally;
        for (name, count) in [
            ("changes", changes),
            ("faults", faults),
            ("restarts", restarts),
        ] {
            self.context.figure(name, count as f64, "");
        }
        let verbs = self.world.verbs();
        for (verb, count) in verbs {
            self.context
                .figure(verb.replace(' ', "_"), count as f64, "");
        }
        Ok(())
    }

    /// The agent has the pods that there are, and no others.
    pub(super) fn expect(&self, seen: &Seen) -> Result<()> {
        let objects = self.objects.values().filter(|object| object.alive);
        let uids = objects.map(|object| object.pod.uid.as_str());
        let statics = self.files.keys().chain(self.page.keys());
        let mut wanted: Vec<_> = uids.chain(statics.map(String::as_str)).collect();
        wanted.sort_unstable();
        ensure!(
            seen.pods.keys().eq(&wanted),
            "pods {:?}, not {wanted:?}",
            seen.pods.keys()
        );
        for (name, object) in self.objects.iter().filter(|(_, object)| object.alive) {
            let found = &seen.pods[object.pod.uid.as_str()];
            ensure!(
                found.starts_with(&format!("e2e/{name} ")),
                "{name} is still called {found}"
            );
        }
        Ok(())
    }

    /// An agent on a root of its own, with the same sources as they are now.
    pub(super) fn another(&self) -> Result<Node> {
        let sandbox = Sandbox::new()?;
        for entry in fs::read_dir(self.node().sandbox.pods_dir())? {
            let entry = entry?;
            fs::copy(entry.path(), sandbox.pods_dir().join(entry.file_name()))?;
        }
        let own = self.node().sandbox.dir().display().to_string();
        let config = &self.world.options.config;
        let options = Options {
            config: config.replace(&own, &sandbox.dir().display().to_string()),
            ..self.world.options.clone()
        };
        Node::on(self.context, sandbox, &options)
    }

    /// No source has a pod any more, and nothing is left of any.
    pub(super) fn finish(mut self, other: Node) -> Result<()> {
        for name in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.remove(&name)?;
        }
        for name in std::mem::take(&mut self.mirrors).into_values() {
            self.server().remove_pod("e2e", &name)?;
        }
        for uid in std::mem::take(&mut self.files).into_keys() {
            let name = format!("{uid}.json");
            fs::remove_file(self.file_of(&uid))?;
            fs::remove_file(other.sandbox.pods_dir().join(name))?;
        }
        self.page.clear();
        self.show_page();
        for node in [self.world.node, other] {
            node.expect_pods(&[])?;
            node.finish()?;
        }
        Ok(())
    }
}
