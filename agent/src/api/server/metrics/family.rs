//! Families of series that come from a snapshot, in the exporter's own format.
//!
//! A node has tens of thousands of lines, which differ in labels and value alone: labels are written once for a pod,
//! bounds once for a family. The exporter's functions write them again for each line.

use std::fmt::Write as _;

use metrics_exporter_prometheus::formatting::{
    sanitize_label_value, write_help_line, write_type_line,
};

use super::text::Text;

/// The labels of a series, as they stand between the braces.
#[derive(Debug, Default)]
pub(super) struct Labels(String);

/// Labels of these names, which need no escapes, and of any values.
pub(super) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    let mut text = String::with_capacity(pairs.iter().map(|(n, v)| n.len() + v.len() + 4).sum());
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        match value.contains(['\\', '"', '\n']) {
            true => text.push_str(&sanitize_label_value(value)),
            false => text.push_str(value),
        }
        text.push('"');
    }
    Labels(text)
}

/// A sample's value.
pub(super) trait Value {
    fn write(self, text: &mut String);
}

impl Value for u64 {
    fn write(self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(self));
    }
}

impl Value for usize {
    fn write(self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(self));
    }
}

impl Value for f64 {
    fn write(self, text: &mut String) {
        let _ = write!(text, "{self}");
    }
}

/// Nanoseconds that are written as seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seconds(pub(super) u64);

/// Nanoseconds in a second.
const NANOS: u64 = 1_000_000_000;

/// Below it nanoseconds have at most 15 digits, which a double tells apart: the shortest text of the double of the
/// seconds has exactly these digits.
const EXACT: u64 = 1_000_000_000_000_000;

impl Value for Seconds {
    fn write(self, text: &mut String) {
        let Self(nanos) = self;
        if nanos >= EXACT {
            return (nanos as f64 / NANOS as f64).write(text);
        }
        (nanos / NANOS).write(text);
        let rest = nanos % NANOS;
        if rest == 0 {
            return;
        }
        // The digit in front keeps the zeros after the point.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(NANOS + rest).trim_end_matches('0');
        text.push('.');
        text.push_str(&digits[1..]);
    }
}

/// Upper bounds of a histogram's buckets; the last bucket has none.
#[derive(Debug, Default)]
pub(super) struct Bounds(Vec<String>);

impl Bounds {
    /// Makes them those of so many buckets, each of which is `joined` of those that are twice as wide as the one before.
    pub(super) fn resize(&mut self, buckets: usize, joined: usize) {
        if self.0.len() != buckets {
            let bounds = super::log2_bounds().skip(joined - 1).step_by(joined);
            let bounds = bounds.map(|bound| bound.to_string());
            self.0 = bounds.take(buckets.saturating_sub(1)).collect();
            self.0.resize(buckets, "+Inf".to_owned());
        }
    }
}

/// Name and help of a family, and the figure of one that has it.
pub(super) type Figure<T, V> = (&'static str, &'static str, fn(&T) -> Option<V>);

/// Counters of those with these labels.
pub(super) fn counters<T, V: Value>(
    text: &mut Text,
    of: &[(Labels, &T)],
    figures: &[Figure<T, V>],
) {
    for (name, help, figure) in figures {
        Family::counter(text, name, help).add_each(of, *figure);
    }
}

/// The same for gauges.
pub(super) fn gauges<T, V: Value>(text: &mut Text, of: &[(Labels, &T)], figures: &[Figure<T, V>]) {
    for (name, help, figure) in figures {
        Family::gauge(text, name, help).add_each(of, *figure);
    }
}

/// One family: its description once, then a line for each set of labels.
pub(super) struct Family<'a> {
    text: &'a mut Text,
    name: &'static str,
}

impl<'a> Family<'a> {
    pub(super) fn counter(text: &'a mut Text, name: &'static str, help: &str) -> Self {
        Self::open(text, name, "counter", help)
    }

    pub(super) fn gauge(text: &'a mut Text, name: &'static str, help: &str) -> Self {
        Self::open(text, name, "gauge", help)
    }

    pub(super) fn histogram(text: &'a mut Text, name: &'static str, help: &str) -> Self {
        Self::open(text, name, "histogram", help)
    }

    fn open(text: &'a mut Text, name: &'static str, kind: &str, help: &str) -> Self {
        write_help_line(text.lines(), name, None, None, help);
        write_type_line(text.lines(), name, None, None, kind);
        Self { text, name }
    }

    pub(super) fn add(&mut self, labels: &Labels, value: impl Value) {
        self.line("", labels, None, value);
    }

    /// A line for each that has the figure.
    fn add_each<T, V: Value>(&mut self, of: &[(Labels, &T)], figure: fn(&T) -> Option<V>) {
        for (labels, one) in of {
            if let Some(value) = figure(one) {
                self.add(labels, value);
            }
        }
    }

    /// With one label more, whose value needs no escapes.
    pub(super) fn add_with(
        &mut self,
        labels: &Labels,
        label: (&'static str, &str),
        value: impl Value,
    ) {
        self.line("", labels, Some(label), value);
    }

    /// `counts` are those of each bucket alone, as many as there are bounds.
    pub(super) fn add_buckets(
        &mut self,
        labels: &Labels,
        sum: Seconds,
        bounds: &Bounds,
        counts: &[u64],
    ) {
        let mut total: u64 = 0;
        for (bound, count) in bounds.0.iter().zip(counts) {
            total = total.saturating_add(*count);
            self.line("_bucket", labels, Some(("le", bound)), total);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, total);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &Labels,
        label: Option<(&str, &str)>,
        value: impl Value,
    ) {
        let text = self.text.lines();
        text.push_str(self.name);
        text.push_str(suffix);
        let Labels(labels) = labels;
        if !labels.is_empty() || label.is_some() {
            text.push('{');
            text.push_str(labels);
            if let Some((name, value)) = label {
                if !labels.is_empty() {
                    text.push(',');
                }
                for part in [name, "=\"", value, "\""] {
                    text.push_str(part);
                }
            }
            text.push('}');
        }
        text.push(' ');
        value.write(text);
        text.push('\n');
        self.text.line_ended();
    }
}

#[cfg(test)]
mod tests {
    use ::metrics::{Key, Label};
    use metrics_exporter_prometheus::{LabelSet, formatting::write_metric_line};

    use super::*;

    /// As the exporter writes labels.
    fn theirs<const N: usize>(pairs: [(&'static str, &str); N]) -> LabelSet {
        let labels = pairs.map(|(name, value)| Label::new(name, value.to_owned()));
        LabelSet::from_key_and_global(&Key::from_parts("", labels.to_vec()), &Default::default())
    }

    const NAME: &str = "podwarden_name_total";

    /// Both write one line.
    fn assert_same(
        pairs: [(&'static str, &str); 2],
        label: Option<(&'static str, &str)>,
        value: impl Value,
        shown: impl std::fmt::Display,
    ) {
        let (mut text, mut exporters) = (Text::default(), String::new());
        let name = NAME;
        Family {
            text: &mut text,
            name,
        }
        .line("", &labels(pairs), label, value);
        write_metric_line(
            &mut exporters,
            NAME,
            None,
            &theirs(pairs),
            label,
            shown,
            None,
        );
        assert_eq!(text.whole(), exporters);
    }

    #[test]
    fn lines_are_those_of_the_exporter() {
        let values = [
            "",
            "web-1",
            "a\"b",
            "a\\b",
            "a\\\\b",
            "\\",
            "a\nb",
            "\u{e9}\u{1f600}",
        ];
        for one in values {
            for other in values {
                let pairs = [("namespace", one), ("pod", other)];
                assert_same(pairs, None, 7_u64, 7);
                assert_same(pairs, Some(("kind", "direct_reclaim")), 7_usize, 7);
            }
        }
        let (mut text, mut exporters) = (Text::default(), String::new());
        let mut family = Family {
            text: &mut text,
            name: NAME,
        };
        family.add(&labels([]), u64::MAX);
        family.add_with(&labels([]), ("kind", "a"), 1.5);
        let none = theirs([]);
        write_metric_line::<&str, _>(&mut exporters, NAME, None, &none, None, u64::MAX, None);
        write_metric_line(
            &mut exporters,
            NAME,
            None,
            &none,
            Some(("kind", "a")),
            1.5,
            None,
        );
        assert_eq!(text.whole(), exporters);
    }

    #[test]
    fn seconds_are_written_as_their_double_is() {
        let mut some = vec![
            0,
            1,
            10,
            999,
            NANOS - 1,
            NANOS,
            NANOS + 1,
            10 * NANOS,
            EXACT - 1,
        ];
        some.extend([EXACT, EXACT + 1, (1 << 53) - 1, (1 << 53) + 1, u64::MAX]);
        some.extend((0..64).map(|bit| 1_u64 << bit));
        some.extend((0..100_000).map(|_| fastrand::u64(..) >> fastrand::u32(..64)));
        for nanos in some {
            let mut text = String::new();
            Seconds(nanos).write(&mut text);
            assert_eq!(text, (nanos as f64 / 1e9).to_string(), "{nanos} ns");
        }
    }

    #[test]
    fn buckets_are_cumulative_and_the_last_has_no_bound() {
        let mut text = Text::default();
        let mut family = Family {
            text: &mut text,
            name: "waits_seconds",
        };
        let mut bounds = Bounds::default();
        bounds.resize(3, 1);
        family.add_buckets(&labels([("pod", "a")]), Seconds(1_500), &bounds, &[2, 0, 3]);
        let expected = "waits_seconds_bucket{pod=\"a\",le=\"0.000002\"} 2
waits_seconds_bucket{pod=\"a\",le=\"0.000004\"} 2
waits_seconds_bucket{pod=\"a\",le=\"+Inf\"} 5
waits_seconds_sum{pod=\"a\"} 0.0000015
waits_seconds_count{pod=\"a\"} 5
";
        assert_eq!(text.whole(), expected);
    }

    #[test]
    fn joined_buckets_have_every_second_bound() {
        let mut bounds = Bounds::default();
        bounds.resize(4, 2);
        assert_eq!(bounds.0, ["0.000004", "0.000016", "0.000064", "+Inf"]);
    }
}
