//! Clients that would harm the agent: many, slow, with large bodies, and under another's name.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::Eviction;

use super::eviction::small;
use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec, eventually, http_get, sleep};

pub(super) const CASES: &[Case] = &[portable("clients_that_harm", clients_that_harm)];

const MIB: u64 = 1 << 20;

/// What the agent may grow by.
const MOST: u64 = 4 * MIB;

/// Clients that send a head byte by byte.
const SLOW: usize = 100;

/// Connections that are open at a time.
const OPEN: usize = 500;

/// How much some of them do.
#[derive(Debug, Clone, Copy)]
struct Harm {
    /// Connections in all.
    connections: usize,
    /// Requests under a name that is not the agent's.
    rebound: usize,
    /// Bytes of a body.
    body: usize,
}

impl Harm {
    fn of(context: &Context) -> Self {
        let part = if context.emulated() { 10 } else { 1 };
        Self {
            connections: 10_000 / part,
            rebound: 500 / part,
            body: (1 << 30) / part,
        }
    }
}

/// An address that nothing has at the moment.
pub(crate) fn free() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?)
}

fn clients_that_harm(context: &Context) -> Result<()> {
    let address = free()?;
    let options = Options {
        args: vec![format!("--listen={address}")],
        ..small("enforce")
    };
    let node = Node::start(context, &options)?;
    // What a first scrape, answer and eviction take stays taken.
    ask(address, "/metrics", "localhost")?;
    let calm = evict(context, &node, "calm")?;
    context.figure("crossing_to_kill_calm", latency(&calm)?, "ms");
    ask(address, "/metrics", "localhost")?;
    let before = node.agent.rss()?;

    let harm = Harm::of(context);
    let done = AtomicBool::new(false);
    let (most, attacked) = thread::scope(|scope| {
        let slow = scope.spawn(|| trickle(address, &done));
        let harms = [
            scope.spawn(|| connect(address, harm.connections)),
            scope.spawn(|| send_bodies(address, harm.body)),
            scope.spawn(|| rebind(address, harm.rebound)),
        ];
        let evicting = || -> Result<(u64, Eviction)> {
            let attacked = evict(context, &node, "attacked")?;
            let mut most = 0;
            while harms.iter().any(|harm| !harm.is_finished()) {
                most = most.max(node.agent.rss()?);
                // The socket has places of its own.
                let status = http_get(node.agent.socket(), "/healthz")?.status;
                ensure!(status == 200, "/healthz: {status}");
                sleep(Duration::from_millis(20))?;
            }
            Ok((most.max(node.agent.rss()?), attacked))
        };
        let evicted = evicting();
        done.store(true, Ordering::Relaxed);
        for ended in harms.into_iter().chain([slow]) {
            let ended = ended.join();
            ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))?;
        }
        evicted
    })?;
    context.figure("crossing_to_kill_attacked", latency(&attacked)?, "ms");
    let grown = most.saturating_sub(before);
    context.figure("rss_grew", grown as f64 / MIB as f64, "MiB");
    ensure!(
        grown <= MOST,
        "the agent grew by {grown} bytes, from {before}"
    );
    node.finish()
}

/// Lets a pod of this name fill memory until it is evicted.
fn evict(context: &Context, node: &Node, name: &str) -> Result<Eviction> {
    let pod = node.pod(PodSpec::best_effort(name))?;
    let mib = (node.level()? / MIB + 64).to_string();
    let mut hog = pod.start(&["fill", "--mib", &mib, "--rate", "400", "--step-kib", "64"])?;
    let ended = hog.wait(context.limit(30)).context("it was not killed")?;
    ensure!(!ended.success(), "it ended by itself");
    eventually(node.limit(), || {
        let mut evictions = node.agent.evictions()?.into_iter();
        let own = evictions.find(|eviction| eviction.pod.uid == pod.uid());
        own.context("no eviction is reported")
    })
}

/// From the crossing to the kill, milliseconds.
fn latency(eviction: &Eviction) -> Result<f64> {
    let line = &eviction.timeline;
    let killed = line.killed_nanos.context("it was not killed")?;
    Ok(killed.saturating_sub(line.crossing_nanos) as f64 / 1e6)
}

/// The status of `GET path`.
fn ask(address: SocketAddr, path: &str, host: &str) -> Result<Option<u16>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    // Where all places are taken it may be closed before: without a status.
    let sent = stream.write_all(request.as_bytes());
    let _ = sent.and_then(|()| stream.read_to_end(&mut answer).map(drop));
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).map(str::parse).transpose()?;
    Ok(status)
}

/// Sends heads that do not end, from many clients, until `done`.
fn trickle(address: SocketAddr, done: &AtomicBool) -> Result<()> {
    let connect = || TcpStream::connect(address);
    let mut clients = (0..SLOW)
        .map(|_| connect())
        .collect::<Result<Vec<_>, _>>()?;
    while !done.load(Ordering::Relaxed) {
        for client in &mut clients {
            if client.write_all(b"G").is_err() {
                *client = connect()?;
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn connect(address: SocketAddr, connections: usize) -> Result<()> {
    let mut open = VecDeque::new();
    for _ in 0..connections {
        open.push_back(TcpStream::connect(address)?);
        if open.len() > OPEN {
            open.pop_front();
        }
    }
    Ok(())
}

/// Sends a body as long as it says, and one without an end; each is refused.
fn send_bodies(address: SocketAddr, body: usize) -> Result<()> {
    let chunk = vec![b'x'; 1 << 20];
    for head in [
        format!("Content-Length: {body}"),
        "Transfer-Encoding: chunked".to_owned(),
    ] {
        let mut stream = TcpStream::connect(address)?;
        stream.set_write_timeout(Some(Duration::from_secs(30)))?;
        let head = format!("POST /metrics HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n");
        let mut sent = 0;
        let mut write = |bytes: &[u8]| stream.write_all(bytes).is_ok();
        if write(head.as_bytes()) {
            while sent < body && write(b"100000\r\n") && write(&chunk) && write(b"\r\n") {
                sent += chunk.len();
            }
        }
        ensure!(sent < body, "{head}: all of it was taken");
    }
    Ok(())
}

fn rebind(address: SocketAddr, requests: usize) -> Result<()> {
    let mut refused = 0;
    for _ in 0..requests {
        match ask(address, "/metrics", "rebound.example")? {
            None => {}
            Some(421) => refused += 1,
            Some(status) => anyhow::bail!("/metrics of rebound.example: {status}"),
        }
    }
    ensure!(refused > 0, "no request was answered");
    Ok(())
}
