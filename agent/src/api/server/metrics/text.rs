//! Families of series that come from a snapshot, in the exporter's own format.

use std::fmt::Display;

use ::metrics::{Key, Label};
use metrics_exporter_prometheus::{
    LabelSet,
    formatting::{write_help_line, write_metric_line, write_type_line},
};

/// The labels of a series.
pub(super) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> LabelSet {
    let labels = pairs.map(|(name, value)| Label::new(name, value.to_owned()));
    LabelSet::from_key_and_global(&Key::from_parts("", labels.to_vec()), &Default::default())
}

/// One family: its description once, then a line for each set of labels.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    pub(super) fn counter(text: &'a mut String, name: &'static str, help: &str) -> Self {
        Self::open(text, name, "counter", help)
    }

    pub(super) fn gauge(text: &'a mut String, name: &'static str, help: &str) -> Self {
        Self::open(text, name, "gauge", help)
    }

    pub(super) fn histogram(text: &'a mut String, name: &'static str, help: &str) -> Self {
        Self::open(text, name, "histogram", help)
    }

    fn open(text: &'a mut String, name: &'static str, kind: &str, help: &str) -> Self {
        write_help_line(text, name, None, None, help);
        write_type_line(text, name, None, None, kind);
        Self { text, name }
    }

    pub(super) fn add(&mut self, labels: &LabelSet, value: impl Display) {
        write_metric_line::<&str, _>(self.text, self.name, None, labels, None, value, None);
    }

    /// With one label more, whose value needs no escapes.
    pub(super) fn add_with(
        &mut self,
        labels: &LabelSet,
        label: (&'static str, &str),
        value: impl Display,
    ) {
        write_metric_line(self.text, self.name, None, labels, Some(label), value, None);
    }

    /// `buckets` are upper bound and count of each alone; the last has no bound.
    pub(super) fn add_buckets(
        &mut self,
        labels: &LabelSet,
        sum: f64,
        buckets: impl Iterator<Item = (Option<f64>, u64)>,
    ) {
        let mut total = 0;
        for (bound, count) in buckets {
            total += count;
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            let le = Some(("le", bound));
            write_metric_line(
                self.text,
                self.name,
                Some("bucket"),
                labels,
                le,
                total,
                None,
            );
        }
        for (suffix, value) in [("sum", sum), ("count", total as f64)] {
            let suffix = Some(suffix);
            write_metric_line::<&str, _>(self.text, self.name, suffix, labels, None, value, None);
        }
    }
}
