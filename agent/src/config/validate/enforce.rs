//! `enforceNodeAllocatable` with the cgroups that it names.

use super::File;
use crate::config::{ConfigError, Enforce, EnforceOn, raw::RawConfig};

const FIELD: &str = "enforceNodeAllocatable";
const REMEDY: &str = "write pods, kube-reserved, kube-reserved-compressible, system-reserved, \
                      system-reserved-compressible, or none alone";

impl File<'_> {
    /// As the kubelet checks it (`ValidateKubeletConfiguration` of
    /// `pkg/kubelet/apis/config/validation/validation.go`).
    pub(super) fn enforce(self, raw: &RawConfig) -> Result<Enforce, ConfigError> {
        let mut enforce = Enforce {
            pods: raw.enforce_node_allocatable.is_none(),
            kube_reserved: None,
            system_reserved: None,
        };
        let words = raw.enforce_node_allocatable.as_deref().unwrap_or_default();
        for word in words {
            let error = |problem| {
                let wrong = format!("{problem}; {REMEDY}");
                Err(ConfigError::value(self.0, FIELD, word, wrong))
            };
            let (place, cgroup, missing, because) = match word.value.as_str() {
                "pods" if enforce.pods => return error("it is written twice"),
                "pods" => {
                    enforce.pods = true;
                    continue;
                }
                "none" if words.len() == 1 => continue,
                "none" => return error("it stands beside others"),
                "kube-reserved" | "kube-reserved-compressible" => (
                    &mut enforce.kube_reserved,
                    &raw.kube_reserved_cgroup,
                    "kubeReservedCgroup",
                    "kube-reserved in enforceNodeAllocatable",
                ),
                "system-reserved" | "system-reserved-compressible" => (
                    &mut enforce.system_reserved,
                    &raw.system_reserved_cgroup,
                    "systemReservedCgroup",
                    "system-reserved in enforceNodeAllocatable",
                ),
                _ => return error("no such enforcement"),
            };
            if place.is_some() {
                return error("it, or its other form, is written twice");
            }
            let Some(cgroup) = cgroup else {
                return Err(self.incomplete(missing, because));
            };
            *place = Some(EnforceOn {
                cgroup: cgroup.0.clone(),
                compressible_only: word.value.ends_with("-compressible"),
            });
        }
        Ok(enforce)
    }
}
