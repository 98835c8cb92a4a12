//! Every value as a dot, on logarithmic axes: one panel for each figure, one line for each row, with the
//! median as a bar.

use std::ops::Range;

use plotters::prelude::*;
use podwarden::cli::chart::{Area, BLACK, PALE, Weight, colour, page, style, text};

const WIDTH: u32 = 1120;
/// For the names on the left.
const NAMES: u32 = 270;
/// Above and below the lines: title and axes.
const TOP: u32 = 44;
const BOTTOM: u32 = 46;
/// Height of a line, and of what sets a group off from the one before.
const LINE: u32 = 21;
const GAP: u32 = 14;

/// The whole picture.
#[derive(Debug)]
pub(super) struct Dots<'a> {
    /// Stands above everything.
    pub(super) title: String,
    /// Rows of one group follow one another.
    pub(super) rows: Vec<Row<'a>>,
    /// From left to right.
    pub(super) panels: Vec<Panel>,
}

/// A line of dots in each panel.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// Stands above the first row of the group.
    pub(super) group: String,
    /// Stands before the line.
    pub(super) name: &'a str,
    /// Index into [`podwarden::cli::chart::COLOURS`].
    pub(super) colour: usize,
}

/// One figure.
#[derive(Debug)]
pub(super) struct Panel {
    /// The figure and its unit.
    pub(super) title: &'static str,
    /// What is less is drawn at the edge.
    pub(super) least: f64,
    /// For each row.
    pub(super) values: Vec<Vec<f64>>,
}

impl Dots<'_> {
    /// Draws it as SVG.
    ///
    /// # Errors
    /// Too many rows for a picture.
    pub(super) fn svg(&self) -> anyhow::Result<String> {
        let mut middles = Vec::new();
        let mut y = TOP;
        let mut group = None;
        for row in &self.rows {
            if group != Some(&row.group) {
                group = Some(&row.group);
                // Its name stands above its first line.
                y += GAP + LINE;
            }
            middles.push(y);
            y += LINE;
        }
        let height = y + BOTTOM;
        page((WIDTH, height), |page| {
            text(page, (12, 24), &self.title, style(Weight::Title, false))?;
            let mut group = None;
            for (row, &y) in self.rows.iter().zip(&middles) {
                let y = i32::try_from(y)?;
                if group != Some(&row.group) {
                    group = Some(&row.group);
                    let above = (12, y - i32::try_from(LINE)? + 2);
                    text(page, above, &row.group, style(Weight::Body, false))?;
                }
                let colour = colour(row.colour);
                let named = style(Weight::Body, false).color(&colour);
                text(page, (150, y), row.name, named)?;
            }
            let width = (WIDTH - NAMES) / u32::try_from(self.panels.len().max(1))?;
            for (number, panel) in (0..).zip(&self.panels) {
                let left = NAMES + width * number;
                let area = page.clone().shrink((left, TOP), (width - 24, height - TOP));
                panel.draw(&area, &self.rows, &middles, height)?;
            }
            Ok(())
        })
    }
}

impl Panel {
    /// Whole powers of ten around all values.
    fn range(&self) -> Range<f64> {
        let values = self.values.iter().flatten();
        let (least, most) = values.fold((f64::MAX, self.least), |(least, most), value| {
            let shown = value.max(self.least);
            (least.min(shown), most.max(shown))
        });
        let decade = |value: f64| 10_f64.powf(value);
        let from = least.min(most).log10().floor();
        // A little more, so that the lines at both ends are drawn.
        decade(from) * 0.9..decade(most.log10().ceil().max(from + 1.0)) * 1.1
    }

    fn draw(
        &self,
        area: &Area<'_>,
        rows: &[Row<'_>],
        middles: &[u32],
        height: u32,
    ) -> anyhow::Result<()> {
        // One unit is one pixel of the picture, upwards.
        let lines = f64::from(height - TOP - BOTTOM);
        let mut chart = ChartBuilder::on(area)
            .x_label_area_size(BOTTOM)
            .build_cartesian_2d(self.range().log_scale(), 0.0..lines)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .axis_style(PALE)
            .x_labels(8)
            .x_label_formatter(&|value| format!("{value}"))
            .x_desc(self.title)
            .label_style(("sans-serif", 15).into_font().color(&BLACK))
            .axis_desc_style(("sans-serif", 16).into_font().color(&BLACK))
            .draw()?;
        for ((row, y), values) in rows.iter().zip(middles).zip(&self.values) {
            let y = lines - f64::from(y - TOP);
            let mut values: Vec<_> = values.iter().map(|value| value.max(self.least)).collect();
            let dot = colour(row.colour).mix(0.45).filled();
            chart.draw_series(values.iter().enumerate().map(|(number, value)| {
                // Beside one another, so that equal values show.
                let aside = (number % 5) as f64 * 2.0 - 4.0;
                Circle::new((*value, y + aside), 2, dot)
            }))?;
            values.sort_by(f64::total_cmp);
            let middle = values.len().div_ceil(2).checked_sub(1);
            if let Some(median) = middle.map(|index| values[index]) {
                let ends = vec![(median, y - 8.0), (median, y + 8.0)];
                let bar = colour(row.colour).stroke_width(3);
                chart.draw_series([PathElement::new(ends, bar)])?;
            }
        }
        Ok(())
    }
}
