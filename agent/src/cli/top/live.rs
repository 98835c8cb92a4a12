//! The terminal: keys in, frames out, until `q` or a signal.

use std::{io, pin::pin, thread, time::Duration};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::MissedTickBehavior,
};

use super::{
    figures::{Sample, SortKey},
    sample,
    state::{Command, State},
    view,
};
use crate::{
    api::{
        client::{Client, ClientError},
        types::Event,
    },
    cli::{output, run::shutdown_signal},
};

/// How many lines a page key moves.
const PAGE: i32 = 10;

/// Shows the table until a key or a signal ends it; the terminal is restored then, and also on a panic.
pub(super) async fn run(
    client: Client,
    sort: SortKey,
    wide: bool,
    interval: Duration,
) -> anyhow::Result<()> {
    // A failure to connect is printed on the ordinary screen.
    let first = sample(&client).await?;
    let mut state = State::new(sort, wide, output::colours(&io::stdout()));
    state.take(first);

    let terminal = Restored(ratatui::try_init()?);
    show(terminal, state, client, interval).await?;
    Ok(())
}

/// Gives the terminal back when dropped; `ratatui` does it on a panic.
struct Restored(DefaultTerminal);

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

type Fetched = Result<(Sample, Vec<Event>), ClientError>;

async fn show(
    mut terminal: Restored,
    mut state: State,
    client: Client,
    interval: Duration,
) -> io::Result<()> {
    let mut keys = read_keys();
    // Signals end the program, which would otherwise leave the terminal in raw mode.
    let mut ended = pin!(shutdown_signal()?);
    let mut hangup = signal(SignalKind::hangup())?;
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // At most one fetch at a time: a slow agent gets one request, and the keys keep working.
    let (send, mut fetched) = mpsc::channel::<Fetched>(1);
    let mut busy = false;
    loop {
        terminal.0.draw(|frame| view::draw(frame, &state))?;
        tokio::select! {
            input = keys.recv() => match input {
                None => return Ok(()),
                Some(Err(e)) => return Err(e),
                Some(Ok(input)) => {
                    if command(&input).is_some_and(|command| state.obey(command)) {
                        return Ok(());
                    }
                }
            },
            _ = ticks.tick(), if !busy => {
                busy = true;
                let (client, send, after) = (client.clone(), send.clone(), state.last_event());
                tokio::spawn(async move { send.send(fetch(&client, after).await).await });
            }
            Some(answer) = fetched.recv() => {
                busy = false;
                match answer {
                    Ok((sample, events)) => {
                        state.take(sample);
                        state.take_events(events);
                    }
                    Err(e) => state.trouble = Some(e.to_string()),
                }
            }
            () = &mut ended => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

async fn fetch(client: &Client, after: u64) -> Fetched {
    let sample = sample(client).await?;
    let events = client.get(&format!("/v1/events?after={after}")).await?;
    Ok((sample, events))
}

/// Reads the keyboard on a thread of its own, because the read blocks; the thread ends with the process, or
/// with the first key after the receiver is gone.
fn read_keys() -> mpsc::Receiver<io::Result<Input>> {
    let (send, receive) = mpsc::channel(16);
    thread::spawn(move || {
        loop {
            let input = event::read();
            let failed = input.is_err();
            if send.blocking_send(input).is_err() || failed {
                return;
            }
        }
    });
    receive
}

fn command(input: &Input) -> Option<Command> {
    let Input::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press | KeyEventKind::Repeat,
        ..
    }) = input
    else {
        return None;
    };
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Command::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Command::Quit,
        KeyCode::Char('s') => Command::Sort,
        KeyCode::Char('p') => Command::Pause,
        KeyCode::Char('e') => Command::Events,
        KeyCode::Char('?' | 'h') => Command::Help,
        KeyCode::Up | KeyCode::Char('k') => Command::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Command::Scroll(1),
        KeyCode::PageUp => Command::Scroll(-PAGE),
        KeyCode::PageDown => Command::Scroll(PAGE),
        KeyCode::Home => Command::Top,
        KeyCode::End => Command::Bottom,
        _ => return None,
    })
}
