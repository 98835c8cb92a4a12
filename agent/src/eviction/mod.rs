//! What follows a kill: the flight recorder, the teardown through the runtime, and the eviction status in the API.

pub mod pod_workers;
pub mod recorder;
pub mod status;
