//! A configuration file that is read again as it changes, and which of its keys a running agent takes over.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Config, ConfigError, Overrides, PodSeries};

/// What of the configuration can change while the agent runs. What the reactor, cgroups and the kernel programs
/// go by is not among it: the agent takes it over at its start, in an order that leaves nothing half done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// `sampling.interval`: time between two sampling passes while a client looks, 100 ms to 1 min. Default: 1 s.
    pub sampling_interval: Duration,
    /// `metrics.pods`: which series a pod has on `/metrics`. Default: `basic`.
    pub pod_series: PodSeries,
}

impl Live {
    /// The keys.
    pub const KEYS: [&str; 2] = ["sampling.interval", "metrics.pods"];
}

/// The file, and the command line's values that stand over its own.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    path: PathBuf,
    overrides: Overrides,
}

impl ConfigFile {
    /// Nothing is read yet.
    pub fn new(path: PathBuf, overrides: Overrides) -> Self {
        Self { path, overrides }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks it.
    pub fn read(&self) -> Result<ReadConfig, ConfigError> {
        let text = self.text()?;
        self.check(&text)
    }

    /// Reads it.
    pub fn text(&self) -> Result<String, ConfigError> {
        std::fs::read_to_string(&self.path).map_err(|source| ConfigError::Read {
            path: self.path.clone(),
            source,
        })
    }

    /// Checks what was read.
    pub fn check(&self, text: &str) -> Result<ReadConfig, ConfigError> {
        let name = self.path.display().to_string();
        let config = Config::parse(&name, text, self.overrides.clone())?;
        for sentence in config.not_acted_on() {
            tracing::warn!(config = name, "{sentence}");
        }
        // It has been read as YAML; a value without a place in JSON is no key's.
        let written = serde_saphyr::from_str(text).unwrap_or(Value::Null);
        let mut keys = BTreeMap::new();
        flatten(String::new(), written, &mut keys);
        Ok(ReadConfig {
            config,
            hash: hash(text),
            keys,
        })
    }
}

/// The first 64 bits of the SHA-256 of a file's text, in hexadecimal digits, as `sha256sum` prints them.
fn hash(text: &str) -> String {
    let hash = Sha256::digest(text);
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn flatten(name: String, value: Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = match name.as_str() {
                    "" => field,
                    name => format!("{name}.{field}"),
                };
                flatten(name, value, keys);
            }
        }
        // As if it were not written.
        Value::Null => {}
        value => {
            keys.insert(name, value);
        }
    }
}

/// A file as it was read.
#[derive(Debug, Clone)]
pub struct ReadConfig {
    /// What it comes to.
    pub config: Config,
    /// Of its text.
    pub hash: String,
    /// What is written, by keys such as `evictionHard.memory.available`.
    keys: BTreeMap<String, Value>,
}

impl ReadConfig {
    /// Keys that are written otherwise than in `before`.
    pub fn changed<'a>(&'a self, before: &'a Self) -> Vec<&'a str> {
        let all = before.keys.keys().chain(self.keys.keys());
        let mut changed: Vec<_> = all
            .filter(|key| before.keys.get(*key) != self.keys.get(*key))
            .map(String::as_str)
            .collect();
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// What is written for a key.
    pub fn written(&self, key: &str) -> String {
        match self.keys.get(key) {
            None => "its default".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &[&str], text: &str) -> ReadConfig {
        let overrides = Overrides::from_flags(flags.iter().copied()).unwrap();
        let file = ConfigFile::new("agent.yaml".into(), overrides);
        let head = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n";
        file.check(&format!("{head}{text}")).unwrap()
    }

    #[test]
    fn changed_keys_are_named_by_their_paths() {
        let before = read(
            &[],
            "evictionHard: {memory.available: 500Mi}\nmetrics: {pods: full}\nranking:\n",
        );
        let after = read(
            &[],
            "# Written otherwise.\nevictionHard:\n  memory.available: 400Mi\nsampling: {interval: 2s}\n\
             enforceNodeAllocatable: [pods]\n",
        );
        assert_eq!(
            after.changed(&before),
            [
                "enforceNodeAllocatable",
                "evictionHard.memory.available",
                "metrics.pods",
                "sampling.interval"
            ]
        );
        assert_eq!(after.written("sampling.interval"), "2s");
        assert_eq!(after.written("metrics.pods"), "its default");
        assert_eq!(after.changed(&after), [""; 0]);
        assert_ne!(before.hash, after.hash);
    }

    #[test]
    fn a_live_key_is_all_that_differs_where_only_live_keys_were_changed() {
        let before = read(&["--mode=observe"], "mode: enforce\n");
        // The command line stands over the first; the second is live.
        let after = read(
            &["--mode=observe"],
            "mode: observe\nmetrics: {pods: none}\n",
        );
        assert_ne!(before.config, after.config);
        assert_eq!(
            Config {
                live: after.config.live,
                ..before.config.clone()
            },
            after.config
        );
        let other = read(&[], "evictionHard: {memory.available: 1Gi}\n");
        assert_ne!(
            Config {
                live: other.config.live,
                ..before.config.clone()
            },
            other.config
        );
        let keys = Live::KEYS;
        let text = "sampling: {interval: 7s}\nmetrics: {pods: none}\n";
        assert_eq!(read(&[], text).changed(&read(&[], "")).len(), keys.len());
        assert!(
            read(&[], text)
                .changed(&read(&[], ""))
                .iter()
                .all(|key| keys.contains(key))
        );
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea");
    }
}
