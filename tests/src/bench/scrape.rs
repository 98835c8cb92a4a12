//! What a fleet asks of the API server and of Prometheus. One real agent's requests are counted by kind at the stand-in
//! API server, and its answers are scraped by a real Prometheus as those of many agents.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header;
use axum::routing::get;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cases::Context;
use crate::cases::apiserver::{NAMESPACE, World};
use crate::cases::clients::free;
use crate::cases::eviction::small;
use crate::cases::eviction_status::evict;
use crate::cases::prometheus::Prometheus;
use crate::harness::{
    Node, Options, PodSpec, SchedStat, Server, catch_signals, http_get, http_get_gzip, monotonic,
    remove_stale, resident, sleep,
};

/// Evictions that are counted.
const EVICTIONS: usize = 3;

const USER: &str = "scraper";
const TOKEN: &str = "token-of-scraper";

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Scrape {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Agents that Prometheus scrapes.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    agents: u32,
    /// Pods of each node.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(4..=250))]
    pods: u32,
    /// Seconds between two scrapes.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=30))]
    interval: u64,
    /// How long each part is measured, seconds.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(30..=3600))]
    seconds: u64,
    /// One JSON object in place of the tables.
    #[arg(long)]
    json: bool,
}

/// Requests of one agent at the API server in one part of the measurement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    what: &'static str,
    /// What the requests are divided by: minutes, pods or evictions.
    count: f64,
    /// By verb and resource.
    requests: BTreeMap<String, usize>,
    /// Bytes of watches' events and bookmarks.
    watched_bytes: u64,
}

/// An agent's answer to one scrape.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// Key `metrics.pods`.
    pods: &'static str,
    series: usize,
    bytes: usize,
    compressed_bytes: usize,
}

/// What Prometheus takes for the fleet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fleet {
    agents: u32,
    series: f64,
    samples_per_second: f64,
    /// Compressed, of all answers.
    bytes_per_second: f64,
    /// Of all scrapes.
    answered: f64,
    scrape_p99_seconds: f64,
    /// Of Prometheus, at the end.
    resident_bytes: u64,
    /// Of Prometheus.
    cores: f64,
}

impl Scrape {
    pub(super) fn run(&self) -> Result<()> {
        catch_signals()?;
        remove_stale()?;
        let context = Context::of_bench(&self.agent);
        let (parts, recorded) = self.requests(&context)?;
        let answers = ["none", "basic", "full"].map(|pods| self.answer(&context, pods));
        let answers: Vec<_> = answers.into_iter().collect::<Result<_>>()?;
        let fleet = self.fleet(recorded)?;
        if self.json {
            let all = json!({"requests": parts, "answers": answers, "fleet": fleet});
            println!("{}", serde_json::to_string_pretty(&all)?);
            return Ok(());
        }
        print_requests(&parts);
        println!();
        print_answers(&answers, self.pods);
        println!();
        fleet.print(self);
        Ok(())
    }

    fn specs(&self) -> Vec<PodSpec> {
        let spec = |n: u32| match n % 3 {
            0 => PodSpec::best_effort(&format!("e{n}")),
            1 => PodSpec::burstable(&format!("b{n}"), "1Mi"),
            _ => PodSpec::guaranteed(&format!("g{n}"), "1Mi"),
        };
        (0..self.pods).map(spec).collect()
    }

    /// One agent that a real Prometheus scrapes over TLS with a token; and an answer for each scrape of the fleet.
    fn requests(&self, context: &Context) -> Result<(Vec<Part>, Vec<Bytes>)> {
        let address = free()?;
        let mut options = small("enforce");
        options.config = format!("secureListen: {address}\n");
        let specs = self.specs();
        let mut world = World::with(context, options, |server| {
            server.manners(|m| {
                m.clients.users = [(TOKEN.to_owned(), USER.to_owned())].into();
                m.clients.may_get = BTreeSet::from([(USER.to_owned(), "/metrics".to_owned())]);
            });
            for spec in &specs {
                server.create_pod(crate::harness::NODE, spec.manifest())?;
            }
            Ok(())
        })?;
        world.ready(context)?;
        world.node.expect_pods(&specs.iter().collect::<Vec<_>>())?;
        let mut parts = vec![part(&world, "a start", 1.0)];

        let job = json!([{
            "job_name": "podwarden", "scheme": "https",
            "scrape_interval": format!("{}s", self.interval), "scrape_timeout": format!("{}s", self.interval),
            "tls_config": {"insecure_skip_verify": true},
            "authorization": {"credentials": TOKEN},
            "static_configs": [{"targets": [address.to_string()]}],
        }]);
        let prometheus = Prometheus::scraping(&job, None)?.context("there is no prometheus")?;
        part(&world, "", 1.0);
        sleep(Duration::from_secs(self.seconds))?;
        parts.push(part(&world, "a quiet minute", self.seconds as f64 / 60.0));

        // A pod comes and one goes each second; the answers of that time differ as those of a node at work.
        let mut recorded = Vec::new();
        let mut last: Option<PodSpec> = None;
        let start = Instant::now();
        let mut churned = 0_u32;
        while start.elapsed() < Duration::from_secs(self.seconds) {
            let spec = PodSpec::best_effort(&format!("churn-{churned}"));
            world.add(&spec)?;
            if let Some(last) = last.replace(spec) {
                world.server.remove_pod(NAMESPACE, &last.name)?;
            }
            churned += 1;
            recorded.push(
                http_get_gzip(world.node.agent.socket(), "/metrics")?
                    .body
                    .into(),
            );
            sleep(Duration::from_secs(1))?;
        }
        let churn = part(&world, "a pod that comes and goes", f64::from(churned));
        parts.push(churn);

        for spec in specs
            .iter()
            .filter(|spec| spec.name.starts_with('e'))
            .take(EVICTIONS)
        {
            evict(context, &world, spec)?;
            crate::cases::eviction_status::expect_status(&world, spec)?;
        }
        sleep(Duration::from_secs(5))?;
        parts.push(part(&world, "an eviction", EVICTIONS as f64));
        drop(prometheus);
        world.node.empty()?;
        Ok((parts, recorded))
    }

    fn answer(&self, context: &Context, pods: &'static str) -> Result<Answer> {
        let options = Options {
            config: format!("metrics: {{pods: {pods}}}\n"),
            ..Options::default()
        };
        let node = Node::start(context, &options)?;
        let held = node.pods(self.specs())?;
        let workloads: Vec<_> = held
            .iter()
            .map(|pod| pod.start(&["sleep"]))
            .collect::<Result<_>>()?;
        // The figures are of a whole sampling pass.
        sleep(Duration::from_secs(3))?;
        let plain = http_get(node.agent.socket(), "/metrics")?;
        let compressed = http_get_gzip(node.agent.socket(), "/metrics")?;
        drop(workloads);
        node.finish()?;
        let text = plain.text();
        let is_sample = |line: &&str| !line.is_empty() && !line.starts_with('#');
        Ok(Answer {
            pods,
            series: text.lines().filter(is_sample).count(),
            bytes: plain.body.len(),
            compressed_bytes: compressed.body.len(),
        })
    }

    /// A real Prometheus scrapes so many agents' recorded answers.
    fn fleet(&self, recorded: Vec<Bytes>) -> Result<Fleet> {
        ensure!(!recorded.is_empty(), "no answer was recorded");
        let replay = Arc::new(Replay {
            recorded,
            start: Instant::now(),
            interval: Duration::from_secs(self.interval),
            sent: AtomicU64::new(0),
        });
        let mut server = Server::stopped();
        let router = axum::Router::new()
            .route("/metrics/{agent}", get(Replay::answer))
            .with_state(Arc::clone(&replay));
        server.start(|listener| async { axum::serve(listener, router).await })?;
        let address = server.address();
        let targets: Vec<_> = (0..self.agents).map(|n| target(address, n)).collect();
        let job = json!([{
            "job_name": "podwarden",
            "scrape_interval": format!("{}s", self.interval), "scrape_timeout": format!("{}s", self.interval),
            "static_configs": targets,
        }]);
        let prometheus = Prometheus::scraping(&job, None)?.context("there is no prometheus")?;
        // All targets have been scraped once: series that are new cost more.
        sleep(Duration::from_secs(2 * self.interval))?;
        let pid = prometheus.pid();
        let (cpu, sent, time) = (
            SchedStat::of_process(pid)?.ran,
            replay.sent.load(Ordering::Relaxed),
            monotonic(),
        );
        sleep(Duration::from_secs(self.seconds))?;
        let nanos = (monotonic() - time) as f64;
        let value = |expression: &str| -> Result<f64> {
            let value = prometheus.value(expression)?;
            value.with_context(|| format!("{expression} has no value"))
        };
        Ok(Fleet {
            agents: self.agents,
            series: value(r#"sum(scrape_samples_post_metric_relabeling{job="podwarden"})"#)?,
            samples_per_second: value("sum(scrape_samples_scraped)")? / self.interval as f64,
            bytes_per_second: (replay.sent.load(Ordering::Relaxed) - sent) as f64 / nanos * 1e9,
            answered: value(&format!("avg(avg_over_time(up[{}s]))", self.seconds))?,
            scrape_p99_seconds: value("quantile(0.99, scrape_duration_seconds)")?,
            resident_bytes: resident(pid)?,
            cores: (SchedStat::of_process(pid)?.ran - cpu) as f64 / nanos,
        })
    }
}

/// What the agent has asked for since the last call.
fn part(world: &World, what: &'static str, count: f64) -> Part {
    Part {
        what,
        count,
        requests: world.verbs(),
        watched_bytes: world.server.take_watched(),
    }
}

fn target(address: SocketAddr, agent: u32) -> Value {
    json!({
        "targets": [address.to_string()],
        "labels": {"__metrics_path__": format!("/metrics/{agent}"), "instance": format!("node-{agent}")},
    })
}

/// Answers as the recorded agent did, one after another.
struct Replay {
    recorded: Vec<Bytes>,
    start: Instant,
    interval: Duration,
    sent: AtomicU64,
}

impl Replay {
    async fn answer(
        State(replay): State<Arc<Self>>,
        Path(_agent): Path<u32>,
    ) -> ([(header::HeaderName, &'static str); 2], Bytes) {
        let scrape = replay.start.elapsed().as_nanos() / replay.interval.as_nanos();
        let last = replay.recorded.len() - 1;
        let scrape = usize::try_from(scrape).unwrap_or(last).min(last);
        let body = replay.recorded[scrape].clone();
        replay.sent.fetch_add(body.len() as u64, Ordering::Relaxed);
        let headers = [
            (header::CONTENT_TYPE, "text/plain; version=0.0.4"),
            (header::CONTENT_ENCODING, "gzip"),
        ];
        (headers, body)
    }
}

fn print_requests(parts: &[Part]) {
    print!("{:<36}", "ONE AGENT'S REQUESTS, FOR");
    parts.iter().for_each(|part| print!(" {:>26}", part.what));
    println!();
    let kinds: BTreeSet<_> = parts.iter().flat_map(|p| p.requests.keys()).collect();
    for kind in kinds {
        print!("{kind:<36}");
        for part in parts {
            let asked = part.requests.get(kind).copied().unwrap_or_default();
            print!(" {:>26.2}", asked as f64 / part.count);
        }
        println!();
    }
    print!("{:<36}", "bytes of watches");
    for part in parts {
        print!(" {:>26.0}", part.watched_bytes as f64 / part.count);
    }
    println!();
}

fn print_answers(answers: &[Answer], pods: u32) {
    println!(
        "{:<36} {:>10} {:>10} {:>12}",
        format!("A SCRAPE WITH {pods} PODS, metrics.pods"),
        "SERIES",
        "BYTES",
        "COMPRESSED"
    );
    for answer in answers {
        println!(
            "{:<36} {:>10} {:>10} {:>12}",
            answer.pods, answer.series, answer.bytes, answer.compressed_bytes
        );
    }
}

impl Fleet {
    fn print(&self, asked: &Scrape) {
        println!(
            "PROMETHEUS, {} AGENTS EACH {} s: {:.0} series, {:.0} samples/s, {:.0} KiB/s, {:.2} % answered, \
             p99 of a scrape {:.0} ms; {:.0} MiB resident, {:.3} cores",
            self.agents,
            asked.interval,
            self.series,
            self.samples_per_second,
            self.bytes_per_second / 1024.0,
            100.0 * self.answered,
            1e3 * self.scrape_p99_seconds,
            self.resident_bytes as f64 / f64::from(1 << 20),
            self.cores,
        );
    }
}
