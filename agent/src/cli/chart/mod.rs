//! Charts as SVG: the picture of `podwarden events --svg` and those of the benchmarks.
//!
//! `timeline` draws curves over time, with a level and numbered moments.
//!
//! The page is light. Its texts are SVG text: no font is read, and widths are estimates.

use anyhow::Context as _;
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

mod timeline;

pub(crate) use timeline::{Curve, Moment, Place, Timeline};

/// Colours that people with any colour vision tell apart (Okabe and Ito), darker where white needs it.
pub const COLOURS: [(u8, u8, u8); 5] = [
    (0, 114, 178),
    (0, 121, 90),
    (213, 94, 0),
    (138, 90, 131),
    (122, 106, 0),
];
pub const BLACK: RGBColor = RGBColor(27, 31, 36);
pub(crate) const GREY: RGBColor = RGBColor(89, 99, 110);
pub const PALE: RGBColor = RGBColor(216, 222, 228);
pub(crate) const RED: RGBColor = RGBColor(176, 0, 32);

/// A part of the page, or the page.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub fn colour(index: usize) -> RGBColor {
    let (red, green, blue) = COLOURS[index % COLOURS.len()];
    RGBColor(red, green, blue)
}

/// How a text stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    Title,
    Head,
    Body,
    Note,
}

/// The style of a text that begins, or ends, where it is put.
pub fn style(weight: Weight, ends: bool) -> TextStyle<'static> {
    // SVGBackend divides a size by 1.24.
    let (size, bold, colour) = match weight {
        Weight::Title => (22, FontStyle::Bold, BLACK),
        Weight::Head => (16, FontStyle::Bold, BLACK),
        Weight::Body => (16, FontStyle::Normal, BLACK),
        Weight::Note => (15, FontStyle::Normal, GREY),
    };
    let side = if ends { HPos::Right } else { HPos::Left };
    let font = ("sans-serif", size, bold).into_font().color(&colour);
    font.pos(Pos::new(side, VPos::Center))
}

/// Puts a text on the page, its middle at the height of `at`.
pub fn text(
    page: &Area<'_>,
    at: (i32, i32),
    text: &str,
    style: TextStyle<'_>,
) -> anyhow::Result<()> {
    // Names come from manifests and processes.
    let text = super::output::printable(text);
    page.draw(&Text::new(text, at, style))?;
    Ok(())
}

/// A white page of `size` pixels with what `draw` puts on it.
pub fn page(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let page = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        page.fill(&WHITE)?;
        draw(&page)?;
        page.present().context("draw the picture")?;
    }
    Ok(svg)
}
