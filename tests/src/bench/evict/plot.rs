//! Every run as a dot, on logarithmic axes: one panel for each figure, one line for each daemon in each
//! setting, with the median as a bar.

use std::path::Path;

use anyhow::{Context as _, Result};
use plotters::prelude::*;

use super::MIB;
use super::daemons::Daemon;
use super::measure::Figures;
use super::report::{Report, Row};

const WIDTH: u32 = 1120;
/// For the names on the left.
const NAMES: u32 = 270;
/// Above and below the lines: title and axes.
const TOP: u32 = 44;
const BOTTOM: u32 = 46;
/// Height of a line, and of what sets a setting off from the one before.
const LINE: u32 = 21;
const GAP: u32 = 14;
const INK: RGBColor = RGBColor(27, 31, 36);
const PALE: RGBColor = RGBColor(216, 222, 228);
const FONT: &str = "sans-serif";

/// A figure of a run.
struct Panel {
    title: &'static str,
    value: fn(&Figures) -> f64,
    /// What is less is drawn at the edge.
    least: f64,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "overshoot at the kill, MiB",
        value: |figures| figures.overshoot_bytes as f64 / MIB as f64,
        least: 0.01,
    },
    Panel {
        title: "crossing to SIGKILL, ms",
        value: |figures| figures.kill_nanos as f64 / 1e6,
        least: 0.01,
    },
    Panel {
        title: "crossing to memory freed, ms",
        value: |figures| figures.freed_nanos as f64 / 1e6,
        least: 1.0,
    },
];

/// Colours that people with any colour vision tell apart (Okabe and Ito).
fn colour(daemon: Daemon) -> RGBColor {
    match daemon {
        Daemon::Podwarden => RGBColor(0, 114, 178),
        Daemon::Earlyoom => RGBColor(213, 94, 0),
        Daemon::Nohang => RGBColor(138, 90, 131),
        Daemon::Oomd => RGBColor(0, 121, 90),
        Daemon::SystemdOomd => RGBColor(122, 106, 0),
    }
}

/// Draws it into a file.
pub(super) fn draw(report: &Report, path: &Path) -> Result<()> {
    let svg = picture(report)?;
    std::fs::write(path, svg).with_context(|| format!("write {}", path.display()))
}

/// A row and the middle of its line, pixels from the top.
type Placed<'a> = (&'a Row, u32);

fn picture(report: &Report) -> Result<String> {
    let (placed, height) = place(report);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let runs = report.rows.iter().map(|row| row.runs.len()).max();
        let title = format!(
            "From a level crossed to the memory back: {} runs each, bars are medians",
            runs.unwrap_or(0)
        );
        let ink = |size| (FONT, size).into_font().color(&INK);
        root.draw(&Text::new(title, (12, 12), ink(21)))?;
        let mut before = None;
        for &(row, y) in &placed {
            let y = i32::try_from(y)?;
            if before != Some(row.setting) {
                before = Some(row.setting);
                let at = (12, y - i32::try_from(LINE)? + 2);
                root.draw(&Text::new(row.setting.to_string(), at, ink(16)))?;
            }
            let style = (FONT, 16).into_font().color(&colour(row.daemon));
            root.draw(&Text::new(row.daemon.name(), (150, y - 7), style))?;
        }
        let width = (WIDTH - NAMES) / PANELS.len() as u32;
        for (number, panel) in PANELS.iter().enumerate() {
            let left = NAMES + width * u32::try_from(number)?;
            let area = root.clone().shrink((left, TOP), (width - 24, height - TOP));
            panel.draw(&area, &placed, height)?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Where each row goes, and how high that makes the picture.
fn place(report: &Report) -> (Vec<Placed<'_>>, u32) {
    let mut placed = Vec::new();
    let mut y = TOP;
    let mut before = None;
    for row in &report.rows {
        if before != Some(row.setting) {
            before = Some(row.setting);
            // Its name stands above its first line.
            y += GAP + LINE;
        }
        placed.push((row, y));
        y += LINE;
    }
    (placed, y + BOTTOM)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

impl Panel {
    /// A value as it is drawn.
    fn shown(&self, figures: &Figures) -> f64 {
        (self.value)(figures).max(self.least)
    }

    /// Whole powers of ten around all values.
    fn range(&self, placed: &[Placed]) -> std::ops::Range<f64> {
        let values = placed.iter().flat_map(|(row, _)| row.figures());
        let (least, most) = values.fold((f64::MAX, self.least), |(least, most), figures| {
            let value = self.shown(&figures);
            (least.min(value), most.max(value))
        });
        let decade = |value: f64| 10_f64.powf(value);
        let from = least.min(most).log10().floor();
        // A little more, so that the lines at both ends are drawn.
        decade(from) * 0.9..decade(most.log10().ceil().max(from + 1.0)) * 1.1
    }

    fn draw(&self, area: &Area, placed: &[Placed], height: u32) -> Result<()> {
        // One unit is one pixel of the picture, upwards.
        let lines = f64::from(height - TOP - BOTTOM);
        let mut chart = ChartBuilder::on(area)
            .x_label_area_size(BOTTOM)
            .build_cartesian_2d(self.range(placed).log_scale(), 0.0..lines)?;
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
            .label_style((FONT, 15).into_font().color(&INK))
            .axis_desc_style((FONT, 16).into_font().color(&INK))
            .draw()?;
        for &(row, y) in placed {
            let y = lines - f64::from(y - TOP);
            let mut values: Vec<_> = row.figures().map(|figures| self.shown(&figures)).collect();
            let dot = colour(row.daemon).mix(0.45).filled();
            chart.draw_series(values.iter().enumerate().map(|(number, value)| {
                // Beside one another, so that equal values show.
                let aside = (number % 5) as f64 * 2.0 - 4.0;
                Circle::new((*value, y + aside), 2, dot)
            }))?;
            values.sort_by(f64::total_cmp);
            let middle = values.len().div_ceil(2).checked_sub(1);
            if let Some(median) = middle.map(|index| values[index]) {
                let ends = vec![(median, y - 8.0), (median, y + 8.0)];
                let bar = colour(row.daemon).stroke_width(3);
                chart.draw_series([PathElement::new(ends, bar)])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::Outcome;
    use super::super::report::{Setting, sample};
    use super::*;

    #[test]
    fn every_run_is_a_dot_in_every_panel() {
        let mut report = sample();
        let setting = Setting {
            rate: Some(500),
            hogs: 0,
            processes: 1,
        };
        let figures = |kill_nanos| Figures {
            overshoot_bytes: -5,
            kill_nanos,
            freed_nanos: 10_000_000,
            crossing_bytes: 1,
            victim_bytes: 1,
            rate: 500.0,
            unseen_nanos: 0,
        };
        for kill in [1, 200_000, 3_000_000_000] {
            report.add(Daemon::Podwarden, setting, Outcome::Killed(figures(kill)));
        }
        let why = "not drawn".to_owned();
        report.add(Daemon::Earlyoom, setting, Outcome::Failed { why });
        let svg = picture(&report).unwrap();
        assert_eq!(svg.matches("<circle").count(), 3 * PANELS.len());
        for text in [
            "podwarden",
            "earlyoom",
            "500 MiB/s, idle, 1 process",
            "SIGKILL",
        ] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        let svg = picture(&sample()).unwrap();
        assert_eq!(svg.matches("<circle").count(), 0);
    }
}
