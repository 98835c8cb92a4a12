//! An agent that waits for the one at work: does all that changes nothing, waits for the root, takes it over.

use std::{io, path::Path};

use podwarden_cgroup::{AgentLock, Error, Hierarchies, Predecessor, Tree};
use tokio::sync::oneshot;

use super::{LOCK_DIR, StartError, process, programs};
use crate::{
    api::{
        published::Published,
        server::OwnHealth,
        types::{EventKind, TookOver},
    },
    base::clock,
    config::Config,
    kernel::realtime,
};

/// The root is this agent's.
pub(in crate::agent) struct Root {
    pub(in crate::agent) lock: AgentLock,
    /// What was prepared while another agent worked.
    pub(in crate::agent) programs: Option<programs::Standby>,
    /// The agent before this one, where this one has waited for it.
    pub(in crate::agent) taken: Option<Taken>,
}

/// The end of the agent before this one, as far as it is known.
pub(in crate::agent) struct Taken {
    before: Predecessor,
    /// When the root was this agent's.
    locked_nanos: u64,
}

impl Root {
    /// For an agent that found no other.
    pub(in crate::agent) fn of(lock: AgentLock) -> Self {
        Self {
            lock,
            programs: None,
            taken: None,
        }
    }
}

impl Taken {
    /// Publishes that this agent has taken over from another, now that its levels are armed.
    pub(in crate::agent) fn publish(self, published: &Published) {
        let armed_nanos = clock::monotonic();
        let took_over = TookOver {
            predecessor_pid: self.before.pid,
            ended_nanos: self.before.ended_nanos,
            locked_nanos: self.locked_nanos,
            armed_nanos,
        };
        let micros = took_over.gap_nanos() / 1000;
        tracing::info!(micros, "took over from the agent before this one");
        let time = clock::text_of(armed_nanos);
        published.event(time, None, EventKind::TookOver(took_over));
    }
}

/// Waits until no other agent has the root, prepared to take it over at once.
///
/// # Errors
/// As [`super::lock`], without [`Error::Locked`].
pub(in crate::agent) async fn wait(
    config: &Config,
    health: Option<&OwnHealth>,
) -> Result<Root, StartError> {
    match super::lock(config) {
        Err(StartError::Lock(Error::Locked { .. })) => {}
        free => return free.map(Root::of),
    }
    tracing::info!("another agent is at work: preparing to take over");
    let programs = tokio::task::block_in_place(|| prepare(config))
        .inspect_err(|why| tracing::info!(why, "kernel programs are loaded when it has ended"))
        .ok();
    let (tell, waited) = oneshot::channel();
    let say = health.map(OwnHealth::standby);
    let root = config.cgroup_root.clone();
    let waiting = move || {
        let ready = |holder: Predecessor| {
            tracing::info!(
                pid = holder.pid,
                "standing by for the end of the agent at work"
            );
            if let Some(say) = say {
                say(holder.pid);
            }
        };
        let waited = AgentLock::wait(Path::new(LOCK_DIR), &root, ready);
        // Without a receiver this process is ending.
        let _ = tell.send(waited.map(|got| (got, clock::monotonic())));
    };
    let no_thread = |source: io::Error| StartError::LockDir(source);
    std::thread::Builder::new()
        .name("standby".to_owned())
        .spawn(waiting)
        .map_err(no_thread)?;
    let waited = waited
        .await
        .map_err(|gone| no_thread(io::Error::other(gone)))?;
    let ((lock, before), locked_nanos) = waited.map_err(StartError::Lock)?;
    Ok(Root {
        lock,
        programs,
        taken: before.map(|before| Taken {
            before,
            locked_nanos,
        }),
    })
}

/// This agent ends while it waits.
pub(in crate::agent) fn give_up(config: &Config) {
    AgentLock::stop_waiting(Path::new(LOCK_DIR), &config.cgroup_root);
}

fn prepare(config: &Config) -> Result<programs::Standby, String> {
    let hierarchies = Hierarchies::detect().map_err(|e| e.to_string())?;
    let tree = Tree::new(hierarchies, &config.cgroup_root).map_err(|e| e.to_string())?;
    let programs = programs::stand_by(config, &tree);
    process::release_unused_memory();
    if programs.is_ok() && config.reactor.real_time {
        realtime::lock_memory();
    }
    programs
}
