//! The values of the configuration that are more than a word or a number: how each is read from its text, its
//! range, its default, and what to write instead. Keys and flags read them alike.
//!
//! More than 400 lines: the table of all values.

use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use axum::http::Uri;
use podwarden_policy::{
    Bytes, MilliCpu,
    colocation::{evict_cpu, predict},
    container, quantity,
    threshold::Amount,
};
use serde::{Deserialize, Deserializer, de::Error};

use super::{
    Stall,
    colocation::{seconds, whole},
};

/// Why a text is not the value that belongs there.
#[derive(Debug, thiserror::Error)]
#[error("{problem}; {remedy}")]
pub struct ValueError {
    problem: String,
    remedy: &'static str,
}

/// Defines types by `Name(Type) = function that reads it, remedy;`, with `, default` where there is one.
macro_rules! values {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $read:expr, $remedy:expr $(, $default:expr)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name(pub $type);

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                let remedy = $remedy;
                match $read(text) {
                    Ok(value) => Ok(Self(value)),
                    Err(problem) => Err(ValueError { problem: problem.to_string(), remedy }),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text(deserializer)
            }
        }

        $(impl Default for $name {
            fn default() -> Self {
                Self($default)
            }
        })?
    )*};
}

/// Quantities may be written as numbers.
fn from_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err = ValueError>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    text.parse()
        .map_err(|error| Error::custom(format_args!("is `{text}`: {error}")))
}

const QUANTITY: &str = "write a quantity such as 200m, 2 or 500Mi";
pub(super) const DURATION: &str = "write a duration within the range, such as 500ms, 30s or 1m30s";
const PERCENT: &str = "write a whole number from 0 to 100";
const CGROUP: &str = "write the path of a cgroup below cgroupRoot, such as /system.slice";
const STALL: &str =
    "write how long tasks may wait within a window of 500ms to 10s, such as 200ms/2s";

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

values! {
    /// The name of a Node.
    NodeName(String) = subdomain, "write the name of the Node object, such as node-1.example.org";
    /// An address of the HTTP API.
    Listen(SocketAddr) = loopback,
        "write a loopback address and a port such as 127.0.0.1:9595; secureListen serves other machines";
    /// The same for other machines.
    SecureListen(SocketAddr) = str::parse::<SocketAddr>,
        "write an address and a port such as 0.0.0.0:9596";
    /// Pods that the node may have; the kubelet's default is 110.
    MaxPods(u32) = |text| whole(text, 1..=10_000), "write a number of pods from 1 to 10000", 250;
    /// How long a pod has to end that a soft threshold evicts, at most, seconds.
    MaxPodGracePeriod(u16) = |text| whole(text, 0..=u16::MAX),
        "write a number of seconds from 0, which kills pods at once, to 65535", 0;
    /// A name in the `Host` header, without a port.
    HostName(String) = host_name, "write a name or an address without a port, such as node-1.example";
    /// A kubelet's `--container-runtime-endpoint`.
    RuntimeSocket(PathBuf) = unix_socket,
        "write a unix socket's absolute path, such as unix:///run/containerd/containerd.sock";
    /// The parent of `kubepods`, relative to each controller's mount point.
    CgroupRoot(String) = cgroup_root,
        "write a path below the controllers' mount points such as / or /kubelet, with the systemd driver \
         /kubelet.slice", "/".to_owned();
    /// A cgroup of daemons, relative to the parent of `kubepods`.
    DaemonsCgroup(String) = daemons_cgroup, CGROUP;
    /// The directory of the agent's state.
    StateDir(PathBuf) = absolute_dir,
        "write the absolute path of a directory, such as /var/lib/podwarden";
    /// A file that is read.
    InputFile(PathBuf) = absolute_file, "write the absolute path of a file";
    /// The file of the event log.
    LogFile(PathBuf) = absolute_file,
        "write the absolute path of a file, such as /var/log/podwarden/events.jsonl";
    /// Both generations of the event log. Default: some thousand records.
    LogSize(Bytes) = |text| size(text, Bytes::MI..=Bytes::GI),
        "write a size from 1Mi to 1Gi, such as 16Mi", Bytes::mebi(16);
    /// How much page cache is dropped at a time.
    ReclaimStep(Bytes) = |text| size(text, Bytes::MI..=Bytes::GI),
        "write a size from 1Mi to 1Gi, such as 32Mi", Bytes::mebi(32);
    /// An amount of CPU.
    Cpu(MilliCpu) = quantity::parse_cpu, QUANTITY, MilliCpu::ZERO;
    /// An amount of memory.
    Memory(Bytes) = quantity::parse_memory, QUANTITY, Bytes::ZERO;
    /// A number of process ids.
    Count(u64) = quantity::parse_count, QUANTITY, 0;
    /// CPUs of a node.
    CpuCapacity(MilliCpu) = |text| not_zero(quantity::parse_cpu(text)), QUANTITY;
    /// Memory of a node.
    MemoryCapacity(Bytes) = |text| not_zero(quantity::parse_memory(text)), QUANTITY;
    /// 0 to 100.
    Percent(u8) = percent, "write a whole percentage from 0% to 100%";
    /// `None` for no limit.
    PidsLimit(Option<u64>) = pids_limit, "write a number of processes, or -1 for no limit", None;
    /// In parts of [`container::THROTTLING_FACTOR_ONE`].
    ThrottlingFactor(u32) = factor,
        "write a number above 0 and up to 1 with at most six decimals, such as 0.9";
    /// The period of CPU quotas.
    QuotaPeriod(Duration) = |text| within(text, MS..=SECOND), DURATION;
    /// Waiting for memory.
    StallLevel(Stall) = stall, STALL;
    /// The time between two sampling passes.
    SamplingInterval(Duration) = |text| within(text, 100 * MS..=60 * SECOND), DURATION, SECOND;
    /// The kubelet's default (`pkg/kubelet/apis/config/v1beta1/defaults.go`).
    CheckFrequency(Duration) = |text| within(text, SECOND..=DAY), DURATION, 20 * SECOND;
    /// The time between two polls of the kubelet.
    PollInterval(Duration) = |text| within(text, SECOND..=300 * SECOND), DURATION, 5 * SECOND;
    /// How long a token's user holds. This default and the next two are the kubelet's, also for 0.
    TokenTtl(Duration) = |text| ttl(text, 120 * SECOND), DURATION, 120 * SECOND;
    /// How long a right holds.
    AuthorizedTtl(Duration) = |text| ttl(text, 300 * SECOND), DURATION, 300 * SECOND;
    /// How long a refusal holds.
    UnauthorizedTtl(Duration) = |text| ttl(text, 30 * SECOND), DURATION, 30 * SECOND;
    /// The kubelet's default (`pkg/kubelet/apis/config/v1beta1/defaults.go`), also for 0.
    TransitionPeriod(Duration) = transition, DURATION, TRANSITION;
    /// The shortest time between two looks at a level.
    MinInterval(Duration) = |text| within(text, 100 * US..=SECOND), DURATION, MS;
    /// The longest; not below the shortest.
    MaxInterval(Duration) = |text| within(text, 100 * US..=10 * SECOND), DURATION, 100 * MS;
    /// Default: a pod every second, ten times what a kubelet does (one every `evictionMonitoringPeriod`, 10 s, of
    /// `pkg/kubelet/eviction/eviction_manager.go`), and short of emptying a node in one bad moment.
    PerMinute(u32) = per_minute, "write a whole number from 1 to 6000", 60;
    /// Default: room for 2 GiB/s and a victim of 4 GiB on a node of 8 GiB.
    MaxHeadroom(Amount) = headroom,
        "write an amount such as 256Mi, a share of the limit up to 50% such as 10%, or 0",
        Amount::Percent(10 * 1_000_000);
    /// How much of the CPU pods of all kinds may fill, percent.
    CpuReclaimPercent(u32) = |text| whole(text, 0..=100), PERCENT, 60;
    /// How much of the memory pods of all kinds may fill, percent.
    MemoryReclaimPercent(u32) = |text| whole(text, 0..=100), PERCENT, 65;
    /// The most of the capacity that is offered, percent.
    CeilingPercent(u32) = |text| whole(text, 0..=100), PERCENT;
    /// How much of what no pod asked for is offered, percent.
    UnallocatedPercent(u32) = |text| whole(text, 0..=100), PERCENT, 0;
    /// Nothing is predicted of what was measured for less, seconds.
    ColdStart(u64) = |text| whole(text, 0..=2_592_000), "write a whole number of seconds from 0 to 2592000",
        predict::COLD_START_S;
    /// What is added to a predicted peak, percent.
    SafetyMargin(u32) = |text| whole(text, 0..=100), PERCENT, predict::MARGIN_PERCENT;
    /// The time that usage is the mean of, seconds.
    UsageWindow(u64) = |text| whole(text, 10..=3600), "write a whole number of seconds from 10 to 3600", 300;
    /// The difference that is published at once, percent.
    UpdateDiff(u32) = |text| whole(text, 1..=100), "write a whole number from 1 to 100", 10;
    /// The time after which it is published anew, seconds.
    UpdateTime(u64) = |text| whole(text, 30..=3600), "write a whole number of seconds from 30 to 3600", 300;
    /// At this part of the node's memory in use, best-effort pods are evicted, percent.
    MemoryEvictPercent(u32) = |text| whole(text, 1..=100), "write a whole percentage from 1 to 100";
    /// Down to this, percent.
    MemoryEvictLower(u32) = |text| whole(text, 0..=99), "write a whole percentage from 0 to 99";
    /// The burst of a container, percent of its limit. The kernel keeps it at the quota.
    BurstPercent(u64) = |text| whole(text, 1..=10_000), "write a whole number from 1 to 10000", 1000;
    /// The highest quota of a container, percent of its limit.
    QuotaBurstPercent(u64) = |text| whole(text, 100..=1000), "write a whole number from 100 to 1000", 300;
    /// How long a container may use its highest quota.
    BurstSeconds(Option<u64>) = seconds, "write a whole number of seconds from 1 to 86400, or -1", None;
    /// At this usage of the share pool the node is busy.
    SharePoolPercent(u64) = |text| whole(text, 1..=100), "write a whole number from 1 to 100", 50;
    /// The wait for a CPU that is too long. The kernel programs look at none below 100 us.
    WaitObjective(Duration) = |text| within(text, 100 * US..=SECOND), DURATION, 5 * MS;
    /// What best effort keeps of the node's CPUs, percent.
    FloorPercent(u64) = |text| whole(text, 1..=100), "write a whole number from 1 to 100", 5;
    /// How much of the node's CPUs all pods and the system may use before best effort gets less, percent.
    SuppressPercent(u64) = |text| whole(text, 1..=100), "write a whole number from 1 to 100";
    /// At most this part of its requests is too little for best effort, percent.
    SatisfactionLower(u64) = |text| whole(text, 1..=60), "write a whole number from 1 to 60";
    /// This part is enough, percent.
    SatisfactionUpper(u64) = |text| whole(text, 1..=99), "write a whole number from 1 to 99";
    /// Best effort uses what it may from this part of it on, percent.
    BeUsagePercent(u64) = |text| whole(text, 1..=100), "write a whole number from 1 to 100",
        evict_cpu::DEFAULT_USAGE_PERCENT;
    /// The time that best effort's satisfaction is averaged over, seconds: two collections of the koordlet.
    EvictWindow(u64) = |text| whole(text, 1..=3600), "write a whole number of seconds from 1 to 3600", 2;
    /// From this part of the CPU on best-effort pods go, percent.
    CpuEvictPercent(u64) = |text| whole(text, 1..=100), "write a whole number from 1 to 100";
    /// Down to this, percent.
    CpuEvictLower(u64) = |text| whole(text, 0..=99), "write a whole number from 0 to 99";
    /// Pods of a higher priority stay.
    EvictPriority(i32) = |text| whole(text, 0..=7999), "write a whole number from 0 to 7999", 5999;
    /// Between two steps of a pod that gives page cache back, seconds.
    ReclaimInterval(u64) = |text| whole(text, 1..=300), "write a whole number of seconds from 1 to 300", 6;
    /// What it gives in a step, percent of its usage.
    ReclaimStepPercent(u64) = |text| whole(text, 1..=10), "write a whole percentage from 1 to 10", 1;
    /// An LS pod that does not work for so long is cold, seconds.
    ColdSeconds(u64) = |text| whole(text, 10..=86_400), "write a whole number of seconds from 10 to 86400", 600;
    /// Where a class's part of the cache begins, percent.
    CacheStart(i32) = |text| whole(text, 0..=99), "write a whole percentage from 0 to 99", 0;
    /// Where it ends, percent.
    CacheEnd(i32) = |text| whole(text, 1..=100), "write a whole percentage from 1 to 100";
    /// A class's part of the memory bandwidth, percent.
    BandwidthPercent(i32) = |text| whole(text, 1..=100), "write a whole percentage from 1 to 100", 100;
    /// Where manifests are.
    ManifestUrl(Uri) = manifest_url, "write a whole URL, such as https://pods.example/node-1.yaml";
    /// Where the kubelet is.
    KubeletUrl(Uri) = kubelet_url, "write https://HOST:PORT, such as https://127.0.0.1:10250";
}

const TRANSITION: Duration = Duration::from_secs(300);

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
fn cgroup_root(text: &str) -> Result<String, &'static str> {
    if !text.starts_with('/') {
        return Err("it does not start with /");
    }
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..")) {
        return Err("it has . or .. in it");
    }
    Ok(format!("/{}", parts.join("/")))
}

fn daemons_cgroup(text: &str) -> Result<String, &'static str> {
    match cgroup_root(text)?.as_str() {
        "/" => Err("it is the root, where everything runs"),
        path => Ok(path.to_owned()),
    }
}

fn size(text: &str, range: RangeInclusive<Bytes>) -> Result<Bytes, String> {
    let size = quantity::parse_memory(text).map_err(|error| error.to_string())?;
    match range.contains(&size) {
        true => Ok(size),
        false => Err("out of range".to_owned()),
    }
}

fn not_zero<T: Default + PartialEq>(amount: Result<T, impl Display>) -> Result<T, String> {
    match amount.map_err(|error| error.to_string())? {
        amount if amount == T::default() => Err("nothing could run on it".to_owned()),
        amount => Ok(amount),
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    Duration::try_from(signed).map_err(|_| "it is negative".to_owned())
}

fn within(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    let found = duration(text)?;
    match range.contains(&found) {
        true => Ok(found),
        false => Err(not_within(&range)),
    }
}

pub(super) fn not_within(range: &RangeInclusive<Duration>) -> String {
    format!("not within {:?} and {:?}", range.start(), range.end())
}

fn ttl(text: &str, default: Duration) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Ok(default),
        _ => within(text, SECOND..=HOUR),
    }
}

fn transition(text: &str) -> Result<Duration, String> {
    let period = within(text, Duration::ZERO..=DAY)?;
    Ok(if period.is_zero() { TRANSITION } else { period })
}

fn stall(text: &str) -> Result<Stall, String> {
    // What the kernel takes (`psi_trigger_create`, kernel `kernel/sched/psi.c`).
    const WINDOWS: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(10);
    let (stall, window) = text.split_once('/').ok_or("there is no / in it")?;
    let (stall, window) = (duration(stall.trim())?, duration(window.trim())?);
    if !WINDOWS.contains(&window) {
        return Err(format!("a window of {window:?}"));
    }
    // Below 1 ms it is the noise of any node.
    if !(MS..=window).contains(&stall) {
        return Err("tasks can wait 1ms at least, and for the window at most".to_owned());
    }
    Ok(Stall { stall, window })
}

fn percent(text: &str) -> Result<u8, &'static str> {
    let number = text.strip_suffix('%').ok_or("it does not end in %")?;
    match number.parse::<u8>() {
        Ok(percent @ 0..=100) if number.bytes().all(|b| b.is_ascii_digit()) => Ok(percent),
        _ => Err("not a whole percentage"),
    }
}

fn per_minute(text: &str) -> Result<u32, &'static str> {
    match text.parse() {
        Ok(number @ 1..=6000) => Ok(number),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a whole number"),
    }
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

fn manifest_url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|e| format!("{e}"))?;
    match url.scheme_str() {
        Some("http" | "https") if url.host().is_some() => Ok(url),
        _ => Err("neither http nor https".to_owned()),
    }
}

fn kubelet_url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|e| format!("{e}"))?;
    let bare = matches!(url.path(), "" | "/") && url.query().is_none();
    match url.scheme_str() {
        _ if url.host().is_none() || !bare => Err("not the address of a server".to_owned()),
        Some("https") => Ok(url),
        Some("http") if is_loopback(&url) => Ok(url),
        Some("http") => Err("the token would go over the network for all to read".to_owned()),
        _ => Err("neither https nor http".to_owned()),
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("other machines reach that address".to_owned())
}

fn host_name(text: &str) -> Result<String, String> {
    let bare = text.trim_matches(['[', ']']);
    let is_address = bare.parse::<IpAddr>().is_ok();
    let is_name = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    if is_address || (is_name && !text.is_empty()) {
        return Ok(bare.to_owned());
    }
    Err("not the name of a host".to_owned())
}

/// Whether a URL names an address of this machine; a name may mean any other.
pub(crate) fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback())
}
