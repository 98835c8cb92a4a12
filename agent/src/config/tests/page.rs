//! `deploy/docs/configuration.md`: every key, compared with what the types read and with the flags of `run`.
//!
//! More than 400 lines: the table of all keys.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use clap::CommandFactory as _;

use super::HEAD;
use crate::{cli::Cli, config::yaml};

/// A key: its path, its default and range, what it sets. A flag of `run` that overrides it stands in brackets.
type Key = (&'static str, &'static str, &'static str);

/// Headings with their keys.
const KEYS: &[(&str, &[Key])] = &[
    (
        "Mode",
        &[
            (
                "mode [--mode]",
                "`observe`; or `enforce`",
                "whether the agent acts, or decides, reports and writes nothing",
            ),
            (
                "ownership",
                "`own`; or `assist`",
                "who makes the tree: podwarden, or a kubelet",
            ),
            (
                "ranking",
                "`qosFirst`; or `kubelet`",
                "the order of eviction",
            ),
            (
                "evictStaticPods",
                "true with `own`, false with `assist`",
                "whether pods of `podsDir` and `staticPodURL` may be evicted",
            ),
        ],
    ),
    (
        "Sources of pods",
        &[
            (
                "nodeName [--node-name]",
                "the host's name in lower case",
                "the name of this node's Node object",
            ),
            (
                "podsDir [--pods-dir]",
                "none",
                "the directory of v1 Pod manifests",
            ),
            ("staticPodURL", "none", "the URL of v1 Pod manifests"),
            (
                "staticPodURLHeader",
                "none",
                "headers of the request for `staticPodURL`: a name with a list of values",
            ),
            (
                "httpCheckFrequency",
                "20s; 1s to 24h",
                "the time between two requests for `staticPodURL`",
            ),
            (
                "kubeconfig [--kubeconfig]",
                "in a pod its service account, else none",
                "the API server that pods are watched from; `--no-apiserver` turns it off",
            ),
            (
                "kubelet.url",
                "none",
                "the kubelet that pods are polled from",
            ),
            (
                "kubelet.certificateAuthority",
                "the node's own certificates",
                "the CA of the kubelet's certificate, or the certificate itself",
            ),
            (
                "kubelet.tokenFile",
                "the service account's token",
                "the token of a user with `get` on `nodes/pods` (`nodes/proxy` before Kubernetes 1.33)",
            ),
            (
                "kubelet.serverName",
                "the node's name on loopback, else the URL's host",
                "the name in the kubelet's certificate",
            ),
            (
                "kubelet.interval",
                "5s; 1s to 5m",
                "the time between two polls of the kubelet",
            ),
            (
                "containerRuntimeEndpoint [--cri-socket]",
                "none",
                "the unix socket of the container runtime (CRI v1)",
            ),
        ],
    ),
    (
        "State and interfaces",
        &[
            (
                "stateDir",
                "none",
                "the directory that keeps the last list of pods, undelivered eviction statuses and predictions; it also pins the accounts",
            ),
            (
                "eventLog.path",
                "none",
                "the file of evictions and OOM kills, one JSON object a line",
            ),
            (
                "eventLog.maxSize",
                "16Mi; 1Mi to 1Gi",
                "the size at which the file gets `.1` after its name and a new one begins",
            ),
            (
                "listen [--listen]",
                "none",
                "a loopback address of the HTTP API: `/metrics`, `/healthz` and `/readyz`",
            ),
            (
                "secureListen [--secure-listen]",
                "none",
                "an address of the HTTP API for other machines: TLS, and tokens that the API server reviews",
            ),
            (
                "tlsCertFile",
                "none: the agent signs one itself at each start",
                "the certificate of `secureListen` and those that signed it, PEM; read again within 5 s of a change",
            ),
            ("tlsPrivateKeyFile", "none", "its private key, PEM"),
            (
                "authentication.webhook.cacheTTL",
                "2m; 1s to 1h",
                "how long the API server's answer holds whose a token is",
            ),
            (
                "authorization.webhook.cacheAuthorizedTTL",
                "5m; 1s to 1h",
                "how long its answer holds that a user may get a path",
            ),
            (
                "authorization.webhook.cacheUnauthorizedTTL",
                "30s; 1s to 1h",
                "how long its answer holds that a user may not",
            ),
            (
                "listenApi",
                "false",
                "whether `listen` answers `/v1` and the page, too, to every process of this machine, and `secureListen` to users who may get the path",
            ),
            (
                "listenHosts",
                "none",
                "names in the `Host` header that `listen` takes beside `localhost` and loopback addresses",
            ),
            (
                "apiSocket [--api-socket]",
                "`/run/podwarden/podwarden.sock`",
                "the unix socket of the HTTP API",
            ),
            (
                "kernelLog [--kernel-log]",
                "`warn`; `off`, `error`, `warn`, `info`, `debug`, `trace`",
                "the least severe lines that the kernel programs write",
            ),
            (
                "sampling.interval",
                "1s; 100ms to 1m",
                "the time between two sampling passes while a client reads figures",
            ),
            (
                "sampling.disk",
                "true",
                "what pods read from and write to disks, and how long the disks take; false: the kernel programs for it are not loaded",
            ),
            (
                "sampling.network",
                "true",
                "the pods' network: counters of their interfaces, TCP segments sent again; false: nothing is read, and the kernel program for it is not loaded",
            ),
            (
                "metrics.pods",
                "`basic`; or `none`, `full`",
                "the series of a pod on `/metrics`: at most 12, none, or also the distributions of waits and of what disks take, switches, periods, exits, pressure, disk and network",
            ),
        ],
    ),
    (
        "The API server",
        &[
            (
                "evictionStatus.how",
                "`status`; or `evictionApi`, `none`",
                "what the API server receives of an eviction",
            ),
            (
                "nodeCondition",
                "false",
                "whether the Node has the condition `PodwardenReady` and, with `mode: enforce`, the taint `podwarden.io/memory-pressure` while memory is short",
            ),
        ],
    ),
    (
        "Capacity and reserves",
        &[
            (
                "cgroupRoot [--cgroup-root]",
                "`/`",
                "the parent of `kubepods`, relative to each controller's mount point",
            ),
            (
                "cgroupDriver [--cgroup-driver]",
                "`auto`; or `cgroupfs`, `systemd`",
                "who names the cgroups",
            ),
            (
                "capacity.cpu",
                "the CPUs that are online",
                "CPUs that pods and reserves share",
            ),
            (
                "capacity.memory",
                "`MemTotal`",
                "memory that pods and reserves share",
            ),
            (
                "kubeReserved.cpu",
                "0",
                "CPU kept for the Kubernetes daemons",
            ),
            (
                "kubeReserved.memory",
                "0",
                "memory kept for the Kubernetes daemons",
            ),
            (
                "kubeReserved.pid",
                "none",
                "process ids kept for the Kubernetes daemons",
            ),
            (
                "kubeReserved.ephemeral-storage",
                "0",
                "read for the kubelet's sake; no part of a cgroup",
            ),
            (
                "systemReserved.cpu",
                "0",
                "CPU kept for the operating system",
            ),
            (
                "systemReserved.memory",
                "0",
                "memory kept for the operating system",
            ),
            (
                "systemReserved.pid",
                "none",
                "process ids kept for the operating system",
            ),
            (
                "systemReserved.ephemeral-storage",
                "0",
                "read for the kubelet's sake; no part of a cgroup",
            ),
            (
                "enforceNodeAllocatable",
                "`[pods]`; also `kube-reserved`, `system-reserved`, their `-compressible` forms, or `none` alone",
                "the cgroups that get the reserves as limits",
            ),
            (
                "kubeReservedCgroup",
                "none",
                "the cgroup of the Kubernetes daemons, below `cgroupRoot`",
            ),
            (
                "systemReservedCgroup",
                "none",
                "the cgroup of the operating system, below `cgroupRoot`",
            ),
        ],
    ),
    (
        "Eviction",
        &[
            (
                "evictionHard",
                "`{memory.available: 100Mi}`",
                "thresholds by signal (`memory.available`, `pid.available`), an amount or a percentage; at one the reactor evicts at once. 0% and 100% are none",
            ),
            (
                "evictionSoft",
                "none",
                "thresholds of `memory.available` that evict after their grace period",
            ),
            (
                "evictionSoftGracePeriod",
                "none; up to 24h",
                "the grace period of each soft threshold",
            ),
            (
                "evictionMinimumReclaim",
                "0",
                "how much more than the threshold is freed",
            ),
            (
                "evictionMaxPodGracePeriod",
                "0; up to 65535",
                "how long a pod has to end that `evictionSoft` evicts, seconds, or its own `terminationGracePeriodSeconds` if that is less; at 0 it is killed",
            ),
            (
                "evictionPressureTransitionPeriod",
                "5m; up to 24h",
                "a pressure period ends after this time without pressure",
            ),
            (
                "pressure.memory.some",
                "none; a window of 500ms to 10s",
                "evict when a task waited this long for memory within the window, such as `200ms/2s`, and memory is short",
            ),
            (
                "pressure.memory.full",
                "none; a window of 500ms to 10s",
                "the same when all tasks waited at the same time",
            ),
            (
                "reactor.realTime",
                "true",
                "whether the reactor's thread runs as SCHED_FIFO with locked memory, and an agent that takes over from another starts as SCHED_FIFO",
            ),
            (
                "reactor.minInterval",
                "1ms; 100us to 1s",
                "the shortest time between two looks at a level",
            ),
            (
                "reactor.maxInterval",
                "100ms; `minInterval` to 10s",
                "the longest time between two looks at a level",
            ),
            (
                "reactor.maxEvictionsPerMinute",
                "60; 1 to 6000",
                "evictions in any minute at most",
            ),
            (
                "reactor.maxHeadroom",
                "10%; up to 50% or an amount; 0 is never",
                "how far below a level the reactor may act because memory fills fast",
            ),
        ],
    ),
    (
        "The tiers' limits",
        &[
            (
                "qosReserved.memory",
                "none; 0% to 100%",
                "the share of a class's memory requests that lower classes cannot use",
            ),
            (
                "convergence.onExit",
                "`restore`; or `keep`",
                "what becomes of the tiers' limits when the agent ends",
            ),
            (
                "convergence.capLowerTiers",
                "true",
                "whether a tier above its target is kept from growing instead of losing pods at once",
            ),
            (
                "convergence.memoryHigh",
                "true",
                "whether `memory.high` stands 16Mi below a limit that is reached (v2)",
            ),
            (
                "convergence.memoryReclaim",
                "true",
                "whether page cache of a tier above its target is dropped",
            ),
            (
                "convergence.reclaimStep",
                "32Mi; 1Mi to 1Gi",
                "how much page cache is dropped at a time",
            ),
        ],
    ),
    (
        "Co-location: reclaimed resources",
        &[
            (
                "colocation.memoryEvictThresholdPercent",
                "none, off; 1 to 100",
                "the part of the node's memory in use from which best-effort pods are evicted; page cache that can be dropped is not in use",
            ),
            (
                "colocation.memoryEvictLowerPercent",
                "2 below the threshold; 0 to 99",
                "down to which they are evicted",
            ),
            (
                "colocation.cpuEvictBESatisfactionLowerPercent",
                "none, off; 1 to 60",
                "best-effort pods are evicted where they may use at most this part of the CPU that they request (`kubernetes.io/batch-cpu`), percent, and use it",
            ),
            (
                "colocation.cpuEvictBESatisfactionUpperPercent",
                "needed with the lower one; 1 to 99, not below it",
                "the part of its requests that those that are left may use then, percent",
            ),
            (
                "colocation.cpuEvictBEUsageThresholdPercent",
                "90; 1 to 100",
                "from which part of what it may use on best effort counts as using it, percent; below one CPU it always does",
            ),
            (
                "colocation.cpuEvictTimeWindowSeconds",
                "2; 1 to 3600",
                "the time that is averaged over; it has to be so on average and now",
            ),
            (
                "colocation.cpuEvictThresholdPercent",
                "none, off; 1 to 100",
                "the part of the node's CPUs in use from which best-effort pods with the label `koordinator.sh/eviction-enabled: \"true\"` are evicted, percent",
            ),
            (
                "colocation.cpuEvictLowerPercent",
                "2 below the threshold; 0 to 99, below it",
                "down to which they are evicted",
            ),
            (
                "colocation.cpuAllocatableEvictThresholdPercent",
                "none, off; 1 to 100",
                "the part of the batch CPU that the node has to spare (`reclaimed`) from which pods with that label that request it are evicted, percent",
            ),
            (
                "colocation.cpuAllocatableEvictLowerPercent",
                "2 below the threshold; 0 to 99, below it",
                "down to which they are evicted",
            ),
            (
                "colocation.memoryAllocatableEvictThresholdPercent",
                "none, off; 1 to 100",
                "the part of the batch memory that the node has to spare (`reclaimed`) from which pods with that label that request it are evicted, percent",
            ),
            (
                "colocation.memoryAllocatableEvictLowerPercent",
                "2 below the threshold; 0 to 99, below it",
                "down to which they are evicted",
            ),
            (
                "colocation.allocatableEvictPriorityThreshold",
                "5999; 0 to 7999",
                "pods of a higher priority are not evicted for what they request",
            ),
            (
                "colocation.memoryReclaimStrategy.enable",
                "false",
                "whether BE pods, and LS pods that do not work, give back page cache that they do not use; with `mode: enforce`, cgroup v2 and PSI",
            ),
            (
                "colocation.memoryReclaimStrategy.intervalSeconds",
                "6; 1 to 300",
                "the time between two steps of a pod",
            ),
            (
                "colocation.memoryReclaimStrategy.stepPercent",
                "1; 1 to 10",
                "what a pod without pressure gives in a step, percent of its usage",
            ),
            (
                "colocation.memoryReclaimStrategy.coldSeconds",
                "600; 10 to 86400",
                "how long an LS pod has used less than 1 % of a CPU before it gives",
            ),
            (
                "colocation.reclaimed.enable",
                "false; true with `publish`",
                "whether the agent computes and shows what the node has to spare",
            ),
            (
                "colocation.reclaimed.publish",
                "false",
                "whether the Node's status offers it as `kubernetes.io/batch-cpu` and its like",
            ),
            (
                "colocation.reclaimed.enforce",
                "false",
                "whether pods that ask for it get shares, quota and memory limit from it",
            ),
            (
                "colocation.reclaimed.cpuReclaimThresholdPercent",
                "60; 0 to 100",
                "how much of the CPU pods of all kinds may fill",
            ),
            (
                "colocation.reclaimed.memoryReclaimThresholdPercent",
                "65; 0 to 100",
                "how much of the memory pods of all kinds may fill",
            ),
            (
                "colocation.reclaimed.cpuCalculatePolicy",
                "`usage`; or `maxUsageRequest`; `request` counts as `usage`",
                "what prod and mid pods count with",
            ),
            (
                "colocation.reclaimed.memoryCalculatePolicy",
                "`usage`; or `request` or `maxUsageRequest`",
                "what prod and mid pods count with",
            ),
            (
                "colocation.reclaimed.batchCPUThresholdPercent",
                "none; 0 to 100",
                "the most of the CPU that is offered to batch pods",
            ),
            (
                "colocation.reclaimed.batchMemoryThresholdPercent",
                "none; 0 to 100",
                "the most of the memory that is offered to batch pods",
            ),
            (
                "colocation.reclaimed.midCPUThresholdPercent",
                "100; 0 to 100",
                "the most of the CPU that is offered to mid pods",
            ),
            (
                "colocation.reclaimed.midMemoryThresholdPercent",
                "100; 0 to 100",
                "the most of the memory that is offered to mid pods",
            ),
            (
                "colocation.reclaimed.midUnallocatedPercent",
                "0; 0 to 100",
                "how much of what no prod pod asked for is offered to mid pods",
            ),
            (
                "colocation.reclaimed.predictionColdStartSeconds",
                "86400; 0 to 2592000",
                "the time that a pod is measured before its peak is predicted",
            ),
            (
                "colocation.reclaimed.predictionSafetyMarginPercent",
                "10; 0 to 100",
                "what is added to a predicted peak",
            ),
            (
                "colocation.reclaimed.metricAggregateDurationSeconds",
                "300; 10 to 3600",
                "the time that usage is the mean of",
            ),
            (
                "colocation.reclaimed.resourceDiffThresholdPercent",
                "10; 1 to 100",
                "the difference that is published at once",
            ),
            (
                "colocation.reclaimed.updateTimeThresholdSeconds",
                "300; 30 to 3600",
                "the time after which it is published anew",
            ),
        ],
    ),
    (
        "Co-location: CPU",
        &[
            (
                "colocation.cpuBurstStrategy.policy",
                "`none`; or `auto`, `cpuBurstOnly`, `cfsQuotaBurstOnly`",
                "how LSE, LSR and LS pods exceed their CPU limits while the node has free CPU: by unused quota (`cpu.max.burst`), by a higher quota while they are throttled, or both",
            ),
            (
                "colocation.cpuBurstStrategy.cpuBurstPercent",
                "1000; 1 to 10000",
                "the burst in percent of the limit; the kernel keeps it at the quota",
            ),
            (
                "colocation.cpuBurstStrategy.cfsQuotaBurstPercent",
                "300; 100 to 1000",
                "the highest quota in percent of the limit",
            ),
            (
                "colocation.cpuBurstStrategy.cfsQuotaBurstPeriodSeconds",
                "-1, no end; or 1 to 86400",
                "how long a container that saved up may use the highest quota",
            ),
            (
                "colocation.cpuBurstStrategy.sharePoolThresholdPercent",
                "50; 1 to 100",
                "no quota rises from nine tenths of this usage of the share pool on, and from this usage on they fall",
            ),
            (
                "colocation.cpuSuppressThresholdPercent",
                "none, off; 1 to 100",
                "how much of the node's CPUs all pods and the system may use: best effort is held to what the others leave of it, by Koordinator's formula; with `ownership: own`",
            ),
            (
                "colocation.cpuSuppressMinPercent",
                "none; 1 to 100",
                "what the formula leaves best effort in any case, percent of the node's CPUs",
            ),
            (
                "colocation.cpuSuppressPolicy",
                "`cpuset`; or `cfsQuota`",
                "what holds best effort: CPUs of its own, two at least, or a quota",
            ),
            (
                "colocation.cpuWaitStrategy.enable",
                "false",
                "whether best effort gets less CPU at once when an LSE, LSR or LS pod has waited too long for a CPU; with `ownership: own` and kernel programs",
            ),
            (
                "colocation.cpuWaitStrategy.objective",
                "5ms; 100us to 1s",
                "the wait that is too long",
            ),
            (
                "colocation.cpuWaitStrategy.minPercent",
                "5; 1 to 100",
                "what best effort keeps in any case, percent of the node's CPUs",
            ),
            (
                "colocation.resctrlStrategy.enable",
                "false",
                "whether classes have parts of last-level cache and memory bandwidth of their own (`resctrl`); with `mode: enforce`",
            ),
            (
                "colocation.resctrlStrategy.lsr.catRangeStartPercent",
                "0; 0 to 99",
                "where the part of the last-level cache begins that LSE and LSR pods fill",
            ),
            (
                "colocation.resctrlStrategy.lsr.catRangeEndPercent",
                "100; 1 to 100",
                "where it ends",
            ),
            (
                "colocation.resctrlStrategy.lsr.mbaPercent",
                "100; 1 to 100",
                "the memory bandwidth of LSE and LSR pods",
            ),
            (
                "colocation.resctrlStrategy.ls.catRangeStartPercent",
                "0; 0 to 99",
                "where the part of the last-level cache begins that LS pods fill",
            ),
            (
                "colocation.resctrlStrategy.ls.catRangeEndPercent",
                "100; 1 to 100",
                "where it ends",
            ),
            (
                "colocation.resctrlStrategy.ls.mbaPercent",
                "100; 1 to 100",
                "the memory bandwidth of LS pods",
            ),
            (
                "colocation.resctrlStrategy.be.catRangeStartPercent",
                "0; 0 to 99",
                "where the part of the last-level cache begins that BE pods fill",
            ),
            (
                "colocation.resctrlStrategy.be.catRangeEndPercent",
                "30; 1 to 100",
                "where it ends",
            ),
            (
                "colocation.resctrlStrategy.be.mbaPercent",
                "100; 1 to 100",
                "the memory bandwidth of BE pods",
            ),
        ],
    ),
    (
        "Limits of pods",
        &[
            (
                "maxPods",
                "250; 1 to 10000",
                "the pods that the kernel programs have accounts for: six cgroups each, 64 bytes a CPU and cgroup; at \
                 least 4,096 cgroups where these take at most 16 MiB",
            ),
            ("podPidsLimit", "-1, no limit", "processes of a pod at most"),
            ("cpuCFSQuota", "true", "whether CPU limits set a quota"),
            (
                "cpuCFSQuotaPeriod",
                "100ms; 1ms to 1s",
                "the period of the quota",
            ),
            (
                "memoryReservationPolicy",
                "`None`; or `TieredReservation`",
                "whether memory requests set `memory.min` and `memory.low` (v2)",
            ),
            (
                "memoryThrottlingFactor",
                "none; above 0, up to 1",
                "the kubelet's factor of containers' `memory.high`, for `plan` and `explain`",
            ),
            (
                "memorySwap.swapBehavior",
                "`NoSwap`; or `LimitedSwap`",
                "the kubelet's swap limits of containers, for `plan` and `explain`",
            ),
        ],
    ),
];

/// Keys that say what the file is.
const HEAD_KEYS: &[&str] = &["apiVersion", "kind"];

fn page() -> String {
    let mut page = String::from(
        "# Configuration\n\n`podwarden run --config FILE` reads one YAML document. Keys are KubeletConfiguration's \
         wherever the kubelet has one.\nAn unknown key or a value out of range is an error with file, line, field, \
         value and remedy. A flag overrides its key.\n\n```yaml\napiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n\
         mode: enforce\n```\n\nAmounts are Kubernetes quantities (`500Mi`, `200m`), times Go durations (`1m30s`). \
         [`deploy/config.yaml`](../config.yaml) is an\nexample with comments.\n",
    );
    for (heading, keys) in KEYS {
        let _ = write!(
            page,
            "\n## {heading}\n\n| key | default; range | sets |\n|---|---|---|\n"
        );
        for (key, values, sets) in *keys {
            let (key, flag) = key.split_once(' ').unwrap_or((key, ""));
            let flag = flag.trim_matches(['[', ']']);
            let flag = if flag.is_empty() {
                String::new()
            } else {
                format!(", `{flag}`")
            };
            let _ = writeln!(page, "| `{key}`{flag} | {values} | {sets} |");
        }
    }
    page.push_str(
        "\nThis page is written by `UPDATE_DOCS=1 cargo test -p podwarden --lib config::tests::page`, which otherwise \
         compares it\nwith the keys that the agent reads and with the flags of `podwarden run`.\n",
    );
    page
}

/// The keys that a section takes, as the error about an unknown one lists them.
fn keys_of(section: &str) -> BTreeSet<String> {
    let mut text = HEAD.to_owned();
    for (depth, name) in section
        .split('.')
        .filter(|name| !name.is_empty())
        .enumerate()
    {
        let _ = writeln!(text, "{}{name}:", "  ".repeat(depth));
    }
    let depth = section.split('.').filter(|name| !name.is_empty()).count();
    let _ = writeln!(text, "{}notAKey: 1", "  ".repeat(depth));
    let error = format!(
        "{:#}",
        anyhow::Error::from(yaml::parse("f", &text).unwrap_err())
    );
    let (_, listed) = error.split_once("expected ").unwrap_or_default();
    let (listed, _) = listed.split_once(" at line").unwrap_or((listed, ""));
    let listed = listed.strip_prefix("one of ").unwrap_or(listed);
    let named = listed.split([',', ' ', '`']);
    let keys: BTreeSet<_> = named
        .filter(|word| !word.is_empty() && *word != "or")
        .map(str::to_owned)
        .collect();
    assert!(!keys.is_empty(), "{section}: {error}");
    keys
}

fn paths() -> BTreeSet<&'static str> {
    let keys = KEYS.iter().flat_map(|(_, keys)| *keys);
    keys.map(|(key, ..)| key.split(' ').next().unwrap_or(key))
        .collect()
}

#[test]
fn every_key_is_on_the_page() {
    let paths = paths();
    let mut sections = BTreeSet::from([String::new()]);
    for path in &paths {
        for (at, _) in path.match_indices('.') {
            sections.insert(path[..at].to_owned());
        }
    }
    for section in sections {
        let below = |path: &&str| match section.as_str() {
            "" => Some(path.split('.').next().unwrap_or(path).to_owned()),
            section => {
                let rest = path.strip_prefix(section)?.strip_prefix('.')?;
                Some(rest.split('.').next().unwrap_or(rest).to_owned())
            }
        };
        let mut written: BTreeSet<String> = paths.iter().filter_map(below).collect();
        if section.is_empty() {
            written.extend(HEAD_KEYS.iter().map(|&key| key.to_owned()));
        }
        assert_eq!(written, keys_of(&section), "section {section:?}");
    }
}

#[test]
fn every_flag_that_overrides_a_key_is_on_the_page() {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").unwrap();
    // Of the process, not of the node.
    let own = [
        "--config",
        "--no-apiserver",
        "--wait-for-lock",
        "--health-socket",
        "--help",
    ];
    let flags = run
        .get_arguments()
        .filter_map(|argument| argument.get_long());
    let flags: BTreeSet<_> = flags.map(|flag| format!("--{flag}")).collect();
    let keys = KEYS.iter().flat_map(|(_, keys)| *keys);
    let written = keys.filter_map(|(key, ..)| key.split_once(" [")?.1.strip_suffix(']'));
    let mut written: BTreeSet<_> = written.map(str::to_owned).collect();
    written.extend(own.map(str::to_owned));
    written.retain(|flag| flag != "--help");
    let flags: BTreeSet<_> = flags.into_iter().filter(|flag| flag != "--help").collect();
    assert_eq!(written, flags);
}

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page(),
        "{} is out of date: UPDATE_DOCS=1 cargo test -p podwarden --lib config::tests::page",
        path.display()
    );
}
