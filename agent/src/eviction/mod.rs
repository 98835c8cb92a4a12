//! What follows a kill: the flight recorder, the hold on the dead pod, the teardown through the runtime, and the eviction
//! status in the API; and the teardown of pods that are gone from their sources.

pub(crate) mod hold;
pub(crate) mod pod_killer;
pub(crate) mod pod_workers;
pub mod recorder;
pub mod status;
