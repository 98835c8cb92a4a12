//! Any bytes as the checkpoint: nothing panics, and what is restored is restored the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden::pods::fuzz;

fuzz_target!(|bytes: &[u8]| {
    let Some(pods) = fuzz::restore(bytes) else {
        return;
    };
    let objects: Vec<_> = pods.iter().filter(|pod| pod.is_object()).cloned().collect();
    assert_eq!(fuzz::restore(&fuzz::checkpoint(pods)), Some(objects));
});
