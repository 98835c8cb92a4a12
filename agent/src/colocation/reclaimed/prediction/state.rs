//! What was learnt, on the disk: one file, replaced as a whole, so that a kill at any moment leaves the old or the new.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use podwarden_policy::{PodUid, colocation::predict::Model};
use serde::{Deserialize, Serialize};

use crate::base::{durable, error::chain};

const NAME: &str = "prediction.json";
/// The form that is written, and the only one that is read.
const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kept {
    /// Seconds that agents have measured.
    pub(super) measured_s: u64,
    pub(super) prod: Model,
    pub(super) system: Model,
    pub(super) pods: BTreeMap<PodUid, Model>,
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    node: &'a str,
    #[serde(flatten)]
    kept: &'a Kept,
}

#[derive(Deserialize)]
struct Head {
    version: u32,
    node: String,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("read {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    #[error("{} is not understood", .0.display())]
    Form(PathBuf, #[source] serde_json::Error),
    #[error("{} has form {found}, not {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("{} is of node {found:?}, not {node:?}", path.display())]
    Node {
        path: PathBuf,
        found: String,
        node: String,
    },
    #[error("{}: the histogram of {of} cannot have been written by an agent", path.display())]
    Unsound { path: PathBuf, of: String },
}

#[derive(Debug)]
pub(super) struct State {
    path: PathBuf,
    node: String,
    /// A problem is logged once.
    failed: bool,
}

impl State {
    pub(super) fn new(state_dir: &Path, node: &str) -> Self {
        Self {
            path: state_dir.join(NAME),
            node: node.to_owned(),
            failed: false,
        }
    }

    /// What was written last; nothing without a file.
    pub(super) fn read(&self) -> Result<Kept, StateError> {
        let path = || self.path.clone();
        let read = durable::read(&self.path).map_err(|error| StateError::Io(path(), error))?;
        let Some(text) = read else {
            return Ok(Kept::default());
        };
        let form = |error| StateError::Form(path(), error);
        let Head { version, node } = serde_json::from_slice(&text).map_err(form)?;
        if version != VERSION {
            let (path, found) = (path(), version);
            return Err(StateError::Version { path, found });
        }
        if node != self.node {
            let (path, found, node) = (path(), node, self.node.clone());
            return Err(StateError::Node { path, found, node });
        }
        let kept: Kept = serde_json::from_slice(&text).map_err(form)?;
        // A sample of a time that agents have not measured yet would never be overtaken.
        let sound = |model: &Model| {
            model.is_sound() && model.last().is_none_or(|last| last <= kept.measured_s)
        };
        let of_node = [("prod pods", &kept.prod), ("the system", &kept.system)];
        let of_pods = kept.pods.iter().map(|(uid, model)| (uid.as_str(), model));
        let unsound = {
            let mut all = of_node.into_iter().chain(of_pods);
            all.find(|(_, model)| !sound(model))
        };
        match unsound.map(|(of, _)| of.to_owned()) {
            Some(of) => Err(StateError::Unsound { path: path(), of }),
            None => Ok(kept),
        }
    }

    /// Replaces the file. A failure is logged once, until it succeeds again.
    pub(super) fn write(&mut self, kept: &Kept) {
        let written = Written {
            version: VERSION,
            node: &self.node,
            kept,
        };
        let text = serde_json::to_vec(&written).map_err(io::Error::other);
        let done = text.and_then(|text| durable::replace(&self.path, &text));
        match done {
            Ok(()) => self.failed = false,
            Err(error) if !self.failed => {
                self.failed = true;
                let error = StateError::Io(self.path.clone(), error);
                let problem = chain(&error);
                tracing::warn!("predictions are not kept for the next agent: {problem}");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn trained() -> Kept {
        let mut model = Model::default();
        for at in 0..100 {
            model.train(at * 40_000, at << 22, at * 10);
        }
        Kept {
            measured_s: 990,
            prod: model.clone(),
            system: Model::default(),
            pods: BTreeMap::from([("a".into(), model.clone()), ("b".into(), model)]),
        }
    }

    #[test]
    fn what_was_learnt_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = State::new(&dir.path().join("not/there"), "n");
        assert_eq!(state.read().unwrap(), Kept::default());
        state.write(&trained());
        assert_eq!(state.read().unwrap(), trained());
        let other = State::new(&dir.path().join("not/there"), "m");
        assert!(matches!(other.read(), Err(StateError::Node { .. })));
    }

    #[test]
    fn no_part_of_a_file_is_taken_for_the_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = State::new(dir.path(), "n");
        state.write(&trained());
        let path = dir.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let error = state.read().unwrap_err();
            assert!(matches!(error, StateError::Form(..)), "{length}: {error}");
        }
        let text = String::from_utf8(whole).unwrap();
        let broken = [
            (text.replace("\"version\":1", "\"version\":2"), "has form 2"),
            (
                text.replace("\"scale\":\"memory\"", "\"scale\":\"cpu\""),
                "cannot have been written",
            ),
            (
                text.replace("\"measuredS\":990", "\"measuredS\":900"),
                "cannot have been written",
            ),
        ];
        let mut tried = 0;
        for (broken, message) in broken.iter().filter(|(broken, _)| *broken != text) {
            fs::write(&path, broken).unwrap();
            let error = chain(&state.read().unwrap_err());
            assert!(error.contains(message), "{error}");
            tried += 1;
        }
        assert_eq!(tried, 3);
        // The next write mends it.
        state.write(&trained());
        assert_eq!(state.read().unwrap(), trained());
    }
}
