use podwarden_policy::{Bytes, MilliCpu};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::api::types::Amount;

const MI: u64 = 1 << 20;

fn config(cold_start_s: u64) -> ReclaimedConfig {
    ReclaimedConfig {
        enable: true,
        cold_start: Duration::from_secs(cold_start_s),
        ..ReclaimedConfig::default()
    }
}

fn capacity() -> Amounts {
    Amounts::new(MilliCpu(16_000), Bytes::gibi(32))
}

/// A node with one prod pod that uses `milli` of CPU and this memory, and a system that uses half a CPU and 1 GiB.
struct Node {
    prediction: Prediction,
    uid: PodUid,
    start: Instant,
    at_s: u64,
    cpu_ns: u64,
    machine_ns: u64,
}

impl Node {
    fn new(prediction: Prediction) -> Self {
        Self {
            prediction,
            uid: "p".into(),
            start: Instant::now(),
            at_s: 0,
            cpu_ns: 0,
            machine_ns: 0,
        }
    }

    fn run(&mut self, seconds: u64, milli: u64, memory: u64) {
        self.at_s += seconds;
        self.cpu_ns += seconds * milli * 1_000_000;
        self.machine_ns += seconds * (milli + 500) * 1_000_000;
        let now = self.start + Duration::from_secs(self.at_s);
        let reading = PodReading {
            uid: &self.uid,
            cpu_ns: self.cpu_ns,
            memory,
            prod: true,
        };
        let machine_memory = memory + 1024 * MI;
        self.prediction
            .learn(now, self.machine_ns, machine_memory, &[reading]);
    }

    fn predict(&self) -> PredictionStats {
        let request = Amounts::new(MilliCpu(4000), Bytes::gibi(8));
        self.prediction
            .predict(capacity(), [(&self.uid, request)].into_iter())
    }
}

#[test]
fn a_warm_pod_leaves_its_request_less_its_peak() {
    let mut node = Node::new(Prediction::new(&config(600), None, "n"));
    for _ in 0..60 {
        node.run(10, 1000, 2048 * MI);
        assert_eq!(node.predict().reclaimable, None, "cold");
        assert_eq!(node.predict().cold_pods, 1);
    }
    for _ in 0..2 {
        node.run(10, 1000, 2048 * MI);
    }
    let got = node.predict();
    assert_eq!((got.predicted_pods, got.cold_pods), (1, 0));
    let reclaimable = got.reclaimable.unwrap();
    // 4 CPUs less 1.1, and by the tier also less 0.55 of the system; buckets are up to 5 % wide.
    assert!(
        (2150..=2350).contains(&reclaimable.cpu_milli),
        "{reclaimable:?}"
    );
    let gib = reclaimable.memory_bytes as f64 / (1024 * MI) as f64;
    assert!((4.4..=4.7).contains(&gib), "{gib}");
    // A pod that is new leaves nothing of its own, and its request counts for the tier.
    let other = PodUid::from("new");
    let request = Amounts::new(MilliCpu(4000), Bytes::gibi(8));
    let both = [(&node.uid, request), (&other, request)];
    let both = node.prediction.predict(capacity(), both.into_iter());
    assert!(both.reclaimable.unwrap().cpu_milli <= 2_900);
    assert_eq!(both.cold_pods, 1);
}

#[test]
fn a_burst_between_two_readings_counts() {
    let mut node = Node::new(Prediction::new(&config(60), None, "n"));
    for round in 0..100 {
        // 0.2 CPUs; every tenth time 30 CPU seconds of three at 10 CPUs are over before the reading.
        let milli = if round % 10 == 9 { 3200 } else { 200 };
        node.run(10, milli, 100 * MI);
    }
    let Amount { cpu_milli, .. } = node.predict().prod_peak.unwrap();
    assert!((3500..=3800).contains(&cpu_milli), "{cpu_milli}");
}

#[test]
fn readings_in_quick_succession_are_one_sample() {
    let mut often = Node::new(Prediction::new(&config(0), None, "n"));
    let mut seldom = Node::new(Prediction::new(&config(0), None, "n"));
    for round in 0..50 {
        let milli = if round < 25 { 2000 } else { 100 };
        for _ in 0..10 {
            often.run(1, milli, 100 * MI);
        }
        seldom.run(10, milli, 100 * MI);
    }
    assert_eq!(often.predict().prod_peak, seldom.predict().prod_peak);
}

#[test]
fn the_next_agent_goes_on_where_this_one_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let new = || Prediction::new(&config(600), Some(dir.path()), "n");
    let mut node = Node::new(new());
    for _ in 0..100 {
        node.run(10, 1000, 2048 * MI);
    }
    let before = node.predict();
    assert!(before.reclaimable.is_some());
    // Killed: nothing is written at the end.
    let mut next = Node::new(new());
    assert_eq!(next.predict(), before);
    assert_eq!(next.prediction.known(), 1);
    next.run(10, 1000, 2048 * MI);
    next.run(10, 1000, 2048 * MI);
    assert_eq!(next.predict(), before);
    // What is not sound begins anew.
    std::fs::write(dir.path().join("prediction.json"), "{").unwrap();
    assert_eq!(Node::new(new()).predict().reclaimable, None);
}

#[test]
fn a_pod_that_is_gone_is_forgotten_later() {
    let mut node = Node::new(Prediction::new(&config(0), None, "n"));
    node.run(10, 1000, MI);
    node.run(10, 1000, MI);
    let now = |s: u64| node.start + Duration::from_secs(s);
    let (soon, late) = (now(3000), now(20 + FORGET_S + 2));
    node.prediction.learn(soon, node.machine_ns, 0, &[]);
    assert_eq!(node.prediction.known(), 1);
    node.prediction.learn(late, node.machine_ns, 0, &[]);
    assert_eq!(node.prediction.known(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// However often the counter is read, no usage is lost, and none is invented.
    #[test]
    fn a_peak_is_within_what_was_used(
        steps in vec((1u64..40, 0u64..8000), 2..60),
        constant in any::<bool>(),
    ) {
        let mut node = Node::new(Prediction::new(&config(0), None, "n"));
        node.run(1, 0, MI);
        let least = steps[0].1;
        let mut most = 0;
        for (step, milli) in &steps {
            let milli = if constant { least } else { *milli };
            node.run(*step, milli, MI);
            most = most.max(milli);
        }
        // Closes the last sample.
        node.run(10, most, MI);
        let (peak, _) = node.prediction.prod.model().peak(0, 0).unwrap();
        prop_assert!(peak <= most * 1050 + 25_001, "{peak}");
        prop_assert!(!constant || peak >= least * 1000, "{peak}");
    }
}

/// A pod's model in memory and on the disk, after a day of every kind of usage.
#[test]
fn a_pod_takes_a_few_hundred_bytes() {
    let mut model = Model::default();
    for at in 0..8640_u64 {
        // A day's swing of CPU with noise, and memory that hardly changes.
        let noise = at.wrapping_mul(2_654_435_761) % 1000;
        let cpu = 400_000 + (at % 4320) * 100 + noise * 300;
        model.train(cpu, (2 << 30) + noise * MI / 4, at * 10);
    }
    let text = serde_json::to_vec(&model).unwrap();
    assert!(text.len() < 900, "{} bytes on the disk", text.len());
    let size = size_of::<Meter>() + model.heap_bytes();
    assert!(size < 700, "{size} bytes in memory");
}
