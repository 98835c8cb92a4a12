//! Any snapshot, written as JSON or made from bytes: it is planned, and the laws of `plan` hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden_policy::{
    plan::Snapshot,
    settings::{CpuShare, Observed},
};

#[path = "../../../tests/support/kernel.rs"]
mod kernel;
mod made;
#[path = "../../../tests/support/plan_laws.rs"]
mod plan_laws;

fuzz_target!(|bytes: &[u8]| {
    // A snapshot begins with a brace; what does not is taken for choices.
    let snapshot = match bytes.first() {
        Some(b'{') => match serde_json::from_slice::<Snapshot>(bytes) {
            Ok(snapshot) => snapshot,
            Err(_) => return,
        },
        _ => match made::snapshot(bytes) {
            Ok(snapshot) => snapshot,
            Err(_) => return,
        },
    };
    let weights = |o: &Observed| matches!(o.cpu, Some(CpuShare::Weight(_)));
    plan_laws::all(&snapshot, snapshot.cgroups.values().any(weights));

    let text = serde_json::to_string(&snapshot).expect("a snapshot can be written");
    let read: Snapshot = serde_json::from_str(&text).expect("what was written can be read");
    assert_eq!(read, snapshot);
});
