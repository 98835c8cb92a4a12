//! A wall clock that is stepped changes nothing of what is offered, published, learnt and enforced.

use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};

use super::truth::Truth;
use super::{holds, kubelets, status, with_node};
use crate::cases::apiserver::World;
use crate::cases::{Context, skip};
use crate::harness::{Cgroup, Options, PodSpec, Workload, check_interrupt, eventually, until};
use crate::machine::init::is_guest;

const DAY: i64 = 24 * 3600;
/// Between two steps. The offer is looked at each second, and so are its figures: steps are between the two.
const EACH: Duration = Duration::from_millis(100);
/// A sample of what is learnt takes 10 s: steps are within each, and between two.
const STEPPED: Duration = Duration::from_secs(16);

/// The machine's wall clock, which is set right in the end.
#[derive(Debug, Default)]
struct WallClock {
    /// Seconds.
    ahead: i64,
}

impl WallClock {
    fn step(&mut self, seconds: i64) -> Result<()> {
        let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
        let then = TimeSpec::new(now.tv_sec() + seconds, now.tv_nsec());
        clock_settime(ClockId::CLOCK_REALTIME, then).context("step the wall clock")?;
        self.ahead += seconds;
        Ok(())
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        if let Err(error) = self.step(-self.ahead) {
            eprintln!("the wall clock is {} s ahead: {error:#}", self.ahead);
        }
    }
}

/// Forward by a day again and again: no offer is stale, none is due again, no usage is lost in a long time, no pod is
/// warm. Back by more than that: what changes is published, and withdrawn at the end.
pub(super) fn reclaimed_through_clock_steps(context: &Context) -> Result<()> {
    if !is_guest() {
        return skip(
            "other work shares this machine's wall clock: it is stepped in a test machine",
        );
    }
    // A client of an API server loads the system's certificates at its start, and a test machine has none.
    let dir = tempfile::tempdir()?;
    let certificates = dir.path().join("ca.crt");
    let made = rcgen::generate_simple_self_signed(["e2e".to_owned()])?;
    fs::write(&certificates, made.cert.pem())?;
    let certificates = certificates.display().to_string();
    let options = Options {
        cpu: "8",
        // Nothing but what this case does moves an offer by as much as itself.
        config: "colocation: {reclaimed: {publish: true, enforce: true, memoryCalculatePolicy: request, \
                 metricAggregateDurationSeconds: 10, predictionColdStartSeconds: 600, \
                 resourceDiffThresholdPercent: 100}}\n"
            .to_owned(),
        env: vec![("SSL_CERT_FILE".to_owned(), certificates)],
        ..Options::default()
    };
    let mut world = World::anywhere(context, options, with_node)?;
    world.ready(context)?;
    let held = world.add(&PodSpec::batch("held", 500, "64Mi"))?;
    let busy = world.add(&PodSpec::guaranteed("busy", "64Mi"))?;
    until(world.node.limit(), "the pod's cgroup", || busy.exists())?;
    let main = busy.child("main");
    main.create()?;
    let mut burner = Workload::start(&main, &["burn"])?;
    let mut truth = Truth {
        requested: 64 << 20,
        ..Truth::default()
    };
    eventually(context.limit(30), || as_ever(&world, &held, &truth))?;
    world.server.take_written();

    let mut clock = WallClock::default();
    let since = Instant::now();
    while since.elapsed() < STEPPED {
        check_interrupt()?;
        clock.step(DAY)?;
        as_ever(&world, &held, &truth).with_context(|| format!("{} s ahead", clock.ahead))?;
        thread::sleep(EACH);
    }
    let written = world.server.take_written();
    ensure!(written.is_empty(), "nothing has changed: {written:?}");

    clock.step(-clock.ahead - 2 * DAY)?;
    world.add(&PodSpec::batch("wide", 50_000, "64Mi"))?;
    truth.held = 50_500;
    eventually(context.limit(20), || as_ever(&world, &held, &truth))
        .with_context(|| format!("{} s ahead", clock.ahead))?;
    burner.kill();
    world.node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    let left = status(&world)?;
    for list in ["capacity", "allocatable"] {
        ensure!(left[list] == kubelets(), "{left}");
    }
    Ok(())
}

/// The offer is true, the busy pod counts with what it uses, and nothing is predicted: no pod was measured for long.
fn as_ever(world: &World, held: &Cgroup, truth: &Truth) -> Result<()> {
    holds(held)?;
    truth.shows(world)?;
    let reclaimed = world.node.agent.node()?.reclaimed;
    let reclaimed = reclaimed.context("nothing is computed")?;
    let used = reclaimed.pods.cpu_milli;
    ensure!(used >= 150, "pods count with {used} thousandths of a CPU");
    let prediction = reclaimed.prediction;
    ensure!(
        prediction.cold_pods == 1 && prediction.reclaimable.is_none(),
        "{prediction:?}"
    );
    Ok(())
}
