//! `podwarden health`: the agent's health over its unix socket, for exec probes and scripts.

use std::process::ExitCode;

use super::{connect::Connect, output};
use crate::api::client::ClientError;

const EXAMPLES: &str = "\
Examples:
  podwarden health                    whether the agent does its work, as /healthz
  podwarden health --ready            whether it knows this node's pods, as /readyz
  podwarden health --api-socket /run/podwarden-pod/health.sock
                                      the same of a process that has --health-socket
  podwarden health --server 127.0.0.1:9595

A DaemonSet's probes: exec: {command: [/usr/local/bin/podwarden, health, --ready]}.
Exit code: 0 yes, 1 no (it says why), 3 no answer within 10 s.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ask for readiness instead of health
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    match args.connect.client().get_bytes(path).await {
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
