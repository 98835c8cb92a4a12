//! The wire types of `/v1`: what `podwarden top`, scripts and dashboards read.
//!
//! Field names are those of the kubelet's Summary API wherever it has one
//! (kubelet `pkg/apis/stats/v1alpha1/types.go`); times are RFC 3339 in UTC.
//! An absent field is a figure that is not known here, never a zero.

use serde::{Deserialize, Serialize};

mod event;
mod flight_record;
mod node;
mod node_usage;
mod pod;
pub mod summary;
mod took_over;

pub use event::{Event, EventKind, Eviction, EvictionTimeline};
pub use flight_record::{Curve, EventLogStats, EventRecord, Exit, FlightRecord, Level, Ranked};
pub use node::{
    Amount, BestEffortCpuStats, CgroupWrites, ConvergenceSteps, DropStats, EvictionStatusStats,
    ForeignWriteCount, ForeignWriteStats, NodeStats, PredictionStats, ReclaimedOffer,
    ReclaimedStats, ReconcileStats, RuntimeStats, SamplingStats, SourceStats, TierConvergence,
    TierStats,
};
pub use node_usage::{NodeMemory, NodeUsageStats};
pub use pod::{
    ContainerStats, CpuStats, DiskStats, ExitStats, InterfaceStats, LatencyStats, MemoryStats,
    NetworkStats, PodList, PodRef, PodStats, PressureStats, ProactiveReclaimStats, StallStats,
    ThrottlingStats, WaitedStats,
};
pub use took_over::TookOver;

/// Body of every answer with a status of 400 or above.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong and what to do about it.
    pub error: String,
}
