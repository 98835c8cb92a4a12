//! Follows the configuration's file: takes over what can change while the agent runs, and names the rest until the
//! next start. A file that cannot be used changes nothing.
//!
//! The directory is watched, because a ConfigMap is swapped by a link in it; it is also looked at from time to time,
//! because a link may lead out of it.

use std::{path::Path, sync::Arc, time::Duration};

use crate::{
    api::{
        published::{ConfigState, Published},
        types::EventKind,
    },
    base::{clock, directory::DirectoryWatch, error::chain, worker::Task},
    config::{Config, ConfigFile, Live, ReadConfig},
};

/// A writer may not be done yet.
const SETTLE: Duration = Duration::from_millis(50);

/// Between two looks at the file where nothing was noticed.
const LOOK: Duration = Duration::from_secs(30);

/// What is degraded, for [`Published::set_standing`].
const INVALID: &str = "config";
/// As above.
const PENDING: &str = "config pending";

/// Begins to follow the file that was read at the start; for as long as the task lives.
pub(super) fn start(file: ConfigFile, read: ReadConfig, published: &Arc<Published>) -> Task {
    let mut following = Following {
        last: read.clone(),
        in_force: read.hash.clone(),
        start: read,
        published: Arc::clone(published),
        file,
    };
    following.publish(true, Vec::new());
    Task::spawn(async move { following.run().await })
}

struct Following {
    file: ConfigFile,
    /// As it was at the start; what is in force but for [`Live`].
    start: ReadConfig,
    /// As it was when it could last be used.
    last: ReadConfig,
    /// The hash of the last file that is wholly in force.
    in_force: String,
    published: Arc<Published>,
}

impl Following {
    async fn run(&mut self) {
        let path = self.file.path();
        let dir = match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            Some(dir) => dir.to_owned(),
            None => Path::new(".").to_owned(),
        };
        let mut text = None;
        let mut watch = None;
        loop {
            // Before the file is read, so that no change in between is missed.
            watch = watch.or_else(|| DirectoryWatch::new(&dir).ok());
            let file = self.file.clone();
            // Off the runtime's threads: the file may be on a slow file system.
            let read = tokio::task::spawn_blocking(move || file.text());
            // Without an answer the runtime is shutting down.
            let Ok(read) = read.await else { return };
            let read = read.map_err(|error| chain(&error));
            if text.as_ref() != Some(&read) {
                self.look(read.as_deref());
                text = Some(read);
            }
            let changed = async {
                match &watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            if let Ok(changed) = tokio::time::timeout(LOOK, changed).await {
                // A directory that is gone, or was replaced, is watched anew.
                if changed.is_err() || changed.is_ok_and(|changes| changes.gone) {
                    watch = None;
                }
                tokio::time::sleep(SETTLE).await;
            }
        }
    }

    /// Takes over another text of the file, or why there is none.
    fn look(&mut self, text: Result<&str, &String>) {
        let read = text.map_err(Clone::clone);
        let read = read.and_then(|text| self.file.check(text).map_err(|error| chain(&error)));
        match read {
            Ok(read) => self.take_over(read),
            Err(problem) => {
                let problem = format!("{problem}; the configuration from before stays in force");
                self.published.set_standing(INVALID, Some(problem));
                self.publish(false, self.pending(&self.last));
            }
        }
    }

    fn take_over(&mut self, read: ReadConfig) {
        self.published.set_standing(INVALID, None);
        let mut applied = Vec::new();
        if read.config.live != self.last.config.live {
            self.published.set_live(read.config.live);
            let keys = read.changed(&self.last).into_iter();
            let keys = keys.filter(|key| Live::KEYS.contains(key));
            applied.extend(keys.map(|key| {
                format!(
                    "{key}: {} (was {})",
                    read.written(key),
                    self.last.written(key)
                )
            }));
        }
        let pending = self.pending(&read);
        if !applied.is_empty() || pending != self.pending(&self.last) {
            tracing::info!(?applied, ?pending, "the configuration was changed");
            let kind = EventKind::ConfigChanged {
                applied,
                pending: pending.clone(),
            };
            self.published.event(clock::now_text(), None, kind);
        }
        if pending.is_empty() {
            self.in_force.clone_from(&read.hash);
        }
        self.last = read;
        let sentence = (!pending.is_empty()).then(|| {
            format!(
                "{}: {} {} changed since the agent started and {} effect at its next start; restart it",
                self.file.path().display(),
                pending.join(", "),
                if pending.len() == 1 { "was" } else { "were" },
                if pending.len() == 1 { "takes" } else { "take" },
            )
        });
        self.published.set_standing(PENDING, sentence);
        self.publish(true, pending);
    }

    /// Keys that are written otherwise than at the start and are not in force, if they would change anything.
    fn pending(&self, read: &ReadConfig) -> Vec<String> {
        let start = Config {
            live: read.config.live,
            ..self.start.config.clone()
        };
        if start == read.config {
            return Vec::new();
        }
        let keys = read.changed(&self.start).into_iter();
        let keys = keys.filter(|key| !Live::KEYS.contains(key));
        keys.map(str::to_owned).collect()
    }

    fn publish(&self, is_valid: bool, pending: Vec<String>) {
        self.published.set_config_state(ConfigState {
            hash: self.in_force.clone(),
            is_valid,
            pending,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, PodSeries};

    const HEAD: &str = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n";

    fn following(text: &str) -> Following {
        let file = ConfigFile::new("agent.yaml".into(), Overrides::default());
        let read = file.check(&format!("{HEAD}{text}")).unwrap();
        let published = Arc::new(Published::default());
        published.set_live(read.config.live);
        Following {
            last: read.clone(),
            in_force: read.hash.clone(),
            start: read,
            published,
            file,
        }
    }

    impl Following {
        fn put(&mut self, text: &str) -> (Vec<String>, ConfigState) {
            let text = format!("{HEAD}{text}");
            self.look(Ok(&text));
            let state = self.published.config_state().unwrap();
            (self.published.standing(), (*state).clone())
        }

        fn changes(&self) -> Vec<EventKind> {
            let events = self.published.events_after(0).0.into_iter();
            let kinds = events.map(|event| event.kind.clone());
            kinds
                .filter(|kind| matches!(kind, EventKind::ConfigChanged { .. }))
                .collect()
        }
    }

    #[test]
    fn live_keys_are_in_force_at_once() {
        let mut following = following("metrics: {pods: basic}\n");
        let before = following.in_force.clone();
        let (standing, state) =
            following.put("metrics: {pods: none}\nsampling: {interval: 200ms}\n");
        assert_eq!(standing, [""; 0]);
        assert_ne!(state.hash, before);
        let interval = following.published.sampling_interval();
        assert_eq!(interval, Duration::from_millis(200));
        let applied = [
            "metrics.pods: none (was basic)",
            "sampling.interval: 200ms (was its default)",
        ];
        assert_eq!(
            following.changes(),
            [EventKind::ConfigChanged {
                applied: applied.map(str::to_owned).into(),
                pending: Vec::new()
            }]
        );
        // The same again, and with another comment, changes nothing.
        following.put("# a\nmetrics: {pods: none}\nsampling: {interval: 0.2s}\n");
        assert_eq!(following.changes().len(), 1);
    }

    #[test]
    fn other_keys_wait_for_the_next_start_and_are_named_until_they_are_taken_back() {
        let mut following = following("mode: observe\n");
        let before = following.in_force.clone();
        let text = "mode: enforce\nmetrics: {pods: none}\n";
        let (standing, state) = following.put(text);
        assert_eq!(state.pending, ["mode"]);
        assert_eq!(state.hash, before, "it is not wholly in force");
        assert!(
            standing[0].contains("agent.yaml: mode was changed"),
            "{standing:?}"
        );
        assert_eq!(following.last.config.live.pod_series, PodSeries::None);
        let (standing, state) = following.put("mode: observe\n");
        assert_eq!((standing.len(), state.pending.len()), (0, 0));
        assert_eq!(state.hash, before);
        assert_eq!(following.changes().len(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_used_changes_nothing() {
        let mut following = following("");
        let before = following.in_force.clone();
        for bad in ["metrics: {pods: many}\n", "no: key\n", "mode: [\n"] {
            let (standing, state) = following.put(bad);
            assert_eq!(standing.len(), 1, "{standing:?}");
            assert!(
                standing[0].contains("agent.yaml") && standing[0].contains("stays in force"),
                "{standing:?}"
            );
            assert_eq!((state.is_valid, &state.hash), (false, &before));
        }
        following.look(Err(&"agent.yaml: gone".to_owned()));
        assert!(following.published.standing()[0].contains("gone"));
        let (standing, state) = following.put("");
        assert_eq!((standing.len(), state.is_valid), (0, true));
        assert_eq!(following.changes(), []);
    }
}
