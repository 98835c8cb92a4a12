//! Usage over time: curves, a level and numbered moments.

use std::ops::Range;

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Area, BLACK, GREY, PALE, RED, Weight, style, text};

/// Bytes over nanoseconds.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) colour: RGBColor,
    /// Pixels.
    pub(crate) width: u32,
    /// In the order of time.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A moment that is worth a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Nanoseconds.
    pub(crate) at: f64,
    pub(crate) colour: RGBColor,
    /// Stands above the plot where moments are numbered.
    pub(crate) number: Option<usize>,
}

/// Where on the page a plot stands, without its title and the labels of its axes; pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) left: i32,
    pub(crate) top: i32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Space for the labels of the axes.
const LABELS: (u32, u32) = (66, 44);

/// One plot.
#[derive(Debug, Clone)]
pub(crate) struct Timeline<'a> {
    pub(crate) title: &'a str,
    /// The moment that times count from.
    pub(crate) origin: &'a str,
    /// The visible part of the curves, nanoseconds.
    pub(crate) view: Range<f64>,
    /// The end of the other axis, bytes.
    pub(crate) most: f64,
    pub(crate) curves: &'a [Curve],
    /// Bytes and name.
    pub(crate) level: Option<(f64, &'a str)>,
    pub(crate) moments: &'a [Moment],
    pub(crate) numbered: bool,
}

/// A unit of an axis, in the unit of the values.
struct Unit {
    name: &'static str,
    size: f64,
}

/// The largest of `units` that the span has several of.
fn unit<const N: usize>(span: f64, units: [(&'static str, f64); N]) -> Unit {
    let fits = units.iter().rev().find(|(_, size)| span >= 4.0 * size);
    let (name, size) = *fits.unwrap_or(&units[0]);
    Unit { name, size }
}

/// A label without the noise of binary fractions.
fn label(value: f64) -> String {
    format!("{}", (value * 1000.0).round() / 1000.0 + 0.0)
}

impl Timeline<'_> {
    pub(crate) fn draw(&self, page: &Area<'_>, place: Place) -> anyhow::Result<()> {
        let time = unit(
            self.view.end - self.view.start,
            [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)],
        );
        let size = unit(
            self.most,
            [
                ("B", 1.0),
                ("KiB", 1024.0),
                ("MiB", 1_048_576.0),
                ("GiB", 1_073_741_824.0),
            ],
        );
        let Place {
            left,
            top,
            width,
            height,
        } = place;
        text(
            page,
            (left, top - 32),
            self.title,
            style(Weight::Head, false),
        )?;
        let area = page.clone().shrink(
            (left - i32::try_from(LABELS.0)?, top),
            (width + LABELS.0, height + LABELS.1),
        );
        let shown = |value: f64| value / time.size;
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(LABELS.1)
            .y_label_area_size(LABELS.0)
            .build_cartesian_2d(
                shown(self.view.start)..shown(self.view.end),
                0.0..self.most / size.size,
            )?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .axis_style(PALE)
            .x_labels(12)
            .y_labels(6)
            .x_label_formatter(&|value| label(*value))
            .y_label_formatter(&|value| label(*value))
            .x_desc(format!("{} since {}", time.name, self.origin))
            .y_desc(size.name)
            .label_style(("sans-serif", 14).into_font().color(&GREY))
            .axis_desc_style(("sans-serif", 14).into_font().color(&GREY))
            .draw()?;
        let seen = self.moments.iter().filter(|m| self.view.contains(&m.at));
        for moment in seen.clone() {
            let x = shown(moment.at);
            let ends = vec![(x, 0.0), (x, self.most / size.size)];
            chart.draw_series([PathElement::new(ends, moment.colour)])?;
        }
        if self.numbered {
            // Side by side where the moments are too close.
            let mut free = left;
            for moment in seen {
                let Some(number) = moment.number else {
                    continue;
                };
                let (x, _) = chart.backend_coord(&(shown(moment.at), 0.0));
                let x = x.max(free);
                free = x + 11;
                let centred = style(Weight::Body, false).pos(Pos::new(HPos::Center, VPos::Center));
                text(page, (x, top - 10), &number.to_string(), centred)?;
            }
        }
        if let Some((bytes, name)) = self.level {
            let y = bytes / size.size;
            let ends = vec![(shown(self.view.start), y), (shown(self.view.end), y)];
            chart.draw_series([PathElement::new(ends, RED.stroke_width(2))])?;
            // Above the line, where numbered moments are not.
            let (_, y) = chart.backend_coord(&(shown(self.view.start), y));
            let (side, x) = match self.numbered {
                true => (HPos::Center, left + i32::try_from(width / 2)?),
                false => (HPos::Left, left + 6),
            };
            let named = style(Weight::Note, false).color(&RED);
            text(
                page,
                (x, y - 8),
                name,
                named.pos(Pos::new(side, VPos::Center)),
            )?;
        }
        for curve in self.curves {
            let points = within(&curve.points, &self.view);
            let points = points.iter().map(|(at, y)| (shown(*at), y / size.size));
            let line = curve.colour.stroke_width(curve.width);
            chart.draw_series([PathElement::new(points.collect::<Vec<_>>(), line)])?;
        }
        // Over the ends of the curves.
        let axis = vec![(shown(self.view.start), 0.0), (shown(self.view.end), 0.0)];
        chart.draw_series([PathElement::new(axis, BLACK)])?;
        Ok(())
    }
}

/// The points in view, and where the curve enters and leaves it.
fn within(points: &[(f64, f64)], view: &Range<f64>) -> Vec<(f64, f64)> {
    let inside = points.iter().filter(|(at, _)| view.contains(at)).copied();
    let enters = on_curve(points, view.start).into_iter();
    enters
        .chain(inside)
        .chain(on_curve(points, view.end))
        .collect()
}

/// The point of a curve at `at`, between two of its points.
fn on_curve(points: &[(f64, f64)], at: f64) -> Option<(f64, f64)> {
    let after = points.partition_point(|(time, _)| *time < at);
    let (&(from, low), &(to, high)) = (points.get(after.checked_sub(1)?)?, points.get(after)?);
    Some((at, low + (high - low) * (at - from) / (to - from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_cut_where_it_leaves_the_view() {
        let curve = [(-4.0, 0.0), (0.0, 8.0), (4.0, 0.0)];
        assert_eq!(
            within(&curve, &(-2.0..2.0)),
            [(-2.0, 4.0), (0.0, 8.0), (2.0, 4.0)]
        );
        assert_eq!(within(&curve, &(-9.0..9.0)), curve);
        assert_eq!(within(&curve, &(5.0..6.0)), []);
        assert_eq!(within(&[], &(0.0..1.0)), []);
    }

    #[test]
    fn an_axis_has_a_unit_that_suits_its_span() {
        let time = |span| unit(span, [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]).name;
        assert_eq!(
            [3.0, 4e3, 75e6, 3.9e9, 11e9].map(time),
            ["ns", "us", "ms", "ms", "s"]
        );
        assert_eq!([0.1 + 0.2, -0.0, 400.0].map(label), ["0.3", "0", "400"]);
    }
}
