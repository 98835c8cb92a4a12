//! The thread that writes the log. No other thread waits for it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use metrics::{counter, gauge};
use serde::Serialize;

use super::{LogFile, Reservation};
use crate::{api::types::EventLogStats, base::worker::Joined};

/// Lines that may wait for the disk; each has at most some 20 KiB.
const WAITING: usize = 64;

/// Metric: lines, by what became of them.
const LINES: &str = "podwarden_event_log_lines_total";

/// Ids reserved at a time: one line for so many events.
const RESERVED: u64 = 100_000;

/// So many before they run out the next are reserved, for the disk may be slow.
const AHEAD: u64 = RESERVED / 2;

/// What is said about the log.
#[derive(Debug, Default)]
pub struct LogState {
    path: PathBuf,
    written: AtomicU64,
    dropped: AtomicU64,
    size: AtomicU64,
    failing: Mutex<Option<String>>,
}

impl LogState {
    /// As `/v1/node` shows it.
    pub fn stats(&self) -> EventLogStats {
        EventLogStats {
            path: self.path.display().to_string(),
            size_bytes: self.size.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failing: self.failing(),
        }
    }

    fn written(&self) {
        counter!(LINES, "result" => "written").increment(1);
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    fn dropped(&self) {
        counter!(LINES, "result" => "dropped").increment(1);
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn failing(&self) -> Option<String> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.clone()
    }

    /// Notes how the last write went; true when that is news.
    fn note(&self, error: Option<String>) -> bool {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let news = failing.is_some() != error.is_some();
        *failing = error;
        news
    }
}

/// Takes lines for the log; cheap to clone, never waits.
#[derive(Debug, Clone)]
pub struct Logger {
    lines: SyncSender<Message>,
    state: Arc<LogState>,
    reserved: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    Reserve(u64),
    End,
}

impl Logger {
    /// Has a line written, an event or a [`Begun`](super::Begun), or counts it as dropped.
    pub fn write(&self, line: &impl Serialize) {
        let line = serde_json::to_vec(line).ok();
        let sent = line.and_then(|line| self.lines.try_send(Message::Line(line)).ok());
        if sent.is_none() {
            self.state.dropped();
        }
    }

    /// Event `id` was given out: reserves more when they are running out.
    pub fn given_out(&self, id: u64) {
        let reserved = self.reserved.load(Ordering::Relaxed);
        if id + AHEAD > reserved {
            let to = id + RESERVED;
            // Asked again with the next event where the queue is full.
            if self.lines.try_send(Message::Reserve(to)).is_ok() {
                self.reserved.store(to, Ordering::Relaxed);
            }
        }
    }

    /// What is said about it.
    pub fn state(&self) -> &Arc<LogState> {
        &self.state
    }
}

/// The thread; ended, with all that waits written, when this goes away.
#[derive(Debug)]
pub struct Log {
    lines: SyncSender<Message>,
    _thread: Joined,
}

impl Log {
    /// Starts the thread. It calls `say` when writing begins to fail, and when it works again.
    pub fn start(
        file: LogFile,
        last_id: u64,
        say: impl Fn(String) + Send + 'static,
    ) -> io::Result<(Self, Logger)> {
        // A series that begins with its first line shows Prometheus no increase.
        for result in ["written", "dropped"] {
            counter!(LINES, "result" => result).absolute(0);
        }
        let (lines, waiting) = sync_channel(WAITING);
        let state = Arc::new(LogState {
            path: file.path().to_owned(),
            ..LogState::default()
        });
        let logger = Logger {
            lines,
            state: Arc::clone(&state),
            reserved: Arc::default(),
        };
        logger.given_out(last_id + 1);
        let run = move || write_all(file, &waiting, &state, say);
        let log = Self {
            lines: logger.lines.clone(),
            _thread: Joined::spawn("event-log", run)?,
        };
        Ok((log, logger))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.lines.send(Message::End);
    }
}

fn write_all(
    mut file: LogFile,
    waiting: &Receiver<Message>,
    state: &LogState,
    say: impl Fn(String),
) {
    for message in waiting {
        let done = match &message {
            Message::Line(line) => file.append(line),
            Message::Reserve(to) => file.set_head(&reservation(*to)),
            Message::End => return,
        };
        let is_line = matches!(message, Message::Line(_));
        match &done {
            Ok(()) if is_line => state.written(),
            Err(_) if is_line => state.dropped(),
            _ => {}
        }
        gauge!("podwarden_event_log_size_bytes").set(file.size() as f64);
        state.size.store(file.size(), Ordering::Relaxed);
        let error = done.err().map(|e| sentence(file.path(), &e));
        if state.note(error.clone()) {
            say(error.unwrap_or_else(|| {
                let dropped = state.dropped.load(Ordering::Relaxed);
                format!(
                    "the event log {} can be written again; {dropped} records are not in it",
                    file.path().display()
                )
            }));
        }
    }
}

fn reservation(ids_reserved_to: u64) -> Vec<u8> {
    // A number in a struct always serialises.
    serde_json::to_vec(&Reservation { ids_reserved_to }).unwrap_or_default()
}

fn sentence(path: &Path, error: &io::Error) -> String {
    format!(
        "the event log {} cannot be written ({error}): evictions go on and are in /v1/events, and are lost when \
         the agent ends; make room, or set eventLog.path to a place that can be written",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::{
        api::types::{Event, EventKind, EventRecord},
        eviction::recorder::log::read,
    };

    fn record(id: u64) -> EventRecord {
        let event = Event {
            id,
            time: String::new(),
            pod: None,
            kind: EventKind::KernelOom { pid: 1 },
        };
        EventRecord {
            event,
            flight_record: None,
        }
    }

    fn start(path: &Path, last_id: u64) -> (Log, Logger, Arc<Mutex<Vec<String>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let say = Arc::clone(&said);
        let file = LogFile::new(path.to_owned(), 1 << 20);
        let (log, logger) =
            Log::start(file, last_id, move |text| say.lock().unwrap().push(text)).unwrap();
        (log, logger, said)
    }

    #[test]
    fn lines_are_counted_from_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = PrometheusBuilder::new().build_recorder();
        let _log =
            metrics::with_local_recorder(&recorder, || start(&dir.path().join("events.jsonl"), 0));
        let text = recorder.handle().render();
        for result in ["written", "dropped"] {
            let line = format!("{LINES}{{result=\"{result}\"}} 0");
            assert!(text.contains(&line), "no {line} in {text}");
        }
    }

    #[test]
    fn ids_never_repeat_over_restarts_also_of_events_that_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut last = 0;
        for _ in 0..3 {
            let began = read(&path, 10).unwrap().last_id;
            assert!(began >= last);
            let (log, logger, _) = start(&path, began);
            // The queue is bounded, and this sends faster than a disk writes.
            for id in began + 1..began + 3 * RESERVED {
                logger.given_out(id);
                while logger.reserved.load(Ordering::Relaxed) < id + AHEAD {
                    logger.given_out(id);
                }
                last = id;
            }
            // Whatever waits is written before the thread ends.
            logger.write(&record(last));
            drop(log);
        }
        let history = read(&path, 10).unwrap();
        assert_eq!(history.events.len(), 3);
        assert!(history.last_id >= last);
    }

    #[test]
    fn trouble_is_said_once_and_so_is_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        // A directory in its place cannot be written by anybody.
        fs::create_dir(&path).unwrap();
        let (log, logger, said) = start(&path, 0);
        let state = Arc::clone(logger.state());
        for id in 1..=3 {
            logger.write(&record(id));
        }
        let wait_for = |what: &dyn Fn() -> bool| {
            while !what() {
                std::thread::yield_now();
            }
        };
        wait_for(&|| state.stats().dropped == 3 && state.stats().failing.is_some());
        fs::remove_dir(&path).unwrap();
        logger.write(&record(4));
        wait_for(&|| state.stats().written == 1);
        drop(log);
        assert_eq!(state.stats().failing, None);
        let said = said.lock().unwrap();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("events.jsonl") && said[0].contains("eventLog.path"));
        assert!(said[1].contains("3 records are not in it"), "{}", said[1]);
        // What was reserved while nothing could be written is written now.
        assert!(read(&path, 10).unwrap().last_id >= RESERVED);
    }
}
