//! `podwarden bundle`: all that a report of a fault needs, in one file that `podwarden replay` shows.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

use self::collect::Parts;
use super::connect::Connect;
use crate::base::clock;

pub(super) mod collect;
mod redact;

const EXAMPLES: &str = "\
Examples:
  podwarden bundle                          writes podwarden-bundle-NODE.tar
  podwarden bundle -O /tmp/incident.tar
  kubectl -n podwarden exec POD -- podwarden bundle -O - >incident.tar
  podwarden replay podwarden-bundle-NODE.tar

In it: figures, plan, events with flight records, explain of every pod, metrics, what `check` finds, the
configuration without its secrets, facts of the kernel, names of what is pinned. Names and uids of pods are in it,
their environment and their logs are not. What could not be had is named in manifest.json.
Exit code: 0 written, 1 written and something is missing in it, 3 not written.";

/// The configuration that the DaemonSet and the systemd unit use.
const USUAL_CONFIG: &str = "/etc/podwarden/config.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File to write, which must not exist, or `-` for standard output [default: podwarden-bundle-NODE.tar]
    #[arg(short = 'O', long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// The agent's configuration [default: /etc/podwarden/config.yaml where there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.config.or_else(|| {
        let usual = PathBuf::from(USUAL_CONFIG);
        usual.is_file().then_some(usual)
    });
    let parts = Parts::collect(&args.connect.client(), config.as_deref()).await;
    let file = args
        .output_file
        .unwrap_or_else(|| format!("podwarden-bundle-{}.tar", parts.node_name()).into());
    let to_stdout = file.as_os_str() == "-";
    let written = match to_stdout {
        true => write(&parts, io::stdout().lock()).map(drop),
        false => create(&file).and_then(|new| Ok(write(&parts, new)?.sync_all()?)),
    };
    written.with_context(|| format!("write {}", file.display()))?;
    for problem in parts.problems() {
        eprintln!("podwarden: not in the bundle: {problem}");
    }
    if !to_stdout {
        println!("{}", file.display());
    }
    Ok(ExitCode::from(u8::from(!parts.problems().is_empty())))
}

/// Only its owner reads the file.
fn create(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    Ok(options.open(path)?)
}

/// Gives back what it has written to.
fn write<W: Write>(parts: &Parts, to: W) -> anyhow::Result<W> {
    let mut tar = tar::Builder::new(to);
    let seconds = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default();
    for (name, content) in parts.files(&clock::now_text())? {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        tar.append_data(
            &mut header,
            Path::new("podwarden-bundle").join(name),
            &*content,
        )?;
    }
    let mut to = tar.into_inner()?;
    to.flush()?;
    Ok(to)
}
