//! What pods, prod pods together and the system are predicted to use at their peak, learnt from exact counters.
//!
//! | module | purpose |
//! |---|---|
//! | `meter` | readings of a counter -> samples of a model; values only |
//! | `state` | the models on the disk |
//!
//! A sample is the CPU time of about 10 s from the kernel's counter, so that no burst between two readings is lost,
//! and the most memory that was read in that time.
//!
//! Time is the agent's own: seconds in which agents of this node have measured. A clock that is stepped, and a time
//! without an agent, neither age nor warm what was learnt.

mod meter;
mod state;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use podwarden_policy::{
    PodUid,
    colocation::{
        predict::{Model, Peaks},
        reclaimed::Amounts,
    },
};

use self::{
    meter::Meter,
    state::{Kept, State},
};
use crate::{api::types::PredictionStats, base::error::chain, config::ReclaimedConfig};

/// Between two writes of what was learnt.
const WRITE: Duration = Duration::from_secs(300);
/// What was learnt of a pod goes once the pod has not been seen for so long, seconds of measuring.
const FORGET_S: u64 = 3600;

/// What a pass read of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodReading<'a> {
    pub(super) uid: &'a PodUid,
    /// Since it was made, nanoseconds.
    pub(super) cpu_ns: u64,
    /// Without page cache, bytes.
    pub(super) memory: u64,
    pub(super) prod: bool,
}

#[derive(Debug)]
pub(super) struct Prediction {
    cold_start_s: u64,
    margin_percent: u32,
    pods: HashMap<PodUid, Meter>,
    prod: Meter,
    system: Meter,
    /// CPU time of prod pods and of the system since this agent began, nanoseconds: pods come and go, these only grow.
    prod_ns: u64,
    system_ns: u64,
    /// The machine's counter at the last pass.
    machine_ns: Option<u64>,
    /// Seconds of measuring before this agent, and when it began.
    before_s: u64,
    began: Option<Instant>,
    written: Option<Instant>,
    state: Option<Arc<Mutex<State>>>,
}

impl Prediction {
    /// Goes on with what an agent before this one kept below `state_dir`. What is not sound there is left out, with a
    /// warning, and learnt anew.
    pub(super) fn new(config: &ReclaimedConfig, state_dir: Option<&Path>, node: &str) -> Self {
        let state = state_dir.map(|dir| State::new(dir, node));
        let read = state.as_ref().map(State::read).transpose();
        let kept = read.unwrap_or_else(|error| {
            let problem = chain(&error);
            tracing::warn!("predictions begin anew: {problem}");
            None
        });
        let kept = kept.unwrap_or_default();
        let pods = kept.pods.into_iter();
        Self {
            cold_start_s: config.cold_start.as_secs(),
            margin_percent: config.safety_margin_percent,
            pods: pods.map(|(uid, model)| (uid, Meter::new(model))).collect(),
            prod: Meter::new(kept.prod),
            system: Meter::new(kept.system),
            prod_ns: 0,
            system_ns: 0,
            machine_ns: None,
            before_s: kept.measured_s,
            began: None,
            written: None,
            state: state.map(|state| Arc::new(Mutex::new(state))),
        }
    }

    fn measured_s(&self, now: Instant) -> u64 {
        let began = self.began.unwrap_or(now);
        let since = now.saturating_duration_since(began).as_secs();
        self.before_s.saturating_add(since)
    }

    /// Learns from a pass. `machine_ns` is the machine's CPU time, `machine_memory` what it uses in all, bytes.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        machine_ns: u64,
        machine_memory: u64,
        readings: &[PodReading<'_>],
    ) {
        self.began.get_or_insert(now);
        let clock = self.measured_s(now);
        let (mut of_pods, mut of_prod) = (0_u64, 0_u64);
        let (mut memory, mut prod_memory) = (0_u64, 0_u64);
        for reading in readings {
            let meter = self.pods.entry(reading.uid.clone()).or_default();
            let used = meter.read(now, reading.cpu_ns, reading.memory, clock);
            of_pods = of_pods.saturating_add(used);
            memory = memory.saturating_add(reading.memory);
            if reading.prod {
                of_prod = of_prod.saturating_add(used);
                prod_memory = prod_memory.saturating_add(reading.memory);
            }
        }
        self.prod_ns = self.prod_ns.saturating_add(of_prod);
        self.prod.read(now, self.prod_ns, prod_memory, clock);
        let last = self.machine_ns.replace(machine_ns).unwrap_or(machine_ns);
        let of_machine = machine_ns.saturating_sub(last);
        self.system_ns += of_machine.saturating_sub(of_pods);
        let beside = machine_memory.saturating_sub(memory);
        self.system.read(now, self.system_ns, beside, clock);
        self.pods
            .retain(|_, meter| meter.seen() + FORGET_S >= clock);
        self.keep(now, clock);
    }

    fn peak(&self, model: &Model) -> Option<Amounts> {
        model.peak_amounts(self.cold_start_s, self.margin_percent)
    }

    /// What prod pods, each with its request, will leave of these requests.
    pub(super) fn predict<'a>(
        &self,
        capacity: Amounts,
        prod: impl Iterator<Item = (&'a PodUid, Amounts)>,
    ) -> PredictionStats {
        let mut peaks = Peaks::default();
        let (mut warm, mut cold) = (0, 0);
        for (uid, request) in prod {
            let meter = self.pods.get(uid);
            let peak = meter.and_then(|meter| self.peak(meter.model()));
            *(if peak.is_some() { &mut warm } else { &mut cold }) += 1;
            peaks.add(request, peak);
        }
        let (tier, system) = (self.peak(self.prod.model()), self.peak(self.system.model()));
        PredictionStats {
            reclaimable: peaks.reclaimable(capacity, tier, system).map(Into::into),
            prod_peak: tier.map(Into::into),
            system_peak: system.map(Into::into),
            predicted_pods: warm,
            cold_pods: cold,
        }
    }

    /// Writes what was learnt, on a thread that may wait for the disk; while it waits, nothing else is written.
    fn keep(&mut self, now: Instant, measured_s: u64) {
        let Some(state) = &self.state else {
            return;
        };
        let written = *self.written.get_or_insert(now);
        if now.saturating_duration_since(written) < WRITE {
            return;
        }
        self.written = Some(now);
        let pods = self.pods.iter();
        let kept = Kept {
            measured_s,
            prod: self.prod.model().clone(),
            system: self.system.model().clone(),
            pods: pods
                .map(|(uid, m)| (uid.clone(), m.model().clone()))
                .collect(),
        };
        let state = Arc::clone(state);
        let write = move || {
            if let Ok(mut state) = state.try_lock() {
                state.write(&kept);
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            // No runtime: a test.
            Err(_) => write(),
        }
    }

    /// As many pods as something was learnt of.
    #[cfg(test)]
    fn known(&self) -> usize {
        self.pods.len()
    }
}

#[cfg(test)]
mod tests;
