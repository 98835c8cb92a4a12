//! One event with its flight record, as text.

use super::text;
use crate::{
    api::types::{Curve, EventRecord, FlightRecord},
    cli::output,
};

/// Rows of the table of usage.
const ROWS: usize = 16;

/// Several lines, without a newline at the end.
pub(super) fn text(record: &EventRecord) -> String {
    let mut text = text::lines(&record.event);
    match &record.flight_record {
        Some(flight) => {
            text += &levels(flight);
            text += &exits(flight);
            text += &ranking(flight);
            text += &usage(flight);
        }
        None => text += "\n      no curves: not recorded, or not yet",
    }
    text
}

fn levels(flight: &FlightRecord) -> String {
    let mut text = format!("\n\nSIGNAL  {}", flight.signal);
    for level in &flight.levels {
        text += &format!(
            "\n  {:<10}  acts at {}, down to {}",
            level.scope,
            output::bytes(level.level_bytes),
            output::bytes(level.target_bytes)
        );
    }
    text
}

fn exits(flight: &FlightRecord) -> String {
    if flight.exits.is_empty() {
        return String::new();
    }
    let mut text = format!("\n\n{:>10}  EXIT", "SINCE");
    for exit in &flight.exits {
        let how = exit.signal.map_or_else(String::new, |signal| {
            format!(" by {}", output::signal(signal))
        });
        text += &format!(
            "\n{:>10}  {}[{}]{how}",
            since(i128::from(exit.at_nanos) - i128::from(flight.origin_nanos)),
            output::printable(&exit.command),
            exit.pid,
        );
    }
    text
}

fn ranking(flight: &FlightRecord) -> String {
    if flight.ranking.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n\n  RANK  {:<36}  {:>8}  WHY ({} candidates)",
        "POD", "USED", flight.candidates
    );
    for (number, ranked) in (1..).zip(&flight.ranking) {
        text += &format!(
            "\n  {number:>4}  {:<36}  {:>8}  {}",
            text::name(&ranked.pod),
            output::bytes(ranked.usage_bytes),
            output::printable(&ranked.reason)
        );
    }
    text
}

/// Usage at some of the moments of the first pod's curve, which is the event's own.
fn usage(flight: &FlightRecord) -> String {
    let own = flight.curves.iter().find(|curve| curve.pod.is_some());
    let Some(own) = own.or(flight.curves.first()) else {
        return String::new();
    };
    let mut text = format!("\n\n{:>10}", "SINCE");
    for curve in &flight.curves {
        text += &format!("  {:>12}", name(curve));
    }
    let every = own.offset_nanos.len().div_ceil(ROWS).max(1);
    let last = own.offset_nanos.len().saturating_sub(1);
    for (index, at) in own.offset_nanos.iter().enumerate() {
        if index % every != 0 && index != last {
            continue;
        }
        text += &format!("\n{:>10}", since(i128::from(*at)));
        for curve in &flight.curves {
            let usage = usage_at(curve, *at).map_or_else(|| "-".to_owned(), output::bytes);
            text += &format!("  {usage:>12}");
        }
    }
    text
}

/// Usage at the last point no later than `at`.
fn usage_at(curve: &Curve, at: i64) -> Option<u64> {
    let after = curve.offset_nanos.partition_point(|time| *time <= at);
    curve.usage_bytes.get(after.checked_sub(1)?).copied()
}

fn name(curve: &Curve) -> String {
    let name = match (&curve.scope, &curve.pod) {
        (Some(scope), _) => scope.to_string(),
        (None, Some(pod)) => output::printable(&pod.name),
        (None, None) => String::new(),
    };
    name.chars().take(12).collect()
}

fn since(offset: i128) -> String {
    let nanos = u64::try_from(offset.unsigned_abs()).unwrap_or(u64::MAX);
    let sign = if offset < 0 { '-' } else { '+' };
    format!("{sign}{}", output::nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::events::picture;

    #[test]
    fn the_whole_record_as_text() {
        let record = picture::example();
        let text = text(&record);
        for line in [
            "SIGNAL  memory.available",
            "  kubepods    acts at 1.50Gi, down to 1.46Gi",
            " +60.0 ms  fill[4242] by SIGKILL",
            "     1  batch/hog                                ",
            "     SINCE      kubepods     burstable           hog           web",
            "   -10.0 s        1.00Gi             0        64.0Mi         700Mi",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(!text.ends_with('\n'));
    }

    #[test]
    fn without_a_flight_it_says_so() {
        let record = EventRecord {
            flight_record: None,
            ..picture::example()
        };
        assert!(text(&record).ends_with("no curves: not recorded, or not yet"));
    }
}
