//! [`RawConfig`] -> [`Config`]: units, ranges, defaults, and the command line over the file.

mod convergence;
mod eviction_status;
mod kubelet;
mod limits;
mod pressure;
mod static_pod_url;
mod thresholds;

use std::{fmt::Display, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use podwarden_cgroup::Driver;
use podwarden_policy::{Bytes, MilliCpu, quantity, threshold::Amount};

use super::{
    ApiserverConfig, Config, ConfigError, DEFAULT_API_SOCKET, EventLogConfig, Overrides, Ownership,
    ReactorConfig,
    raw::{RawConfig, RawEventLog, RawReactor, RawResources, Text, origin},
};

/// A pod every second: ten times what a kubelet does (one every `evictionMonitoringPeriod`, 10 s, of
/// `pkg/kubelet/eviction/eviction_manager.go`), and short of emptying a node in one bad moment.
const DEFAULT_EVICTIONS_PER_MINUTE: u32 = 60;

/// Room for 2 GiB/s and a victim of 4 GiB on a node of 8 GiB.
const DEFAULT_MAX_HEADROOM: Amount = Amount::Percent(10 * 1_000_000);

/// Some thousand records.
const DEFAULT_EVENT_LOG_SIZE: Bytes = Bytes::mebi(16);

const QUANTITY: &str = "write a quantity such as 200m, 2 or 500Mi";
const DURATION: &str = "write a duration within the range, such as 500ms, 30s or 1m30s";

/// What is being checked, for the errors.
struct File<'a>(&'a str);

impl File<'_> {
    fn error(
        &self,
        field: &str,
        text: &Text,
        problem: impl Display,
        remedy: &'static str,
    ) -> ConfigError {
        ConfigError::Value {
            origin: origin(self.0, Some(text)),
            field: field.to_owned(),
            value: text.value.clone(),
            problem: problem.to_string(),
            remedy,
        }
    }

    /// Reads an optional value.
    fn read<T, E: Display>(
        &self,
        field: &'static str,
        text: Option<&Text>,
        parse: impl FnOnce(&str) -> Result<T, E>,
        remedy: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        text.map(|text| parse(&text.value).map_err(|e| self.error(field, text, e, remedy)))
            .transpose()
    }

    fn duration(
        &self,
        field: &'static str,
        text: Option<&Text>,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, ConfigError> {
        let parse = |text: &str| {
            let found = duration(text)?;
            if range.contains(&found) {
                return Ok(found);
            }
            Err(format!(
                "not within {:?} and {:?}",
                range.start(),
                range.end()
            ))
        };
        self.read(field, text, parse, DURATION)
    }

    /// A capacity: above zero, where written.
    fn capacity(
        &self,
        raw: &RawResources,
    ) -> Result<(Option<MilliCpu>, Option<Bytes>), ConfigError> {
        const ZERO: &str = "nothing could run on it";
        let cpu = self.read(
            "capacity.cpu",
            raw.cpu.as_ref(),
            quantity::parse_cpu,
            QUANTITY,
        )?;
        let memory = self.read(
            "capacity.memory",
            raw.memory.as_ref(),
            quantity::parse_memory,
            QUANTITY,
        )?;
        if let (Some(MilliCpu::ZERO), Some(text)) = (cpu, &raw.cpu) {
            return Err(self.error("capacity.cpu", text, ZERO, QUANTITY));
        }
        if let (Some(Bytes::ZERO), Some(text)) = (memory, &raw.memory) {
            return Err(self.error("capacity.memory", text, ZERO, QUANTITY));
        }
        Ok((cpu, memory))
    }

    fn reactor(&self, raw: &RawReactor) -> Result<ReactorConfig, ConfigError> {
        let least = Duration::from_micros(100);
        let most = Duration::from_secs(10);
        let shortest = self.duration(
            "reactor.minInterval",
            raw.min_interval.as_ref(),
            least..=Duration::from_secs(1),
        )?;
        let min_interval = shortest.unwrap_or(Duration::from_millis(1));
        let longest = self.duration(
            "reactor.maxInterval",
            raw.max_interval.as_ref(),
            min_interval..=most,
        )?;
        let per_minute = self.read(
            "reactor.maxEvictionsPerMinute",
            raw.max_evictions_per_minute.as_ref(),
            per_minute,
            "write a whole number from 1 to 6000",
        )?;
        let headroom = self.read(
            "reactor.maxHeadroom",
            raw.max_headroom.as_ref(),
            headroom,
            "write an amount such as 256Mi, a share of the limit up to 50% such as 10%, or 0",
        )?;
        Ok(ReactorConfig {
            max_headroom: headroom.unwrap_or(DEFAULT_MAX_HEADROOM),
            max_evictions_per_minute: per_minute.unwrap_or(DEFAULT_EVICTIONS_PER_MINUTE),
            real_time: raw.real_time.unwrap_or(true),
            min_interval,
            max_interval: longest
                .unwrap_or(Duration::from_millis(100))
                .max(min_interval),
        })
    }
}

impl File<'_> {
    fn event_log(&self, raw: &RawEventLog) -> Result<Option<EventLogConfig>, ConfigError> {
        const PATH: &str = "eventLog.path";
        const MAX_SIZE: &str = "eventLog.maxSize";
        let path = self.read(
            PATH,
            raw.path.as_ref(),
            absolute_file,
            "write the absolute path of a file, such as /var/log/podwarden/events.jsonl",
        )?;
        let max_size = self.read(
            MAX_SIZE,
            raw.max_size.as_ref(),
            log_size,
            "write a size from 1Mi to 1Gi, such as 16Mi",
        )?;
        match (path, max_size) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(ConfigError::Incomplete {
                path: self.0.to_owned(),
                missing: PATH.to_owned(),
                because: MAX_SIZE.to_owned(),
            }),
            (Some(path), max_size) => Ok(Some(EventLogConfig {
                path,
                max_size: max_size.unwrap_or(DEFAULT_EVENT_LOG_SIZE),
            })),
        }
    }
}

fn absolute_dir(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    path.is_absolute()
        .then_some(path)
        .ok_or("not the absolute path of a directory")
}

fn absolute_file(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    if path.is_absolute() && path.file_name().is_some() && !text.ends_with('/') {
        return Ok(path);
    }
    Err("not the absolute path of a file")
}

/// A kubelet's endpoint; a plain path too, as its `--container-runtime-endpoint` takes one.
fn unix_socket(text: &str) -> Result<PathBuf, String> {
    if let Some((scheme, _)) = text.split_once("://")
        && scheme != "unix"
    {
        return Err(format!("{scheme} is no unix socket"));
    }
    let path = absolute_file(text.strip_prefix("unix://").unwrap_or(text))?;
    // `sun_path` of unix(7), with the byte that ends it.
    if path.as_os_str().len() >= 108 {
        return Err("a socket's path has at most 107 bytes".to_owned());
    }
    Ok(path)
}

fn log_size(text: &str) -> Result<Bytes, String> {
    let size = quantity::parse_memory(text).map_err(|e| e.to_string())?;
    if (Bytes::mebi(1)..=Bytes::gibi(1)).contains(&size) {
        return Ok(size);
    }
    Err("out of range".to_owned())
}

/// Checks a file's values, then puts the command line's over them.
pub(super) fn check(
    name: &str,
    raw: RawConfig,
    overrides: Overrides,
) -> Result<Config, ConfigError> {
    let file = File(name);
    let (capacity_cpu, capacity_memory) = file.capacity(&raw.capacity)?;
    let enforce = file.enforce(&raw)?;
    let thresholds = file.thresholds(&raw, enforce.pods)?;
    let ownership = raw.ownership.unwrap_or_default();
    let listen = file.read(
        "listen",
        raw.listen.as_ref(),
        str::parse::<SocketAddr>,
        LISTEN,
    )?;
    let driver = file.read("cgroupDriver", raw.cgroup_driver.as_ref(), driver, DRIVER)?;
    let root = file.read("cgroupRoot", raw.cgroup_root.as_ref(), cgroup_root, ROOT)?;
    let sampling = file.duration(
        "sampling.interval",
        raw.sampling.interval.as_ref(),
        Duration::from_millis(100)..=Duration::from_secs(60),
    )?;
    let node_name = node_name(&file, overrides.node_name, raw.node_name.as_ref())?;
    Ok(Config {
        mode: overrides.mode.or(raw.mode).unwrap_or_default(),
        ownership,
        static_pod_url: file.static_pod_url(&raw)?,
        kubelet: file.kubelet(&raw.kubelet, &node_name)?,
        node_name,
        container_runtime_endpoint: match overrides.cri_socket {
            Some(socket) => Some(from_command_line(
                "--cri-socket",
                &socket,
                unix_socket,
                SOCKET,
            )?),
            None => file.read(
                "containerRuntimeEndpoint",
                raw.container_runtime_endpoint.as_ref(),
                unix_socket,
                SOCKET,
            )?,
        },
        listen: overrides.listen.or(listen),
        cgroup_root: match overrides.cgroup_root {
            Some(root) => from_command_line("--cgroup-root", &root, cgroup_root, ROOT)?,
            None => root.unwrap_or_else(|| "/".to_owned()),
        },
        cgroup_driver: overrides.cgroup_driver.or(driver).flatten(),
        capacity_cpu,
        capacity_memory,
        kube_reserved: file.reserved(
            [
                "kubeReserved.cpu",
                "kubeReserved.memory",
                "kubeReserved.pid",
                "kubeReserved.ephemeral-storage",
            ],
            &raw.kube_reserved,
        )?,
        system_reserved: file.reserved(
            [
                "systemReserved.cpu",
                "systemReserved.memory",
                "systemReserved.pid",
                "systemReserved.ephemeral-storage",
            ],
            &raw.system_reserved,
        )?,
        enforce,
        limits: file.limits(&raw)?,
        memory_throttling_factor: file.throttling_factor(&raw)?,
        limited_swap: file.limited_swap(&raw)?,
        thresholds,
        eviction_pressure_transition_period: file
            .transition(raw.eviction_pressure_transition_period.as_ref())?,
        qos_reserved_memory: file.read(
            "qosReserved.memory",
            raw.qos_reserved.memory.as_ref(),
            percent,
            "write a whole percentage from 0% to 100%",
        )?,
        ranking: raw.ranking.unwrap_or_default(),
        evict_static_pods: raw.evict_static_pods.unwrap_or(ownership == Ownership::Own),
        pressure: file.pressure(&raw.pressure.memory)?,
        reactor: file.reactor(&raw.reactor)?,
        sampling_interval: sampling.unwrap_or(Duration::from_secs(1)),
        event_log: file.event_log(&raw.event_log)?,
        convergence: file.convergence(&raw.convergence)?,
        eviction_status: file.eviction_status(&raw.eviction_status)?,
        node_condition: raw.node_condition.unwrap_or_default(),
        pods_dir: overrides.pods_dir.or(raw.pods_dir),
        state_dir: file.read(
            "stateDir",
            raw.state_dir.as_ref(),
            absolute_dir,
            "write the absolute path of a directory, such as /var/lib/podwarden",
        )?,
        kernel_log: overrides.kernel_log.or(raw.kernel_log).unwrap_or_default(),
        apiserver: match overrides.kubeconfig.or(raw.kubeconfig) {
            _ if overrides.no_apiserver => ApiserverConfig::Off,
            Some(path) => ApiserverConfig::Kubeconfig(path),
            None => ApiserverConfig::Auto,
        },
        api_socket: overrides
            .api_socket
            .or(raw.api_socket)
            .unwrap_or_else(|| PathBuf::from(DEFAULT_API_SOCKET)),
    })
}

const LISTEN: &str = "write an address and a port such as 127.0.0.1:9595";
const SOCKET: &str =
    "write a unix socket's absolute path, such as unix:///run/containerd/containerd.sock";
const DRIVER: &str = "write auto, cgroupfs or systemd";
const ROOT: &str = "write a path below the controllers' mount points such as / or /kubelet";
const NODE_NAME: &str = "write the name of the Node object, such as node-1.example.org";

fn from_command_line<T, E: Display>(
    flag: &'static str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
    remedy: &'static str,
) -> Result<T, ConfigError> {
    parse(text).map_err(|problem| ConfigError::Value {
        origin: "(command line)".to_owned(),
        field: flag.to_owned(),
        value: text.to_owned(),
        problem: problem.to_string(),
        remedy,
    })
}

fn node_name(
    file: &File<'_>,
    flag: Option<String>,
    written: Option<&Text>,
) -> Result<String, ConfigError> {
    if let Some(name) = flag {
        return from_command_line("--node-name", &name, subdomain, NODE_NAME);
    }
    let written = file.read("nodeName", written, subdomain, NODE_NAME)?;
    // What the kubelet does with a host's name (`pkg/util/node/node.go`, `GetHostname`).
    Ok(written.unwrap_or_else(|| {
        let host = rustix::system::uname();
        host.nodename().to_string_lossy().trim().to_lowercase()
    }))
}

/// An RFC 1123 subdomain, as names of Nodes are.
fn subdomain(name: &str) -> Result<String, &'static str> {
    let ends = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let valid = |label: &str| {
        label.bytes().all(|c| ends(c) || c == b'-')
            && label.bytes().next().is_some_and(ends)
            && label.bytes().next_back().is_some_and(ends)
    };
    if name.len() <= 253 && name.split('.').all(valid) {
        return Ok(name.to_owned());
    }
    Err("not a lower-case DNS subdomain of at most 253 characters")
}

/// An absolute path without `.` and `..`; no trailing slash but for `/` itself.
pub(crate) fn cgroup_root(text: &str) -> Result<String, &'static str> {
    if !text.starts_with('/') {
        return Err("it does not start with /");
    }
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..")) {
        return Err("it has . or .. in it");
    }
    Ok(format!("/{}", parts.join("/")))
}

/// `auto` is `None`.
fn driver(text: &str) -> Result<Option<Driver>, &'static str> {
    match text {
        "auto" => Ok(None),
        "cgroupfs" => Ok(Some(Driver::Cgroupfs)),
        "systemd" => Ok(Some(Driver::Systemd)),
        _ => Err("no such driver"),
    }
}

fn per_minute(text: &str) -> Result<u32, &'static str> {
    match text.parse() {
        Ok(number @ 1..=6000) => Ok(number),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a whole number"),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    Duration::try_from(signed).map_err(|_| "it is negative".to_owned())
}

fn headroom(text: &str) -> Result<Amount, String> {
    const HALF: u64 = 50 * 1_000_000;
    match Amount::parse(text).map_err(|e| e.to_string())? {
        Amount::Percent(parts) if parts > HALF => {
            Err("pods would be evicted on a node that is half empty".to_owned())
        }
        amount => Ok(amount),
    }
}

fn percent(text: &str) -> Result<u8, &'static str> {
    let number = text.strip_suffix('%').ok_or("it does not end in %")?;
    match number.parse::<u8>() {
        Ok(percent @ 0..=100) if number.bytes().all(|b| b.is_ascii_digit()) => Ok(percent),
        _ => Err("not a whole percentage"),
    }
}
