//! Every case, in the order in which they run.

use serde::{Deserialize, Serialize};

use super::*;

/// Where a case takes its pods from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pods {
    /// From the harness.
    Harness,
    /// From a cluster, which those of a run share.
    Cluster,
}

/// The cases with these pods, all without.
pub(crate) fn all(pods: Option<Pods>) -> Vec<Case> {
    match pods {
        Some(Pods::Harness) => of_harness(),
        Some(Pods::Cluster) => on_a_cluster(),
        None => [of_harness(), on_a_cluster()].concat(),
    }
}

fn of_harness() -> Vec<Case> {
    [
        workloads::CASES,
        cpu::CASES,
        colocation::CASES,
        wait::CASES,
        iterator::CASES,
        pressure::CASES,
        traffic::CASES,
        near_limit::CASES,
        memory::CASES,
        exits::CASES,
        lifecycle::CASES,
        hierarchy::CASES,
        drift::CASES,
        converge::CASES,
        eviction::CASES,
        full_speed::CASES,
        observe::CASES,
        reaping::CASES,
        resident::CASES,
        undo::CASES,
        victims::CASES,
        worth::CASES,
        levels::CASES,
        pids::CASES,
        relief::CASES,
        graceful::CASES,
        stalls::CASES,
        reclaimed::CASES,
        recorder::CASES,
        profile::CASES,
        pure_v1::CASES,
        accounts::CASES,
        api::CASES,
        clients::CASES,
        prometheus::CASES,
        secure::CASES,
        reload::CASES,
        fleet::CASES,
        apiserver::CASES,
        eviction_status::CASES,
        outage::CASES,
        node_told::CASES,
        random_sources::CASES,
        kubelet::CASES,
        static_url::CASES,
        daemonset::CASES,
        containerd::CASES,
        scale::CASES,
        faults::CASES,
        stuck::CASES,
        suppress::CASES,
        cpu_eviction::CASES,
        killed::CASES,
        guard::CASES,
        shutdown::CASES,
        restarts::CASES,
        systemd::CASES,
        proactive::CASES,
    ]
    .concat()
}

fn on_a_cluster() -> Vec<Case> {
    [
        kubernetes::CASES,
        kubernetes::install::CASES,
        kubernetes::secure::CASES,
        kubernetes::summary::CASES,
        kubernetes::plugin::CASES,
        kubernetes::exempt::CASES,
        kubernetes::eviction::CASES,
        kubernetes::held::CASES,
        kubernetes::update::CASES,
        kubernetes::cut_off::CASES,
        kubernetes::pressure::CASES,
        kubernetes::ways::CASES,
        kubernetes::values::CASES,
        kubernetes::removed::CASES,
        kubernetes::resize::CASES,
        kubernetes::colocation::CASES,
        kubernetes::reclaimed::CASES,
        kubernetes::plan::CASES,
        kubernetes::soak::CASES,
        kubernetes::stand_in::CASES,
        kubernetes::END,
    ]
    .concat()
}
