//! The CPU time that a pass over the figures of all pods takes: the kernel's iterator beside the files that have the
//! same figures, which are open already.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_gettime};
use podwarden::kernel::walk::Walker;
use podwarden_cgroup::Controller;

use super::median;
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
    /// The iterator, and every record found by its cgroup.
    iterator_median: f64,
    iterator_worst: f64,
    /// Of that the kernel's part.
    walk_median: f64,
    files_median: f64,
    /// Files to iterator.
    ratio: f64,
}

/// A cgroup in the hierarchies that the figures are in.
struct Measured {
    /// Ids in the hierarchies of [`Ground::roots`].
    ids: Vec<u64>,
    files: Vec<File>,
}

/// A tree of pods, without an agent.
struct Ground {
    /// kubepods in each hierarchy that has figures.
    roots: Vec<PathBuf>,
    /// Their files are closed before the sandbox removes them.
    cgroups: Vec<Measured>,
    _sandbox: Sandbox,
}

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
        allow_files(count as u64 * 8)?;
        let walker = Walker::alone(u32::try_from(count)? + 64)
            .map_err(|why| anyhow::anyhow!("this kernel takes no iterator over cgroups: {why}"))?;
        let ground = self.ground()?;
        let (mut walks, mut joins, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        let mut buffer = vec![0; 16384];
        let mut records = Records::default();
        // In turn, so that the machine's drift meets both alike; the first of each fills caches.
        for _ in 0..=self.runs {
            let start = cpu_time()?;
            records.gather(&walker, &ground.roots)?;
            let walked = cpu_time()?;
            let found = ground
                .cgroups
                .iter()
                .filter(|c| records.has(&c.ids))
                .count();
            let joined = cpu_time()?;
            ensure!(
                found == ground.cgroups.len(),
                "{found} of {} cgroups have records",
                ground.cgroups.len()
            );
            let mut bytes = 0;
            for file in ground.cgroups.iter().flat_map(|cgroup| &cgroup.files) {
                bytes += black_box(file.read_at(&mut buffer, 0)?);
            }
            ensure!(bytes > 0, "the files are empty");
            let read = cpu_time()?;
            walks.push(millis(walked - start));
            joins.push(millis(joined - start));
            reads.push(millis(read - joined));
        }
        for times in [&mut walks, &mut joins, &mut reads] {
            times.remove(0);
        }
        let (iterator_median, files_median) = (median(&mut joins), median(&mut reads));
        let report = Report {
            cgroups: ground.cgroups.len(),
            files: ground.cgroups.iter().map(|cgroup| cgroup.files.len()).sum(),
            iterator_median,
            iterator_worst: joins[joins.len() - 1],
            walk_median: median(&mut walks),
            files_median,
            ratio: files_median / iterator_median,
        };
        self.print(&report)
    }

    /// Makes the tree.
    fn ground(&self) -> Result<Ground> {
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
        let measured = |cgroup: &Cgroup| -> Result<Measured> {
            let (mut ids, mut open) = (Vec::new(), Vec::new());
            for (mount, controllers) in &hierarchies {
                let directory = mount.join(cgroup.path());
                ids.push(fs::metadata(&directory)?.ino());
                for controller in controllers {
                    for name in files(*controller, mounts.is_on_v2(*controller)) {
                        // `pids` may be off on v2.
                        open.extend(File::open(directory.join(name)));
                    }
                }
            }
            ensure!(open.len() >= 4, "{} lacks its files", cgroup.path());
            Ok(Measured { ids, files: open })
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
        println!(
            "{:<34} {:>12} {:>12}",
            "CPU TIME OF A PASS", "MEDIAN ms", "WORST ms"
        );
        println!(
            "{:<34} {:>12.3} {:>12.3}",
            "iterator, records by cgroup", report.iterator_median, report.iterator_worst
        );
        println!(
            "{:<34} {:>12.3} {:>12}",
            "  of that the kernel's pass", report.walk_median, "-"
        );
        println!(
            "{:<34} {:>12.3} {:>12}",
            "files, open", report.files_median, "-"
        );
        println!(
            "{} cgroups, {} files, {} passes of each kind in turn: files take {:.1} times as much",
            report.cgroups, report.files, self.runs, report.ratio
        );
        Ok(())
    }
}

/// Records by hierarchy and id, as the agent keeps them.
#[derive(Default)]
struct Records {
    all: Vec<(
        Vec<podwarden::kernel::walk::CgroupRecord>,
        HashMap<u64, usize>,
    )>,
}

impl Records {
    fn gather(&mut self, walker: &Walker, roots: &[PathBuf]) -> Result<()> {
        self.all.resize_with(roots.len(), Default::default);
        for (root, (records, by_id)) in roots.iter().zip(&mut self.all) {
            records.clear();
            by_id.clear();
            let found = walker.pass(root, |record| {
                by_id.insert(record.id, records.len());
                records.push(*record);
            })?;
            ensure!(found.lost == 0, "{} cgroups found no room", found.lost);
        }
        Ok(())
    }

    fn has(&self, ids: &[u64]) -> bool {
        let mut both = ids.iter().zip(&self.all);
        both.all(|(id, (records, by_id))| {
            let record = by_id.get(id).and_then(|index| records.get(*index));
            black_box(record).is_some_and(|record| record.parts != 0)
        })
    }
}

/// CPU time of this thread so far.
fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Lets this process have so many files open.
fn allow_files(count: u64) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < count {
        setrlimit(Resource::RLIMIT_NOFILE, count.max(soft), count.max(hard))
            .with_context(|| format!("let this process open {count} files"))?;
    }
    Ok(())
}
