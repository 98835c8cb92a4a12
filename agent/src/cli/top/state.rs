//! The table's content and the keys' choices; samples and keys change it, the view reads it.

use std::collections::VecDeque;

use super::figures::{self, PodRow, Sample, SortKey};
use crate::api::types::{Event, EventKind, NodeStats};

/// How many events the footer can show.
const EVENTS: usize = 64;

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Quit,
    Sort,
    Pause,
    Events,
    Help,
    /// Lines down, or up when negative.
    Scroll(i32),
    Top,
    Bottom,
}

/// Everything the view draws from.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) rows: Vec<PodRow>,
    pub(super) events: VecDeque<Event>,
    pub(super) sort: SortKey,
    pub(super) wide: bool,
    pub(super) paused: bool,
    pub(super) show_events: bool,
    pub(super) help: bool,
    pub(super) colour: bool,
    /// First line of the table that shows.
    pub(super) scroll: usize,
    /// Why the figures are old.
    pub(super) trouble: Option<String>,
    latest: Sample,
    before: Option<Sample>,
    last_event: u64,
    /// Start time of the agent that `last_event` belongs to.
    agent: String,
}

impl State {
    pub(super) fn new(sort: SortKey, wide: bool, colour: bool) -> Self {
        Self {
            sort,
            wide,
            show_events: true,
            colour,
            ..Self::default()
        }
    }

    pub(super) fn node(&self) -> &NodeStats {
        &self.latest.node
    }

    /// The last event seen; the next request starts after it.
    pub(super) fn last_event(&self) -> u64 {
        self.last_event
    }

    /// Takes new figures, unless paused. The same figures once more change nothing, so that the
    /// rates stay those of the last full window.
    pub(super) fn take(&mut self, sample: Sample) {
        self.trouble = None;
        if sample.node.start_time != self.agent {
            // Another agent process: its events start at 1 again.
            self.last_event = 0;
            self.agent.clone_from(&sample.node.start_time);
        }
        if self.paused || sample.node.time == self.latest.node.time {
            return;
        }
        let previous = std::mem::replace(&mut self.latest, sample);
        self.before = Some(previous);
        self.rows = figures::rows(self.before.as_ref(), &self.latest);
        figures::sort(&mut self.rows, self.sort);
    }

    /// Takes new events; those that only the figures of exits need are left out.
    pub(super) fn take_events(&mut self, events: Vec<Event>) {
        if self.paused {
            // The request after the pause has them.
            return;
        }
        for event in events {
            self.last_event = self.last_event.max(event.id);
            if !worth_showing(&event) {
                continue;
            }
            if self.events.len() == EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    /// Carries out a command; true for the last one.
    pub(super) fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Quit => return true,
            Command::Sort => {
                self.sort = self.sort.next();
                figures::sort(&mut self.rows, self.sort);
            }
            Command::Pause => self.paused = !self.paused,
            Command::Events => self.show_events = !self.show_events,
            Command::Help => self.help = !self.help,
            Command::Scroll(lines) => {
                let by = usize::try_from(lines.unsigned_abs()).unwrap_or(usize::MAX);
                self.scroll = match lines {
                    ..0 => self.scroll.saturating_sub(by),
                    0.. => self.scroll.saturating_add(by).min(self.rows.len()),
                };
            }
            Command::Top => self.scroll = 0,
            Command::Bottom => self.scroll = self.rows.len(),
        }
        false
    }
}

/// Thousands of processes may end each second; the EXITS column counts those.
fn worth_showing(event: &Event) -> bool {
    match &event.kind {
        EventKind::ProcessExit { oom_killed, .. } => *oom_killed,
        _ => true,
    }
}
