//! What the agent runs on: the machine, its cgroup hierarchies, and the names of the cgroups.

use podwarden_cgroup::{
    CgroupLayout, CgroupPath, Controller, Driver, DriverFacts, Hierarchies, Tree,
};
use podwarden_policy::{Node, plan::Ownership, reserve};

use super::{StartError, kubepods};
use crate::{
    api::{
        published::{Figures, Published},
        types::NodeStats,
    },
    base::clock,
    config::{Config, Machine, Mode},
    eviction::status::Sizes,
    kernel::support::Profile,
    pods::SourcedPod,
};

pub(super) struct Site {
    pub(super) machine: Machine,
    hierarchies: Hierarchies,
    pub(super) driver: Driver,
    pub(super) node: Node,
    pub(super) layout: CgroupLayout,
}

impl Site {
    pub(super) fn find(config: &Config) -> Result<Self, StartError> {
        let machine = Machine::probe().map_err(StartError::Machine)?;
        let hierarchies = Hierarchies::detect().map_err(StartError::Cgroup)?;
        let driver = config
            .cgroup_driver
            .unwrap_or_else(|| DriverFacts::probe(&hierarchies, &config.cgroup_root).guess());
        let node = config.node(&machine, driver);
        if config.ownership == Ownership::Own {
            reserve::validate(&node).map_err(StartError::Reserve)?;
        }
        if config.node_level(&machine) == Some(0) {
            return Err(StartError::Threshold {
                memory: machine.memory,
            });
        }
        Ok(Self {
            machine,
            hierarchies,
            driver,
            node,
            layout: CgroupLayout::new(driver, &config.cgroup_root),
        })
    }

    /// The tree below the root, which may have no kubepods cgroup yet.
    pub(super) fn bare_tree(&self, config: &Config) -> podwarden_cgroup::Result<Tree> {
        Tree::new(self.hierarchies.clone(), &config.cgroup_root)
    }

    /// What there is to use on the node.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            pods: reserve::allocatable(&self.node).kubepods_memory.as_u64(),
            node: self.machine.memory.as_u64(),
        }
    }

    /// The parts of the node's figures that do not change, as far as they are known.
    pub(super) fn stats(&self, config: &Config) -> NodeStats {
        NodeStats {
            node_name: config.node_name.clone(),
            mode: config.mode.as_str().to_owned(),
            profile: Profile::Sampling.as_str().to_owned(),
            cgroup_version: self.hierarchies.version.to_string(),
            cgroup_driver: self.driver.to_string(),
            start_time: clock::now_text(),
            ..NodeStats::default()
        }
    }

    /// True for a pod whose cgroup exists.
    pub(super) fn has_cgroup_of(&self, config: &Config) -> impl Fn(&SourcedPod) -> bool {
        let tree = self.bare_tree(config).ok();
        move |pod| {
            let layout = &self.layout;
            let path = layout.path(&layout.kubepods.pod(pod.qos, &pod.pod.uid));
            let directory = tree
                .as_ref()
                .map(|tree| tree.path(Controller::Memory, &path));
            directory.is_some_and(|path| path.is_ok_and(|path| path.is_dir()))
        }
    }

    /// The tree below the root; where another program makes kubepods, once that exists.
    pub(super) async fn tree(
        &self,
        config: &Config,
        stats: &NodeStats,
        published: &Published,
    ) -> Result<Tree, StartError> {
        let root = &config.cgroup_root;
        let tree = || self.bare_tree(config);
        if config.mode == Mode::Enforce && config.ownership == Ownership::Own {
            return tree().map_err(StartError::Cgroup);
        }
        let kubepods = self.layout.path(&self.layout.kubepods);
        if !tree().is_ok_and(|tree| tree.id(&kubepods).is_ok()) {
            announce_waiting(&kubepods, root, stats, published);
        }
        kubepods::wait(&self.hierarchies, root, &kubepods).await
    }
}

/// Until there is a kubepods cgroup the API returns an empty node with the reason.
fn announce_waiting(kubepods: &CgroupPath, root: &str, stats: &NodeStats, published: &Published) {
    let waiting = format!(
        "there is no {kubepods} cgroup below {root} yet: waiting until it is made; where a kubelet runs pods \
         already, set cgroupRoot to its own --cgroup-root, and cgroupDriver to its driver"
    );
    tracing::warn!("{waiting}");
    let node = NodeStats {
        time: clock::now_text(),
        degradations: vec![waiting],
        ..stats.clone()
    };
    published.publish(Figures::new(node, Vec::new()));
    published.set_ready(true);
}

/// Logs the profile and the degradations.
pub(super) fn announce(stats: &NodeStats) {
    for degradation in &stats.degradations {
        tracing::warn!("{degradation}");
    }
    tracing::info!(
        profile = stats.profile,
        mode = stats.mode,
        cgroup = stats.cgroup_version,
        driver = stats.cgroup_driver,
        degradations = stats.degradations.len(),
        "running"
    );
}
