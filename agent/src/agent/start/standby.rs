//! An agent that waits for the one at work: does all that changes nothing, waits for the root, takes it over.

use std::{io, path::Path};

use podwarden_cgroup::{AgentLock, Error, Predecessor};
use tokio::sync::oneshot;

use super::{LOCK_DIR, StartError, process, programs, site::Site};
use crate::{
    api::{
        published::Published,
        server::OwnHealth,
        types::{EventKind, TookOver},
    },
    base::{clock, error},
    config::Config,
    kernel::urgent::Urgent,
    reactor,
};

/// The root is this agent's.
pub(in crate::agent) struct Root {
    pub(in crate::agent) lock: AgentLock,
    pub(in crate::agent) prepared: Prepared,
    /// The agent before this one, where this one has waited for it.
    pub(in crate::agent) taken: Option<Taken>,
    /// No agent watches the node until the levels are armed: this thread goes before all that is ordinary.
    pub(in crate::agent) urgent: Option<Urgent>,
}

/// What was made ready while another agent worked; the start makes each part that is missing.
#[derive(Default)]
pub(in crate::agent) struct Prepared {
    pub(super) site: Option<Site>,
    pub(super) programs: Option<programs::Standby>,
    pub(super) reactor: Option<reactor::Prepared>,
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
            prepared: Prepared::default(),
            taken: None,
            urgent: None,
        }
    }
}

/// The levels are armed: this thread is as all others are.
pub(in crate::agent) fn end_urgency(urgent: Option<Urgent>) {
    let Some(back) = urgent.and_then(Urgent::end) else {
        return;
    };
    tokio::task::spawn_blocking(move || {
        if let Err(error) = back.run() {
            tracing::warn!(%error, "a thread stays in the root's cpu cgroup: its CPU time is not counted for this pod");
        }
    });
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
pub(in crate::agent) async fn wait(
    config: &Config,
    health: Option<&OwnHealth>,
) -> Result<Root, StartError> {
    match super::lock(config) {
        Err(StartError::Lock(Error::Locked { .. })) => {}
        free => return free.map(Root::of),
    }
    tracing::info!("another agent is at work: preparing to take over");
    let prepared = tokio::task::block_in_place(|| Prepared::of(config));
    let is_urgent = config.reactor.real_time;
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
            // It ends with this thread.
            if is_urgent {
                Urgent::begin();
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
    // After the thread is there, which is to be in this process's cgroup.
    let urgent = is_urgent
        .then(|| tokio::task::block_in_place(Urgent::begin))
        .flatten();
    let waited = waited
        .await
        .map_err(|gone| no_thread(io::Error::other(gone)))?;
    let ((lock, before), locked_nanos) = waited.map_err(StartError::Lock)?;
    Ok(Root {
        lock,
        prepared,
        taken: before.map(|before| Taken {
            before,
            locked_nanos,
        }),
        urgent,
    })
}

/// This agent ends while it waits.
pub(in crate::agent) fn give_up(config: &Config) {
    AgentLock::stop_waiting(Path::new(LOCK_DIR), &config.cgroup_root);
}

impl Prepared {
    /// Changes nothing of the other agent's.
    fn of(config: &Config) -> Self {
        let site = match Site::find(config) {
            Ok(site) => site,
            Err(error) => {
                let why = error::chain(&error);
                tracing::info!(why, "all is looked for again when it has ended");
                return Self::default();
            }
        };
        let tree = site.bare_tree(config).map_err(|e| e.to_string());
        let programs = tree.and_then(|tree| programs::stand_by(config, &tree));
        let programs = programs
            .inspect_err(|why| tracing::info!(why, "kernel programs are loaded when it has ended"))
            .ok();
        process::release_unused_memory();
        // It locks memory, which would keep what the programs take later.
        let reactor = programs
            .is_some()
            .then(|| reactor::Prepared::new(config.reactor));
        Self {
            site: Some(site),
            programs,
            // An error is the start's to tell, if it is still there.
            reactor: reactor.and_then(Result::ok),
        }
    }
}
