//! Failed actions as text: pod, cgroup, file, value and remedy.
//! Each failure is counted; its text is logged once, for as long as it stays the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use podwarden_cgroup::{CgroupPath, Errno, Error};
use podwarden_policy::{PodUid, name, settings::Setting};

use super::{Operation, timed};
use crate::{base::error::chain, pods::PodSet};

/// The key of a failure: a cgroup and an operation. The root stands for the node.
type Key = (CgroupPath, &'static str);

/// One action that could not be carried out.
#[derive(Debug)]
pub(super) struct Refusal {
    key: Key,
    /// The pod's uid as it stands in the cgroup's name.
    uid: Option<PodUid>,
    what: String,
    error: Error,
    remedy: &'static str,
}

impl Refusal {
    /// `exists`: the cgroup is there, so a file that is missing from it is a controller
    /// that is not enabled, which is said for the node and not for every pod.
    pub(super) fn new(
        path: &CgroupPath,
        operation: Operation,
        setting: Option<&Setting>,
        exists: bool,
        error: Error,
    ) -> Self {
        let no_controller = match error {
            Error::NoController { .. } => true,
            Error::NotFound { .. } => exists && setting.is_some(),
            _ => false,
        };
        let subject = subject(operation, setting);
        let cgroup = if no_controller {
            CgroupPath::ROOT
        } else {
            path.clone()
        };
        let what = match (operation, setting) {
            (_, Some(setting)) if no_controller => {
                format!("{} is not written on this node", setting.name())
            }
            (_, Some(setting)) => format!("{setting} of {path} is not in force"),
            (Operation::Delete, None) => format!("{path} stays behind"),
            (_, None) => format!("{path} is not there"),
        };
        Self {
            key: (cgroup, subject),
            uid: name::parse_pod_path(path.as_str())
                .filter(|_| !no_controller)
                .map(|(_, uid)| uid),
            what,
            remedy: if no_controller {
                "enable the controller (kernel option or boot parameter, and cgroup.subtree_control \
                 of every cgroup above)"
            } else {
                remedy(operation, setting, &error)
            },
            error,
        }
    }

    /// One line.
    fn text(&self, names: &HashMap<PodUid, String>) -> String {
        let pod = self.uid.as_ref().map_or_else(String::new, |uid| {
            let name = names.get(uid).map_or("unknown name", String::as_str);
            format!("pod {name} (uid {uid}): ")
        });
        format!(
            "{pod}{}: {}; {}",
            self.what,
            chain(&self.error),
            self.remedy
        )
    }
}

fn subject(operation: Operation, setting: Option<&Setting>) -> &'static str {
    setting.map_or(operation.as_str(), Setting::name)
}

/// What the operator can do.
fn remedy(operation: Operation, setting: Option<&Setting>, error: &Error) -> &'static str {
    if let Error::InternalProcesses { .. } = error {
        return "move the processes of the cgroup above into a cgroup of their own";
    }
    if error.is_permission() {
        return "run as root, with the cgroup file systems mounted writable";
    }
    if error.is_gone() {
        return "another process removed it; the next pass creates it again if the plan still has it";
    }
    if let Error::Unanswered { .. } | Error::StillWaiting { .. } = error {
        return timed::REMEDY;
    }
    let errno = error.errno();
    match (operation, setting) {
        (_, Some(Setting::MemoryLimit(_))) if errno == Some(Errno::BUSY) => {
            "more is in use than can be reclaimed; the next pass tries again"
        }
        (_, Some(Setting::MemoryLimit(_))) if errno == Some(Errno::INVAL) => {
            "memory.memsw.limit_in_bytes of the same cgroup is lower: raise it first"
        }
        (_, Some(Setting::CpuMax(_))) if errno == Some(Errno::INVAL) => {
            "a cgroup above has a lower quota, or one below a higher one: see their cpu.cfs_quota_us"
        }
        (Operation::Create, None)
            if matches!(errno, Some(Errno::NOSPC | Errno::AGAIN | Errno::NOMEM)) =>
        {
            "the kernel has no room for another cgroup: see /proc/cgroups, cgroup.max.descendants \
             and cgroup.max.depth of the cgroups above"
        }
        (Operation::Delete, None) if errno == Some(Errno::BUSY) => {
            "something is in it again or mounted on it; the next pass tries again"
        }
        _ if matches!(error, Error::NotKept { .. }) => {
            "another process writes this file, or the kernel rejects this value"
        }
        _ => "the next pass tries again",
    }
}

/// What is refused at present, and what pods are called.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    names: HashMap<PodUid, String>,
    said: BTreeMap<Key, String>,
    met: BTreeSet<Key>,
}

impl Refusals {
    /// Learns the names of all pods; those of `kept`, whose cgroups are still to be removed, stay known.
    pub(super) fn learn(&mut self, pods: &PodSet, kept: Vec<PodUid>) {
        let mut before = std::mem::take(&mut self.names);
        let kept = kept.into_iter().filter_map(|uid| before.remove_entry(&uid));
        self.names = kept.collect();
        self.names.extend(pods.pods.iter().map(|p| {
            let name = format!("{}/{}", p.pod.namespace, p.pod.name);
            (p.pod.uid.clone(), name)
        }));
    }

    /// Logs a refusal unless the same was the last word on it. The value does not count: it may
    /// follow usage and be another one in every pass.
    pub(super) fn say(&mut self, refusal: Refusal) {
        let cause = chain(&refusal.error);
        if self.said.get(&refusal.key) != Some(&cause) {
            tracing::warn!("{}", refusal.text(&self.names));
            self.said.insert(refusal.key.clone(), cause);
        }
        self.met.insert(refusal.key);
    }

    /// What was refused is now done.
    pub(super) fn resolved(
        &mut self,
        path: &CgroupPath,
        operation: Operation,
        setting: Option<&Setting>,
    ) {
        if self.said.is_empty() {
            return;
        }
        let subject = subject(operation, setting);
        if self.said.remove(&(path.to_owned(), subject)).is_some() {
            tracing::info!(cgroup = %path, "{subject}: no longer refused");
        }
    }

    /// An action that a whole pass did not refuse again is no longer in the plan, or is done.
    pub(super) fn end_of_pass(&mut self) {
        let met = std::mem::take(&mut self.met);
        self.said.retain(|key, _| met.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use podwarden_policy::{Bytes, Pod, QosClass, limits::Limit};

    use super::*;
    use crate::pods::{Origin, SourcedPod};

    const POD: &str = "kubepods/burstable/pod12-34";
    const LIMIT: Setting = Setting::MemoryLimit(Limit::At(Bytes::mebi(64)));

    fn busy() -> Error {
        Error::Os {
            operation: "write",
            path: Path::new("/c/memory/kubepods/burstable/pod12-34/memory.limit_in_bytes").into(),
            source: Errno::BUSY,
        }
    }

    fn no_file() -> Error {
        Error::NotFound {
            operation: "open",
            path: Path::new("/c/kubepods/memory.max").into(),
        }
    }

    fn refused(path: &CgroupPath, exists: bool, error: Error) -> Refusal {
        Refusal::new(path, Operation::Update, Some(&LIMIT), exists, error)
    }

    #[test]
    fn it_names_pod_cgroup_file_value_and_remedy() {
        let mut refusals = Refusals::default();
        let pods = PodSet {
            pods: vec![SourcedPod::of_manifest(
                Pod {
                    uid: "12-34".into(),
                    name: "web".to_owned(),
                    namespace: "shop".to_owned(),
                    ..Pod::default()
                },
                QosClass::Burstable,
                Origin::Manifest {
                    file: "web.yaml".into(),
                    document: 1,
                },
            )],
            ..PodSet::default()
        };
        refusals.learn(&pods, Vec::new());
        let text = refused(&POD.into(), true, busy()).text(&refusals.names);
        for part in [
            "shop/web",
            "uid 12-34",
            POD,
            "memory.limit_in_bytes",
            "memory limit 64Mi",
            "busy",
            "the next pass tries again",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(!text.contains('\n'));
    }

    #[test]
    fn a_missing_controller_is_the_nodes_and_a_missing_cgroup_the_pods() {
        let refusals = Refusals::default();
        let other = "kubepods/podother";
        let keys = [POD, other].map(|path| refused(&path.into(), true, no_file()).key);
        assert_eq!(keys[0], keys[1]);
        let text = refused(&POD.into(), true, no_file()).text(&refusals.names);
        assert!(!text.contains("12-34"), "{text}");
        assert!(text.contains("enable the controller"), "{text}");
        let keys = [POD, other].map(|path| refused(&path.into(), false, no_file()).key);
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn it_is_remembered_until_it_is_resolved_or_not_met_again() {
        let mut refusals = Refusals::default();
        refusals.say(refused(&POD.into(), true, busy()));
        refusals.end_of_pass();
        assert_eq!(refusals.said.len(), 1);
        refusals.resolved(&POD.into(), Operation::Update, Some(&LIMIT));
        assert_eq!(refusals.said.len(), 0);
        refusals.say(refused(&POD.into(), true, busy()));
        refusals.end_of_pass();
        refusals.end_of_pass();
        assert_eq!(refusals.said.len(), 0);
    }
}
