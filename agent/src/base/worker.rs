//! What works beside its owner and ends with it: a thread that takes messages, or a task.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::JoinHandle,
};

use nix::sys::eventfd::EventFd;

use super::bell::ring;

/// A thread that is waited for when this goes away. Its owner tells it to end before.
#[derive(Debug)]
pub(crate) struct Joined(Option<JoinHandle<()>>);

impl Joined {
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(Self(Some(thread.spawn(run)?)))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// A thread that takes messages. When this goes away its channel closes, and it is waited for.
#[derive(Debug)]
pub(crate) struct Worker<M> {
    /// `None` once the thread is to end.
    messages: Option<Sender<M>>,
    /// Rung after a message, where the thread waits for more than messages.
    bell: Option<Arc<EventFd>>,
    /// Goes away after the sender: [`Drop`] for [`Worker`].
    _thread: Joined,
}

impl<M: Send + 'static> Worker<M> {
    /// Starts the thread, which is to run until its channel closes.
    pub(crate) fn start(
        name: &str,
        run: impl FnOnce(&Receiver<M>) + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, waiting) = channel();
        Ok(Self {
            messages: Some(messages),
            bell: None,
            _thread: Joined::spawn(name, move || run(&waiting))?,
        })
    }

    /// As [`Worker::start`], for a thread that waits for `bell`, too.
    pub(crate) fn start_with_bell(
        name: &str,
        bell: Arc<EventFd>,
        run: impl FnOnce(&Receiver<M>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut worker = Self::start(name, run)?;
        worker.bell = Some(bell);
        Ok(worker)
    }
}

/// Hands the messages that are there to `take`; false once the channel is closed.
pub(crate) fn take_all<M>(messages: &Receiver<M>, mut take: impl FnMut(M)) -> bool {
    loop {
        match messages.try_recv() {
            Ok(message) => take(message),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        }
    }
}

impl<M> Worker<M> {
    /// Never waits.
    pub(crate) fn tell(&self, message: M) {
        if let Some(messages) = &self.messages {
            // An error says that the thread has ended, which it does last of all.
            let _ = messages.send(message);
        }
        self.ring();
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            ring(bell);
        }
    }
}

impl<M> Drop for Worker<M> {
    fn drop(&mut self) {
        self.messages = None;
        self.ring();
    }
}

/// A task that ends where it is when this goes away.
#[derive(Debug)]
pub(crate) struct Task(tokio::task::JoinHandle<()>);

impl Task {
    /// Needs a tokio runtime.
    pub(crate) fn spawn(run: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(run))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
