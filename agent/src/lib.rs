//! podwarden, the node agent.
//!
//! ```text
//!  manifests ──> pods ─┐                       ┌─> act ──────> cgroups
//!                      ├─> sense ──> policy ───┤
//!  cgroups, usage ─────┘      (reconciler)     └─> arm ──────> reactor ──> SIGKILL
//!  kernel programs ──> accounting ──> figures ──> published ──> server     (fast loop)
//! ```
//!
//! The order of imports: a module imports only modules below it in this table. `cargo xtask ci` reads the
//! first column and fails on an import against it.
//!
//! | module | purpose | what it may touch |
//! |---|---|---|
//! | `cli` | one file per subcommand | terminal, files named on the command line |
//! | `agent` | start, the reconciler, shutdown | all of the below |
//! | `api` | published state, server, client | sockets |
//! | `colocation` | CPU limits exceeded while the node has free CPU, best effort held back, unused page cache given back, what the node has to spare | CPU quota, burst and cpuset files, `memory.reclaim`, resctrl, `/proc`, the Node's status |
//! | `eviction` | what follows a kill: recorder, teardown, status in the API | the state directory, the API server, the event log |
//! | `hierarchy` | what cgroups hold: sense, act, drift, converge, oom_score | cgroup files, /proc |
//! | `reactor` | the fast loop: watch, choose, kill, reap | usage files, SIGKILL, `process_mrelease` |
//! | `accounting` | cgroup index and kernel accounts -> figures | `kernel`, cgroup directories, memory files, `/proc/PID/net` |
//! | `pods` | sources -> one set of pods | the manifest directory, the API server, the kubelet |
//! | `pods::runtime` | container state from the CRI; how a pod is taken down | the runtime's socket |
//! | `kernel` | what this kernel can do; hooks, loader, records | BPF, BTF, what it has pinned |
//! | `config` | what the operator wrote -> checked values with units | the configuration file |
//! | `api::types` | the data of `/v1` | nothing |
//! | `base` | clocks, durable files, errors as text, heartbeats, pauses, threads | files named by others |

// `pub` in here means that other modules use an item. Modules are private where neither `main.rs`, the
// agent's tests nor the other packages need them, so that what nothing uses is found.
#![allow(missing_docs, unreachable_pub)]

mod accounting;
mod agent;
pub mod api;
mod base;
pub mod cli;
pub mod colocation;
pub mod config;
pub mod eviction;
pub mod hierarchy;
pub mod kernel;
pub mod pods;
pub mod reactor;
