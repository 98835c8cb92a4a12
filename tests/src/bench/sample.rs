//! The CPU time that a pass over the figures of all pods takes: the kernel's iterator beside the files that have the
//! same figures, once kept open and once opened at each read, as cAdvisor does.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use podwarden::kernel::casts::CASTS;
use podwarden::kernel::walk::{Gathered, Walker};
use podwarden_cgroup::Controller;

use super::{cpu_time, median};
use crate::harness::{Cgroup, Sandbox};

#[derive(Debug, clap::Args)]
pub(super) struct Sample {
    /// Pods.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pods: u32,
    /// Containers of each.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=20))]
    containers: u32,
    /// Passes of each kind, in turn.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

/// CPU time of one pass, milliseconds.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    cgroups: usize,
    files: usize,
    /// Of `files` those that this process may keep open; the others are opened at each read.
    kept_open: usize,
    /// The iterator, and every record found by its cgroup.
    iterator_median: f64,
    iterator_worst: f64,
    /// Of that the kernel's part, with the records copied.
    walk_median: f64,
    /// The kernel's part with parts of each record left out.
    parts: Vec<Part>,
    files_median: f64,
    /// Every file opened, read once and closed.
    opened_median: f64,
    /// Files kept open to iterator.
    ratio: f64,
    /// Files opened at each read to iterator.
    opened_ratio: f64,
}

/// A pass with parts of each record left out.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    name: &'static str,
    median: f64,
}

/// What a pass does without: typed pointers, then structure members, one group more each time.
const LEFT_OUT: [(&str, &[&str]); 4] = [
    ("read by helpers", &[CASTS]),
    ("without pressure", &["cgroup.psi"]),
    (
        "and tasks and throttling",
        &[
            "cgroup.psi",
            "pids_cgroup.counter",
            "task_group.cfs_bandwidth.nr_periods",
        ],
    ),
    (
        "and memory's statistics",
        &[
            "cgroup.psi",
            "pids_cgroup.counter",
            "task_group.cfs_bandwidth.nr_periods",
            "memcg_vmstats",
        ],
    ),
];

/// A cgroup in the hierarchies that the figures are in.
struct Measured {
    /// Ids in the hierarchies of [`Ground::roots`], and where the last pass had their records.
    ids: Vec<(u64, u32)>,
    files: Vec<Source>,
}

/// A file with figures.
struct Source {
    path: PathBuf,
    /// `None` where this process may not keep more files open.
    open: Option<File>,
}

impl Source {
    /// Reads it as one that is kept open, where it is.
    fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        match &self.open {
            Some(file) => Ok(file.read_at(buffer, 0)?),
            None => self.open_and_read(buffer),
        }
    }

    fn open_and_read(&self, buffer: &mut [u8]) -> Result<usize> {
        Ok(File::open(&self.path)?.read_at(buffer, 0)?)
    }
}

/// A tree of pods, without an agent.
struct Ground {
    /// kubepods in each hierarchy that has figures.
    roots: Vec<PathBuf>,
    /// Their files are closed before the sandbox removes them.
    cgroups: Vec<Measured>,
    _sandbox: Sandbox,
}

/// The most files that [`files`] names for one cgroup.
const MOST_FILES: u64 = 8;

/// Files that are open beside those with figures.
const FILES_BESIDE: u64 = 256;

/// Controllers with figures.
const CONTROLLERS: [Controller; 2] = [Controller::Memory, Controller::Cpu];

/// The files that have the figures of a record, by controller.
fn files(controller: Controller, v2: bool) -> &'static [&'static str] {
    match (controller, v2) {
        (Controller::Memory, true) => &[
            "memory.current",
            "memory.stat",
            "memory.max",
            "pids.current",
            "cpu.pressure",
            "memory.pressure",
            "io.pressure",
        ],
        (Controller::Memory, false) => &[
            "memory.usage_in_bytes",
            "memory.stat",
            "memory.limit_in_bytes",
            "memory.max_usage_in_bytes",
            "memory.failcnt",
        ],
        _ => &["cpu.stat"],
    }
}

impl Sample {
    pub(super) fn run(&self) -> Result<()> {
        let count = self.pods as usize * (1 + self.containers as usize) + 1;
        let may_open = allow_files(count as u64 * MOST_FILES + FILES_BESIDE)?;
        let walker = alone(count, &[])?;
        let mut partial: Vec<(_, _, Vec<f64>)> = (LEFT_OUT.into_iter())
            .map(|(name, without)| Ok((name, alone(count, without)?, Vec::new())))
            .collect::<Result<_>>()?;
        let mut ground = self.ground(may_open.saturating_sub(FILES_BESIDE))?;
        let (mut walks, mut joins, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        let mut opens = Vec::new();
        let mut buffer = vec![0; 16384];
        let mut records = Records::default();
        // In turn, so that the machine's drift meets both alike; the first of each fills caches.
        for _ in 0..=self.runs {
            let start = cpu_time()?;
            records.gather(&walker, &ground.roots)?;
            let walked = cpu_time()?;
            let cgroups = ground.cgroups.iter_mut();
            let found = cgroups.filter_map(|c| records.has(c).then_some(()));
            let found = found.count();
            let joined = cpu_time()?;
            ensure!(
                found == ground.cgroups.len(),
                "{found} of {} cgroups have records",
                ground.cgroups.len()
            );
            let mut bytes = 0;
            for file in ground.files() {
                bytes += black_box(file.read(&mut buffer)?);
            }
            ensure!(bytes > 0, "the files are empty");
            let read = cpu_time()?;
            for file in ground.files() {
                black_box(file.open_and_read(&mut buffer)?);
            }
            let opened = cpu_time()?;
            walks.push(millis(walked - start));
            joins.push(millis(joined - start));
            reads.push(millis(read - joined));
            opens.push(millis(opened - read));
            // After the files, as the whole pass: they take the processor's caches.
            for (_, walker, times) in &mut partial {
                for file in ground.files() {
                    black_box(file.read(&mut buffer)?);
                }
                let start = cpu_time()?;
                records.gather(walker, &ground.roots)?;
                times.push(millis(cpu_time()? - start));
            }
        }
        for times in [&mut walks, &mut joins, &mut reads, &mut opens] {
            times.remove(0);
        }
        let (iterator_median, files_median) = (median(&mut joins), median(&mut reads));
        let opened_median = median(&mut opens);
        let parts = partial.into_iter().map(|(name, _, mut times)| {
            times.remove(0);
            let median = median(&mut times);
            Part { name, median }
        });
        let report = Report {
            cgroups: ground.cgroups.len(),
            files: ground.files().count(),
            kept_open: ground.files().filter(|file| file.open.is_some()).count(),
            iterator_median,
            iterator_worst: joins[joins.len() - 1],
            walk_median: median(&mut walks),
            parts: parts.collect(),
            files_median,
            opened_median,
            ratio: files_median / iterator_median,
            opened_ratio: opened_median / iterator_median,
        };
        self.print(&report)
    }

    /// Makes the tree and keeps at most `may_open` of its files open.
    fn ground(&self, may_open: u64) -> Result<Ground> {
        let mut left = may_open;
        let sandbox = Sandbox::new()?;
        let kubepods = sandbox.root.child("kubepods");
        kubepods.create_below(&sandbox.root)?;
        let mounts = &sandbox.mounts;
        let mut hierarchies: Vec<(&Path, Vec<Controller>)> = Vec::new();
        for controller in CONTROLLERS {
            let mount = mounts
                .of(controller)
                .context("a controller is not mounted")?;
            match hierarchies.iter_mut().find(|(known, _)| *known == mount) {
                Some((_, controllers)) => controllers.push(controller),
                None => hierarchies.push((mount, vec![controller])),
            }
        }
        let mut measured = |cgroup: &Cgroup| -> Result<Measured> {
            let (mut ids, mut sources) = (Vec::new(), Vec::new());
            for (mount, controllers) in &hierarchies {
                let directory = mount.join(cgroup.path());
                ids.push((fs::metadata(&directory)?.ino(), 0));
                for controller in controllers {
                    for name in files(*controller, mounts.is_on_v2(*controller)) {
                        let path = directory.join(name);
                        // `pids` and pressure may be off on v2.
                        let Ok(file) = File::open(&path) else {
                            continue;
                        };
                        let open = (left > 0).then_some(file);
                        left = left.saturating_sub(1);
                        sources.push(Source { path, open });
                    }
                }
            }
            ensure!(sources.len() >= 4, "{} lacks its files", cgroup.path());
            Ok(Measured {
                ids,
                files: sources,
            })
        };
        let mut cgroups = vec![measured(&kubepods)?];
        for pod in 0..self.pods {
            let pod = kubepods.child(&format!("pod{pod:08x}-0000-0000-0000-000000000000"));
            pod.create()?;
            cgroups.push(measured(&pod)?);
            for container in 0..self.containers {
                let container = pod.child(&format!("c{container}"));
                container.create()?;
                cgroups.push(measured(&container)?);
            }
        }
        let roots = hierarchies
            .iter()
            .map(|(mount, _)| mount.join(kubepods.path()));
        Ok(Ground {
            roots: roots.collect(),
            cgroups,
            _sandbox: sandbox,
        })
    }

    fn print(&self, report: &Report) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
            return Ok(());
        }
        let row = |name: &str, median: f64, worst: Option<f64>| {
            let worst = worst.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
            println!("{name:<34} {median:>12.3} {worst:>12}");
        };
        println!(
            "{:<34} {:>12} {:>12}",
            "CPU TIME OF A PASS", "MEDIAN ms", "WORST ms"
        );
        row(
            "iterator, records by cgroup",
            report.iterator_median,
            Some(report.iterator_worst),
        );
        row("  of that the kernel's pass", report.walk_median, None);
        for part in &report.parts {
            row(&format!("    {}", part.name), part.median, None);
        }
        row("files, kept open", report.files_median, None);
        row("files, opened at each read", report.opened_median, None);
        println!(
            "{} cgroups, {} files, {} passes of each kind in turn: files kept open take {:.1} times as much as the \
             iterator, files opened at each read (as cAdvisor reads them) {:.1} times",
            report.cgroups, report.files, self.runs, report.ratio, report.opened_ratio
        );
        if report.kept_open < report.files {
            println!(
                "this process may keep {} of {} files open: the others are opened at each read in both rows",
                report.kept_open, report.files
            );
        }
        Ok(())
    }
}

impl Ground {
    fn files(&self) -> impl Iterator<Item = &Source> {
        self.cgroups.iter().flat_map(|cgroup| &cgroup.files)
    }
}

/// The iterator with room for `count` cgroups.
fn alone(count: usize, without: &[&str]) -> Result<Walker> {
    let places = u32::try_from(count)? + 64;
    Walker::alone(places, without)
        .map_err(|why| anyhow::anyhow!("this kernel takes no iterator over cgroups: {why}"))
}

/// Records by hierarchy, found as the agent finds them.
#[derive(Default)]
struct Records {
    all: Vec<Gathered>,
}

impl Records {
    fn gather(&mut self, walker: &Walker, roots: &[PathBuf]) -> Result<()> {
        self.all.resize_with(roots.len(), Default::default);
        for (root, records) in roots.iter().zip(&mut self.all) {
            let found = records.walk(walker, root)?;
            ensure!(found.lost == 0, "{} cgroups found no room", found.lost);
        }
        Ok(())
    }

    fn has(&mut self, cgroup: &mut Measured) -> bool {
        let mut both = cgroup.ids.iter_mut().zip(&mut self.all);
        both.all(|((id, place), records)| {
            let record = records.find(*id, place);
            black_box(record).is_some_and(|record| record.parts != 0)
        })
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Raises how many files this process may have open to `count`, as far as it may, and returns the number.
fn allow_files(count: u64) -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= count {
        return Ok(soft);
    }
    // Beyond the hard limit takes CAP_SYS_RESOURCE.
    if hard < count && setrlimit(Resource::RLIMIT_NOFILE, count, count).is_ok() {
        return Ok(count);
    }
    let most = count.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, most, hard)
        .with_context(|| format!("let this process open {most} files"))?;
    Ok(most)
}
