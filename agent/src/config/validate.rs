//! [`RawConfig`] -> [`Config`]: units, ranges, defaults, and the command line over the file.

mod convergence;
mod event_log;
mod eviction_status;
mod kubelet;
mod limits;
mod pressure;
mod reactor;
mod static_pod_url;
mod thresholds;

use std::{fmt::Display, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use podwarden_cgroup::Driver;
use podwarden_policy::{Bytes, MilliCpu, quantity};

use super::{
    ApiserverConfig, Config, ConfigError, DEFAULT_API_SOCKET, Overrides, Ownership,
    raw::{RawConfig, RawResources, Text, origin},
};

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
        let host = nix::sys::utsname::uname();
        let name = host.map(|host| host.nodename().to_string_lossy().trim().to_lowercase());
        name.unwrap_or_default()
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

fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    Duration::try_from(signed).map_err(|_| "it is negative".to_owned())
}

fn percent(text: &str) -> Result<u8, &'static str> {
    let number = text.strip_suffix('%').ok_or("it does not end in %")?;
    match number.parse::<u8>() {
        Ok(percent @ 0..=100) if number.bytes().all(|b| b.is_ascii_digit()) => Ok(percent),
        _ => Err("not a whole percentage"),
    }
}
