//! The API server's last pods, kept past the agent's end: until a server answers again, they name each
//! cgroup's pod, its class and its priority.
//!
//! One file, replaced whole, so that a crash leaves the old one or the new one. A pod counts while its
//! cgroup exists: without one it may have ended, and waits for the server.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{PodSet, Source, SourcedPod};
use crate::base::{clock, durable, error::chain};

/// The file below the state directory.
const NAME: &str = "pods.json";
/// The version of the file's form.
const VERSION: u32 = 1;

#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    node: String,
}

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("the checkpoint {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    #[error("the checkpoint {} is not understood; it begins anew", .0.display())]
    Form(PathBuf, #[source] serde_json::Error),
    #[error("the checkpoint {} is of node {found:?}, not {node:?}; it begins anew", path.display())]
    Node {
        path: PathBuf,
        found: String,
        node: String,
    },
    #[error("the checkpoint {} has form {found}, not {VERSION}; it begins anew", path.display())]
    Version { path: PathBuf, found: u32 },
}

#[derive(Serialize)]
struct Kept<'a> {
    version: u32,
    node: &'a str,
    /// When it was written, RFC 3339.
    time: &'a str,
    pods: Vec<&'a SourcedPod>,
}

#[derive(Deserialize)]
struct Form {
    version: u32,
    /// Absent before 0.2.0, and so is the time.
    node: Option<String>,
    time: Option<String>,
}

#[derive(Deserialize)]
struct Restored {
    pods: Vec<SourcedPod>,
}

impl Checkpoint {
    /// In a directory that [`Checkpoint::write`] makes.
    pub fn new(state_dir: &Path, node: &str) -> Self {
        Self {
            path: state_dir.join(NAME),
            node: node.to_owned(),
        }
    }

    /// The pods that were written last; empty without a file.
    pub fn read(&self) -> Result<Vec<SourcedPod>, CheckpointError> {
        match durable::read(&self.path) {
            Ok(text) => text.map_or(Ok(Vec::new()), |text| self.parse(&text)),
            Err(error) => Err(CheckpointError::Io(self.path.clone(), error)),
        }
    }

    pub(super) fn parse(&self, text: &[u8]) -> Result<Vec<SourcedPod>, CheckpointError> {
        let form = |error| CheckpointError::Form(self.path.clone(), error);
        // Another version may have other pods.
        let found: Form = serde_json::from_slice(text).map_err(form)?;
        let version = found.version;
        if version != VERSION {
            let path = self.path.clone();
            return Err(CheckpointError::Version {
                path,
                found: version,
            });
        }
        // A disk that was moved or copied to another node has that node's pods.
        if let Some(found) = found.node.filter(|node| *node != self.node) {
            let (path, node) = (self.path.clone(), self.node.clone());
            return Err(CheckpointError::Node { path, found, node });
        }
        if let Some(time) = found.time {
            tracing::debug!(time, "the checkpoint's time");
        }
        let restored: Restored = serde_json::from_slice(text).map_err(form)?;
        Ok(restored.pods)
    }

    /// Writes the pods of a set that are the API server's. Synced when it returns; after an error the file is
    /// what it was.
    pub fn write(&self, set: &PodSet) -> Result<(), CheckpointError> {
        let text = text(set, &self.node, &clock::now_text());
        durable::replace(&self.path, &text)
            .map_err(|error| CheckpointError::Io(self.path.clone(), error))
    }

    /// Writes it whenever the API server's pods have changed, until the sender is gone. Changes within `settle`
    /// of one another are written once.
    pub(super) async fn keep(self, mut pods: watch::Receiver<Arc<PodSet>>, settle: Duration) {
        let mut last = Vec::new();
        let mut well = true;
        while pods.changed().await.is_ok() {
            tokio::time::sleep(settle).await;
            let set = pods.borrow_and_update().clone();
            let now = text(&set, "", "");
            // Neither the checkpoint's own pods nor those of other sources are news.
            if set.waiting.contains(&Source::Apiserver) || now == last {
                continue;
            }
            let this = self.clone();
            let done = tokio::task::spawn_blocking(move || this.write(&set)).await;
            match done {
                Ok(Ok(())) => (last, well) = (now, true),
                Ok(Err(error)) if well => {
                    well = false;
                    let problem = chain(&error);
                    tracing::warn!("pods are not kept for the next agent: {problem}");
                }
                // Logged already, or the runtime ends.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

pub(super) fn text(set: &PodSet, node: &str, time: &str) -> Vec<u8> {
    let kept = Kept {
        version: VERSION,
        node,
        time,
        pods: set.pods.iter().filter(|pod| pod.is_object()).collect(),
    };
    // Numbers and strings always serialise.
    serde_json::to_vec(&kept).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podwarden_policy::{Pod, QosClass};

    use super::*;
    use crate::pods::{Origin, Phase};

    fn pod(uid: &str, origin: Origin) -> SourcedPod {
        let pod = Pod {
            uid: uid.into(),
            name: format!("name-{uid}"),
            namespace: "shop".to_owned(),
            priority: 7,
            ..Pod::default()
        };
        SourcedPod {
            phase: Some(Phase::Running),
            containers: [("0a1".to_owned(), "app".to_owned())].into(),
            ..SourcedPod::of_manifest(pod, QosClass::Burstable, origin)
        }
    }

    fn object(uid: &str) -> SourcedPod {
        let mirror = uid == "mirror";
        let uid_of_object = format!("object-{uid}");
        pod(
            uid,
            Origin::Object {
                uid: uid_of_object,
                mirror,
            },
        )
    }

    fn set(pods: &[SourcedPod]) -> PodSet {
        PodSet {
            pods: pods.to_vec(),
            ..PodSet::default()
        }
    }

    #[test]
    fn what_the_api_server_told_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(&dir.path().join("not/there/yet"), "node-1");
        assert_eq!(checkpoint.read().unwrap(), []);
        let manifest = Origin::Manifest {
            file: "/pods/a.yaml".into(),
            document: 1,
        };
        let kept = [object("a"), object("mirror")];
        let all = [kept[0].clone(), kept[1].clone(), pod("file", manifest)];
        checkpoint.write(&set(&all)).unwrap();
        assert_eq!(checkpoint.read().unwrap(), kept);
        checkpoint.write(&set(&kept[..1])).unwrap();
        assert_eq!(checkpoint.read().unwrap(), kept[..1]);
    }

    #[test]
    fn a_file_that_is_not_ours_is_an_error_and_can_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), "node-1");
        checkpoint.write(&set(&[object("a")])).unwrap();
        let whole = fs::read(&checkpoint.path).unwrap();
        for text in [&b""[..], b"{}", &whole[..whole.len() / 2], b"\0\0\0"] {
            fs::write(&checkpoint.path, text).unwrap();
            let error = checkpoint.read().unwrap_err();
            assert!(matches!(error, CheckpointError::Form(..)), "{error}");
        }
        fs::write(&checkpoint.path, r#"{"version":2,"pods":{}}"#).unwrap();
        let error = checkpoint.read().unwrap_err();
        assert!(
            matches!(error, CheckpointError::Version { found: 2, .. }),
            "{error}"
        );
        checkpoint.write(&set(&[object("b")])).unwrap();
        assert_eq!(checkpoint.read().unwrap(), [object("b")]);
    }

    #[test]
    fn a_write_that_fails_leaves_what_was() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), "node-1");
        checkpoint.write(&set(&[object("a")])).unwrap();
        // In the way of the unfinished file.
        fs::create_dir(checkpoint.path.with_extension("json.new")).unwrap();
        let error = checkpoint.write(&set(&[object("b")])).unwrap_err();
        assert!(chain(&error).contains("pods.json"), "{error}");
        assert_eq!(checkpoint.read().unwrap(), [object("a")]);
    }

    #[tokio::test]
    async fn it_is_written_once_the_server_has_told_its_pods() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), "node-1");
        checkpoint.write(&set(&[object("a"), object("b")])).unwrap();
        let (sender, receiver) = watch::channel(Arc::new(PodSet::default()));
        let settle = Duration::from_millis(1);
        let keeping = tokio::spawn(checkpoint.clone().keep(receiver, settle));
        // As it was read, but for a pod whose cgroup is gone.
        sender.send_replace(Arc::new(PodSet {
            waiting: vec![Source::Apiserver],
            ..set(&[object("a")])
        }));
        tokio::time::sleep(50 * settle).await;
        assert_eq!(checkpoint.read().unwrap().len(), 2);
        sender.send_replace(Arc::new(set(&[object("a")])));
        // The last change is written also when it is the end.
        drop(sender);
        keeping.await.unwrap();
        assert_eq!(checkpoint.read().unwrap(), [object("a")]);
    }

    #[test]
    fn pods_of_another_node_are_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let set = PodSet {
            pods: vec![object("a")],
            ..PodSet::default()
        };
        Checkpoint::new(dir.path(), "node-1").write(&set).unwrap();
        let one = Checkpoint::new(dir.path(), "node-1").read().unwrap();
        assert_eq!(one.len(), 1);
        let other = Checkpoint::new(dir.path(), "node-2").read().unwrap_err();
        assert!(other.to_string().contains("node-1"), "{other}");
        let text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(
            kept["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z'))
        );
    }
}
