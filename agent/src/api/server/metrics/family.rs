//! One family of series: its description once, then a line for each set of labels.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

/// Nanoseconds in a second.
pub(super) const NANOS: f64 = 1e9;

/// What a family is called and what it means.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
    /// Without unit and `_total`, which the encoder adds.
    pub(super) name: &'static str,
    /// One sentence.
    pub(super) help: &'static str,
    pub(super) unit: Option<Base>,
    pub(super) kind: MetricType,
}

/// Base units in use.
#[derive(Debug, Clone, Copy)]
pub(super) enum Base {
    Seconds,
    Bytes,
}

impl Base {
    const fn unit(self) -> &'static Unit {
        match self {
            Self::Seconds => &Unit::Seconds,
            Self::Bytes => &Unit::Bytes,
        }
    }
}

/// A family whose description is written and which takes values.
pub(super) struct Family<'a>(MetricEncoder<'a>);

impl<'a> Family<'a> {
    pub(super) fn open(
        encoder: &'a mut DescriptorEncoder<'_>,
        metric: &Metric,
    ) -> Result<Self, fmt::Error> {
        encoder
            .encode_descriptor(
                metric.name,
                metric.help,
                metric.unit.map(Base::unit),
                metric.kind,
            )
            .map(Self)
    }

    /// A count.
    pub(super) fn counter<const N: usize>(
        &mut self,
        labels: &[(&str, &str); N],
        value: u64,
    ) -> fmt::Result {
        if N == 0 {
            // A family of one would be written with empty braces.
            return self.0.encode_counter::<NoLabelSet, _, u64>(&value, None);
        }
        self.0
            .encode_family(labels)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// A counter of time, kept in nanoseconds and shown in seconds.
    pub(super) fn seconds<const N: usize>(
        &mut self,
        labels: &[(&str, &str); N],
        nanos: u64,
    ) -> fmt::Result {
        self.0
            .encode_family(labels)?
            .encode_counter::<NoLabelSet, _, f64>(&(nanos as f64 / NANOS), None)
    }

    /// A figure that goes up and down.
    pub(super) fn gauge<const N: usize>(
        &mut self,
        labels: &[(&str, &str); N],
        value: u64,
    ) -> fmt::Result {
        // Exact: no machine has 2^63 bytes, and more would read as that.
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        if N == 0 {
            // A family of one would be written with empty braces.
            return self.0.encode_gauge(&value);
        }
        self.0.encode_family(labels)?.encode_gauge(&value)
    }

    /// A figure that is not whole; of the agent, so without labels.
    pub(super) fn real(&mut self, value: f64) -> fmt::Result {
        self.0.encode_gauge(&value)
    }

    /// What is told by labels alone.
    pub(super) fn info<const N: usize>(&mut self, labels: &[(&str, &str); N]) -> fmt::Result {
        self.0.encode_info(labels)
    }

    /// `buckets` are upper bound and count of each alone; the last bound is [`f64::INFINITY`].
    pub(super) fn histogram<const N: usize>(
        &mut self,
        labels: &[(&str, &str); N],
        sum: f64,
        buckets: &[(f64, u64)],
    ) -> fmt::Result {
        let count = buckets.iter().map(|(_, n)| n).sum();
        self.0
            .encode_family(labels)?
            .encode_histogram::<NoLabelSet>(sum, count, buckets, None)
    }
}
