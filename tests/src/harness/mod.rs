//! What a case stands on: a private cgroup root, the agent under test, pods, and the kernel's own
//! figures, read here from the kernel's files and not through podwarden's code.

mod agent;
mod bpf;
mod cgroup;
mod clock;
mod container;
mod cpuset;
mod fifo;
mod http;
mod https;
mod interrupt;
mod log;
mod manifest;
mod memory;
mod mounts;
mod node;
mod quantile;
mod random_pods;
mod sandbox;
mod schedstat;
mod second_opinion;
mod server;
mod standstill;
mod trace;
pub(crate) mod values;
mod wait;
mod workload;
mod writes;

pub(crate) use ::workload::clock::monotonic;
pub(crate) use agent::{Agent, NODE, Options};
pub(crate) use bpf::{DISK_PROGRAMS, KernelMemory, Objects, files_below};
pub(crate) use cgroup::{Cgroup, Memory};
pub(crate) use clock::{kernel_release, wall_nanos};
pub(crate) use container::{Container, Shipped};
pub(crate) use fifo::make_fifo;
pub(crate) use http::{
    Answer, get as http_get, get_at as http_get_at, get_gzip as http_get_gzip,
    request as http_request,
};
pub(crate) use https::get as https_get;
pub(crate) use interrupt::{check as check_interrupt, install as catch_signals};
pub(crate) use log::Log;
pub(crate) use manifest::{PodSpec, Qos, fresh_uid};
pub(crate) use memory::{heaps_of_threads, resident};
pub(crate) use mounts::Mounts;
pub(crate) use node::{Node, Pod};
pub(crate) use quantile::quantile;
pub(crate) use random_pods::{RandomPods, defaulted, manifest};
pub(crate) use sandbox::{OWNER, Sandbox, clear, owner, private_dir, remove_stale};
pub(crate) use schedstat::SchedStat;
pub(crate) use server::Server;
pub(crate) use standstill::{Standstill, state_of};
pub(crate) use trace::{Call, Traced, call_name, thread_id};
pub(crate) use wait::{eventually, sleep, until};
pub(crate) use workload::Workload;
pub(crate) use writes::Writes;
