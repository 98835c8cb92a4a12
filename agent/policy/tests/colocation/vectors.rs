//! `tests/vectors/koordinator.json`: the rows of Koordinator's own tests (`suites`) and rows computed from its
//! formulas (`derived`).

use std::sync::LazyLock;

use serde_json::Value;

static VECTORS: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../vectors/koordinator.json");
    serde_json::from_str(text).expect("tests/vectors/koordinator.json")
});

/// One row: what it is called in messages, its input and its output.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) input: &'static Value,
    pub(super) output: &'static Value,
}

/// The rows of a suite, from both parts of the file. A suite that is not there, or has none, fails.
pub(super) fn rows(suite: &str) -> Vec<Row> {
    let parts = ["suites", "derived"];
    let rows: Vec<Row> = parts
        .into_iter()
        .flat_map(|part| {
            let cases = VECTORS[part][suite]["cases"].as_array();
            cases.into_iter().flatten().map(move |case| Row {
                name: format!("{part}.{suite} {}", case["id"]),
                input: &case["in"],
                output: &case["out"],
            })
        })
        .collect();
    assert!(!rows.is_empty(), "no rows of {suite}");
    rows
}

/// Cores with decimals as thousandths; the file has at most three decimals.
pub(super) fn milli(cores: &Value) -> u64 {
    let text = cores.to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    format!("{whole}{decimals:0<3}").parse().expect(&text)
}

/// A whole number.
pub(super) fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no whole number"))
}

/// What `requests` of all containers name, in all.
pub(super) fn requested(pod: &Value, resource: &str) -> u64 {
    let containers = pod["containers"].as_array().into_iter().flatten();
    containers
        .filter_map(|container| container["requests"][resource].as_u64())
        .sum()
}
