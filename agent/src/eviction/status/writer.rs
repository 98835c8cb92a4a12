//! The thread that writes undelivered entries to the disk, which may be slow: a caller
//! never waits for it.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use super::{
    OnDegraded,
    entry::{Entry, NODE_KEY},
    queue::{Added, MOST, Shared},
    say, whose,
};
use crate::{
    api::types::PodRef,
    base::worker::Joined,
    eviction::{
        hold::Holder,
        pod_workers::{Offers, Work},
    },
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
    lost: Lost,
}

/// Takes leave of entries that cannot wait.
#[derive(Clone)]
struct Lost {
    /// `None` where no pod is held.
    holder: Option<Holder>,
    on_degraded: OnDegraded,
}

impl Lost {
    /// Says why; the pod is not held for a status that will not come.
    fn tell(&self, key: &str, why: &str) {
        let mut problem =
            format!("the API server will not be told of the eviction of {key}: {why}");
        let holder = self.holder.as_ref().filter(|_| key != NODE_KEY);
        if holder.is_some() {
            problem += "; the pod is held dead no longer and may run again";
        }
        say(&self.on_degraded, problem);
        if let Some(holder) = holder {
            holder.release(key);
        }
    }
}

impl Writer {
    /// Starts the thread; it offers each entry to the workers once it is on disk.
    pub(super) fn start(
        queue: Shared,
        offers: Offers<PodRef>,
        holder: Option<Holder>,
        on_degraded: OnDegraded,
    ) -> io::Result<Self> {
        let (messages, waiting) = sync_channel(WAITING);
        let lost = Lost {
            holder,
            on_degraded,
        };
        let of_thread = lost.clone();
        let run = move || write_all(&waiting, &queue, &offers, &of_thread);
        Ok(Self {
            adder: Adder { messages, lost },
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
            self.lost.tell(&key, "the disk of stateDir does not answer");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.adder.messages.send(Message::End);
    }
}

fn write_all(waiting: &Receiver<Message>, queue: &Shared, offers: &Offers<PodRef>, lost: &Lost) {
    for message in waiting {
        let entry = match message {
            Message::Add(entry) => *entry,
            Message::End => return,
        };
        let (key, pod) = whose(&entry);
        match queue.with(|queue| queue.add(entry)) {
            Added::Kept | Added::Known => {}
            Added::Forgetful(error) => say(
                &lost.on_degraded,
                format!(
                    "the eviction status of {key} cannot be written below stateDir ({error}): it is lost when the \
                     agent ends before the API server has it; make room there"
                ),
            ),
            Added::Full => {
                lost.tell(&key, &format!("{MOST} statuses wait already"));
                continue;
            }
        }
        offers.offer(&key, Work::Update(pod));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{
        api::types::Eviction,
        eviction::{
            hold::Holding,
            pod_workers::{Job, JobError, PodWorkers},
            status::{queue::Queue, wording::Sizes},
        },
    };

    struct Nothing;

    impl Job for Nothing {
        type Update = PodRef;

        async fn run(&self, _: &str, _: Work<PodRef>) -> Result<(), JobError> {
            Ok(())
        }

        fn failed(&self, _: &str, _: &str) {}
    }

    fn entry(uid: &str) -> Entry {
        let mut eviction = Eviction::default();
        eviction.pod.uid = uid.into();
        Entry::of_eviction("now", &eviction, None, &Sizes::default())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_pod_is_not_held_for_a_status_that_found_no_room() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sentences = Arc::clone(&said);
        let on_degraded: OnDegraded = Arc::new(move |text| sentences.lock().unwrap().push(text));
        let mut holding = Holding::start(false).unwrap();
        let (_workers, offers) = PodWorkers::start(Arc::new(Nothing), 1);
        let mut queue = Queue::open(None).0;
        for number in 0..MOST {
            queue.add(entry(&number.to_string()));
        }
        let queue = Shared::new(queue, Arc::default());
        let holder = Some(holding.holder());
        let writer = Writer::start(queue, offers, holder.clone(), on_degraded.clone()).unwrap();
        writer.add(entry("full"));
        assert_eq!(holding.let_go_at_last(), ["full"]);
        // The disk is waited for.
        let adder = Adder {
            messages: sync_channel(0).0,
            lost: Lost {
                holder,
                on_degraded,
            },
        };
        let pressure = Entry::of_pressure("now".to_owned(), "n1", 1, "short".to_owned());
        adder.add(pressure);
        adder.add(entry("late"));
        assert_eq!(holding.let_go_at_last(), ["late"]);
        let said = said.lock().unwrap().clone();
        let of_pod = |sentence: &&String| sentence.contains("held dead no longer");
        assert_eq!(said.len(), 3, "{said:?}");
        assert_eq!(said.iter().filter(of_pod).count(), 2, "{said:?}");
    }
}
