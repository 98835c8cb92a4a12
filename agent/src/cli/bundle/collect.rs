//! What a bundle holds.

use std::{collections::BTreeMap, fs, path::Path};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::redact;
use crate::{
    api::{
        client::Client,
        types::{Event, EventKind},
    },
    cli::explain,
    kernel::{hooks, support},
};

/// The newest layout of a bundle.
pub(in crate::cli) const VERSION: u32 = 1;

/// Files of the kernel's that say what a node is, and how it is doing.
const FACTS: [&str; 12] = [
    "/proc/version",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/pressure/cpu",
    "/proc/pressure/memory",
    "/proc/pressure/io",
    "/proc/cgroups",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/sys/kernel/security/lockdown",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

/// Where agents pin their maps; a directory for each cgroup root.
const PINNED: &str = "/sys/fs/bpf/podwarden";

/// `manifest.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Manifest {
    pub(in crate::cli) version: u32,
    pub(in crate::cli) podwarden: String,
    /// When it was written, RFC 3339.
    pub(in crate::cli) time: String,
    /// What could not be had, one sentence each.
    pub(in crate::cli) missing: Vec<String>,
}

/// Files by name, and what is missing.
#[derive(Debug, Default)]
pub(super) struct Parts {
    files: BTreeMap<String, Vec<u8>>,
    problems: Vec<String>,
}

impl Parts {
    /// Reads all that there is; what fails leaves a sentence.
    pub(super) async fn collect(client: &Client, config: Option<&Path>) -> Self {
        let mut this = Self::default();
        for (name, path) in [
            ("node.json", "/v1/node"),
            ("pods.json", "/v1/pods"),
            ("plan.json", "/v1/plan"),
            ("events.json", "/v1/events"),
            ("metrics.txt", "/metrics"),
        ] {
            this.ask(client, name, path).await;
        }
        this.records(client).await;
        this.explain();
        let checked = support::decide(&support::probe("/", &hooks::kernel_types()));
        this.take("check.json", serde_json::to_vec_pretty(&checked));
        if let Some(path) = config {
            let read = fs::read_to_string(path).map_err(anyhow::Error::from);
            let redacted = read.and_then(|text| redact::configuration(&text));
            this.take(
                "config.json",
                redacted.map_err(|e| format!("{}: {e}", path.display())),
            );
        }
        this.facts();
        this
    }

    fn take<E: std::fmt::Display>(&mut self, name: &str, content: Result<Vec<u8>, E>) {
        match content {
            Ok(content) => drop(self.files.insert(name.to_owned(), content)),
            Err(error) => self.problems.push(format!("{name}: {error}")),
        }
    }

    async fn ask(&mut self, client: &Client, name: &str, path: &str) {
        let answer = client.get_bytes(path).await;
        self.take(name, answer.map(Bytes::into));
    }

    /// The flight records of what is recorded.
    async fn records(&mut self, client: &Client) {
        let events = self.files.get("events.json");
        let events: Vec<Event> = events
            .and_then(|json| serde_json::from_slice(json).ok())
            .unwrap_or_default();
        let recorded = events.into_iter().filter(|event| {
            matches!(
                event.kind,
                EventKind::Eviction(_) | EventKind::KernelOom { .. }
            )
        });
        for Event { id, .. } in recorded {
            self.ask(
                client,
                &format!("records/{id}.json"),
                &format!("/v1/events/{id}"),
            )
            .await;
        }
    }

    fn explain(&mut self) {
        let Some(plan) = self.files.get("plan.json") else {
            return;
        };
        let explained = explain::all(&String::from_utf8_lossy(plan));
        self.take("explain.json", explained.map_err(|e| format!("{e:#}")));
    }

    /// A kernel without one of these files says that by its absence.
    fn facts(&mut self) {
        for path in FACTS {
            if let Ok(content) = fs::read(path) {
                let name = format!("kernel/{}", path.trim_start_matches('/').replace('/', "-"));
                self.files.insert(name, content);
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let ours = |line: &&str| line.contains(" - cgroup") || line.contains(" - bpf ");
        let mounts: Vec<_> = mounts.lines().filter(ours).collect();
        self.files
            .insert("kernel/mounts".to_owned(), mounts.join("\n").into());
        let pinned = fs::read_dir(PINNED).into_iter().flatten().flatten();
        let mut names: Vec<_> = pinned
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        self.files
            .insert("kernel/pinned".to_owned(), names.join("\n").into());
    }

    /// The agent's, else `node`.
    pub(super) fn node_name(&self) -> String {
        let node = self.files.get("node.json");
        let node: Option<Value> = node.and_then(|json| serde_json::from_slice(json).ok());
        let name = node.as_ref().and_then(|node| node["nodeName"].as_str());
        let is_safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        match name.unwrap_or_default() {
            "" => "node".to_owned(),
            name => name.replace(|c| !is_safe(c), "_"),
        }
    }

    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Every file with its content; the manifest first.
    pub(super) fn files(&self, now: &str) -> serde_json::Result<Vec<(&str, Vec<u8>)>> {
        let manifest = serde_json::to_vec_pretty(&Manifest {
            version: VERSION,
            podwarden: env!("CARGO_PKG_VERSION").to_owned(),
            time: now.to_owned(),
            missing: self.problems.clone(),
        })?;
        let files = self
            .files
            .iter()
            .map(|(name, content)| (name.as_str(), content.clone()));
        Ok(std::iter::once(("manifest.json", manifest))
            .chain(files)
            .collect())
    }
}
