//! What an agent takes on a node whose pods all run all the time, with all figures on: its CPU time, its memory and the
//! kernel's, beside a reader of the files that cAdvisor's loop reads for the same pods at the same interval.

mod agent;
mod files;
mod report;
mod scene;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use self::agent::{Counting, Spent};
use self::files::Files;
use self::report::{FileReader, Report, Window};
use self::scene::Scene;
use crate::cases::Context;
use crate::harness::{
    Agent, KernelMemory, catch_signals, http_get, http_get_gzip, remove_stale, sleep,
};

/// Time between two sampling passes, and between two requests of a reader.
const INTERVAL: Duration = Duration::from_secs(1);

/// A reader keeps the agent at its full pace for 10 s.
const READER_GOES: Duration = Duration::from_secs(12);

/// For so long the agent settles when a reader comes.
const SETTLES: Duration = Duration::from_secs(3);

/// Seconds between two requests of `/metrics`, as many as Prometheus usually lets pass.
const SCRAPE_EVERY: u32 = 15;

#[derive(Debug, clap::Args)]
pub(super) struct Busy {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Pods; every other one has a second container.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pods: u32,
    /// How long each part is measured, seconds: once a minute the agent looks at all that it wrote.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=3600))]
    seconds: u32,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

/// What is asked of the agent in a part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    None,
    /// `/metrics`, compressed, each 15 s.
    Scrapes,
    /// That, and `/v1/pods` each second.
    ScrapesAndPods,
}

impl Busy {
    pub(super) fn run(&self) -> Result<()> {
        catch_signals()?;
        remove_stale()?;
        let context = Context::of_bench(&self.agent);
        let scene = Scene::make(&context, self.pods)?;
        let agent = &scene.node.agent;
        let mut windows = Vec::new();
        for (what, reader, before) in [
            ("no reader", Reader::None, READER_GOES),
            ("/metrics each 15 s", Reader::Scrapes, SETTLES),
            ("and /v1/pods each second", Reader::ScrapesAndPods, SETTLES),
        ] {
            self.read(agent, reader, before)?;
            let spent = Spent::of(agent.pid())?;
            self.read(agent, reader, Duration::from_secs(self.seconds.into()))?;
            windows.push(Window::new(what, spent.until_now(agent.pid())?));
        }
        // By itself: counting takes time for every run of a program.
        let counting = Counting::begin(agent.pid())?;
        self.read(
            agent,
            Reader::ScrapesAndPods,
            Duration::from_secs(self.seconds.into()),
        )?;
        let programs = counting.end()?;
        let busy_pods = scene.busy_pods()?;
        let node = agent.node()?;
        ensure!(
            busy_pods == self.pods as usize,
            "{busy_pods} of {} pods ran between two passes",
            self.pods
        );
        let (resident_bytes, anonymous_bytes) = (agent.rss()?, agent.anonymous()?);
        let kernel = KernelMemory::of_process(agent.pid())?;
        let files = Files::of(&scene)?;
        let reader = self.read_files(&files)?;
        let report = Report {
            pods: self.pods,
            containers: scene.containers(),
            sampling: node.sampling.source,
            windows,
            programs,
            resident_bytes,
            anonymous_bytes,
            kernel_maps_bytes: kernel.maps,
            kernel_programs_bytes: kernel.programs,
            files: reader,
        };
        scene.finish()?;
        report.print(self.json)
    }

    /// Reads the agent's answers for so long, as `reader` says.
    fn read(&self, agent: &Agent, reader: Reader, time: Duration) -> Result<()> {
        let start = Instant::now();
        for second in 0_u32.. {
            let due = INTERVAL * second;
            sleep(due.saturating_sub(start.elapsed()))?;
            if due >= time {
                return Ok(());
            }
            if reader != Reader::None && second % SCRAPE_EVERY == 0 {
                let answer = http_get_gzip(agent.socket(), "/metrics")?;
                ensure!(answer.status == 200, "/metrics: {}", answer.status);
            }
            if reader == Reader::ScrapesAndPods {
                let answer = http_get(agent.socket(), "/v1/pods")?;
                ensure!(answer.status == 200, "/v1/pods: {}", answer.status);
            }
        }
        Ok(())
    }

    /// Reads the files at the interval of the agent's passes.
    fn read_files(&self, files: &Files) -> Result<FileReader> {
        let mut buffer = vec![0; 64 << 10];
        // The first pass fills the kernel's caches of names.
        files.pass(&mut buffer)?;
        let (start, mut spent) = (Instant::now(), Duration::ZERO);
        let mut passes = 0;
        while passes < self.seconds {
            spent += files.pass(&mut buffer)?;
            passes += 1;
            sleep((INTERVAL * passes).saturating_sub(start.elapsed()))?;
        }
        Ok(FileReader::new(files.count(), passes, spent))
    }
}
