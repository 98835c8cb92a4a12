//! Any text as a manifest, YAML or JSON: nothing panics, a second reading finds the same, and the pods can be planned.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden::pods::manifest;
use podwarden_policy::qos;

#[path = "../../policy/tests/support/kernel.rs"]
mod kernel;
#[path = "../../policy/tests/support/plan_laws.rs"]
mod plan_laws;
mod planned;

/// More documents than this are refused.
const MOST: usize = 1024;

fuzz_target!(|text: &str| {
    let found = manifest::parse(text);
    assert_eq!(manifest::parse(text), found);
    let is_blank = manifest::is_blank(text);
    let mut pods = Vec::new();
    for (document, parsed) in found {
        assert!((1..=MOST + 1).contains(&document));
        match parsed {
            Ok((pod, class)) => {
                assert!(!is_blank);
                assert_eq!(qos::classify(&pod), class);
                pods.push(pod);
            }
            Err(problem) => assert!(!problem.to_string().is_empty()),
        }
    }
    planned::all(pods);
});
