//! [`RawConfig`] -> [`Config`]: the defaults, and the rules about more than one key.

mod enforce;
mod listeners;
mod sources;
mod thresholds;

use std::{path::PathBuf, time::Duration};

use podwarden_policy::{
    colocation::{
        evict_cpu::{AllocatableThreshold, RELEASE_BUFFER_PERCENT, Satisfaction, ThresholdError},
        memory_evict::Levels,
    },
    converge::Steps,
    limits::LimitOptions,
    model::Reserved,
    plan::Ownership,
};
use serde_saphyr::Spanned;

use super::{
    ApiserverConfig, Config, ConfigError, ConvergenceConfig, CpuEvictConfig, CpuUsageLevels,
    DEFAULT_API_SOCKET, EventLogConfig, Live, PressureConfig, ReactorConfig,
    colocation::{ColocationConfig, RawColocation, ResctrlClass},
    raw::{
        MemoryReservationPolicy, RawConfig, RawConvergence, RawEventLog, RawReactor, RawReserved,
        SwapBehavior,
    },
    values::{CpuEvictLower, CpuEvictPercent, DURATION, LogSize, not_within},
    yaml::origin,
};

/// What is being checked, for the errors.
#[derive(Clone, Copy)]
struct File<'a>(&'a str);

impl File<'_> {
    fn incomplete(self, missing: impl Into<String>, because: impl Into<String>) -> ConfigError {
        ConfigError::Incomplete {
            path: self.0.to_owned(),
            missing: missing.into(),
            because: because.into(),
        }
    }

    /// An error where one of these keys is written, which have no effect without `missing`.
    fn none_of<const N: usize>(
        self,
        companions: [(&str, bool); N],
        missing: &str,
    ) -> Result<(), ConfigError> {
        match companions.into_iter().find(|(_, is_set)| *is_set) {
            Some((because, _)) => Err(self.incomplete(missing, because)),
            None => Ok(()),
        }
    }

    fn reactor(self, raw: RawReactor) -> Result<ReactorConfig, ConfigError> {
        let min_interval = raw.min_interval.unwrap_or_default().0;
        if let Some(longest) = &raw.max_interval
            && longest.value.0 < min_interval
        {
            let range = min_interval..=Duration::from_secs(10);
            let problem = format!(
                "is `{:?}`: {}; {DURATION}",
                longest.value.0,
                not_within(&range)
            );
            return Err(self.wrong("reactor.maxInterval", longest, &problem));
        }
        let max_interval = raw.max_interval.map(|longest| longest.value);
        Ok(ReactorConfig {
            max_headroom: raw.max_headroom.unwrap_or_default().0,
            max_evictions_per_minute: raw.max_evictions_per_minute.unwrap_or_default().0,
            real_time: raw.real_time.unwrap_or(true),
            min_interval,
            max_interval: max_interval.unwrap_or_default().0.max(min_interval),
        })
    }

    /// `colocation.memoryEvictThresholdPercent` and its companion.
    fn memory_evict(self, raw: &RawColocation) -> Result<Option<Levels>, ConfigError> {
        let lower = raw.memory_evict_lower_percent.as_ref();
        let Some(threshold) = &raw.memory_evict_threshold_percent else {
            return match lower {
                None => Ok(None),
                Some(_) => Err(self.incomplete(
                    "colocation.memoryEvictThresholdPercent",
                    "colocation.memoryEvictLowerPercent",
                )),
            };
        };
        let written = lower.map(|lower| lower.value.0.into());
        let levels = Levels::new(threshold.0.into(), written);
        levels.map(Some).map_err(|error| ConfigError::Value {
            origin: lower.map_or_else(
                || self.0.to_owned(),
                |lower| origin(self.0, lower.referenced.line()),
            ),
            field: "colocation.memoryEvictLowerPercent".to_owned(),
            problem: format!("{error}; write a lower level below the threshold"),
        })
    }

    /// What has no effect without `colocation.cpuSuppressThresholdPercent`.
    fn suppress(self, raw: &RawColocation) -> Result<(), ConfigError> {
        let (least, policy) = (&raw.cpu_suppress_min_percent, &raw.cpu_suppress_policy);
        let companions = [
            ("colocation.cpuSuppressMinPercent", least.is_some()),
            ("colocation.cpuSuppressPolicy", policy.is_some()),
        ];
        match raw.cpu_suppress_threshold_percent {
            Some(_) => Ok(()),
            None => self.none_of(companions, "colocation.cpuSuppressThresholdPercent"),
        }
    }

    /// What depends on more than one key of a class.
    fn colocation(self, config: ColocationConfig) -> Result<ColocationConfig, ConfigError> {
        let empty = |class: &ResctrlClass| class.start >= class.end;
        let classes = config.resctrl.classes();
        match classes.into_iter().find(|(_, class)| empty(class)) {
            None => Ok(config),
            Some((name, ResctrlClass { start, end, .. })) => Err(ConfigError::Value {
                origin: self.0.to_owned(),
                field: format!("colocation.resctrlStrategy.{name}.catRangeEndPercent"),
                problem: format!(
                    "a range from {start} % to {end} % is empty; write an end above the start"
                ),
            }),
        }
    }

    /// What has best-effort pods go for the CPU.
    fn cpu_evict(self, raw: &RawColocation) -> Result<CpuEvictConfig, ConfigError> {
        const LOWER: &str = "colocation.cpuEvictBESatisfactionLowerPercent";
        const UPPER: &str = "colocation.cpuEvictBESatisfactionUpperPercent";
        let satisfaction = match (&raw.satisfaction_lower, &raw.satisfaction_upper) {
            (Some(lower), Some(upper)) => {
                let usage = raw.satisfaction_usage.as_ref().map(|usage| usage.0);
                let checked = Satisfaction::new(lower.0, upper.value.0, usage);
                Some(checked.map_err(|error| {
                    let problem = match error {
                        ThresholdError::Order { lower, upper } => format!(
                            "{upper} is below cpuEvictBESatisfactionLowerPercent, {lower}; raise it, or lower that"
                        ),
                        out_of_range => out_of_range.to_string(),
                    };
                    self.wrong(UPPER, upper, &problem)
                })?)
            }
            (Some(_), None) => return Err(self.incomplete(UPPER, LOWER)),
            (None, Some(_)) => return Err(self.incomplete(LOWER, UPPER)),
            (None, None) => None,
        };
        let (usage, window) = (&raw.satisfaction_usage, &raw.cpu_evict_time_window_seconds);
        let companions = [
            (
                "colocation.cpuEvictBEUsageThresholdPercent",
                usage.is_some(),
            ),
            ("colocation.cpuEvictTimeWindowSeconds", window.is_some()),
        ];
        if satisfaction.is_none() {
            self.none_of(companions, LOWER)?;
        }
        let usage = self.below(
            "colocation.cpuEvict",
            raw.cpu_evict_threshold_percent.as_ref(),
            raw.cpu_evict_lower_percent.as_ref(),
        )?;
        let allocatable = self.below(
            "colocation.cpuAllocatableEvict",
            raw.cpu_allocatable_evict_threshold_percent.as_ref(),
            raw.cpu_allocatable_evict_lower_percent.as_ref(),
        )?;
        let memory_allocatable = self.below(
            "colocation.memoryAllocatableEvict",
            raw.memory_allocatable_evict_threshold_percent.as_ref(),
            raw.memory_allocatable_evict_lower_percent.as_ref(),
        )?;
        let priority = raw.allocatable_evict_priority_threshold.as_ref();
        if priority.is_some() && allocatable.is_none() && memory_allocatable.is_none() {
            return Err(self.incomplete(
                "colocation.cpuAllocatableEvictThresholdPercent",
                "colocation.allocatableEvictPriorityThreshold",
            ));
        }
        let priority = priority.cloned().unwrap_or_default().0;
        let window = window.clone().unwrap_or_default();
        let threshold = |(percent, lower): (u64, Option<u64>)| AllocatableThreshold {
            percent,
            lower_percent: lower.unwrap_or(percent.saturating_sub(RELEASE_BUFFER_PERCENT)),
            priority,
        };
        Ok(CpuEvictConfig {
            satisfaction,
            window: Duration::from_secs(window.0),
            usage: usage.map(|(threshold, lower)| CpuUsageLevels { threshold, lower }),
            allocatable: allocatable.map(threshold),
            memory_allocatable: memory_allocatable.map(threshold),
        })
    }

    /// A threshold and a level below it: `<keys>ThresholdPercent` and `<keys>LowerPercent`.
    fn below(
        self,
        keys: &str,
        percent: Option<&CpuEvictPercent>,
        lower: Option<&Spanned<CpuEvictLower>>,
    ) -> Result<Option<(u64, Option<u64>)>, ConfigError> {
        let field = format!("{keys}LowerPercent");
        match (percent, lower) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(self.incomplete(format!("{keys}ThresholdPercent"), field)),
            (Some(percent), Some(lower)) if lower.value.0 >= percent.0 => {
                let problem = format!(
                    "{} is not below the threshold, {}; write a lower level",
                    lower.value.0, percent.0
                );
                Err(self.wrong(&field, lower, &problem))
            }
            (Some(percent), lower) => Ok(Some((percent.0, lower.map(|lower| lower.value.0)))),
        }
    }

    fn wrong<T>(self, field: &str, value: &Spanned<T>, problem: &str) -> ConfigError {
        ConfigError::Value {
            origin: origin(self.0, value.referenced.line()),
            field: field.to_owned(),
            problem: problem.to_owned(),
        }
    }

    fn event_log(self, raw: RawEventLog) -> Result<Option<EventLogConfig>, ConfigError> {
        match (raw.path, raw.max_size) {
            (None, None) => Ok(None),
            (None, Some(LogSize(_))) => Err(self.incomplete("eventLog.path", "eventLog.maxSize")),
            (Some(path), max_size) => Ok(Some(EventLogConfig {
                path: path.0,
                max_size: max_size.unwrap_or_default().0,
            })),
        }
    }
}

/// Puts the command line's values over the file's and the file's over the defaults, and checks what depends on
/// more than one key.
pub(super) fn check(name: &str, raw: RawConfig) -> Result<Config, ConfigError> {
    let file = File(name);
    let enforce = file.enforce(&raw)?;
    let secure_listen = file.listeners(&raw)?;
    let thresholds = file.thresholds(&raw, enforce.pods)?;
    let limits = limits(&raw);
    let memory_evict = file.memory_evict(&raw.colocation)?;
    file.suppress(&raw.colocation)?;
    let cpu_evict = file.cpu_evict(&raw.colocation)?;
    let static_pod_url = file.static_pod_url(&raw)?;
    let ownership = raw.ownership.unwrap_or_default();
    let node_name = raw.node_name.map_or_else(host_name, |name| name.0);
    let swap = raw.memory_swap.swap_behavior;
    Ok(Config {
        mode: raw.mode.unwrap_or_default(),
        ownership,
        static_pod_url,
        kubelet: file.kubelet(raw.kubelet, &node_name)?,
        node_name,
        container_runtime_endpoint: raw.container_runtime_endpoint.map(|socket| socket.0),
        listen: raw.listen.map(|listen| listen.0),
        secure_listen,
        listen_api: raw.listen_api.unwrap_or_default(),
        listen_hosts: raw.listen_hosts.into_iter().map(|host| host.0).collect(),
        cgroup_root: raw.cgroup_root.unwrap_or_default().0,
        cgroup_driver: raw.cgroup_driver.and_then(Into::into),
        capacity_cpu: raw.capacity.cpu.map(|cpu| cpu.0),
        capacity_memory: raw.capacity.memory.map(|memory| memory.0),
        kube_reserved: raw.kube_reserved.into(),
        system_reserved: raw.system_reserved.into(),
        enforce,
        limits,
        memory_throttling_factor: raw.memory_throttling_factor.map(|factor| factor.0),
        limited_swap: swap == Some(SwapBehavior::LimitedSwap),
        max_pods: raw.max_pods.unwrap_or_default().0,
        thresholds,
        eviction_max_pod_grace_period: raw.eviction_max_pod_grace_period.unwrap_or_default().0,
        eviction_pressure_transition_period: raw
            .eviction_pressure_transition_period
            .unwrap_or_default()
            .0,
        qos_reserved_memory: raw.qos_reserved.memory.map(|percent| percent.0),
        ranking: raw.ranking.unwrap_or_default(),
        evict_static_pods: raw.evict_static_pods.unwrap_or(ownership == Ownership::Own),
        pressure: PressureConfig {
            some: raw.pressure.memory.some.map(|stall| stall.0),
            full: raw.pressure.memory.full.map(|stall| stall.0),
        },
        reactor: file.reactor(raw.reactor)?,
        live: Live {
            sampling_interval: raw.sampling.interval.unwrap_or_default().0,
            pod_series: raw.metrics.pods.unwrap_or_default(),
        },
        sampling_disk: raw.sampling.disk.unwrap_or(true),
        sampling_network: raw.sampling.network.unwrap_or(true),
        event_log: file.event_log(raw.event_log)?,
        convergence: raw.convergence.into(),
        colocation: file.colocation(raw.colocation.with(memory_evict, cpu_evict))?,
        eviction_status: raw.eviction_status.how.unwrap_or_default(),
        node_condition: raw.node_condition.unwrap_or_default(),
        pods_dir: raw.pods_dir,
        state_dir: raw.state_dir.map(|dir| dir.0),
        kernel_log: raw.kernel_log.unwrap_or_default(),
        apiserver: match raw.kubeconfig {
            _ if raw.no_apiserver => ApiserverConfig::Off,
            Some(path) => ApiserverConfig::Kubeconfig(path),
            None => ApiserverConfig::Auto,
        },
        api_socket: raw
            .api_socket
            .unwrap_or_else(|| PathBuf::from(DEFAULT_API_SOCKET)),
    })
}

/// What the kubelet does with a host's name (`pkg/util/node/node.go`, `GetHostname`).
fn host_name() -> String {
    let host = nix::sys::utsname::uname();
    let name = host.map(|host| host.nodename().to_string_lossy().trim().to_lowercase());
    name.unwrap_or_default()
}

fn limits(raw: &RawConfig) -> LimitOptions {
    let defaults = LimitOptions::default();
    let period = raw.cpu_cfs_quota_period.as_ref();
    let period = period.map(|period| u64::try_from(period.0.as_micros()).unwrap_or(u64::MAX));
    LimitOptions {
        enforce_cpu_limits: raw.cpu_cfs_quota.unwrap_or(defaults.enforce_cpu_limits),
        cpu_period_us: period.unwrap_or(defaults.cpu_period_us),
        pod_pids_limit: raw.pod_pids_limit.as_ref().and_then(|limit| limit.0),
        memory_reservation: raw.memory_reservation_policy
            == Some(MemoryReservationPolicy::TieredReservation),
    }
}

impl From<RawReserved> for Reserved {
    fn from(raw: RawReserved) -> Self {
        Self {
            cpu: raw.cpu.unwrap_or_default().0,
            memory: raw.memory.unwrap_or_default().0,
            pids: raw.pid.unwrap_or_default().0,
            ephemeral_storage: raw.ephemeral_storage.unwrap_or_default().0,
        }
    }
}

impl From<RawConvergence> for ConvergenceConfig {
    fn from(raw: RawConvergence) -> Self {
        let all = Steps::default();
        Self {
            on_exit: raw.on_exit.unwrap_or_default(),
            steps: Steps {
                cap_lower_tiers: raw.cap_lower_tiers.unwrap_or(all.cap_lower_tiers),
                memory_high: raw.memory_high.unwrap_or(all.memory_high),
                memory_reclaim: raw.memory_reclaim.unwrap_or(all.memory_reclaim),
            },
            reclaim_step: raw.reclaim_step.unwrap_or_default().0,
        }
    }
}

impl Default for ConvergenceConfig {
    fn default() -> Self {
        RawConvergence::default().into()
    }
}
