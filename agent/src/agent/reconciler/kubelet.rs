//! Part: what the kubelet has decided that owns the tree (`ownership: assist`). Its limits of `kubepods` and the
//! tiers are facts, and levels lie below them; reserves that are not configured are those of the Node object.

use std::collections::BTreeSet;

use podwarden_cgroup::{
    CgroupLayout, CgroupPath, Controller, MemoryReader, Reading, Tree, WatchId, WriteWatch,
    is_setting,
};
use podwarden_policy::{
    Bytes, Node, QosClass,
    plan::Ownership,
    reserve::{self, Advertised},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};

use super::Fact;
use crate::{
    agent::arm::TierBounds,
    config::Config,
    pods::{Apiserver, apiserver},
};

/// A cgroup whose limit another program writes.
#[derive(Debug, Default)]
struct Bounded {
    path: CgroupPath,
    watch: Option<WatchId>,
    /// `None` without a limit, or without the cgroup.
    limit: Option<Bytes>,
}

#[derive(Debug)]
pub(in crate::agent) struct KubeletFacts {
    /// The node as it is configured.
    configured: Node,
    /// `None` where podwarden writes these limits itself.
    kubepods: Option<Bounded>,
    /// Burstable, BestEffort; `None` where `qosReserved` here decides.
    tiers: Option<[Bounded; 2]>,
    /// `None` where writes cannot be noticed: passes find them.
    writes: Option<AsyncFd<WriteWatch>>,
    advertised: Option<watch::Receiver<Option<Advertised>>>,
    /// What it said last.
    said: Option<Advertised>,
}

impl KubeletFacts {
    /// Needs a tokio runtime.
    pub(in crate::agent) fn new(config: &Config, node: &Node, layout: &CgroupLayout) -> Self {
        let ours = config.ownership == Ownership::Own;
        let bounded = |name| Bounded {
            path: layout.path(&name),
            ..Bounded::default()
        };
        let tier = |class| bounded(layout.kubepods.tier(class));
        let tiers_ours = ours || config.qos_reserved_memory.is_some();
        let apiserver = (!ours).then(|| Apiserver::of(&config.apiserver));
        Self {
            configured: node.clone(),
            kubepods: (!ours).then(|| bounded(layout.kubepods.clone())),
            tiers: (!tiers_ours).then(|| [QosClass::Burstable, QosClass::BestEffort].map(tier)),
            writes: if ours { None } else { writes() },
            advertised: apiserver
                .flatten()
                .map(|server| apiserver::node::follow(server, &config.node_name)),
            said: None,
        }
    }

    /// Completes when a limit was written, or the Node object says something else. Cancel-safe.
    pub(super) async fn ready(&mut self) {
        let written = async {
            match &mut self.writes {
                Some(writes) => match writes.readable().await {
                    Ok(mut guard) => guard.clear_ready(),
                    Err(_) => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        let advertised = async {
            let changed = match &mut self.advertised {
                Some(advertised) => advertised.changed().await,
                None => std::future::pending().await,
            };
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = written => {}
            () = advertised => {}
        }
    }

    /// Looks at what was written, and at the Node object.
    pub(super) fn step(&mut self, tree: &Tree) -> Option<Fact> {
        let mut written = false;
        if let Some(writes) = &self.writes {
            let reading = writes.get_ref().read(|_, file| written |= is_setting(file));
            // Notices were lost.
            written |= !matches!(reading, Ok(Reading::Drained | Reading::More));
        }
        let before = (self.limits(), self.said);
        if written {
            self.read(tree);
        }
        if let Some(advertised) = &mut self.advertised {
            self.said = *advertised.borrow_and_update();
        }
        (before != (self.limits(), self.said)).then_some(Fact::Reconcile)
    }

    fn bounded(&mut self) -> impl Iterator<Item = &mut Bounded> {
        self.kubepods
            .iter_mut()
            .chain(self.tiers.iter_mut().flatten())
    }

    fn limits(&self) -> Vec<Option<Bytes>> {
        let tiers = self.tiers.iter().flatten();
        self.kubepods.iter().chain(tiers).map(|b| b.limit).collect()
    }

    /// Reads every limit anew, and watches the cgroups that are there.
    pub(in crate::agent) fn read(&mut self, tree: &Tree) {
        let writes = self.writes.take();
        for bounded in self.bounded() {
            if let Some(writes) = &writes {
                bounded.follow(tree, writes.get_ref());
            }
            let limit = MemoryReader::open(tree, &bounded.path).and_then(|memory| memory.limit());
            bounded.limit = limit.ok().flatten().map(Bytes);
        }
        self.writes = writes;
    }

    /// The node as it is configured and advertised, before the limit in force.
    fn planned(&self) -> Node {
        match self.said {
            Some(advertised) => reserve::advertised(&self.configured, &advertised),
            None => self.configured.clone(),
        }
    }

    /// The node that levels and reserves follow from.
    pub(in crate::agent) fn node(&self) -> Node {
        let planned = self.planned();
        match self.kubepods.as_ref().and_then(|kubepods| kubepods.limit) {
            Some(limit) => reserve::within(&planned, limit),
            None => planned,
        }
    }

    /// The tiers' limits that others wrote.
    pub(in crate::agent) fn tiers(&self) -> TierBounds {
        match &self.tiers {
            Some([burstable, besteffort]) => TierBounds {
                burstable: burstable.limit,
                besteffort: besteffort.limit,
            },
            None => TierBounds::default(),
        }
    }

    /// What is configured and is not so, one sentence each. Reserves of the Node object leave the kubelet's own
    /// eviction threshold open, and are no configuration.
    pub(super) fn mismatches(&self) -> BTreeSet<String> {
        let planned = self.planned();
        if planned.system_reserved.memory != self.configured.system_reserved.memory {
            return BTreeSet::new();
        }
        let planned = reserve::allocatable(&planned).kubepods_memory;
        // Limits are in whole pages.
        let page = rustix::param::page_size() as u64;
        let found = self
            .kubepods
            .as_ref()
            .and_then(|k| k.limit.zip(Some(&k.path)));
        let differs = found.filter(|(limit, _)| limit.0.abs_diff(planned.0) >= page);
        let sentence = |(limit, path): (Bytes, &CgroupPath)| {
            format!(
                "the memory limit of {path} is {limit}, and capacity, kubeReserved and systemReserved make it \
                 {planned}: levels lie below the lower of the two; set the reserves to the kubelet's"
            )
        };
        differs.map(sentence).into_iter().collect()
    }
}

impl Bounded {
    /// Watches the cgroup as it is now: one that was made anew is another.
    fn follow(&mut self, tree: &Tree, writes: &WriteWatch) {
        let directory = tree.path(Controller::Memory, &self.path);
        let watch = directory.and_then(|directory| writes.directory(&directory));
        let before = std::mem::replace(&mut self.watch, watch.ok());
        if let Some(before) = before.filter(|before| self.watch != Some(*before)) {
            writes.remove(before);
        }
    }
}

fn writes() -> Option<AsyncFd<WriteWatch>> {
    let watch = WriteWatch::new().ok()?;
    // SAFETY: the watch owns its descriptor, which stays the same.
    unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }.ok()
}
