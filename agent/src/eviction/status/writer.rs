//! The thread that writes undelivered entries to the disk, which may be slow: a caller
//! never waits for it.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use super::{
    OnDegraded,
    entry::Entry,
    queue::{Added, MOST, Shared},
    say, whose,
};
use crate::{
    api::types::PodRef,
    base::worker::Joined,
    eviction::pod_workers::{Offers, Work},
};

/// Entries that may wait for the disk: two minutes of evictions at the usual fastest.
const WAITING: usize = 128;

enum Message {
    Add(Box<Entry>),
    End,
}

/// See the module's text; all that waits is written when this goes away.
pub(super) struct Writer {
    adder: Adder,
    _thread: Joined,
}

/// Gives the thread entries, from any thread.
#[derive(Clone)]
pub(super) struct Adder {
    messages: SyncSender<Message>,
    on_degraded: OnDegraded,
}

impl Writer {
    /// Starts the thread; it offers each entry to the workers once it is on disk.
    pub(super) fn start(
        queue: Shared,
        offers: Offers<PodRef>,
        on_degraded: OnDegraded,
    ) -> io::Result<Self> {
        let (messages, waiting) = sync_channel(WAITING);
        let degraded = on_degraded.clone();
        let run = move || write_all(&waiting, &queue, &offers, &degraded);
        Ok(Self {
            adder: Adder {
                messages,
                on_degraded,
            },
            _thread: Joined::spawn("eviction-status", run)?,
        })
    }

    /// For other threads.
    pub(super) fn adder(&self) -> Adder {
        self.adder.clone()
    }

    /// Has an entry written.
    pub(super) fn add(&self, entry: Entry) {
        self.adder.add(entry);
    }
}

impl Adder {
    /// Has an entry written; never waits.
    pub(super) fn add(&self, entry: Entry) {
        let (key, _) = whose(&entry);
        if self
            .messages
            .try_send(Message::Add(Box::new(entry)))
            .is_err()
        {
            let problem = format!(
                "the API server will not be told of the eviction of {key}: the disk of stateDir does not answer"
            );
            say(&self.on_degraded, problem);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.adder.messages.send(Message::End);
    }
}

fn write_all(
    waiting: &Receiver<Message>,
    queue: &Shared,
    offers: &Offers<PodRef>,
    on_degraded: &OnDegraded,
) {
    for message in waiting {
        let entry = match message {
            Message::Add(entry) => *entry,
            Message::End => return,
        };
        let (key, pod) = whose(&entry);
        match queue.with(|queue| queue.add(entry)) {
            Added::Kept | Added::Known => {}
            Added::Forgetful(error) => say(
                on_degraded,
                format!(
                    "the eviction status of {key} cannot be written below stateDir ({error}): it is lost when the \
                     agent ends before the API server has it; make room there"
                ),
            ),
            Added::Full => {
                let problem = format!(
                    "the API server will not be told of the eviction of {key}: {MOST} statuses wait already"
                );
                say(on_degraded, problem);
                continue;
            }
        }
        offers.offer(&key, Work::Update(pod));
    }
}
