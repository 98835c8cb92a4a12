//! The server's own thread and runtime: an answer that is being written delays no reconciler, and the other way round.

use std::{io, sync::Arc, thread, time::Duration};

use tokio::sync::oneshot;

use super::{HttpError, Listen, Listeners, serve_on};
use crate::{api::published::Published, base::heartbeat::Heartbeat};

/// The thread, with open listeners.
#[derive(Debug)]
pub struct Server {
    published: oneshot::Sender<Arc<Published>>,
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Result<(), HttpError>>,
}

impl Server {
    /// Starts the thread and opens the listeners.
    pub async fn open(listen: Listen) -> Result<Self, HttpError> {
        let (tell_opened, opened) = oneshot::channel();
        let (published, begin) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("api-file")
            .build()
            .map_err(HttpError::Thread)?;
        let work = async move {
            let listeners = match Listeners::open(&listen).await {
                Ok(listeners) => listeners,
                Err(error) => return drop(tell_opened.send(Err(error))),
            };
            // Without a receiver the agent is ending.
            if tell_opened.send(Ok(())).is_err() {
                return;
            }
            let Ok(published) = begin.await else { return };
            beat();
            let stopped = async {
                // Dropped or sent: the agent ends.
                let _ = stopped.await;
            };
            let ended = serve_on(published, listeners, stopped).await;
            let _ = tell_ended.send(ended);
        };
        thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                runtime.block_on(work);
                // A reader of the event log's file ends with the process.
                runtime.shutdown_background();
            })
            .map_err(HttpError::Thread)?;
        let opened = opened.await;
        opened.unwrap_or_else(|gone| Err(HttpError::Thread(io::Error::other(gone))))?;
        Ok(Self {
            published,
            stop,
            ended,
        })
    }

    /// Begins to answer.
    pub fn serve(self, published: Arc<Published>) -> Serving {
        // The thread waits for it.
        let _ = self.published.send(published);
        Serving {
            stop: self.stop,
            ended: self.ended,
        }
    }
}

/// A server at work.
#[derive(Debug)]
pub struct Serving {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Result<(), HttpError>>,
}

impl Serving {
    /// Ends it; the socket file is gone on return.
    pub async fn end(self) -> Result<(), HttpError> {
        let _ = self.stop.send(());
        // The thread's panic has been printed.
        self.ended.await.unwrap_or(Ok(()))
    }
}

/// Between two beats; the watchdog waits much longer.
const BEAT: Duration = Duration::from_secs(5);

/// Beats for as long as this thread's tasks get their turn.
fn beat() {
    let heartbeat = Heartbeat::new("the API does not answer: restart the agent");
    tokio::spawn(async move {
        loop {
            heartbeat.beat();
            tokio::time::sleep(BEAT).await;
        }
    });
}
