//! One run's figures, out of what was seen from outside. Without IO or clock.

use std::fmt;

use serde::{Deserialize, Serialize};
use workload::stamps::Stamp;

use super::MIB;
use super::sampler::Sample;
use super::signals::Sent;

/// The victim's memory counts as freed at this share of what it had when it was killed, percent.
const FREED_PERCENT: u64 = 10;
/// The victim's rate is that of so long before the crossing, nanoseconds.
const RATE_NANOS: u64 = 200_000_000;

/// One process of the victim, by its own notes.
#[derive(Debug)]
pub(super) struct Process {
    /// Its steps, in order.
    pub(super) stamps: Vec<Stamp>,
    /// All that it ever touched, bytes.
    pub(super) touched: u64,
}

impl Process {
    /// What it had touched at `nanos`, to a step.
    fn at(&self, nanos: u64) -> u64 {
        let after = self.stamps.partition_point(|stamp| stamp.nanos <= nanos);
        let before = after.checked_sub(1).map(|index| self.stamps[index].bytes);
        before.unwrap_or(0)
    }
}

/// How one run ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub(super) enum Outcome {
    /// The victim was killed and its memory came back.
    Killed(Figures),
    /// Another pod was killed.
    WrongVictim {
        /// Who.
        who: String,
    },
    /// The victim was not killed in time, or the memory did not come back.
    Failed {
        /// How.
        why: String,
    },
    /// Something else on the machine was in the way; the run says nothing about the daemon.
    #[serde(skip)]
    Spoiled(String),
}

/// The figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    /// What the victim touched from the crossing to its end, bytes. Negative where it was killed that
    /// far before the threshold.
    pub(super) overshoot_bytes: i64,
    /// Crossing to the first SIGKILL or SIGTERM, nanoseconds.
    pub(super) kill_nanos: u64,
    /// Crossing to nine tenths of its memory back, nanoseconds.
    pub(super) freed_nanos: u64,
    /// What the victim had at the crossing, bytes.
    pub(super) crossing_bytes: u64,
    /// What the victim had when it was killed, bytes.
    pub(super) victim_bytes: u64,
    /// How fast it filled in the last 200 ms before the crossing, MiB/s.
    pub(super) rate: f64,
    /// The longest time between two samples from the crossing to the kill, nanoseconds. The sampler comes
    /// before all but the daemons and looks every 0.1 or 0.5 ms: what is much longer was the machine's.
    pub(super) unseen_nanos: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(figures) => write!(
                f,
                "overshoot {:.3} MiB, kill after {:.3} ms, freed after {:.1} ms, {:.0} MiB at \
                 {:.0} MiB/s, unseen {:.2} ms",
                figures.overshoot_bytes as f64 / MIB as f64,
                figures.kill_nanos as f64 / 1e6,
                figures.freed_nanos as f64 / 1e6,
                figures.victim_bytes as f64 / MIB as f64,
                figures.rate,
                figures.unseen_nanos as f64 / 1e6
            ),
            Self::WrongVictim { who } => write!(f, "killed {who}, not the victim"),
            Self::Failed { why } => write!(f, "failed: {why}"),
            Self::Spoiled(why) => write!(f, "spoiled: {why}"),
        }
    }
}

/// The figures of a run in which nothing went wrong that the samples do not show.
pub(super) fn measure(samples: &[Sample], processes: &[Process], sent: &[Sent]) -> Outcome {
    let failed = |why: &str| Outcome::Failed {
        why: why.to_owned(),
    };
    let Some(kill) = sent.first().map(|sent| sent.nanos) else {
        return failed("no signal was sent");
    };
    let Some(at_kill) = samples.iter().rev().find(|sample| sample.nanos <= kill) else {
        return failed("it was killed before the first sample");
    };
    let freed = samples.iter().find(|sample| {
        sample.nanos > kill && sample.victim <= at_kill.victim / 100 * FREED_PERCENT
    });
    let Some(freed) = freed else {
        return failed("its memory did not come back");
    };
    let touched = |at| processes.iter().map(|process| process.at(at)).sum::<u64>();
    let (crossing, overshoot) = match crossing(samples) {
        Some(crossing) => {
            let end: u64 = processes.iter().map(|process| process.touched).sum();
            let overshoot = end.saturating_sub(touched(crossing));
            (crossing.min(kill), overshoot.cast_signed())
        }
        // Killed before it got there.
        None => {
            let nearest = samples.iter().map(|sample| sample.past).max();
            (kill, nearest.unwrap_or(0))
        }
    };
    let at_crossing = samples.iter().find(|sample| sample.nanos >= crossing);
    let before = crossing.saturating_sub(RATE_NANOS);
    let filled = touched(crossing).saturating_sub(touched(before));
    Outcome::Killed(Figures {
        overshoot_bytes: overshoot,
        kill_nanos: kill - crossing,
        freed_nanos: freed.nanos.saturating_sub(crossing),
        crossing_bytes: at_crossing.map_or(0, |sample| sample.victim),
        victim_bytes: at_kill.victim,
        rate: filled as f64 / MIB as f64 / (RATE_NANOS as f64 / 1e9),
        unseen_nanos: unseen(samples, crossing, kill),
    })
}

/// The longest time between two samples of which one at least is in the time given.
fn unseen(samples: &[Sample], from: u64, to: u64) -> u64 {
    samples
        .windows(2)
        .filter(|pair| pair[1].nanos >= from && pair[0].nanos <= to)
        .map(|pair| pair[1].nanos - pair[0].nanos)
        .max()
        .unwrap_or(0)
}

/// When the threshold was passed first: on the line between the two samples around it.
fn crossing(samples: &[Sample]) -> Option<u64> {
    let after = samples.iter().position(|sample| sample.past >= 0)?;
    let to = samples[after];
    let Some(from) = after.checked_sub(1).map(|index| samples[index]) else {
        return Some(to.nanos);
    };
    let part = from.past.unsigned_abs() as f64 / to.past.abs_diff(from.past).max(1) as f64;
    Some(from.nanos + ((to.nanos - from.nanos) as f64 * part) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sample(ms: u64, past: i64, victim: u64) -> Sample {
        Sample {
            nanos: ms * MS,
            past,
            victim,
        }
    }

    fn sent(ms: u64) -> Vec<Sent> {
        vec![Sent {
            nanos: ms * MS,
            by: "x".to_owned(),
        }]
    }

    /// A thousand bytes each millisecond, from 1000 at the start.
    fn process(to_ms: u64) -> Process {
        let stamps = (0..=to_ms).map(|ms| Stamp {
            nanos: ms * MS,
            bytes: 1000 * (ms + 1),
        });
        Process {
            stamps: stamps.collect(),
            touched: 1000 * (to_ms + 1) + 500,
        }
    }

    #[test]
    fn from_the_crossing_to_the_end() {
        let samples = [
            sample(0, -1000, 9_000),
            sample(10, -200, 10_000),
            // The threshold is passed at 12 ms.
            sample(20, 800, 10_500),
            sample(30, 900, 1_100),
            sample(40, -5000, 900),
            sample(50, -5000, 0),
        ];
        let Outcome::Killed(figures) = measure(&samples, &[process(22)], &sent(23)) else {
            panic!("it was killed");
        };
        assert_eq!(figures.kill_nanos, 11 * MS);
        assert_eq!(figures.overshoot_bytes, 23_500 - 13_000);
        assert_eq!(figures.freed_nanos, 28 * MS, "at a tenth of 10500");
        assert_eq!(figures.unseen_nanos, 10 * MS);
        assert_eq!(
            (figures.crossing_bytes, figures.victim_bytes),
            (10_500, 10_500)
        );
    }

    #[test]
    fn a_pause_counts_where_it_reaches_into_the_time() {
        let samples = [0, 1, 9, 10, 14, 15, 40].map(|ms| sample(ms, 0, 0));
        assert_eq!(unseen(&samples, 10 * MS, 12 * MS), 4 * MS);
        assert_eq!(unseen(&samples, 5 * MS, 12 * MS), 8 * MS);
        assert_eq!(unseen(&samples, 12 * MS, 20 * MS), 25 * MS);
        assert_eq!(unseen(&[], 0, MS), 0);
    }

    #[test]
    fn killed_before_the_threshold_is_negative() {
        let samples = [
            sample(0, -900, 1_000),
            sample(10, -300, 1_600),
            sample(20, -1900, 0),
        ];
        let Outcome::Killed(figures) = measure(&samples, &[process(9)], &sent(11)) else {
            panic!("it was killed");
        };
        assert_eq!((figures.overshoot_bytes, figures.kill_nanos), (-300, 0));
        assert_eq!(figures.freed_nanos, 9 * MS);
    }

    #[test]
    fn what_did_not_happen_is_a_failure() {
        let samples = [sample(0, -10, 100), sample(10, 10, 100)];
        assert!(matches!(
            measure(&samples, &[], &[]),
            Outcome::Failed { .. }
        ));
        assert!(
            matches!(measure(&samples, &[], &sent(5)), Outcome::Failed { why }
                if why.contains("come back"))
        );
    }
}
