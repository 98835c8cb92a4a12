//! `podwarden events`: what happened, and with `--follow` what happens.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::ValueEnum;

use super::connect::Connect;
use crate::{api::Event, client::Update, http::Missed};

pub(crate) mod text;

const EXAMPLES: &str = "\
Examples:
  podwarden events                           what the agent remembers
  podwarden events --follow                  and what happens from now on
  podwarden events --follow -o json | jq 'select(.type == \"eviction\")'
  podwarden events --since 4711              only what came after event 4711

With -o json every event is one line. Ends without an error when its reader does.";

/// Arguments of `podwarden events`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Go on until interrupted
    #[arg(long, short)]
    follow: bool,
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Only events with a higher id
    #[arg(long, value_name = "ID")]
    since: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line for people; an eviction has several
    Table,
    /// One JSON object a line
    Json,
}

/// Prints events.
///
/// # Errors
/// No agent, a broken connection, or an output that takes nothing.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match print_all(&args, &mut io::stdout()).await {
        Err(e) if is_broken_pipe(&e) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

async fn print_all(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
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
        // Whoever follows wants each line as it comes, also through a pipe.
        out.flush()?;
    }
    anyhow::bail!(
        "{} closed the stream: the agent has stopped",
        client.endpoint()
    )
}

fn print(event: &Event, output: Output, out: &mut impl Write) -> anyhow::Result<()> {
    match output {
        Output::Table => writeln!(out, "{}", text::lines(event))?,
        Output::Json => {
            let json = serde_json::to_string(event).context("encode an event")?;
            writeln!(out, "{json}")?;
        }
    }
    Ok(())
}

fn print_missed(missed: u64, output: Output, out: &mut impl Write) -> anyhow::Result<()> {
    match output {
        Output::Table => writeln!(
            out,
            "... {missed} events are not shown: too many at once, or too long ago"
        )?,
        Output::Json => {
            let json = serde_json::to_string(&Missed { missed }).context("encode")?;
            writeln!(out, "{json}")?;
        }
    }
    Ok(())
}

/// Our reader has seen enough (`| head`).
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
