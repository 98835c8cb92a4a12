//! Draws the state; a pure function of it.

use podwarden_policy::signal::ScopeName;
use ratatui::{
    Frame,
    layout::{Constraint, Layout as Split, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

use super::{
    columns::Tone,
    figures::TIERS,
    layout::{self, Layout},
    state::State,
};
use crate::{
    api::types::{Event, EventKind},
    cli::{events::text, output},
};

/// Lines of the events' part with its title.
const EVENTS: u16 = 7;
/// Below this height the table gets every line.
const LOW: u16 = 16;

const HELP: [&str; 8] = [
    "q, Ctrl-C     quit",
    "up, down      scroll (also k, j, PgUp, PgDn, Home, End)",
    "s             sort by cpu, memory, pressure, name",
    "p             pause, go on",
    "e             show or hide events",
    "?             show or hide this",
    "",
    "WAIT, STALL in ms per second; EXITS all/failed/by signal",
];

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let head = head(state);
    let events = if state.show_events && area.height >= LOW {
        EVENTS
    } else {
        0
    };
    let [top, table, bottom, keys] = Split::vertical([
        Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
        Constraint::Min(3),
        Constraint::Length(events),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head), top);
    draw_table(frame, table, state);
    if events > 0 {
        draw_events(frame, bottom, state);
    }
    frame.render_widget(Paragraph::new(keys_line(state)), keys);
    if state.help {
        draw_help(frame, area, state);
    }
}

fn head(state: &State) -> Vec<Line<'static>> {
    let node = state.node();
    let mut lines = Vec::new();
    if node.node_name.is_empty() {
        lines.push(Line::from("podwarden  waiting for the first figures"));
    } else {
        lines.push(Line::styled(
            format!("podwarden  {}", layout::summary(node)),
            Modifier::BOLD,
        ));
        lines.push(Line::from(layout::memory(node)));
        lines.extend(layout::best_effort(node).map(Line::from));
    }
    if let [first, rest @ ..] = node.degradations.as_slice() {
        let more = match rest.len() {
            0 => String::new(),
            n => format!(" (and {n} more: podwarden check)"),
        };
        let text = format!("degraded: {}{more}", output::printable(first));
        lines.push(Line::styled(text, style(Tone::Warn, state.colour)));
    }
    if let Some(trouble) = &state.trouble {
        let text = format!("figures are old: {}", output::printable(trouble));
        lines.push(Line::styled(text, style(Tone::Alert, state.colour)));
    }
    lines
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let layout = Layout::fitting(usize::from(area.width), state.wide);
    let [titles, body] = Split::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(
        Paragraph::new(Line::styled(layout.titles(), Modifier::REVERSED)),
        titles,
    );
    let lines = table(state, &layout);
    let room = usize::from(body.height);
    // The list may have become shorter since the key was pressed.
    let first = state.scroll.min(lines.len().saturating_sub(room));
    let shown: Vec<_> = lines.into_iter().skip(first).take(room).collect();
    frame.render_widget(Paragraph::new(shown), body);
}

fn table(state: &State, layout: &Layout) -> Vec<Line<'static>> {
    let mut lines = Vec::with_capacity(state.rows.len() + TIERS.len());
    for tier in TIERS {
        lines.push(Line::styled(
            layout.tier(tier, &state.rows, state.node()),
            Modifier::BOLD,
        ));
        for row in state.rows.iter().filter(|row| row.tier() == tier) {
            let spans = layout.pod(row).into_iter();
            lines.push(
                spans
                    .map(|(text, tone)| Span::styled(text, style(tone, state.colour)))
                    .collect(),
            );
        }
    }
    lines
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let room = usize::from(area.height.saturating_sub(1));
    let skip = state.events.len().saturating_sub(room);
    let lines = state.events.iter().skip(skip).map(|event| {
        let text = format!("{}  {}", output::time_of_day(&event.time), short(event));
        Line::styled(text, style(tone(event), state.colour))
    });
    let lines: Vec<_> = std::iter::once(Line::styled("events", Modifier::UNDERLINED))
        .chain(lines)
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// An event in less than a line; of an eviction, how fast it was.
fn short(event: &Event) -> String {
    let EventKind::Eviction(eviction) = &event.kind else {
        let sentence = text::sentence(event);
        return match &event.pod {
            Some(pod) => format!("{}  {sentence}", text::name(pod)),
            None => sentence,
        };
    };
    let timeline = &eviction.timeline;
    let killed = timeline.killed_nanos;
    let (verb, when) = match killed.and_then(|at| at.checked_sub(timeline.crossing_nanos)) {
        Some(nanos) => ("EVICTED", format!("{} after", output::nanos(nanos))),
        None if eviction.dry_run => ("WOULD EVICT", "when".to_owned()),
        None => ("EVICTING", "when".to_owned()),
    };
    if matches!(eviction.scope, ScopeName::Cpu | ScopeName::BatchMemory) {
        return format!(
            "{verb} {}: {}",
            text::name(&eviction.pod),
            output::printable(&eviction.reason)
        );
    }
    format!(
        "{verb} {} ({}) {when} {} passed {}",
        text::name(&eviction.pod),
        output::bytes(eviction.victim_working_set()),
        eviction.scope,
        output::bytes(eviction.level_bytes),
    )
}

fn tone(event: &Event) -> Tone {
    match event.kind {
        EventKind::Eviction(_) | EventKind::KernelOom { .. } => Tone::Alert,
        EventKind::LevelCrossed { .. }
        | EventKind::MemoryNearLimit { .. }
        | EventKind::Degraded { .. }
        | EventKind::GapOpened { .. }
        | EventKind::ForeignWrite { .. }
        | EventKind::ForeignWriteContested { .. }
        | EventKind::ProcessExit { .. } => Tone::Warn,
        _ => Tone::Plain,
    }
}

fn keys_line(state: &State) -> Line<'static> {
    let paused = if state.paused { "  PAUSED" } else { "" };
    let text = format!(
        "q quit  s sort: {}  p pause  e events  ? help{paused}",
        state.sort.name()
    );
    Line::styled(text, style(Tone::Dim, state.colour))
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let width = HELP.iter().map(|line| line.len()).max().unwrap_or(0);
    let width = u16::try_from(width + 4).unwrap_or(u16::MAX);
    let height = u16::try_from(HELP.len() + 2).unwrap_or(u16::MAX);
    let place = area.centered(Constraint::Length(width), Constraint::Length(height));
    let border = style(Tone::Plain, state.colour);
    let block = Block::bordered()
        .title(" podwarden top ")
        .border_style(border);
    let lines: Vec<_> = HELP
        .iter()
        .map(|line| Line::from(format!(" {line}")))
        .collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

/// Without colour, the weight marks it.
fn style(tone: Tone, colour: bool) -> Style {
    let style = match tone {
        Tone::Plain => Style::new(),
        Tone::Dim => Style::new().add_modifier(Modifier::DIM),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Alert => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    };
    match colour {
        true => style,
        false => Style { fg: None, ..style },
    }
}
