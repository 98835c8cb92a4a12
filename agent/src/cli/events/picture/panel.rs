//! One plot: axes, curves, levels and marks, in a rectangle of the picture.

use super::{Line, Mark, axis, escaped};
use crate::cli::output;

/// Where the plot itself is, in the picture's units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// What is shown of time (nanoseconds since the origin) and size (bytes, from 0).
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) most: u64,
}

/// See the module's text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    pub(super) frame: Frame,
    pub(super) view: View,
    /// Its name within the picture, for the clip path.
    pub(super) id: &'static str,
}

impl Panel {
    fn x(&self, at: i64) -> f64 {
        let Frame { left, width, .. } = self.frame;
        let span = (self.view.to - self.view.from).max(1) as f64;
        left + width * ((at - self.view.from) as f64 / span)
    }

    fn y(&self, bytes: u64) -> f64 {
        let Frame { top, height, .. } = self.frame;
        top + height * (1.0 - bytes as f64 / self.view.most.max(1) as f64)
    }

    fn bottom(&self) -> f64 {
        self.frame.top + self.frame.height
    }

    fn right(&self) -> f64 {
        self.frame.left + self.frame.width
    }

    /// The plot with its title above it.
    pub(super) fn draw(
        &self,
        title: &str,
        lines: &[Line<'_>],
        level: Option<(u64, &str)>,
        marks: &[Mark],
        labelled: bool,
    ) -> String {
        let Frame {
            left,
            top,
            width,
            height,
        } = self.frame;
        let id = self.id;
        let mut svg = format!(
            "<g>\n<text class=\"head\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>\n\
             <clipPath id=\"{id}\"><rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/></clipPath>\n",
            top - 26.0,
            escaped(title),
            top - 2.0,
            height + 4.0,
        );
        svg += &self.grid();
        for mark in marks {
            svg += &self.mark(mark);
        }
        if labelled {
            svg += &self.labels(marks);
        }
        if let Some((bytes, name)) = level {
            svg += &self.level(bytes, name, labelled);
        }
        svg += &format!("<g clip-path=\"url(#{id})\">\n");
        for line in lines {
            svg += &self.curve(line);
        }
        svg + "</g>\n</g>\n"
    }

    fn grid(&self) -> String {
        let Frame { left, .. } = self.frame;
        let (right, bottom) = (self.right(), self.bottom());
        let mut svg = String::new();
        for bytes in axis::binary(self.view.most, 5) {
            let y = self.y(bytes);
            svg += &format!(
                "<line class=\"grid\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\n\
                 <text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                left - 8.0,
                y + 4.0,
                output::bytes(bytes),
            );
        }
        for at in axis::decimal(self.view.from, self.view.to, 9) {
            let x = self.x(at);
            svg += &format!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{bottom:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\n\
                 <text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                bottom + 5.0,
                bottom + 18.0,
                tick(at, self.view.to - self.view.from),
            );
        }
        svg
    }

    fn mark(&self, mark: &Mark) -> String {
        let (x, bottom) = (self.x(mark.at), self.bottom());
        format!(
            "<line class=\"mark {}\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\n",
            mark.class, self.frame.top
        )
    }

    /// The marks' numbers above them, side by side where the marks are too close.
    fn labels(&self, marks: &[Mark]) -> String {
        let mut svg = String::new();
        let mut free = self.frame.left;
        for mark in marks.iter().filter(|mark| !mark.label.is_empty()) {
            let x = self.x(mark.at).max(free);
            free = x + 10.0 * mark.label.len() as f64;
            svg += &format!(
                "<text class=\"label\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                self.frame.top - 7.0,
                mark.label,
            );
        }
        svg
    }

    /// Its name stands where there are fewer marks.
    fn level(&self, bytes: u64, name: &str, centred: bool) -> String {
        let (y, left, right) = (self.y(bytes), self.frame.left, self.right());
        let (x, anchor) = match centred {
            true => ((left + right) / 2.0, "middle"),
            false => (left + 6.0, "start"),
        };
        format!(
            "<line class=\"level\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\n\
             <text class=\"label\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
            y - 5.0,
            escaped(name),
        )
    }

    /// The part of a curve that is in view, and the point before and after it.
    fn curve(&self, line: &Line<'_>) -> String {
        let points = line.points();
        let first = points.partition_point(|(at, _)| *at < self.view.from);
        let end = points.partition_point(|(at, _)| *at <= self.view.to);
        let seen = &points[first.saturating_sub(1)..points.len().min(end + 1)];
        let path: Vec<_> = seen
            .iter()
            .map(|(at, bytes)| format!("{:.1},{:.1}", self.x(*at), self.y(*bytes)))
            .collect();
        format!(
            "<polyline class=\"curve {}\" points=\"{}\"/>\n",
            line.class,
            path.join(" ")
        )
    }
}

/// A moment in the unit that suits the span.
fn tick(at: i64, span: i64) -> String {
    let sign = if at < 0 { "\u{2212}" } else { "" };
    let (value, unit) = match span {
        0..20_000_000 if span < 20_000 => (at.unsigned_abs(), "ns"),
        0..20_000_000 => (at.unsigned_abs() / 1_000, "us"),
        20_000_000..20_000_000_000 if span < 4_000_000_000 => (at.unsigned_abs() / 1_000_000, "ms"),
        _ => {
            let millis = at.unsigned_abs() / 1_000_000;
            let (whole, rest) = (millis / 1000, millis % 1000);
            return match rest {
                0 if whole == 0 => "0".to_owned(),
                0 => format!("{sign}{whole} s"),
                rest => format!("{sign}{whole}.{} s", rest / 100),
            };
        }
    };
    match value {
        0 => "0".to_owned(),
        value => format!("{sign}{value} {unit}"),
    }
}
