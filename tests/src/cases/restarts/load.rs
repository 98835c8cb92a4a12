//! What runs in the pods all the time: burners, short processes, containers and nested cgroups that come
//! and go. It does not care whether an agent runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::harness::{Cgroup, Pod, Workload, eventually, until};

/// The harness waits this long for what should take milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Processes that were started, by the pod's uid.
#[derive(Debug, Clone, Default)]
pub(super) struct Made(BTreeMap<String, Arc<AtomicU64>>);

impl Made {
    /// Of one pod; those that were about to be are among them.
    pub(super) fn started(&self, uid: &str) -> u64 {
        let count = self.0.get(uid);
        count.map_or(0, |count| count.load(Ordering::SeqCst))
    }

    fn add(&self, pod: &Pod, count: u64) {
        if let Some(started) = self.0.get(pod.uid()) {
            started.fetch_add(count, Ordering::SeqCst);
        }
    }
}

/// Something that is done in a pod again and again; the number tells the turns apart.
type Round = fn(&Pod, &Made, u64) -> Result<()>;

/// See the module; ends when this goes away.
#[derive(Debug)]
pub(super) struct Load {
    made: Made,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// One in every pod, so that no cgroup of theirs is unused.
    _stay: Vec<Workload>,
}

impl Load {
    /// In four pods: one burns, one has short processes, one nested cgroups, one containers.
    pub(super) fn start(pods: &[Pod]) -> Result<Self> {
        let made = Made(
            pods.iter()
                .map(|pod| (pod.uid().to_owned(), Arc::default()))
                .collect(),
        );
        let mut stay = Vec::new();
        for pod in pods {
            made.add(pod, 1);
            stay.push(pod.start(&["sleep"])?);
        }
        let [burns, storms, nests, churns] = pods else {
            return Err(anyhow!("{} pods, not four", pods.len()));
        };
        made.add(burns, 1);
        stay.push(burns.start(&["burn", "--threads", "2", "--duty", "60"])?);
        let stop = Arc::<AtomicBool>::default();
        let rounds: [(&Pod, Round); 4] = [
            (burns, burn),
            (storms, storm),
            (nests, nest),
            (churns, churn),
        ];
        let threads = rounds.map(|(pod, round)| {
            let (pod, made, stop) = (pod.clone(), made.clone(), Arc::clone(&stop));
            thread::spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    round(&pod, &made, number)
                        .with_context(|| format!("round {number} of {}", pod.spec.name))?;
                }
                Ok(())
            })
        });
        Ok(Self {
            made,
            stop,
            threads: threads.into(),
            _stay: stay,
        })
    }

    /// Processes of a pod that were started by now.
    pub(super) fn started(&self, uid: &str) -> u64 {
        self.made.started(uid)
    }

    /// An error when some part of it has ended: that part's own.
    pub(super) fn ensure_goes_on(&mut self) -> Result<()> {
        let Some(ended) = self.threads.iter().position(JoinHandle::is_finished) else {
            return Ok(());
        };
        let ended = self.threads.swap_remove(ended);
        ended.join().map_err(|_| anyhow!("a thread panicked"))??;
        bail!("a part of the load has ended")
    }

    /// Ends it; what stays in the pods goes as well.
    pub(super) fn stop(mut self, limit: Duration) -> Result<Made> {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            until(limit, "the load's end", || thread.is_finished())?;
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(self.made.clone())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // What it has to say is of no use any more.
            let _ = thread.join();
        }
    }
}

/// A process that starts `count` others in `cgroup`.
fn storm_in(pod: &Pod, made: &Made, cgroup: &Cgroup, count: u64, args: &[&str]) -> Result<()> {
    made.add(pod, count + 1);
    let count = count.to_string();
    let all = [&["storm", "--count", &count], args].concat();
    Workload::start(cgroup, &all)?.done(LIMIT).map(|_| ())
}

fn burn(pod: &Pod, made: &Made, _: u64) -> Result<()> {
    made.add(pod, 1);
    let args = ["burn", "--for-ms", "50", "--threads", "3"];
    Workload::start(&pod.main, &args)?.wait(LIMIT).map(|_| ())
}

fn storm(pod: &Pod, made: &Made, _: u64) -> Result<()> {
    let args = ["--codes", "0,1,3", "--busy-us", "400", "--parallel", "2"];
    storm_in(pod, made, &pod.main, 20, &args)
}

/// A cgroup inside the container, and one in that.
fn nest(pod: &Pod, made: &Made, number: u64) -> Result<()> {
    let outer = pod.main.child(&format!("n{number}"));
    let inner = outer.child("inner");
    inner.create_below(&pod.main)?;
    storm_in(pod, made, &outer, 3, &["--signals", "9,15"])?;
    storm_in(pod, made, &inner, 3, &["--busy-us", "200"])?;
    [inner, outer]
        .iter()
        .try_for_each(|cgroup| eventually(LIMIT, || cgroup.remove()))
}

/// A container of the pod, with a cgroup of its own every other time.
fn churn(pod: &Pod, made: &Made, number: u64) -> Result<()> {
    let container = pod.cgroup.child(&format!("c{number}"));
    container.create()?;
    storm_in(pod, made, &container, 4, &["--busy-us", "600"])?;
    if number % 2 == 1 {
        let nested = container.child("nested");
        nested.create()?;
        storm_in(pod, made, &nested, 2, &[])?;
        eventually(LIMIT, || nested.remove())?;
    }
    eventually(LIMIT, || container.remove())
}
