//! `podwarden health`: the agent's health over its unix socket, for exec probes and scripts.

use std::{process::ExitCode, time::Duration};

use tokio::time::Instant;

use super::{connect::Connect, output, seconds};
use crate::api::client::ClientError;

const EXAMPLES: &str = "\
Examples:
  podwarden health                    whether the agent does its work, as /healthz
  podwarden health --ready            whether it knows this node's pods, as /readyz
  podwarden health --ready --wait 4   the same, and answers as soon as it does, after 4 s at the latest
  podwarden health --api-socket /run/podwarden-pod/health.sock
                                      the same of a process that has --health-socket
  podwarden health --server 127.0.0.1:9595

A DaemonSet's readiness probe: exec: {command: [/usr/local/bin/podwarden, health, --ready, --wait=4]} with
timeoutSeconds: 5. Without --wait the first probe comes before the agent is ready, and the second a whole period later.
Exit code: 0 yes, 1 no (it says why), 3 no answer within 10 s.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ask for readiness instead of health
    #[arg(long)]
    ready: bool,
    /// Seconds to go on asking, also where no agent answers, while the answer is no; up to 3600
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = wait)]
    wait: Duration,
    #[command(flatten)]
    connect: Connect,
}

/// Between two questions.
const AGAIN: Duration = Duration::from_millis(100);

fn wait(text: &str) -> Result<Duration, String> {
    seconds(text, Duration::ZERO)
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let client = args.connect.client();
    let until = Instant::now() + args.wait;
    let answer = loop {
        let answer = client.get_bytes(path).await;
        let passes = matches!(
            answer,
            Err(ClientError::Refused { status: 503, .. } | ClientError::Connect { .. })
        );
        if !passes || Instant::now() + AGAIN > until {
            break answer;
        }
        tokio::time::sleep(AGAIN).await;
    };
    match answer {
        Ok(answer) => {
            // `ok`, or that it stands by.
            println!(
                "{}",
                output::printable(String::from_utf8_lossy(&answer).trim())
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(ClientError::Refused {
            status: 503,
            message,
            ..
        }) => {
            println!("{message}");
            Ok(ExitCode::from(1))
        }
        Err(error) => Err(error.into()),
    }
}
