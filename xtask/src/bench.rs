//! `cargo xtask bench`: what podwarden costs, and how fast it is, as ratios in one run.

use std::ffi::OsString;

use anyhow::Result;
use xtask::cases::GUESTS;
use xtask::cmd;
use xtask::paths::Workspace;

use crate::{e2e, peers, release};

/// What the benchmark is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// The cost of a context switch, in a pod and beside the pods.
    Switch {
        /// Handed to the benchmark: --rounds N, --runs N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// From a level crossed to the memory back, beside other OOM daemons, which are fetched.
    Evict {
        /// In a machine with cgroup v2, beside oomd and systemd-oomd, which take that. Its times are an
        /// emulated CPU's; given first.
        #[arg(long)]
        vm: bool,
        /// On the node of a real kubelet, with podwarden and without; given first, with --runs N, --rate N and
        /// --json FILE alone.
        #[arg(long, conflicts_with = "vm")]
        kubelet: bool,
        /// Handed to the benchmark: --peers earlyoom,nohang, --rate 100,500,full, --hogs 0,6,
        /// --processes 1,16, --runs N, --json FILE, --svg FILE, --show FILE,FILE.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Another pod's work while a pod's memory is freed: podwarden beside a plain SIGKILL.
    Freeing {
        /// Handed to the benchmark: --size 1,4, --runs N, --json FILE.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// A tier above its reserve: podwarden beside a direct write of the target.
    Converge {
        /// In a machine with this kernel and cgroup v2: 6.1, 6.12 or 7.2. Its times are an emulated
        /// CPU's; given first.
        #[arg(long, value_name = "KERNEL", value_parser = GUESTS)]
        vm: Option<String>,
        /// Handed to the benchmark: --runs N, --load anonymous,cache,mixed, --rate N, --json FILE.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// A protected pod's latency beside best-effort work: weights alone, the koordlet's laws, podwarden.
    Cpu {
        /// Handed to the benchmark: --app probe,server,bursts, --load hogs,threads,forks,streams,batch, --keeper
        /// alone,weights,koordlet,idle,sched-idle,slice,quota,cpus,own,assist,wait, --limit none,500m, --seconds N, --runs N,
        /// --json FILE.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The reactor's system calls while it evicts, and where it sleeps.
    Syscalls {
        /// Handed to the benchmark: --processes N, --hogs N, --runs N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The time that one plan takes; takes no root.
    Plan {
        /// Handed to the benchmark: --pods N, --runs N, --seed N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// A day of a fleet that sells what its nodes have to spare, by each policy; takes no root.
    Fleet {
        /// Handed to the simulation: --nodes N, --seed N, --threads N, --memory-evict PERCENT, --svg FILE.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The CPU time that the figures of all pods take: the kernel's iterator beside the files.
    Sample {
        /// Handed to the benchmark: --pods N, --containers N, --runs N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// What an agent, built as it is shipped, takes on a node of 1,000 busy pods, beside a reader of the files that
    /// cAdvisor reads.
    Busy {
        /// Handed to the benchmark: --pods N, --seconds N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// A fleet's requests to the API server, and what scraping it takes.
    Scrape {
        /// Handed to the benchmark: --agents N, --pods N, --interval SECONDS, --seconds N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The time that one scrape of `/metrics` takes; takes no root.
    Metrics {
        /// Handed to the benchmark: --pods N, --runs N, --seed N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The cost of a read of a disk, with what the agent counts of it and without.
    Disk {
        /// Handed to the benchmark: --reads N, --runs N, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// Builds all it takes and becomes the benchmark; returns only when that fails.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    let with_agent = |name, args: &[_]| e2e::become_with_agent(workspace, &["bench", name], args);
    let without_agent = |words: &[&str], args: &[_]| e2e::become_it(workspace, words, args);
    match &args.what {
        What::Switch { args } => with_agent("switch", args),
        What::Evict {
            kubelet: true,
            args,
            ..
        } => with_agent("kubelet", args),
        What::Evict { vm: true, args, .. } => without_agent(&["machine", "bench", "evict"], args),
        What::Evict { args, .. } => {
            let root = peers::fetch(workspace)?.into_os_string();
            let args = [&["--peers-root".into(), root], &args[..]].concat();
            with_agent("evict", &args)
        }
        What::Freeing { args } => with_agent("freeing", args),
        What::Converge {
            vm: Some(kernel),
            args,
        } => without_agent(&["machine", "bench", "converge", kernel], args),
        What::Converge { vm: None, args } => with_agent("converge", args),
        What::Cpu { args } => with_agent("cpu", args),
        What::Syscalls { args } => with_agent("syscalls", args),
        What::Plan { args } => without_agent(&["bench", "plan"], args),
        What::Fleet { args } => fleet(workspace, args),
        What::Sample { args } => without_agent(&["bench", "sample"], args),
        What::Busy { args } => {
            let words = ["bench", "busy"];
            e2e::require_root(&words)?;
            e2e::become_with(workspace, &release::shipped(workspace)?, &words, args)
        }
        What::Scrape { args } => with_agent("scrape", args),
        What::Metrics { args } => without_agent(&["bench", "metrics"], args),
        What::Disk { args } => with_agent("disk", args),
    }
}

/// The simulation needs nothing but the policy.
fn fleet(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let mut cargo = cmd::cargo();
    cargo
        .args(["run", "--quiet", "--release", "--manifest-path"])
        .arg(workspace.root().join("Cargo.toml"))
        .args(["--package", "podwarden-policy", "--example", "fleet", "--"])
        .args(args);
    cmd::run(&mut cargo)
}
