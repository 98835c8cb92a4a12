//! The day as a picture: CPU above memory, what guaranteed pods ask for and use, and what each policy sells.

use plotters::prelude::*;

use crate::{
    seller::{ALL, POLICIES},
    tally::{Curve, Day, PARTS},
    traces::{DAY_S, NODE_CPU, NODE_MEMORY},
};

const SIZE: (u32, u32) = (1120, 860);
/// For the names on the right.
const NAMES: u32 = 250;
/// Colours that people with any colour vision tell apart (Okabe and Ito), darker where white needs it.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 121, 90),
    RGBColor(213, 94, 0),
    RGBColor(138, 90, 131),
    RGBColor(122, 106, 0),
];
const BLACK: RGBColor = RGBColor(27, 31, 36);
const PALE: RGBColor = RGBColor(216, 222, 228);

/// Which of the two sums of a curve, and its unit.
struct Axis {
    title: &'static str,
    most: f64,
    of: fn((u64, u64)) -> f64,
}

struct Line<'a> {
    name: String,
    colour: RGBColor,
    width: u32,
    curve: &'a Curve,
}

/// Draws it as SVG.
pub(crate) fn svg(day: &Day, nodes: u64) -> Result<String, Box<dyn std::error::Error>> {
    let mut lines = vec![
        Line {
            name: "guaranteed pods: requests".into(),
            colour: BLACK,
            width: 1,
            curve: &day.requested,
        },
        Line {
            name: "guaranteed pods: usage".into(),
            colour: BLACK,
            width: 3,
            curve: &day.used,
        },
    ];
    for ((rules, tally), colour) in ALL[..POLICIES].iter().zip(&day.sellers).zip(COLOURS) {
        lines.push(Line {
            name: format!("sold: {}", rules.name),
            colour,
            width: 2,
            curve: &tally.held,
        });
    }
    let axes = [
        Axis {
            title: "CPUs, mean of a node",
            most: NODE_CPU as f64 / 1000.0,
            of: |(cpu, _)| cpu as f64 / 1000.0,
        },
        Axis {
            title: "memory, GiB, mean of a node",
            most: NODE_MEMORY as f64 / 1024.0,
            of: |(_, memory)| memory as f64 / 1024.0,
        },
    ];
    let mut svg = String::new();
    {
        let page = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        page.fill(&WHITE)?;
        let font = ("sans-serif", 20).into_font().color(&BLACK);
        page.draw(&Text::new(
            format!("A day of {nodes} nodes"),
            (12, 12),
            font,
        ))?;
        let (_, below) = page.split_vertically(40);
        for (area, axis) in below.split_evenly((2, 1)).iter().zip(&axes) {
            panel(area, axis, &lines, nodes)?;
        }
        page.present()?;
    }
    Ok(svg)
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    axis: &Axis,
    lines: &[Line<'_>],
    nodes: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let (plot, names) = area.split_horizontally(SIZE.0 - NAMES);
    let mut chart = ChartBuilder::on(&plot)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..24.0, 0.0..axis.most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(PALE)
        .light_line_style(TRANSPARENT)
        .axis_style(PALE)
        .x_labels(13)
        .x_label_formatter(&|hour| format!("{hour:.0}"))
        .y_label_formatter(&|amount| format!("{amount:.0}"))
        .x_desc("hour of the day")
        .y_desc(axis.title)
        .label_style(("sans-serif", 15).into_font().color(&BLACK))
        .draw()?;
    let seconds = (nodes * DAY_S) as f64 / PARTS as f64;
    for (row, line) in lines.iter().enumerate() {
        let parts = line.curve.0.iter().enumerate();
        let points = parts.map(|(part, sums)| {
            let hour = (part as f64 + 0.5) * 24.0 / PARTS as f64;
            (hour, (axis.of)(*sums) / seconds)
        });
        let style = line.colour.stroke_width(line.width);
        chart.draw_series([PathElement::new(points.collect::<Vec<_>>(), style)])?;
        let y = 30 + i32::try_from(row)? * 24;
        names.draw(&PathElement::new(vec![(0, y + 6), (24, y + 6)], style))?;
        let font = ("sans-serif", 15).into_font().color(&line.colour);
        names.draw(&Text::new(line.name.clone(), (32, y), font))?;
    }
    Ok(())
}
