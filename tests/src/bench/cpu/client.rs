//! The client of the protected pod's server: it sends each request when it is due, answered or not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use workload::latency::{MESSAGE, Piece, exact_sleep, micros};

use crate::harness::{make_fifo, monotonic};

/// Requests go round these.
const CONNECTIONS: usize = 4;
/// On average.
const EVERY: Duration = Duration::from_millis(2);
/// The same times in each run.
const SEED: u64 = 18;
/// After the last request was due its reply is waited for at most this long.
const LATEST: Duration = Duration::from_secs(10);

/// Sends `count` requests to a port of loopback; when each was due and how long after that its reply was there.
pub(super) fn measure(port: u16, count: usize) -> Result<Vec<Piece>> {
    let due = times(count);
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the server")?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let end = due.last().copied().unwrap_or_default() + LATEST;
    let lead = Duration::from_millis(10);
    let (start, first_due) = (Instant::now() + lead, monotonic() + nanos(lead));
    let mut pieces: Vec<Piece> = due
        .iter()
        .map(|due| Piece {
            due: first_due + nanos(*due),
            late_us: 0,
        })
        .collect();
    let (tell, told) = channel();
    thread::scope(|scope| {
        for stream in &streams {
            let tell = tell.clone();
            scope.spawn(move || {
                fifo()?;
                let mut reply = [0; MESSAGE];
                let mut stream = stream;
                // Closed by the other side, or from here in the end.
                while stream.read_exact(&mut reply).is_ok() {
                    // An error says that all has been measured.
                    let _ = tell.send((u64::from_ne_bytes(reply), Instant::now()));
                }
                anyhow::Ok(())
            });
        }
        let sent = scope.spawn(|| send(&streams, &due, start));
        let replies = replies(&told, &due, start, end, &mut pieces);
        for stream in &streams {
            // Ends its reader.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        sent.join()
            .map_err(|_| anyhow::anyhow!("the client panicked"))??;
        replies
    })?;
    Ok(pieces)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn send(streams: &[TcpStream], due: &[Duration], start: Instant) -> Result<()> {
    fifo()?;
    exact_sleep()?;
    for (number, due) in (0u64..).zip(due) {
        thread::sleep((start + *due).saturating_duration_since(Instant::now()));
        let mut stream = &streams[usize::try_from(number)? % streams.len()];
        stream
            .write_all(&number.to_ne_bytes())
            .context("send a request")?;
    }
    Ok(())
}

/// The client's own waits for a CPU are no latency of the server's.
fn fifo() -> Result<()> {
    make_fifo(50).context("SCHED_FIFO for the client")
}

/// Waits for them, and notes how late each was.
fn replies(
    told: &std::sync::mpsc::Receiver<(u64, Instant)>,
    due: &[Duration],
    start: Instant,
    end: Duration,
    pieces: &mut [Piece],
) -> Result<()> {
    let mut lost = due.len();
    while lost > 0 {
        let left = (start + end).saturating_duration_since(Instant::now());
        let Ok((number, at)) = told.recv_timeout(left) else {
            break;
        };
        let number = usize::try_from(number)?;
        let due = start + *due.get(number).context("a reply to no request")?;
        pieces[number].late_us = micros(at.saturating_duration_since(due));
        lost -= 1;
    }
    ensure!(lost == 0, "{lost} of {} requests got no reply", due.len());
    Ok(())
}

/// When requests are due: as of many clients that do not know of each other.
fn times(count: usize) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut at = Duration::ZERO;
    (0..count)
        .map(|_| {
            at += EVERY.mul_f64(-(1.0 - random.f64()).ln());
            at
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_in_each_run_and_as_far_apart_as_they_are_to_be() {
        let all = times(5000);
        assert_eq!(all, times(5000));
        assert!(all.is_sorted());
        let seconds = all[4999].as_secs_f64();
        assert!((9.0..11.0).contains(&seconds), "{seconds}");
    }
}
