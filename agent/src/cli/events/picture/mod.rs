//! A record as a picture: a self-contained SVG without scripts, for light and for dark.
//!
//! Above the last ten seconds, below what happened around the crossing, then every step with its time.
//! A pure function of the record.

mod axis;
mod panel;

use panel::{Frame, Panel, View};

use crate::{
    api::types::{Curve, EventKind, EventRecord, Eviction, Flight},
    cli::{events::text, output},
    eviction::recorder::log,
};

/// Size of the picture.
const WIDTH: f64 = 960.0;

/// Colours that people with any colour vision tell apart (Okabe and Ito), a little darker on white.
/// Without custom properties, which librsvg does not know.
const STYLE: &str = "\
.back{fill:#ffffff}
text{font:13px ui-sans-serif,system-ui,sans-serif;fill:#1b1f24}
.title{font-size:18px;font-weight:600}.head{font-weight:600}
.tick,.note{font-size:12px;fill:#59636e}.label{font-size:12px}
.num{font:12px ui-monospace,monospace}
.grid{stroke:#d8dee4}.level{stroke:#b00020;stroke-width:1.5;stroke-dasharray:7 4}
.mark{stroke:#59636e;stroke-dasharray:2 3}.kill{stroke:#b00020;stroke-dasharray:none}
.exit{stroke:#d8dee4;stroke-dasharray:none}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.a{stroke:#0072b2}.b{stroke:#00795a}.c{stroke:#b3541e;stroke-width:2.6}
.d{stroke:#8a5a83;stroke-width:1.2}.e{stroke:#7a6a00;stroke-width:1.2}
@media (prefers-color-scheme:dark){
.back{fill:#0d1117}text{fill:#e6edf3}.tick,.note{fill:#9198a1}
.mark{stroke:#9198a1}.grid,.exit{stroke:#30363d}.level,.kill{stroke:#ff7b72}
.a{stroke:#56b4e9}.b{stroke:#2fc79a}.c{stroke:#f0883e}.d{stroke:#d8a3d0}.e{stroke:#e6d04a}
}
";

/// A curve to draw.
#[derive(Debug)]
struct Line<'a> {
    curve: &'a Curve,
    class: &'static str,
}

impl Line<'_> {
    fn points(&self) -> Vec<(i64, u64)> {
        let Curve {
            offset_nanos,
            usage_bytes,
            ..
        } = self.curve;
        offset_nanos
            .iter()
            .copied()
            .zip(usage_bytes.iter().copied())
            .collect()
    }

    fn name(&self) -> String {
        match (&self.curve.scope, &self.curve.pod) {
            (Some(scope), _) => scope.clone(),
            (None, Some(pod)) => text::name(pod),
            (None, None) => String::new(),
        }
    }
}

/// A moment with a name.
#[derive(Debug)]
struct Mark {
    /// Nanoseconds since the origin.
    at: i64,
    class: &'static str,
    /// A number in the plot, which the list below explains; empty for none.
    label: String,
    name: String,
    note: String,
}

/// Draws a record.
///
/// # Errors
/// A sentence when there is nothing to draw: the event is of another kind, or has no curves (yet).
pub(super) fn svg(record: &EventRecord) -> Result<String, String> {
    let id = record.event.id;
    if !log::is_kept(&record.event.kind) {
        return Err(format!(
            "event {id} is neither an eviction nor an OOM kill: only those have a picture"
        ));
    }
    let flight = record.flight.as_ref().ok_or_else(|| {
        format!(
            "event {id} has no curves: they are there a second after it, and not at all when the agent ended \
             before that"
        )
    })?;
    let lines = lines(record, flight);
    let marks = marks(record, flight);
    let most = lines
        .iter()
        .flat_map(|line| line.curve.usage_bytes.iter().copied())
        .chain(level(record, flight).map(|(bytes, _)| bytes))
        .max()
        .unwrap_or(0);
    let most = most + most / 16;
    let steps: Vec<_> = marks.iter().filter(|mark| !mark.name.is_empty()).collect();
    let height = 640.0 + 20.0 * steps.len() as f64 + 22.0 * flight.ranking.len() as f64 + 64.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n\
         <title>podwarden event {id}</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n"
    );
    svg += &header(record);
    svg += &legend(&lines);
    svg += &panels(record, flight, &lines, &marks, most);
    let mut y = 660.0;
    for mark in &steps {
        svg += &step(mark, y);
        y += 20.0;
    }
    svg += &ranking(flight, y + 16.0);
    Ok(svg + "</svg>\n")
}

fn header(record: &EventRecord) -> String {
    let event = &record.event;
    let pod = event.pod.as_ref().map(text::name).unwrap_or_default();
    let (title, note) = match &event.kind {
        EventKind::Eviction(eviction) => (
            format!(
                "{} {pod} ({})",
                if eviction.dry_run {
                    "Would evict"
                } else {
                    "Evicted"
                },
                eviction.qos_class
            ),
            eviction.reason.clone(),
        ),
        _ => (format!("OOM kill in {pod}"), text::sentence(event)),
    };
    format!(
        "<text class=\"title\" x=\"70\" y=\"34\">{}</text>\n\
         <text class=\"note\" x=\"70\" y=\"54\">{}</text>\n\
         <text class=\"note\" text-anchor=\"end\" x=\"930\" y=\"34\">{} \u{b7} event {}</text>\n",
        escaped(&title),
        escaped(&note),
        escaped(&output::moment(&event.time)),
        event.id,
    )
}

fn legend(lines: &[Line<'_>]) -> String {
    let mut x = 70.0;
    let mut svg = String::new();
    for line in lines {
        let name: String = line.name().chars().take(40).collect();
        svg += &format!(
            "<line class=\"curve {}\" x1=\"{x:.0}\" y1=\"74\" x2=\"{:.0}\" y2=\"74\"/>\
             <text class=\"label\" x=\"{:.0}\" y=\"78\">{}</text>\n",
            line.class,
            x + 22.0,
            x + 28.0,
            escaped(&name),
        );
        x += 48.0 + 7.0 * name.chars().count() as f64;
    }
    svg
}

fn panels(
    record: &EventRecord,
    flight: &Flight,
    lines: &[Line<'_>],
    marks: &[Mark],
    most: u64,
) -> String {
    let times = || {
        lines
            .iter()
            .flat_map(|l| l.curve.offset_nanos.iter().copied())
    };
    let (first, last) = (times().min().unwrap_or(-1), times().max().unwrap_or(1));
    let level = level(record, flight);
    let level = level.as_ref().map(|(bytes, name)| (*bytes, name.as_str()));
    let all = Panel {
        frame: Frame {
            left: 70.0,
            top: 130.0,
            width: 860.0,
            height: 170.0,
        },
        view: View {
            from: first,
            to: last.max(first + 1),
            most,
        },
        id: "all",
    };
    let named = marks.iter().filter(|mark| !mark.name.is_empty());
    let span = named.map(|mark| mark.at).max().unwrap_or(0).max(2_000_000);
    let close = Panel {
        frame: Frame {
            top: 380.0,
            height: 230.0,
            ..all.frame
        },
        view: View {
            from: -span / 4,
            to: span + span / 4,
            most,
        },
        id: "close",
    };
    all.draw("Usage before and after", lines, level, marks, false)
        + &close.draw("From the crossing on", lines, level, marks, true)
}

/// The level that it was about, with its name.
fn level(record: &EventRecord, flight: &Flight) -> Option<(u64, String)> {
    let (scope, bytes) = match &record.event.kind {
        EventKind::Eviction(eviction) => (eviction.scope.as_str(), eviction.level_bytes),
        _ => {
            let level = flight.levels.first()?;
            (level.scope.as_str(), level.level_bytes)
        }
    };
    Some((bytes, format!("level of {scope}, {}", output::bytes(bytes))))
}

/// The scope that it was about first, then the pod, then the rest.
fn lines<'a>(record: &EventRecord, flight: &'a Flight) -> Vec<Line<'a>> {
    let scope = match &record.event.kind {
        EventKind::Eviction(eviction) => Some(eviction.scope.as_str()),
        _ => Some("kubepods"),
    };
    let own = record.event.pod.as_ref();
    let mut tiers = ["b", "e"].into_iter();
    let mut others = ["d", "e"].into_iter();
    let mut lines: Vec<_> = flight
        .curves
        .iter()
        .filter_map(|curve| {
            let class = match (&curve.scope, &curve.pod) {
                (Some(name), _) if Some(name.as_str()) == scope => "a",
                // A tier that nobody uses only hides the axis.
                (Some(_), _) if curve.usage_bytes.iter().all(|bytes| *bytes == 0) => return None,
                (Some(_), _) => tiers.next()?,
                (None, pod) if pod.as_ref() == own => "c",
                (None, _) => others.next()?,
            };
            Some(Line { curve, class })
        })
        .collect();
    lines.sort_by_key(|line| line.class);
    lines
}

fn marks(record: &EventRecord, flight: &Flight) -> Vec<Mark> {
    let offset = |at: u64| {
        let offset = i128::from(at) - i128::from(flight.origin_nanos);
        i64::try_from(offset).unwrap_or(i64::MAX)
    };
    let mut marks: Vec<_> = flight
        .exits
        .iter()
        .map(|exit| Mark {
            at: offset(exit.at_nanos),
            class: "exit",
            label: String::new(),
            name: String::new(),
            note: String::new(),
        })
        .collect();
    let steps = match &record.event.kind {
        EventKind::Eviction(eviction) => eviction_steps(eviction, flight),
        _ => vec![(
            flight.origin_nanos,
            "kill",
            "chosen",
            text::sentence(&record.event),
        )],
    };
    for (number, (at, class, name, note)) in (1..).zip(steps) {
        marks.push(Mark {
            at: offset(at),
            class,
            label: number.to_string(),
            name: name.to_owned(),
            note,
        });
    }
    marks
}

/// Time, class, name and note of every step that was taken.
fn eviction_steps(
    eviction: &Eviction,
    flight: &Flight,
) -> Vec<(u64, &'static str, &'static str, String)> {
    let line = &eviction.timeline;
    let usage = format!(
        "{} at {}",
        eviction.scope,
        output::bytes(eviction.usage_bytes)
    );
    let mut steps = vec![
        (
            line.crossing_nanos,
            "",
            "crossing",
            text::source(line).to_owned(),
        ),
        (line.wake_nanos, "", "wake", String::new()),
        (line.verified_nanos, "", "verified", usage),
    ];
    steps.extend(line.killed_nanos.map(|at| {
        let note = text::count(u64::from(eviction.processes), "process");
        (at, "kill", "killed", note)
    }));
    if let Some(last) = flight.exits.last() {
        let note = text::count(flight.exits.len() as u64, "exit");
        steps.push((last.at_nanos, "", "last exit", note));
    }
    steps.extend(line.freed_nanos.map(|at| {
        let note = format!("of {}", output::bytes(eviction.victim_usage_bytes));
        (at, "", "freed", note)
    }));
    steps.sort_by_key(|(at, ..)| *at);
    steps
}

fn step(mark: &Mark, y: f64) -> String {
    let sign = if mark.at < 0 { "\u{2212}" } else { "+" };
    format!(
        "<text class=\"label\" x=\"70\" y=\"{y:.0}\">{}</text><text class=\"label\" x=\"92\" y=\"{y:.0}\">{}</text>\
         <text class=\"num\" text-anchor=\"end\" x=\"260\" y=\"{y:.0}\">{sign}{}</text>\
         <text class=\"note\" x=\"280\" y=\"{y:.0}\">{}</text>\n",
        mark.label,
        mark.name,
        output::nanos(mark.at.unsigned_abs()),
        escaped(&mark.note),
    )
}

fn ranking(flight: &Flight, top: f64) -> String {
    if flight.ranking.is_empty() {
        return String::new();
    }
    let shown = flight.ranking.len();
    let mut svg = format!(
        "<text class=\"head\" x=\"70\" y=\"{top:.0}\">Who goes first ({shown} of {})</text>\n",
        flight.candidates
    );
    for (number, ranked) in (1..).zip(&flight.ranking) {
        let y = top + 22.0 * f64::from(number);
        svg += &format!(
            "<text class=\"label\" x=\"70\" y=\"{y:.0}\">{number}</text>\
             <text class=\"label\" x=\"92\" y=\"{y:.0}\">{}</text>\
             <text class=\"num\" text-anchor=\"end\" x=\"420\" y=\"{y:.0}\">{}</text>\
             <text class=\"note\" x=\"440\" y=\"{y:.0}\">{}</text>\n",
            escaped(&text::name(&ranked.pod).chars().take(36).collect::<String>()),
            output::bytes(ranked.usage_bytes),
            escaped(&ranked.reason),
        );
    }
    svg
}

/// Text within SVG; names come from manifests and processes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in output::printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::example;
