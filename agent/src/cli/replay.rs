//! `podwarden replay`: serves a bundle as its agent did, to a browser and to the other subcommands.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, ensure};
use podwarden_policy::plan::Snapshot;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    bundle::collect::{Manifest, VERSION},
    connect::address,
    run::shutdown_signal,
    words::PRESENTER,
};
use crate::{
    api::{
        published::{Figures, Published},
        server::{Listen, Listeners, Reach, serve_on},
        types::{EventRecord, NodeStats, PodList},
    },
    config::API_VERSION,
    hierarchy::recorded::{KIND, Recorded, Version},
};

const EXAMPLES: &str = "\
Examples:
  podwarden replay podwarden-bundle-node-1.tar            then open http://127.0.0.1:9595/
  podwarden top --once --server 127.0.0.1:9595            beside it, as every other subcommand
  podwarden plan --record --server 127.0.0.1:9595

Reads the file and touches nothing of this machine; needs no root. Ends on SIGINT and SIGTERM.

Exit code: 0 ended by a signal, 3 a wrong argument, no bundle, or an address that is taken.";

/// What is said of another file.
const NO_BUNDLE: &str =
    "it is no bundle, or not a whole one; give a file that `podwarden bundle` has written";

/// Bytes of a bundle that are read at most.
const MOST: u64 = 512 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What `podwarden bundle` wrote
    bundle: PathBuf,
    /// Loopback address to serve it on
    #[arg(long, value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:9595")]
    listen: SocketAddr,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let bundle = Bundle::read(&args.bundle)
        .with_context(|| format!("read the bundle {}", args.bundle.display()))?;
    let published = bundle.published()?;
    let listeners = Listeners::open(&Listen {
        tcp: Some(args.listen),
        reach: Reach {
            api: true,
            ..Reach::default()
        },
        ..Listen::default()
    })
    .await?;
    let address = listeners.tcp_addr().with_context(|| {
        format!(
            "listen {}: the address is taken; choose another",
            args.listen
        )
    })?;
    println!("http://{address}/");
    serve_on(Arc::new(published), listeners, shutdown_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// The files of a bundle, by their path in it.
struct Bundle(BTreeMap<String, Vec<u8>>);

/// A plan's snapshot as it was recorded.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    time: String,
    cgroup_version: Version,
    cgroup_driver: String,
    recorded: Snapshot,
}

/// The files of an archive.
fn files(archive: &File) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut archive = tar::Archive::new(archive.take(MOST));
    let mut files = BTreeMap::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let name = name.strip_prefix("podwarden-bundle").unwrap_or(&name);
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.insert(name.to_string_lossy().into_owned(), content);
    }
    Ok(files)
}

impl Bundle {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let this = Self(files(&File::open(path)?).context(NO_BUNDLE)?);
        let manifest = this.json("manifest.json");
        let manifest =
            manifest.and_then(|found: Option<Manifest>| found.context("it has no manifest.json"));
        let manifest = manifest.context(NO_BUNDLE)?;
        ensure!(
            manifest.version <= VERSION,
            "it is of podwarden {}; use that version to replay it",
            manifest.podwarden
        );
        Ok(this)
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        let content = self.0.get(name).map(|json| serde_json::from_slice(json));
        content.transpose().with_context(|| name.to_owned())
    }

    fn published(&self) -> anyhow::Result<Published> {
        let manifest: Option<Manifest> = self.json("manifest.json")?;
        let events: Vec<crate::api::types::Event> = self.json("events.json")?.unwrap_or_default();
        let last = events.last().map_or(0, |event| event.id);
        let published = Published::after(events, last);
        published.set_presenter(PRESENTER);
        for name in self.0.keys().filter(|name| name.starts_with("records/")) {
            let record: Option<EventRecord> = self.json(name)?;
            if let Some(EventRecord {
                event,
                flight_record: Some(flight),
            }) = record
            {
                published.publish_flight_record(event.id, flight);
            }
        }
        if let Some(saved) = self.json::<Saved>("plan.json")? {
            published.publish_planned(Recorded {
                api_version: API_VERSION,
                kind: KIND,
                time: saved.time,
                cgroup_version: saved.cgroup_version,
                cgroup_driver: saved.cgroup_driver,
                recorded: saved.recorded,
            });
        }
        let mut node: NodeStats = self.json("node.json")?.unwrap_or_default();
        let time = manifest.map_or_else(String::new, |manifest| manifest.time);
        node.degradations.push(format!(
            "this is a recording of {time}: nothing in it is live"
        ));
        let pods: PodList = self.json("pods.json")?.unwrap_or_default();
        published.publish(Figures::new(node, pods.pods));
        published.set_recorded();
        published.set_ready(true);
        Ok(published)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_no_bundle_and_that_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        let said = || format!("{:#}", Bundle::read(&path).err().unwrap());
        assert!(!said().contains(NO_BUNDLE), "there is no file");
        for content in [&b""[..], b"{}", &[7; 2000]] {
            std::fs::write(&path, content).unwrap();
            assert!(said().starts_with(NO_BUNDLE), "{}", said());
        }
    }
}
