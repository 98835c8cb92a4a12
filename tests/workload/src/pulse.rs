//! Many processes that each work a little, again and again.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use super::processes::fork;
use super::sleep_ms;

#[derive(Debug, Args)]
pub struct Pulse {
    /// Processes.
    #[arg(long)]
    count: u32,
    /// Between two wake-ups of each, milliseconds.
    #[arg(long, default_value_t = 250)]
    every_ms: u32,
    /// What each does at a wake-up, microseconds.
    #[arg(long, default_value_t = 50)]
    work_us: u64,
    /// The file that gets their ids, one a line, once all are there.
    #[arg(long)]
    pids: PathBuf,
    /// Stays this long, milliseconds.
    #[arg(long, default_value_t = 3_600_000)]
    for_ms: u64,
}

impl Pulse {
    pub(crate) fn run(&self) -> Result<()> {
        let mut pids = String::new();
        for number in 0..self.count {
            let pid = fork(|| self.beat(number))?;
            pids.push_str(&format!("{pid}\n"));
        }
        let draft = self.pids.with_extension("draft");
        fs::write(&draft, pids).context("write the processes' ids")?;
        fs::rename(&draft, &self.pids).context("put the processes' ids in place")?;
        sleep_ms(self.for_ms);
        Ok(())
    }

    /// The life of one process. Their wake-ups are spread over the time between two of one.
    fn beat(&self, number: u32) -> i32 {
        let every = Duration::from_millis(self.every_ms.into());
        std::thread::sleep(every * number / self.count.max(1));
        let mut due = Instant::now();
        loop {
            let end = Instant::now() + Duration::from_micros(self.work_us);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            due += every;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}
