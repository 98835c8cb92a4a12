//! `podwarden events`: past events, and with `--follow` new ones; one event with its incident record, as
//! text or as a picture.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use serde::Serialize;

use super::{connect::Connect, output::Format};
use crate::{
    api::{
        client::Update,
        server::Missed,
        types::{Event, EventRecord},
    },
    eviction::recorder::log,
};

mod picture;
mod record;
pub(crate) mod text;

const EXAMPLES: &str = "\
Examples:
  podwarden events                           what the agent remembers
  podwarden events --follow                  and what happens from now on
  podwarden events --follow -o json | jq 'select(.type == \"eviction\")'
  podwarden events --since 4711              only what came after event 4711
  podwarden events 4711                      one event: its steps, ranking and usage curves
  podwarden events --svg 4711 -O 4711.svg    the same as a picture
  podwarden events 4711 --event-log /var/log/podwarden/events.jsonl
                                             without an agent, from its event log

An event's id is in -o json. With -o json every event is one line. Ends without an error when its reader does.

Exit code: 0 shown, 3 a wrong argument, no such event, no answer from the agent, or its end with --follow.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One event, with what the flight recorder has of it
    #[arg(value_name = "ID", conflicts_with_all = ["follow", "since"])]
    id: Option<u64>,
    /// Draw one event as SVG
    #[arg(long, value_name = "ID", conflicts_with_all = ["id", "follow", "since", "output"])]
    svg: Option<u64>,
    /// Where the picture goes, instead of standard output
    #[arg(long, short = 'O', value_name = "FILE", requires = "svg")]
    out: Option<PathBuf>,
    /// Read one event from an event log instead of asking the agent
    #[arg(long, value_name = "FILE", conflicts_with_all = ["follow", "since"])]
    event_log: Option<PathBuf>,
    /// Go on until interrupted
    #[arg(long, short)]
    follow: bool,
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Only events with a higher id
    #[arg(long, value_name = "ID")]
    since: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match print_all(&args, &mut io::stdout()).await {
        Err(e) if is_broken_pipe(&e) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

async fn print_all(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(id) = args.id.or(args.svg) {
        return print_one(args, id, out).await;
    }
    if args.event_log.is_some() {
        anyhow::bail!(
            "--event-log is for one event: name its id, or read the file, which has one event a line"
        );
    }
    let client = args.connect.client();
    if !args.follow {
        let path = format!("/v1/events?after={}", args.since.unwrap_or(0));
        let events: Vec<Event> = client.get(&path).await?;
        let mut out = io::BufWriter::new(out);
        for event in &events {
            print(event, args.output, &mut out)?;
        }
        return Ok(out.flush()?);
    }
    let mut stream = client.follow(args.since).await?;
    while let Some(update) = stream.next().await {
        match update? {
            Update::Event(event) => print(&event, args.output, out)?,
            Update::Missed(missed) => print_missed(missed, args.output, out)?,
        }
        // Each line shows as it comes, also through a pipe.
        out.flush()?;
    }
    anyhow::bail!(
        "{} closed the stream: the agent has stopped",
        client.endpoint()
    )
}

/// One event as text, JSON or a picture.
async fn print_one(args: &Args, id: u64, out: &mut impl Write) -> anyhow::Result<()> {
    let record: EventRecord = match &args.event_log {
        Some(path) => in_log(path, id)?,
        None => {
            let client = args.connect.client();
            client.get(&format!("/v1/events/{id}")).await?
        }
    };
    let text = match (args.svg, args.output) {
        (Some(_), _) => picture::svg(&record)?,
        (None, Format::Table) => record::text(&record) + "\n",
        (None, Format::Json) => serde_json::to_string(&record).context("encode an event")? + "\n",
    };
    if let Some(path) = &args.out {
        return std::fs::write(path, &text)
            .with_context(|| format!("write the picture to {}", path.display()));
    }
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn in_log(path: &Path, id: u64) -> anyhow::Result<EventRecord> {
    let read = || format!("read the event log {}", path.display());
    // One that is not there holds nothing, for an agent that begins it.
    std::fs::metadata(path).with_context(read)?;
    let (found, skipped) = log::find(path, id).with_context(read)?;
    found.with_context(|| match skipped {
        0 => format!("event {id} is not in {}", path.display()),
        _ => format!(
            "event {id} is not in {}, of which {skipped} lines are no records: is that an event log?",
            path.display()
        ),
    })
}

fn print(event: &Event, output: Format, out: &mut impl Write) -> anyhow::Result<()> {
    print_as(output, event, || text::lines(event), out)
}

fn print_missed(missed: u64, output: Format, out: &mut impl Write) -> anyhow::Result<()> {
    let text = || format!("... {missed} events are not shown: too many at once, or too long ago");
    print_as(output, &Missed { missed }, text, out)
}

fn print_as(
    output: Format,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let line = match output {
        Format::Table => text(),
        Format::Json => serde_json::to_string(value).context("encode an event")?,
    };
    Ok(writeln!(out, "{line}")?)
}

/// The reader has seen enough (`| head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
