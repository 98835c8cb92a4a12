//! What is kept of each pod, for as long as the index has the pod.

use std::collections::BTreeMap;

use foldhash::HashMap;
use podwarden_policy::PodUid;

use super::PodEntry;

/// Forgets pods that are gone; returns whether there were any. Once `kept` has every pod of `pods` it is longer where one
/// is gone, and only then it is looked through.
pub fn forget_gone<V>(pods: &BTreeMap<PodUid, PodEntry>, kept: &mut HashMap<PodUid, V>) -> bool {
    let has_gone = kept.len() > pods.len();
    if has_gone {
        kept.retain(|uid, _| pods.contains_key(uid));
    }
    has_gone
}
