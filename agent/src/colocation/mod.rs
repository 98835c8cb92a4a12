//! Co-location: protected pods get the CPU they need, and best-effort pods what the others leave.
//!
//! | module | purpose | runs in |
//! |---|---|---|
//! | `burst` | a protected pod may exceed its CPU limit while the node has free CPU | a thread of its own |
//! | `hold` | best effort gets less CPU while a protected pod waits, and by the koordlet's formula | a thread of its own |
//! | `proactive` | page cache that pods do not use is given back | a thread of its own |
//! | `resctrl` | cache and memory bandwidth by class | a thread of its own |
//! | `reclaimed` | what the node has to spare: figures, and the Node's status | the reconciler, a task |
//! | `pool` | whether the node has CPU to give | `burst`, `hold` |
//! | `found` | what the cgroups held before podwarden wrote to them, kept past a kill | `burst`, `hold` |
//! | `ours` | podwarden's quotas, so that they do not count as foreign | any thread |
//! | `latest` | the latest value of a thread that must not wait | any thread |
//! | `undo` | puts everything back when the agent is killed | a process of its own |

pub mod burst;
mod found;
pub mod hold;
mod latest;
mod ours;
mod pool;
pub mod proactive;
pub(crate) mod reclaimed;
pub mod resctrl;
mod undo;

pub use self::{
    found::{file as found_file, hold_file, left, restore},
    hold::cpus::{
        beside as cpus_beside, file as cpus_file, left as cpus_left, restore as restore_cpus,
    },
    ours::Ours,
    pool::{busy, rate},
};
