//! How much CPU and memory a pod, a tier or the node will want, from what it wanted before.
//!
//! Approach: histograms whose samples lose half of their weight with each half-life, with buckets that grow by 5 %
//! (koordinator `pkg/util/histogram`, after the vertical pod autoscaler's). The peak is a high percentile and a
//! margin. Weights are integers: a fresh sample weighs [`UNIT`] at the start of a half-life and twice that at its
//! end, and all weights are halved when the next begins.
//!
//! Properties, each with a test (`tests/predict.rs`):
//! - a percentile is never below what that part of the weight was at, and at most 5 % and one first bucket above;
//! - a histogram holds at most [`SLOTS`] buckets; what does not fit is counted one bucket higher, never lower;
//! - time that goes back or leaps changes no weight upwards.
//!
//! CPU is in microcores, memory in bytes, time in seconds of any clock.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::reclaimed::Amounts;
use crate::units::{Bytes, MilliCpu};

mod buckets;

pub use buckets::Scale;

/// The most buckets that a histogram keeps.
pub const SLOTS: usize = 40;
/// The weight of a sample at the start of a half-life.
pub const UNIT: u32 = 1 << 10;

/// Half of a CPU sample's weight is lost in 12 hours (`cpuHistogramDecayHalfLife`).
pub const CPU_HALF_LIFE_S: u64 = 12 * 3600;
/// Half of a memory sample's weight is lost in 24 hours.
pub const MEMORY_HALF_LIFE_S: u64 = 24 * 3600;
/// Below this time of training nothing is predicted (`coldStartDuration`).
pub const COLD_START_S: u64 = 24 * 3600;
/// What is added to a percentile (`safetyMarginPercent`).
pub const MARGIN_PERCENT: u32 = 10;
/// Which part of the weight a peak of CPU is not below.
pub const CPU_PERCENTILE: u32 = 95;
/// Which part of the weight a peak of memory is not below.
pub const MEMORY_PERCENTILE: u32 = 98;
/// A gap between two samples trains at most for this long.
const LONGEST_STEP_S: u64 = 600;

/// A histogram with decaying weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Histogram {
    scale: Scale,
    /// The half-life that the weights are from, counted from time zero.
    era: u64,
    /// Ascending, none twice, none of weight zero.
    buckets: Vec<u8>,
    weights: Vec<u32>,
}

impl Histogram {
    /// Without a sample.
    pub const fn new(scale: Scale) -> Self {
        Self {
            scale,
            era: 0,
            buckets: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// True without a sample that still weighs something.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Adds what was used up to `now`.
    pub fn add(&mut self, used: u64, now: u64) {
        let half_life = self.scale.half_life_s();
        let era = now / half_life;
        if era > self.era {
            self.age(era - self.era);
            self.era = era;
        }
        // A clock that went back counts as the start of the present half-life.
        let part = if era < self.era { 0 } else { now % half_life };
        let weight = buckets::weight_within(part, half_life);
        self.count(self.scale.bucket(used), weight);
    }

    /// Halves every weight so many times.
    fn age(&mut self, times: u64) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        for weight in &mut self.weights {
            *weight = weight.checked_shr(times).unwrap_or(0);
        }
        let kept = self
            .buckets
            .iter()
            .copied()
            .zip(self.weights.iter().copied());
        let kept = kept.filter(|(_, weight)| *weight > 0);
        (self.buckets, self.weights) = kept.unzip();
    }

    fn count(&mut self, bucket: u8, weight: u32) {
        match self.buckets.binary_search(&bucket) {
            Ok(at) => self.weights[at] = self.weights[at].saturating_add(weight),
            Err(at) => {
                self.buckets.insert(at, bucket);
                self.weights.insert(at, weight);
                if self.buckets.len() > SLOTS {
                    self.merge_least();
                }
            }
        }
    }

    /// Counts the lightest bucket but the highest with its upper neighbour.
    fn merge_least(&mut self) {
        let below_top = self.weights.len() - 1;
        let lightest = (0..below_top).min_by_key(|at| self.weights[*at]);
        if let Some(at) = lightest {
            let weight = self.weights.remove(at);
            self.buckets.remove(at);
            self.weights[at] = self.weights[at].saturating_add(weight);
        }
    }

    /// The upper end of the bucket that `percent` of the weight is not above; zero without samples.
    pub fn percentile(&self, percent: u32) -> u64 {
        let total: u64 = self.weights.iter().map(|w| u64::from(*w)).sum();
        let wanted = u128::from(total) * u128::from(percent.min(100));
        let mut below = 0_u128;
        let all = self.buckets.iter().zip(&self.weights);
        for (bucket, weight) in all {
            below += u128::from(*weight) * 100;
            if below >= wanted {
                return self.scale.end(*bucket);
            }
        }
        self.buckets.last().map_or(0, |last| self.scale.end(*last))
    }

    /// False where a file was written by another version, or by hand.
    fn is_sound(&self, scale: Scale) -> bool {
        self.scale == scale
            && self.buckets.len() == self.weights.len()
            && self.buckets.len() <= SLOTS
            && self.buckets.is_sorted_by(|a, b| a < b)
            && self.buckets.last().is_none_or(|b| *b < scale.count())
            && !self.weights.contains(&0)
    }
}

/// What is predicted of one pod, tier or node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    cpu: Histogram,
    memory: Histogram,
    /// Time that samples stand for, seconds.
    trained_s: u64,
    /// When the last sample was.
    last: Option<u64>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            cpu: Histogram::new(Scale::Cpu),
            memory: Histogram::new(Scale::Memory),
            trained_s: 0,
            last: None,
        }
    }
}

impl Model {
    /// Adds what was used between the last sample and `now`: CPU in microcores, the mean of that time; memory in
    /// bytes, the most of it.
    pub fn train(&mut self, cpu: u64, memory: u64, now: u64) {
        let since = self.last.map_or(0, |last| now.saturating_sub(last));
        self.trained_s = self.trained_s.saturating_add(since.min(LONGEST_STEP_S));
        self.last = Some(now);
        self.cpu.add(cpu, now);
        self.memory.add(memory, now);
    }

    /// [`Self::peak`] in the units of offers, rounded up.
    pub fn peak_amounts(&self, cold_start_s: u64, margin: u32) -> Option<Amounts> {
        let (cpu, memory) = self.peak(cold_start_s, margin)?;
        Some(Amounts::new(MilliCpu(cpu.div_ceil(1000)), Bytes(memory)))
    }

    /// CPU in microcores and memory in bytes that it will hardly exceed, `margin` percent included; `None` before it
    /// was trained for `cold_start_s`.
    pub fn peak(&self, cold_start_s: u64, margin: u32) -> Option<(u64, u64)> {
        if self.trained_s < cold_start_s || self.cpu.is_empty() {
            return None;
        }
        let with_margin = |amount: u64| {
            let scaled = u128::from(amount) * (100 + u128::from(margin)) / 100;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Some((
            with_margin(self.cpu.percentile(CPU_PERCENTILE)),
            with_margin(self.memory.percentile(MEMORY_PERCENTILE)),
        ))
    }

    /// What it takes beside its own size, bytes.
    pub fn heap_bytes(&self) -> usize {
        let of = |histogram: &Histogram| {
            histogram.buckets.capacity() + histogram.weights.capacity() * size_of::<u32>()
        };
        of(&self.cpu) + of(&self.memory)
    }

    /// When it was trained last.
    pub const fn last(&self) -> Option<u64> {
        self.last
    }

    /// False where what was read back cannot have been written by this version.
    pub fn is_sound(&self) -> bool {
        self.cpu.is_sound(Scale::Cpu) && self.memory.is_sound(Scale::Memory)
    }
}

/// What is predicted of a node, each with its margin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Of what prod pods ask for; those that are finished or being deleted do not count.
    pub requested: Amounts,
    /// The sum of what each is predicted to leave of its request.
    left: Amounts,
    /// The sum of what each is predicted to use at its peak, or of its request where nothing is predicted.
    used: Amounts,
}

impl Peaks {
    /// Adds a prod pod with its [`Model::peak`]; a pod without one leaves nothing.
    pub fn add(&mut self, request: Amounts, peak: Option<Amounts>) {
        self.requested = self.requested.plus(request);
        let peak = peak.unwrap_or(request);
        self.left = self.left.plus(request.minus(peak));
        self.used = self.used.plus(peak);
    }

    /// What prod pods will leave of what they ask for: the smaller of what their own peaks say, and of what the peaks
    /// of all of them together (`tier`) and of the system say; never more than the capacity less these peaks. `None`
    /// without a prediction of tier and system (koordinator `pkg/koordlet/prediction/peak_predictor.go`).
    pub fn reclaimable(
        &self,
        capacity: Amounts,
        tier: Option<Amounts>,
        system: Option<Amounts>,
    ) -> Option<Amounts> {
        let together = tier?.plus(system?);
        let by_pods = self.left.min(capacity.minus(self.used));
        let by_tier = self.requested.minus(together).min(capacity.minus(together));
        Some(by_pods.min(by_tier))
    }
}
