//! Any texts as eviction thresholds: nothing panics, and what is read is in
//! order and within its bounds.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use podwarden_policy::threshold::{Amount, ThresholdConfig, parse_duration};

const CAPACITY: u64 = 1 << 40;

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let mut next = |separator| {
        let flag = lines.next().unwrap_or_default();
        // One value alone counts for memory, so that values are tried as often as signals.
        let flag = match flag.contains(separator) {
            true => flag.to_owned(),
            false => format!("memory.available{separator}{flag}"),
        };
        let pairs = flag
            .split(',')
            .filter_map(|pair| pair.split_once(separator));
        pairs
            .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            .collect::<BTreeMap<_, _>>()
    };
    let maps = [next('<'), next('<'), next('='), next('=')];
    let [hard, soft, grace, reclaim] = maps;
    for text in hard.values().chain(soft.values()) {
        amount(text);
    }
    for text in grace.values() {
        duration(text);
    }
    for enforce_pods in [false, true] {
        // Alone, too: most texts are no thresholds, and one error hides the rest.
        check(ThresholdConfig {
            eviction_hard: hard.clone(),
            enforce_pods,
            ..ThresholdConfig::default()
        });
        check(ThresholdConfig {
            eviction_hard: hard.clone(),
            eviction_soft: soft.clone(),
            eviction_soft_grace_period: grace.clone(),
            eviction_minimum_reclaim: reclaim.clone(),
            enforce_pods,
        });
    }
});

fn amount(text: &str) {
    let Ok(Some(amount)) = Amount::parse_threshold(text) else {
        return;
    };
    assert_eq!(
        Amount::parse_threshold(&amount.to_string()),
        Ok(Some(amount))
    );
    match amount {
        Amount::Quantity(quantity) => assert_eq!(amount.of(CAPACITY), quantity),
        Amount::Percent(_) => {
            assert!(amount.of(CAPACITY) < CAPACITY);
            assert!(amount.of(CAPACITY) <= amount.of(CAPACITY * 2));
        }
    }
}

fn duration(text: &str) {
    if let Some(duration) = parse_duration(text) {
        assert!(duration.as_nanos() <= i64::MAX as u128);
        let nanos = format!("{}ns", duration.as_nanos());
        assert_eq!(parse_duration(&nanos), Some(duration));
    }
}

fn check(config: ThresholdConfig) {
    let Ok(thresholds) = config.parse() else {
        return;
    };
    assert!(thresholds.is_sorted());
    let signals = config.eviction_hard.len() + config.eviction_soft.len();
    assert!(thresholds.len() <= signals + usize::from(config.enforce_pods));
    for threshold in &thresholds {
        assert!(threshold.is_hard() || !config.eviction_soft.is_empty());
    }
}
