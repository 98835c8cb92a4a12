//! Any text as an answer of the API server or the kubelet: a list of pods, a line of a watch, or a Node, by the first
//! byte. Nothing panics, the pods can be planned, and those that a checkpoint keeps are the same afterwards.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden::pods::{Source, fuzz};

#[path = "../../policy/tests/support/kernel.rs"]
mod kernel;
#[path = "../../policy/tests/support/plan_laws.rs"]
mod plan_laws;
mod planned;

fuzz_target!(|text: &str| {
    let Some((kind, text)) = text.split_at_checked(1) else {
        return;
    };
    let read = match kind {
        "A" => fuzz::list(text, Source::Apiserver),
        "K" => fuzz::list(text, Source::Kubelet),
        "W" => fuzz::watch_line(text),
        "N" => {
            fuzz::node(text);
            return;
        }
        _ => return,
    };
    let Some((pods, errors)) = read else { return };
    for error in errors {
        assert!(!error.problem().to_string().is_empty());
    }
    let kept = fuzz::checkpoint(pods.clone());
    let objects: Vec<_> = pods.iter().filter(|pod| pod.is_object()).cloned().collect();
    assert_eq!(fuzz::restore(&kept), Some(objects));
    planned::all(pods.into_iter().map(|pod| pod.pod).collect());
});
