//! The keys that pods' and the node's limits depend on.

use std::time::Duration;

use podwarden_policy::{container, limits::LimitOptions, model::Reserved, quantity};

use super::{File, QUANTITY, cgroup_root};
use crate::config::{
    ConfigError, Enforce, EnforceOn,
    raw::{RawConfig, RawReserved, Text},
};

const PIDS: &str = "write a number of processes, or -1 for no limit";
const POLICY: &str = "write None or TieredReservation";
const FACTOR: &str = "write a number above 0 and up to 1 with at most six decimals, such as 0.9";
const SWAP: &str = "write NoSwap or LimitedSwap";
const ENFORCE: &str = "write pods, kube-reserved, kube-reserved-compressible, system-reserved, \
                       system-reserved-compressible, or none alone";
const CGROUP: &str = "write the path of a cgroup below cgroupRoot, such as /system.slice";

impl File<'_> {
    pub(super) fn reserved(
        &self,
        fields: [&'static str; 4],
        raw: &RawReserved,
    ) -> Result<Reserved, ConfigError> {
        let [cpu, memory, pid, storage] = fields;
        let bytes = |field, text: &Option<Text>| {
            self.read(field, text.as_ref(), quantity::parse_memory, QUANTITY)
                .map(Option::unwrap_or_default)
        };
        Ok(Reserved {
            cpu: self
                .read(cpu, raw.cpu.as_ref(), quantity::parse_cpu, QUANTITY)?
                .unwrap_or_default(),
            memory: bytes(memory, &raw.memory)?,
            // A count, written as any other quantity.
            pids: bytes(pid, &raw.pid)?.as_u64(),
            ephemeral_storage: bytes(storage, &raw.ephemeral_storage)?,
        })
    }

    pub(super) fn limits(&self, raw: &RawConfig) -> Result<LimitOptions, ConfigError> {
        let defaults = LimitOptions::default();
        let period = self.duration(
            "cpuCFSQuotaPeriod",
            raw.cpu_cfs_quota_period.as_ref(),
            Duration::from_millis(1)..=Duration::from_secs(1),
        )?;
        let period = period.map(|period| u64::try_from(period.as_micros()).unwrap_or(u64::MAX));
        let pids = self.read(
            "podPidsLimit",
            raw.pod_pids_limit.as_ref(),
            pids_limit,
            PIDS,
        )?;
        let tiered = self.read(
            "memoryReservationPolicy",
            raw.memory_reservation_policy.as_ref(),
            reservation_policy,
            POLICY,
        )?;
        Ok(LimitOptions {
            enforce_cpu_limits: raw.cpu_cfs_quota.unwrap_or(defaults.enforce_cpu_limits),
            cpu_period_us: period.unwrap_or(defaults.cpu_period_us),
            pod_pids_limit: pids.flatten(),
            memory_reservation: tiered.unwrap_or(defaults.memory_reservation),
        })
    }

    pub(super) fn throttling_factor(&self, raw: &RawConfig) -> Result<Option<u32>, ConfigError> {
        let text = raw.memory_throttling_factor.as_ref();
        self.read("memoryThrottlingFactor", text, factor, FACTOR)
    }

    pub(super) fn limited_swap(&self, raw: &RawConfig) -> Result<bool, ConfigError> {
        let text = raw.memory_swap.swap_behavior.as_ref();
        let limited = self.read("memorySwap.swapBehavior", text, swap_behavior, SWAP)?;
        Ok(limited.unwrap_or(false))
    }

    /// As the kubelet checks it (`ValidateKubeletConfiguration` of
    /// `pkg/kubelet/apis/config/validation/validation.go`).
    pub(super) fn enforce(&self, raw: &RawConfig) -> Result<Enforce, ConfigError> {
        const FIELD: &str = "enforceNodeAllocatable";
        let cgroup =
            |field, text: &Option<Text>| self.read(field, text.as_ref(), daemons_cgroup, CGROUP);
        let kube = cgroup("kubeReservedCgroup", &raw.kube_reserved_cgroup)?;
        let system = cgroup("systemReservedCgroup", &raw.system_reserved_cgroup)?;
        let mut enforce = Enforce {
            pods: raw.enforce_node_allocatable.is_none(),
            kube_reserved: None,
            system_reserved: None,
        };
        let words = raw.enforce_node_allocatable.as_deref().unwrap_or_default();
        for word in words {
            let (place, named, missing, because) = match word.value.as_str() {
                "pods" if !enforce.pods => {
                    enforce.pods = true;
                    continue;
                }
                "none" if words.len() == 1 => continue,
                "none" => return Err(self.error(FIELD, word, "it stands beside others", ENFORCE)),
                "kube-reserved" | "kube-reserved-compressible" => (
                    &mut enforce.kube_reserved,
                    &kube,
                    "kubeReservedCgroup",
                    "kube-reserved in enforceNodeAllocatable",
                ),
                "system-reserved" | "system-reserved-compressible" => (
                    &mut enforce.system_reserved,
                    &system,
                    "systemReservedCgroup",
                    "system-reserved in enforceNodeAllocatable",
                ),
                "pods" => return Err(self.error(FIELD, word, "it is written twice", ENFORCE)),
                _ => return Err(self.error(FIELD, word, "no such enforcement", ENFORCE)),
            };
            if place.is_some() {
                let problem = "it, or its other form, is written twice";
                return Err(self.error(FIELD, word, problem, ENFORCE));
            }
            let Some(cgroup) = named else {
                return Err(ConfigError::Incomplete {
                    path: self.0.to_owned(),
                    missing: missing.to_owned(),
                    because: because.to_owned(),
                });
            };
            *place = Some(EnforceOn {
                cgroup: cgroup.clone(),
                compressible_only: word.value.ends_with("-compressible"),
            });
        }
        Ok(enforce)
    }
}

/// `-1` and `0` are none, as the kubelet takes them (`EnsureExists` of
/// `pkg/kubelet/cm/pod_container_manager_linux.go`).
fn pids_limit(text: &str) -> Result<Option<u64>, &'static str> {
    if text == "-1" {
        return Ok(None);
    }
    // What the kernel takes: `PIDS_MAX` of `kernel/cgroup/pids.c`.
    const MOST: u64 = 4 << 20;
    match text.parse::<u64>() {
        Ok(0) => Ok(None),
        Ok(limit @ 1..=MOST) => Ok(Some(limit)),
        Ok(_) => Err("more processes than the kernel can have, 4194304"),
        Err(_) => Err("not a number of processes"),
    }
}

fn reservation_policy(text: &str) -> Result<bool, &'static str> {
    match text {
        "None" => Ok(false),
        "TieredReservation" => Ok(true),
        _ => Err("no such policy"),
    }
}

fn swap_behavior(text: &str) -> Result<bool, &'static str> {
    match text {
        "" | "NoSwap" => Ok(false),
        "LimitedSwap" => Ok(true),
        _ => Err("no such behavior"),
    }
}

/// A decimal number, in parts of [`container::THROTTLING_FACTOR_ONE`].
fn factor(text: &str) -> Result<u32, &'static str> {
    const WRONG: &str = "not a number within the range";
    const DIGITS: usize = container::THROTTLING_FACTOR_ONE.ilog10() as usize;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > DIGITS {
        return Err(WRONG);
    }
    let number: u32 = format!("{whole}{part:0<DIGITS$}")
        .parse()
        .map_err(|_| WRONG)?;
    match number {
        1..=container::THROTTLING_FACTOR_ONE => Ok(number),
        _ => Err(WRONG),
    }
}

fn daemons_cgroup(text: &str) -> Result<String, &'static str> {
    match cgroup_root(text)?.as_str() {
        "/" => Err("it is the root, where everything runs"),
        path => Ok(path.to_owned()),
    }
}
