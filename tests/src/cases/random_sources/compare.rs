//! What an agent has made of its sources, in words that are the same wherever its cgroups are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use crate::cases::Context;
use crate::harness::{Node, eventually};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// By uid: name, class, who told of it, and its memory limit.
    pub(super) pods: BTreeMap<String, String>,
    /// Each source, with how many pods it tells of.
    pub(super) sources: BTreeMap<String, u64>,
    /// Every setting of every cgroup below kubepods.
    pub(super) tree: BTreeMap<PathBuf, String>,
}

impl Seen {
    /// Waits until all sources are well, the pods are as `expected`, and nothing has changed from one look to
    /// another after a later sampling pass: what pods are called is of the last one.
    pub(super) fn once(
        context: &Context,
        node: &Node,
        expected: impl Fn(&Self) -> Result<()>,
    ) -> Result<Self> {
        let mut last: Option<(Self, String)> = None;
        eventually(context.limit(60), || {
            let from = node.agent.node()?.time;
            let seen = Self::of(node)?;
            expected(&seen)?;
            if let Some((earlier, until)) = &last
                && *earlier == seen
            {
                ensure!(*until != from, "no sampling pass since the last look");
                return Ok(seen);
            }
            last = Some((seen, node.agent.node()?.time));
            bail!("it changes still");
        })
    }

    fn of(node: &Node) -> Result<Self> {
        let mut sources = BTreeMap::new();
        for source in node.agent.node()?.pod_sources {
            ensure!(source.reported && source.problem.is_none(), "{source:?}");
            sources.insert(source.name, source.pods);
        }
        let mut pods = BTreeMap::new();
        for pod in node.agent.pods()? {
            let limit = pod.memory.as_ref().and_then(|memory| memory.limit_bytes);
            let named = &pod.pod_ref;
            let text = format!(
                "{}/{} {} by {} limit {limit:?}",
                named.namespace, named.name, pod.qos_class, pod.source
            );
            pods.insert(named.uid.to_string(), text);
        }
        let root = node.sandbox.root.path();
        let mut settings = BTreeMap::new();
        node.kubepods().every_setting(&mut settings)?;
        let anywhere = |path: PathBuf| PathBuf::from(path.to_string_lossy().replace(root, "ROOT"));
        let tree = settings.into_iter().map(|(path, v)| (anywhere(path), v));
        Ok(Self {
            pods,
            sources,
            tree: tree.collect(),
        })
    }

    /// Names what is not as in `other`.
    pub(super) fn ensure_is(&self, other: &Self) -> Result<()> {
        differences("pods", &self.pods, &other.pods)?;
        differences("sources", &self.sources, &other.sources)?;
        differences("settings", &self.tree, &other.tree)
    }
}

fn differences<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
) -> Result<()> {
    let keys: BTreeSet<_> = found.keys().chain(wanted.keys()).collect();
    let differ = keys
        .into_iter()
        .filter(|key| found.get(key) != wanted.get(key));
    let differ: Vec<_> = differ
        .map(|key| (key, found.get(key), wanted.get(key)))
        .collect();
    ensure!(
        differ.is_empty(),
        "{} {what} are not as after the final lists alone; the first (found, wanted): {:?}",
        differ.len(),
        &differ[..differ.len().min(5)]
    );
    Ok(())
}
