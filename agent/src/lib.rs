//! podwarden, the node agent.
//!
//! ```text
//!  manifests ──> pods ─┐                       ┌─> act ──────> cgroups
//!                      ├─> sense ──> policy ───┤
//!  cgroups, usage ─────┘       (slow loop)     └─> arm ──────> reactor ──> SIGKILL
//!  kernel programs ──> accounting ──> figures ──> published ──> http      (fast loop)
//! ```
//!
//! | module | what it is for | what it may touch |
//! |---|---|---|
//! | `cli` | one file per subcommand | terminal, files named on the command line |
//! | `config` | what the operator wrote -> checked values with units | the configuration file |
//! | `pods` | where pods come from | the manifest directory, the API server |
//! | `kernel` | what this kernel can do; loading; records; figures | BPF, BTF, what it has pinned |
//! | `ledger` | which cgroup belongs to which pod | nothing |
//! | `accounting` | the kernel's figures joined with the tree | `kernel`, cgroup directories |
//! | `figures` | one sampling pass -> the API's figures | memory files |
//! | `sense` | gathers a policy snapshot; decides nothing | cgroup files, reading |
//! | `act` | the only interpreter of actions; observe mode | cgroup files, writing |
//! | `drift` | notices what others write to our files | inotify |
//! | `runtime` | who is behind a container; how a pod is taken down | the runtime's socket |
//! | `converge` | brings the tiers' memory limits to their targets | the tiers' memory files, writing |
//! | `oom_score` | gives containers' processes their `oom_score_adj` | /proc |
//! | `arm` | makes the reactor's plan | opens files |
//! | `reactor` | the fast loop, and the threads that free what it killed | usage files, SIGKILL, `process_mrelease` |
//! | `run` | brings all of it up and down; the slow loop | all of the above |
//! | `published`, `api`, `http`, `client` | what is shown, and how it travels | sockets |
//! | `recorder` | what led to an eviction, kept past the agent's end | usage files, the event log |
//! | `workers` | one task per pod with something to do | nothing |
//! | `marks` | tells the API server of evictions, from a queue on disk, and of the node | the state directory, the API server |
//! | `durable` | files that are there whole or not at all | files named by others |
//! | `recorded` | a snapshot as a file: `plan --record` | nothing |
//! | `clock` | the clocks, as numbers and text | the clocks |
//! | `error` | errors as text | nothing |

pub mod accounting;
pub mod act;
pub mod api;
pub mod arm;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod converge;
pub mod drift;
pub mod durable;
pub mod error;
pub mod figures;
pub mod http;
pub mod kernel;
pub mod ledger;
pub mod marks;
pub mod oom_score;
pub mod pods;
pub mod published;
pub mod reactor;
pub mod recorded;
pub mod recorder;
pub mod run;
pub mod runtime;
pub mod sense;
pub mod workers;
