//! Reads and writes the cgroup hierarchies of both versions.
//!
//! ```text
//!  detect  which hierarchies are mounted, which driver names them   (facts; parsing is pure)
//!  tree    create, remove, list, attach: one name in every hierarchy
//!  limits  typed values with their file names for v1 and v2
//!  largest which cgroups outside the pods hold most memory
//!  memory, cpu   readers with open files, for loops that must not allocate
//!  cpuset        the CPUs that a cgroup may run on
//!  pressure      how long tasks waited for CPU, memory and disks
//!  pids          tasks of a cgroup, and forks that a limit refused
//!  bandwidth     CPU quota and burst, and how often a cgroup was throttled
//!  kill    ends every process below a cgroup, from a thread that must not allocate
//!  leave   a process to the hierarchies' roots, past the end of its cgroup
//!  event   kernel notifications: v1 usage thresholds, PSI triggers
//!  writes  watches a cgroup's files for writes
//!  lock    one agent per cgroup root
//!  systemd the other driver: slices as transient units over D-Bus
//! ```
//!
//! Nothing here decides anything: names, values and victims come from the caller.
//!
//! # Why not the `cgroups-rs` crate
//!
//! Its 0.5 opens the file for every read and write and formats values into new strings, so it
//! cannot serve the real-time thread; it reports a `memory.stat` field that is absent as 0 where
//! this crate must tell unknown from zero; its errors name the file but not the cgroup; and it
//! brings a D-Bus stack. What is left (`mkdir`, small writes) is less than an adapter would be.
//!
//! # Cgroup ids
//!
//! On 64-bit kernels the inode number of a cgroup's directory is its id (`kernfs_ino`,
//! `include/linux/kernfs.h`), the same number that BPF's `bpf_get_current_cgroup_id` returns.
//! Every hierarchy numbers its own cgroups: an id means nothing without its hierarchy.

mod bandwidth;
mod cpu;
mod cpuset;
mod detect;
mod error;
mod event;
mod io;
mod kill;
mod largest;
mod leave;
mod limits;
mod lock;
mod memory;
mod mountinfo;
mod name;
mod pids;
mod pressure;
mod slice;
mod systemd;
mod tree;
mod writes;

pub use bandwidth::{QuotaWriter, ThrottleReader, Throttling};
pub use cpu::KernelCpu;
pub use cpuset::CpuList;
pub use detect::{Controller, Driver, DriverFacts, Hierarchies, Version};
pub use error::{Error, Result};
pub use event::{MemoryEvents, MemoryThresholds, PsiKind, PsiResource, PsiThreshold, PsiTrigger};
pub use kill::{ChildKinds, FreezeRecord, KillHandle, Killed, LeftFrozen, freeze_record_file};
pub use largest::{Large, largest_outside};
pub use leave::leave_every_cgroup;
pub use limits::Reclaims;
pub use lock::{AgentLock, Predecessor, Progress, TreeLock};
pub use memory::{ColdReader, ColdReading, MemoryReader, MemoryStat, PageCache, UsageReader};
pub use name::{CgroupLayout, CgroupPath, root_as_file_name};
pub use podwarden_policy::settings::table::is_setting;
pub use pressure::{Pressure, Waited};
pub use rustix::io::Errno;
pub use slice::is_slice_path;
pub use systemd::{Systemd, SystemdError};
pub use tree::{Created, Entry, Identity, Tree};
pub use writes::{Notice, Reading, WatchId, WriteWatch};
