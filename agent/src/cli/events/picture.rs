//! A record as a picture: usage in the last ten seconds, usage around the crossing, every step with its
//! time, and the ranking. A pure function of the record.

use plotters::style::{Color as _, RGBColor};
use podwarden_policy::signal::ScopeName;

use super::text;
use crate::{
    api::types::{Curve, EventKind, EventRecord, Eviction, FlightRecord},
    cli::{
        chart::{self, Area, Moment, Place, Timeline, Weight, style},
        output,
    },
    eviction::recorder::log,
};

const WIDTH: u32 = 960;
/// Where the plots and all texts begin and end.
const LEFT: i32 = 76;
const RIGHT: i32 = 930;
const PLOT: u32 = 854;
const LEGEND: i32 = 80;
const OVERVIEW: (i32, u32) = (150, 170);
const CLOSE: (i32, u32) = (420, 230);
/// The first line below the plots, and the height of a line.
const LIST: i32 = 724;
const LINE: i32 = 21;
/// Characters that a line has room for.
const NAME: usize = 40;
const NOTE: usize = 72;

/// A step of what happened.
struct Step {
    /// Nanoseconds since the record's origin.
    at: i64,
    colour: RGBColor,
    name: &'static str,
    note: String,
}

/// Draws a record. An error where there is nothing to draw: the event is of another kind, or has no curves (yet).
pub(super) fn svg(record: &EventRecord) -> anyhow::Result<String> {
    let id = record.event.id;
    anyhow::ensure!(
        log::is_kept(&record.event.kind),
        "event {id} is neither an eviction nor an OOM kill: only those have a picture"
    );
    let Some(flight) = &record.flight_record else {
        anyhow::bail!(
            "event {id} has no curves: they are there a second after it, and not at all when the agent ended \
             before that"
        )
    };
    let steps = steps(record, flight);
    let lines = steps.len() + flight.ranking.len() + 3;
    let height = LIST + LINE * i32::try_from(lines)?;
    chart::page((WIDTH, u32::try_from(height)?), |page| {
        header(page, record)?;
        plots(page, record, flight, &steps)?;
        let mut y = LIST;
        for (number, step) in (1..).zip(&steps) {
            let sign = if step.at < 0 { '\u{2212}' } else { '+' };
            let at = format!("{sign}{}", output::nanos(step.at.unsigned_abs()));
            line(page, y, number, step.name, (260, &at), &step.note)?;
            y += LINE;
        }
        ranking(page, y + LINE, flight)
    })
}

/// Number, name, figure (which ends at a column) and note.
fn line(
    page: &Area<'_>,
    y: i32,
    number: u32,
    name: &str,
    (column, figure): (i32, &str),
    note: &str,
) -> anyhow::Result<()> {
    let body = style(Weight::Body, false);
    chart::text(page, (LEFT, y), &number.to_string(), body.clone())?;
    chart::text(page, (LEFT + 22, y), &output::clipped(name, NAME), body)?;
    chart::text(page, (column, y), figure, style(Weight::Body, true))?;
    let note = output::clipped(note, NOTE);
    chart::text(page, (column + 20, y), &note, style(Weight::Note, false))
}

fn header(page: &Area<'_>, record: &EventRecord) -> anyhow::Result<()> {
    let event = &record.event;
    let pod = event.pod.as_ref().map(text::name).unwrap_or_default();
    let (title, note) = match &event.kind {
        EventKind::Eviction(eviction) => {
            let verb = match eviction.dry_run {
                true => "Would evict",
                false => "Evicted",
            };
            let title = format!("{verb} {pod} ({})", eviction.qos_class);
            (title, eviction.reason.clone())
        }
        _ => (format!("OOM kill in {pod}"), text::sentence(event)),
    };
    let title = output::clipped(&title, 48);
    chart::text(page, (LEFT, 28), &title, style(Weight::Title, false))?;
    chart::text(page, (LEFT, 52), &note, style(Weight::Note, false))?;
    let when = format!("{}, event {}", output::moment(&event.time), event.id);
    chart::text(page, (RIGHT, 28), &when, style(Weight::Note, true))
}

fn plots(
    page: &Area<'_>,
    record: &EventRecord,
    flight: &FlightRecord,
    steps: &[Step],
) -> anyhow::Result<()> {
    let shown = shown(record, flight);
    legend(page, &shown)?;
    let curves: Vec<_> = shown
        .iter()
        .map(|(curve, look)| plotted(curve, look))
        .collect();
    let level = level(record, flight);
    let bytes = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.1);
    let most = bytes
        .chain(level.iter().map(|level| level.0))
        .fold(1.0, f64::max);
    let offset = |at: i64| at as f64;
    let exits = flight.exits.iter().map(|exit| Moment {
        at: offset(since(flight, exit.at_nanos)),
        colour: chart::PALE,
        number: None,
    });
    let numbered = (1..).zip(steps).map(|(number, step)| Moment {
        at: offset(step.at),
        colour: step.colour,
        number: Some(number),
    });
    let moments: Vec<_> = exits.chain(numbered).collect();
    let times = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.0);
    let (first, last) = times.fold((-1.0, 1.0), |(first, last), at| {
        (f64::min(first, at), f64::max(last, at))
    });
    let span = steps.iter().map(|step| step.at).max().unwrap_or(0);
    let span = offset(span.max(2_000_000));
    let origin = match record.event.kind {
        EventKind::Eviction(_) => "the crossing",
        _ => "the kernel's choice",
    };
    let overview = Timeline {
        title: "Usage before and after",
        origin,
        view: first..last,
        // Room for the level's name.
        most: most * 1.12,
        curves: &curves,
        level: level.as_ref().map(|(bytes, name)| (*bytes, name.as_str())),
        moments: &moments,
        numbered: false,
    };
    let close = Timeline {
        title: "Usage around it",
        view: -span / 4.0..span * 1.25,
        numbered: true,
        ..overview.clone()
    };
    for (timeline, (top, height)) in [(overview, OVERVIEW), (close, CLOSE)] {
        let place = Place {
            left: LEFT,
            top,
            width: PLOT,
            height,
        };
        timeline.draw(page, place)?;
    }
    Ok(())
}

/// Colour and width of a curve.
type Look = (RGBColor, u32);

fn plotted(curve: &Curve, &(colour, width): &Look) -> chart::Curve {
    let points = curve.offset_nanos.iter().zip(&curve.usage_bytes);
    chart::Curve {
        colour,
        width,
        points: points
            .map(|(at, bytes)| (*at as f64, *bytes as f64))
            .collect(),
    }
}

fn legend(page: &Area<'_>, shown: &[(&Curve, Look)]) -> anyhow::Result<()> {
    let mut x = LEFT;
    for (curve, (colour, width)) in shown {
        let name = match (&curve.scope, &curve.pod) {
            (Some(scope), _) => scope.to_string(),
            (None, Some(pod)) => text::name(pod),
            (None, None) => String::new(),
        };
        let name = output::clipped(&name, NAME);
        let swatch = vec![(x, LEGEND), (x + 22, LEGEND)];
        let swatch = plotters::element::PathElement::new(swatch, colour.stroke_width(*width));
        page.draw(&swatch)?;
        chart::text(page, (x + 28, LEGEND), &name, style(Weight::Body, false))?;
        x += 52 + 8 * i32::try_from(name.chars().count())?;
    }
    Ok(())
}

/// Bytes and name of the level that it was about.
fn level(record: &EventRecord, flight: &FlightRecord) -> Option<(f64, String)> {
    let (scope, bytes) = match &record.event.kind {
        // Its level is of the CPU, or of requests.
        EventKind::Eviction(eviction)
            if matches!(eviction.scope, ScopeName::Cpu | ScopeName::BatchMemory) =>
        {
            return None;
        }
        EventKind::Eviction(eviction) => (eviction.scope, eviction.level_bytes),
        _ => {
            let level = flight.levels.first()?;
            (level.scope, level.level_bytes)
        }
    };
    let name = format!("level of {scope}, {}", output::bytes(bytes));
    Some((bytes as f64, name))
}

/// The scope that it was about first, then the pod, then the rest.
fn shown<'a>(record: &EventRecord, flight: &'a FlightRecord) -> Vec<(&'a Curve, Look)> {
    let scope = match &record.event.kind {
        EventKind::Eviction(eviction) => eviction.scope,
        _ => ScopeName::Kubepods,
    };
    let own = record.event.pod.as_ref();
    let mut tiers = [1, 4].into_iter();
    let mut others = [3, 4].into_iter();
    let mut curves: Vec<_> = flight
        .curves
        .iter()
        .filter_map(|curve| {
            let (order, colour, width) = match (&curve.scope, &curve.pod) {
                (Some(name), _) if *name == scope => (0, 0, 2),
                // An unused tier would only hide the axis.
                (Some(_), _) if curve.usage_bytes.iter().all(|bytes| *bytes == 0) => return None,
                (Some(_), _) => (2, tiers.next()?, 2),
                (None, pod) if pod.as_ref() == own => (1, 2, 3),
                (None, _) => (3, others.next()?, 1),
            };
            Some((order, (curve, (chart::colour(colour), width))))
        })
        .collect();
    curves.sort_by_key(|(order, _)| *order);
    curves.into_iter().map(|(_, shown)| shown).collect()
}

/// Nanoseconds since the record's origin.
fn since(flight: &FlightRecord, at: u64) -> i64 {
    let offset = i128::from(at) - i128::from(flight.origin_nanos);
    i64::try_from(offset).unwrap_or(i64::MAX)
}

/// Every step that was taken, in order.
fn steps(record: &EventRecord, flight: &FlightRecord) -> Vec<Step> {
    let EventKind::Eviction(eviction) = &record.event.kind else {
        return vec![Step {
            at: 0,
            colour: chart::RED,
            name: "chosen",
            note: text::sentence(&record.event),
        }];
    };
    let Eviction { timeline, .. } = &**eviction;
    let step = |at, name, note| Step {
        at: since(flight, at),
        colour: chart::GREY,
        name,
        note,
    };
    let crossing = text::source(timeline).to_owned();
    let usage = output::bytes(eviction.working_set());
    let usage = format!("{} at {usage}", eviction.scope);
    let mut steps = vec![
        step(timeline.crossing_nanos, "crossing", crossing),
        step(timeline.wake_nanos, "wake", String::new()),
        step(timeline.verified_nanos, "verified", usage),
    ];
    steps.extend(timeline.killed_nanos.map(|at| Step {
        colour: chart::RED,
        ..step(
            at,
            text::killing(eviction),
            text::count(u64::from(eviction.processes), "process"),
        )
    }));
    steps.extend(flight.exits.last().map(|last| {
        let exits = text::count(flight.exits.len() as u64, "exit");
        step(last.at_nanos, "last exit", exits)
    }));
    steps.extend(timeline.freed_nanos.map(|at| {
        let used = output::bytes(eviction.victim_usage_bytes);
        step(at, "freed", format!("of {used}"))
    }));
    steps.sort_by_key(|step| step.at);
    steps
}

fn ranking(page: &Area<'_>, top: i32, flight: &FlightRecord) -> anyhow::Result<()> {
    if flight.ranking.is_empty() {
        return Ok(());
    }
    let title = format!(
        "Ranking ({} of {})",
        flight.ranking.len(),
        flight.candidates
    );
    chart::text(page, (LEFT, top), &title, style(Weight::Head, false))?;
    let mut y = top;
    for (number, ranked) in (1..).zip(&flight.ranking) {
        y += LINE;
        let used = output::bytes(ranked.usage_bytes);
        let name = text::name(&ranked.pod);
        line(page, y, number, &name, (460, &used), &ranked.reason)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::example;
