//! A real Prometheus scrapes the agent, and the alerts that are shipped fire in it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::clients::free;
use super::{Case, Context, skip, slow};
use crate::harness::{Node, Options, PodSpec, Workload, eventually, http_get_at, monotonic, sleep};

use alerts::{alerts_of_what_evicts, alerts_of_what_surrounds};

mod alerts;

pub(super) const CASES: &[Case] = &[
    slow("prometheus_scrapes", prometheus_scrapes),
    slow(
        "prometheus_alerts_of_what_surrounds",
        alerts_of_what_surrounds,
    ),
    slow("prometheus_alerts_of_what_evicts", alerts_of_what_evicts),
];

/// A server of its own, which scrapes once a second; ended when this goes away.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _home: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes one agent, and waits until it has.
    fn start(target: SocketAddr, rules: Option<&Value>) -> Result<Option<Self>> {
        let job = json!([{
            "job_name": "podwarden",
            "static_configs": [{"targets": [target.to_string()]}],
        }]);
        Self::scraping(&job, rules)
    }

    /// With these `scrape_configs`; waits until the first target answers. `None` where there is no such program.
    pub(crate) fn scraping(jobs: &Value, rules: Option<&Value>) -> Result<Option<Self>> {
        let home = tempfile::tempdir_in("/var/tmp")?;
        let address = free()?;
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": rules.map(|_| "rules.yaml").as_slice(),
            "scrape_configs": jobs,
        });
        // JSON is YAML.
        fs::write(home.path().join("config.yaml"), config.to_string())?;
        if let Some(rules) = rules {
            fs::write(home.path().join("rules.yaml"), rules.to_string())?;
        }
        let mut command = Command::new("prometheus");
        command
            .args(["--config.file=config.yaml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(home.path())
            .stdout(Stdio::null())
            .stderr(File::create(home.path().join("log"))?);
        // SAFETY: prctl(2) is a single system call.
        unsafe {
            command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
        }
        let child = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            child => child.context("start prometheus")?,
        };
        let this = Self {
            child,
            address,
            _home: home,
        };
        eventually(Duration::from_secs(60), || {
            let up = this.value("up")?;
            ensure!(up == Some(1.0), "up is {up:?}");
            Ok(())
        })
        .with_context(|| log(this._home.path()))?;
        Ok(Some(this))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn get(&self, path: &str) -> Result<Value> {
        let answer = http_get_at(self.address, path)?;
        let body: Value = serde_json::from_slice(&answer.body)?;
        ensure!(body["status"] == "success", "{path}: {body}");
        Ok(body["data"].clone())
    }

    /// The first sample of an expression's value; `None` where it has none.
    pub(crate) fn value(&self, expression: &str) -> Result<Option<f64>> {
        let escaped = expression.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        });
        let data = self.get(&format!(
            "/api/v1/query?query={}",
            escaped.collect::<String>()
        ))?;
        let value = data["result"][0]["value"][1].as_str();
        Ok(value.map(str::parse).transpose()?)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(home: &Path) -> String {
    fs::read_to_string(home.join("log")).unwrap_or_default()
}

const NONE: &str = "there is no prometheus (Debian package prometheus)";

/// Each second for ten minutes, with 250 pods; a repetition is a minute.
fn prometheus_scrapes(context: &Context) -> Result<()> {
    const PODS: usize = 250;
    let address = free()?;
    let options = Options {
        args: vec![format!("--listen={address}")],
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let specs = (0..PODS).map(|n| PodSpec::best_effort(&format!("pod-{n}")));
    let pods = node.pods(specs.collect())?;
    let sleepers: Vec<Workload> = pods
        .iter()
        .map(|pod| pod.start(&["sleep"]))
        .collect::<Result<_>>()?;
    let Some(prometheus) = Prometheus::start(address, None)? else {
        return skip(NONE);
    };
    // What starting took is not scraping.
    sleep(Duration::from_secs(5))?;
    let (cpu, time) = (node.agent.cpu_ns()?, monotonic());
    let minutes = context.repetitions(10);
    sleep(Duration::from_secs(60) * minutes)?;
    let (cpu, time) = (node.agent.cpu_ns()? - cpu, monotonic() - time);
    context.figure("agent_cpu", 100.0 * cpu as f64 / time as f64, "% of a core");
    let last = |what: &str| {
        let value = prometheus.value(&format!("{what}[{minutes}m])"))?;
        value.with_context(|| format!("no {what}"))
    };
    context.figure(
        "scrape_median",
        last("quantile_over_time(0.5, scrape_duration_seconds")? * 1e3,
        "ms",
    );
    context.figure("samples", last("max_over_time(scrape_samples_scraped")?, "");
    let scrapes = last("count_over_time(up")?;
    let answered = last("sum_over_time(up")?;
    context.figure("scrapes", scrapes, "");
    context.figure("rss", node.agent.rss()? as f64 / f64::from(1 << 20), "MiB");
    ensure!(
        answered >= 0.99 * scrapes,
        "{answered} of {scrapes} scrapes"
    );
    let seen =
        prometheus.value("count(count by (uid) (podwarden_pod_memory_working_set_bytes))")?;
    ensure!(seen == Some(PODS as f64), "{seen:?} pods are seen");
    drop(sleepers);
    node.finish()
}
