//! How long one scrape of `/metrics` takes, with a server in this process and figures of random pods.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use podwarden::api::published::{Figures, Published};
use podwarden::api::server::{self, Listen};
use podwarden::api::types::{
    CpuStats, DiskStats, ExitStats, InterfaceStats, LatencyStats, MemoryStats, NetworkStats,
    NodeStats, PodRef, PodStats, PressureStats, StallStats, ThrottlingStats,
};
use podwarden::config::{Live, PodSeries};
use tokio::sync::oneshot;

use super::median;
use crate::harness::{http_get, http_get_gzip};

#[derive(Debug, clap::Args)]
pub(super) struct Metrics {
    /// Pods on the node.
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Sampling passes of each kind, in turn; each is scraped three times.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Chooses the figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

/// One kind of scrape; times from the connection to the last byte, milliseconds.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    /// Key `metrics.pods`.
    pods: &'static str,
    gzip: bool,
    bytes: usize,
    /// The first scrape of a sampling pass.
    first_median: f64,
    first_least: f64,
    /// CPU time of this process: server and client.
    first_cpu: f64,
    /// The scrapes after it.
    next_median: f64,
    next_least: f64,
    next_cpu: f64,
}

/// What was measured of one kind.
#[derive(Debug, Default)]
struct Times {
    bytes: usize,
    /// Wall and CPU time of first scrapes, then of those after.
    first: [Vec<f64>; 2],
    next: [Vec<f64>; 2],
}

impl Metrics {
    pub(super) fn run(&self) -> Result<()> {
        ensure!(self.pods > 0, "--pods 0: there is nothing to scrape");
        fastrand::seed(self.seed);
        // Before the first event is counted.
        server::recorder();
        let published = Arc::new(Published::default());
        let home = tempfile::tempdir()?;
        let socket = home.path().join("api.sock");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listen = Listen {
            unix: Some(socket.clone()),
            ..Listen::default()
        };
        let listeners = runtime.block_on(server::Listeners::open(&listen))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = server::serve_on(Arc::clone(&published), listeners, async {
            let _ = stopped.await;
        });
        let server = std::thread::spawn(move || runtime.block_on(serving));
        let rows = self.rows(&published, &socket);
        drop(stop);
        server
            .join()
            .map_err(|_| anyhow::anyhow!("the server panicked"))??;
        self.print(&rows?)
    }

    fn rows(&self, published: &Published, socket: &Path) -> Result<Vec<Row>> {
        let mut pods: Vec<_> = (0..self.pods).map(pod).collect();
        let details = [
            ("none", PodSeries::None),
            ("basic", PodSeries::Basic),
            ("full", PodSeries::Full),
        ];
        let kinds: Vec<_> = details
            .into_iter()
            .flat_map(|detail| [(detail, false), (detail, true)])
            .collect();
        let mut times: Vec<_> = kinds.iter().map(|_| Times::default()).collect();
        // In turn, so that the machine's drift meets all of them alike.
        for _ in 0..self.runs {
            for (((_, pod_series), gzip), times) in kinds.iter().zip(&mut times) {
                published.set_live(Live {
                    sampling_interval: Duration::from_secs(1),
                    pod_series: *pod_series,
                });
                pods.iter_mut().for_each(go_on);
                published.publish(Figures::new(NodeStats::default(), pods.clone()));
                for number in 0..3 {
                    let [wall, cpu] = times.scrape(socket, *gzip)?;
                    let of = match number {
                        0 => &mut times.first,
                        _ => &mut times.next,
                    };
                    of[0].push(wall);
                    of[1].push(cpu);
                }
            }
        }
        let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let row = |(((pods, _), gzip), mut times): (((&'static str, PodSeries), bool), Times)| {
            let [first, first_cpu] = &mut times.first;
            let [next, next_cpu] = &mut times.next;
            Row {
                pods,
                gzip,
                bytes: times.bytes,
                first_median: median(first),
                first_least: least(first),
                first_cpu: median(first_cpu),
                next_median: median(next),
                next_least: least(next),
                next_cpu: median(next_cpu),
            }
        };
        Ok(kinds.into_iter().zip(times).map(row).collect())
    }

    fn print(&self, rows: &[Row]) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(rows)?);
            return Ok(());
        }
        println!(
            "{:<8} {:<6} {:>10} | {:>9} {:>7} {:>7} | {:>9} {:>7} {:>7}",
            "PODS", "", "BYTES", "FIRST ms", "LEAST", "CPU", "NEXT ms", "LEAST", "CPU"
        );
        for row in rows {
            println!(
                "{:<8} {:<6} {:>10} | {:>9.2} {:>7.2} {:>7.2} | {:>9.2} {:>7.2} {:>7.2}",
                row.pods,
                if row.gzip { "gzip" } else { "plain" },
                row.bytes,
                row.first_median,
                row.first_least,
                row.first_cpu,
                row.next_median,
                row.next_least,
                row.next_cpu
            );
        }
        println!(
            "{} pods; the first scrape of a sampling pass and two after it, {} passes of each kind in turn; medians, \
             the shortest, and the CPU time of server and client",
            self.pods, self.runs
        );
        Ok(())
    }
}

impl Times {
    /// Wall and CPU time of one scrape, milliseconds.
    fn scrape(&mut self, socket: &Path, gzip: bool) -> Result<[f64; 2]> {
        let (start, cpu) = (Instant::now(), cpu()?);
        let answer = match gzip {
            true => http_get_gzip(socket, "/metrics")?,
            false => http_get(socket, "/metrics")?,
        };
        let wall = start.elapsed();
        ensure!(answer.status == 200, "/metrics: {}", answer.status);
        self.bytes = answer.body.len();
        let cpu = self::cpu()?.saturating_sub(cpu);
        Ok([wall, cpu].map(|time| time.as_secs_f64() * 1e3))
    }
}

/// CPU time of this process.
fn cpu() -> Result<Duration> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).context("CPU time")?;
    Ok(time.into())
}

fn latency() -> LatencyStats {
    LatencyStats {
        total_nano_seconds: 0,
        histogram: vec![0; 20],
    }
}

/// A pod of a Deployment that has run for a while.
fn pod(number: usize) -> PodStats {
    let uid = format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        fastrand::u32(..),
        fastrand::u16(..),
        fastrand::u16(..0x1000),
        fastrand::u16(..0x1000),
        fastrand::u64(..1 << 48)
    );
    let mut pod = PodStats {
        pod_ref: PodRef {
            name: format!("service-{}-{:09x}-{:05x}", number % 60, number, number * 7).into(),
            namespace: format!("team-{}", number % 20).into(),
            uid: uid.into(),
        },
        qos_class: ["Guaranteed", "Burstable", "BestEffort"][number % 3].into(),
        phase: "Running".into(),
        cpu: CpuStats {
            run_queue_wait_histogram: vec![0; 24],
            throttling: Some(ThrottlingStats::default()),
            ..CpuStats::default()
        },
        memory: Some(MemoryStats {
            limit_bytes: Some(1 << 30),
            ..MemoryStats::default()
        }),
        stall: StallStats::default(),
        exits: ExitStats::default(),
        disk: Some(DiskStats {
            read_latency: Some(latency()),
            write_latency: Some(latency()),
            ..DiskStats::default()
        }),
        pressure: Some(PressureStats::default()),
        tasks: Some(2),
        refused_forks: Some(0),
        network: Some(NetworkStats {
            interfaces: vec![InterfaceStats {
                name: "eth0".to_owned(),
                ..InterfaceStats::default()
            }],
            tcp_retransmitted_segments: Some(0),
            ..NetworkStats::default()
        }),
        ..PodStats::default()
    };
    for _ in 0..1000 {
        go_on(&mut pod);
    }
    pod
}

/// What may happen in a second.
fn go_on(pod: &mut PodStats) {
    let cpu = &mut pod.cpu;
    cpu.usage_core_nano_seconds += fastrand::u64(..1_000_000_000);
    cpu.run_queue_wait_nano_seconds += fastrand::u64(..100_000_000);
    cpu.context_switches += fastrand::u64(..1000);
    for (bucket, count) in cpu.run_queue_wait_histogram.iter_mut().enumerate() {
        *count += fastrand::u64(..1000) >> bucket;
    }
    if let Some(memory) = &mut pod.memory {
        memory.usage_bytes = 4096 * fastrand::u64(1000..100_000);
        memory.working_set_bytes = memory.usage_bytes / 2;
        memory.rss_bytes = memory.usage_bytes / 4;
    }
    if let Some(pressure) = &mut pod.pressure {
        for waited in [&mut pressure.cpu, &mut pressure.memory, &mut pressure.io] {
            waited.some_nano_seconds += fastrand::u64(..100_000_000);
            waited.full_nano_seconds = Some(waited.some_nano_seconds / 2);
        }
    }
    if let Some(disk) = &mut pod.disk {
        disk.reads += fastrand::u64(..10);
        disk.read_bytes = 4096 * disk.reads;
    }
    for interface in pod.network.iter_mut().flat_map(|net| &mut net.interfaces) {
        interface.rx_packets += fastrand::u64(..1000);
        interface.tx_packets += fastrand::u64(..1000);
        interface.rx_bytes += 700 * interface.rx_packets;
        interface.tx_bytes += 300 * interface.tx_packets;
    }
}
