use podwarden_policy::{converge::Steps, name::CgroupName, threshold::Amount};

use super::{machine::meminfo, *};

mod messages;
mod page;
mod sources;

const HEAD: &str = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n";

fn parse(rest: &str) -> Result<Config, ConfigError> {
    Config::parse("agent.yaml", &format!("{HEAD}{rest}"), Overrides::default())
}

fn flags(flags: &[&str]) -> Overrides {
    Overrides::from_flags(flags.iter().copied()).unwrap()
}

fn hard(config: &Config) -> Option<Amount> {
    config.hard(Signal::MemoryAvailable).map(|t| t.less_than)
}

/// The error with its sources on one line.
fn error(rest: &str) -> String {
    format!("{:#}", anyhow::Error::from(parse(rest).unwrap_err()))
}

#[test]
fn documented_example() {
    let config = parse(
        "mode: enforce\nownership: assist\nkubeReserved: {cpu: 200m, memory: 500Mi}\n\
         systemReserved: {memory: 500Mi}\nevictionHard: {memory.available: 5%}\n\
         evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m30s}\n\
         evictionMinimumReclaim: {memory.available: 200Mi}\nevictionMaxPodGracePeriod: 60\n\
         qosReserved: {memory: 50%}\nranking: kubelet\ncapacity: {cpu: 2, memory: 1073741824}\n",
    )
    .unwrap();
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(config.ownership, Ownership::Assist);
    assert_eq!(config.kube_reserved.cpu, MilliCpu(200));
    assert_eq!(config.system_reserved.memory, Bytes::mebi(500));
    assert_eq!(hard(&config), Some(Amount::Percent(5_000_000)));
    let soft = config.soft(Signal::MemoryAvailable).unwrap();
    assert_eq!(soft.less_than, Amount::Quantity(1 << 30));
    assert_eq!(soft.grace, Some(Duration::from_secs(90)));
    assert_eq!(soft.min_reclaim, Some(Amount::Quantity(200 << 20)));
    assert_eq!(config.eviction_max_pod_grace_period, 60);
    assert_eq!(config.qos_reserved_memory, Some(50));
    assert_eq!(config.ranking, Ranking::Kubelet);
    assert_eq!(config.capacity_cpu, Some(MilliCpu(2000)));
    assert_eq!(config.capacity_memory, Some(Bytes::gibi(1)));
    assert!(!config.evict_static_pods);
}

#[test]
fn defaults_are_the_kubelets() {
    let config = Config::load(None, Overrides::default()).unwrap();
    assert_eq!(config.mode, Mode::Observe);
    assert_eq!(config.cgroup_root, "/");
    assert_eq!(config.cgroup_driver, None);
    assert_eq!(hard(&config), Some(Amount::Quantity(100 << 20)));
    assert_eq!(config.soft(Signal::MemoryAvailable), None);
    assert_eq!(config.eviction_max_pod_grace_period, 0);
    assert_eq!(config.reactor.max_evictions_per_minute, 60);
    assert_eq!(config.pressure.stalls().count(), 0);
    assert_eq!(config.reactor.max_headroom.of(10 << 30), 1 << 30);
    assert_eq!(config.ranking, Ranking::QosFirst);
    assert!(!config.node_name.is_empty());
    // Written, but without the signal: the operator wants none.
    assert_eq!(hard(&parse("evictionHard: {}").unwrap()), None);
}

#[test]
fn the_command_line_overrides_the_file() {
    let overrides = flags(&[
        "--mode=observe",
        "--cgroup-root=/a//b/",
        "--cgroup-driver=auto",
        "--api-socket=/tmp/s",
    ]);
    let text = format!("{HEAD}mode: enforce\ncgroupRoot: /x\ncgroupDriver: systemd\n");
    let config = Config::parse("agent.yaml", &text, overrides).unwrap();
    assert_eq!(config.mode, Mode::Observe);
    assert_eq!(config.cgroup_root, "/a/b");
    assert_eq!(config.cgroup_driver, None);
    assert_eq!(config.api_socket, Path::new("/tmp/s"));
}

#[test]
fn limits_are_read_as_the_kubelet_reads_them() {
    let config = parse(
        "podPidsLimit: 1024\ncpuCFSQuota: false\ncpuCFSQuotaPeriod: 20ms\n\
         memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.85\n\
         memorySwap: {swapBehavior: LimitedSwap}\n\
         kubeReserved: {pid: 1000, ephemeral-storage: 1Gi}\n",
    )
    .unwrap();
    let limits = LimitOptions {
        enforce_cpu_limits: false,
        cpu_period_us: 20_000,
        pod_pids_limit: Some(1024),
        memory_reservation: true,
    };
    assert_eq!(config.limits, limits);
    assert_eq!(config.memory_throttling_factor, Some(850_000));
    assert!(config.limited_swap);
    assert_eq!(config.kube_reserved.pids, 1000);
    assert_eq!(config.kube_reserved.ephemeral_storage, Bytes::gibi(1));
    assert_eq!(parse("").unwrap().limits, LimitOptions::default());
    for none in ["-1", "0"] {
        let config = parse(&format!("podPidsLimit: {none}")).unwrap();
        assert_eq!(config.limits.pod_pids_limit, None, "{none}");
    }
    for factor in ["1", "1.0", "0.000001"] {
        assert!(parse(&format!("memoryThrottlingFactor: {factor}")).is_ok());
    }
}

#[test]
fn reserves_are_written_where_the_operator_says() {
    let text = "enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\n\
                systemReservedCgroup: /system.slice\nkubeReservedCgroup: /podruntime.slice/\n";
    let config = parse(text).unwrap();
    let node = |driver| config.node(&Machine::default(), driver).enforce;
    let system = |driver| node(driver).system_reserved.unwrap();
    let name = |parts: &[&str]| CgroupName::new(parts.iter().copied());
    assert!(node(Driver::Cgroupfs).pods);
    assert_eq!(system(Driver::Cgroupfs).cgroup, name(&["system.slice"]));
    assert_eq!(system(Driver::Systemd).cgroup, name(&["system"]));
    assert!(!system(Driver::Systemd).compressible_only);
    let kube = node(Driver::Systemd).kube_reserved.unwrap();
    assert_eq!(kube.cgroup, name(&["podruntime"]));
    assert!(kube.compressible_only);

    assert!(parse("").unwrap().enforce.pods);
    assert!(
        !parse("enforceNodeAllocatable: [none]")
            .unwrap()
            .enforce
            .pods
    );
    assert!(!parse("enforceNodeAllocatable: []").unwrap().enforce.pods);
}

#[test]
fn huge_pages_of_every_size() {
    let dir = tempfile::tempdir().unwrap();
    for (name, pages) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "0\n")] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("nr_hugepages"), pages).unwrap();
    }
    let found = machine::hugepages(dir.path());
    let wanted = [(Bytes::mebi(2), Bytes::mebi(6)), (Bytes::gibi(1), Bytes(0))];
    assert_eq!(found.into_iter().collect::<Vec<_>>(), wanted);
    assert!(machine::hugepages(Path::new("/nonexistent")).is_empty());
}

#[test]
fn what_is_not_acted_on_is_said() {
    assert_eq!(parse("mode: enforce").unwrap().not_acted_on().len(), 0);
    let throttled = parse("memoryThrottlingFactor: 0.9").unwrap();
    assert!(throttled.not_acted_on()[0].contains("memoryThrottlingFactor"));
    let soft =
        "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}";
    assert_eq!(parse(soft).unwrap().not_acted_on().len(), 0);
    for (key, strategy) in [
        (
            "colocation.cpuSuppressThresholdPercent",
            "{cpuSuppressThresholdPercent: 65}",
        ),
        (
            "colocation.cpuWaitStrategy.enable",
            "{cpuWaitStrategy: {enable: true}}",
        ),
    ] {
        let of = |ownership: &str| {
            let text = format!("ownership: {ownership}\ncolocation: {strategy}");
            parse(&text).unwrap().not_acted_on()
        };
        assert_eq!(of("own").len(), 0, "{key}");
        let said = of("assist");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with(key) && said[0].contains("remove the key"));
    }
}

#[test]
fn thresholds_are_the_kubelets() {
    let hard = |value: &str| {
        parse(&format!("evictionHard: {{memory.available: {value:?}}}"))
            .map(|config| hard(&config))
            .ok()
    };
    assert_eq!(hard("7.5%"), Some(Some(Amount::Percent(7_500_000))));
    assert_eq!(hard("500Mi"), Some(Some(Amount::Quantity(500 << 20))));
    for off in ["0%", "100%"] {
        assert_eq!(hard(off), Some(None), "{off}");
    }
    for wrong in ["", "%", "-5%", "101%", "0", "5Mo"] {
        assert_eq!(hard(wrong), None, "{wrong}");
    }
    let soft = "evictionSoft: {memory.available: 0%}\n\
                evictionSoftGracePeriod: {memory.available: 1m}";
    assert_eq!(parse(soft).unwrap().soft(Signal::MemoryAvailable), None);
    let reclaim = parse("evictionMinimumReclaim: {memory.available: 0}").unwrap();
    let threshold = reclaim.hard(Signal::MemoryAvailable).unwrap();
    assert_eq!(threshold.min_reclaim, Some(Amount::Quantity(0)));
}

#[test]
fn the_node_is_the_configuration_over_the_machine() {
    let machine = Machine {
        cpu: MilliCpu(4000),
        memory: Bytes::gibi(8),
        ..Machine::default()
    };
    let node = parse("capacity: {memory: 1Gi}\nevictionHard: {memory.available: 10%}")
        .unwrap()
        .node(&machine, Driver::Cgroupfs);
    assert_eq!(node.cpu_capacity, MilliCpu(4000));
    assert_eq!(node.memory_capacity, Bytes::gibi(1));
    assert_eq!(node.eviction_hard_memory, Bytes(107_374_182));
}

#[test]
fn huge_pages_are_memory_for_nothing_else() {
    let machine = Machine {
        memory: Bytes::gibi(8),
        hugepages: [(Bytes::mebi(2), Bytes::gibi(2))].into(),
        ..Machine::default()
    };
    let config = parse("evictionHard: {memory.available: 25%}").unwrap();
    assert_eq!(config.node_level(&machine), Some(4 << 30));
}

#[test]
fn meminfo_lines() {
    let text = "MemTotal:       24684000 kB\nMemFree:  1 kB\nHugePages_Total:       0\n";
    assert_eq!(meminfo(text, "MemTotal"), Some(Bytes(24_684_000 * 1024)));
    assert_eq!(meminfo(text, "HugePages_Total"), None);
    assert_eq!(meminfo(text, "SwapTotal"), None);
}

#[test]
fn the_example_that_is_shipped_is_a_configuration() {
    let text = include_str!("../../../deploy/config.yaml");
    let config = Config::parse("deploy/config.yaml", text, Overrides::default()).unwrap();
    assert_eq!(config.mode, Mode::Observe);
    assert_eq!(config.qos_reserved_memory, Some(50));
}

#[test]
fn the_event_log_is_off_until_it_has_a_path() {
    assert_eq!(parse("").unwrap().event_log, None);
    let log = parse("eventLog: {path: /var/log/podwarden/events.jsonl}").unwrap();
    let expected = EventLogConfig {
        path: "/var/log/podwarden/events.jsonl".into(),
        max_size: Bytes::mebi(16),
    };
    assert_eq!(log.event_log, Some(expected));
    let sized = parse("eventLog: {path: /a/b, maxSize: 64Mi}").unwrap();
    assert_eq!(sized.event_log.unwrap().max_size, Bytes::mebi(64));
    for (text, named) in [
        ("eventLog: {path: events.jsonl}", "eventLog.path"),
        ("eventLog: {path: /var/log/}", "eventLog.path"),
        ("eventLog: {path: /a/b, maxSize: 1Ki}", "eventLog.maxSize"),
        ("eventLog: {path: /a/b, maxSize: 2Gi}", "out of range"),
        ("eventLog: {maxSize: 16Mi}", "eventLog.path is not set"),
        ("eventLog: {file: /a/b}", "file"),
    ] {
        let error = error(text);
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn evictions_are_marked_as_configured() {
    for (text, how) in [
        ("", EvictionStatusConfig::Status),
        (
            "evictionStatus: {how: status}",
            EvictionStatusConfig::Status,
        ),
        (
            "evictionStatus: {how: evictionApi}",
            EvictionStatusConfig::EvictionApi,
        ),
        ("evictionStatus: {how: none}", EvictionStatusConfig::None),
    ] {
        assert_eq!(parse(text).unwrap().eviction_status, how, "{text}");
    }
    let renamed = error("marks: {how: status}");
    assert!(
        renamed.contains("agent.yaml:3: marks is now evictionStatus"),
        "{renamed}"
    );
    let message = error("evictionStatus: {how: Status}");
    assert!(
        message.contains("evictionStatus.how is `Status`") && message.contains("evictionApi"),
        "{message}"
    );
}

#[test]
fn answers_about_clients_hold_as_long_as_the_kubelets() {
    let kubelets = [120, 300, 30];
    for (text, seconds) in [
        ("", kubelets),
        // As kubeadm writes it.
        (
            "authentication: {webhook: {cacheTTL: 0s}}\n\
             authorization: {webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}",
            kubelets,
        ),
        (
            "authentication: {webhook: {cacheTTL: 1m0s}}\n\
             authorization: {webhook: {cacheAuthorizedTTL: 10s, cacheUnauthorizedTTL: 1s}}",
            [60, 10, 1],
        ),
    ] {
        let config = parse(&format!("secureListen: 0.0.0.0:9596\n{text}")).unwrap();
        let ttls = config.secure_listen.unwrap().ttls;
        let found = [ttls.token, ttls.authorized, ttls.unauthorized];
        assert_eq!(found, seconds.map(Duration::from_secs), "{text}");
    }
}

#[test]
fn the_api_server_learns_of_the_node_as_configured() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    for (text, period) in [
        ("", minutes(5)),
        // As kubeadm writes it.
        ("evictionPressureTransitionPeriod: 0s", minutes(5)),
        ("evictionPressureTransitionPeriod: 2m0s", minutes(2)),
    ] {
        let config = parse(text).unwrap();
        assert_eq!(config.eviction_pressure_transition_period, period, "{text}");
    }
    let message = error("evictionPressureTransitionPeriod: 25h");
    assert!(
        message.contains("evictionPressureTransitionPeriod is `25h`"),
        "{message}"
    );
    assert!(!parse("").unwrap().node_condition);
    assert!(parse("nodeCondition: true").unwrap().node_condition);
}

#[test]
fn the_tiers_limits_are_restored_and_every_step_is_taken_unless_written_otherwise() {
    let defaults = parse("").unwrap().convergence;
    assert_eq!(defaults.on_exit, OnExit::Restore);
    assert_eq!(defaults.steps, Steps::default());
    assert_eq!(defaults.reclaim_step, Bytes::mebi(32));
    let written = parse(
        "convergence: {onExit: keep, capLowerTiers: false, memoryHigh: false, memoryReclaim: false, \
         reclaimStep: 1Gi}",
    );
    let expected = ConvergenceConfig {
        on_exit: OnExit::Keep,
        steps: Steps {
            cap_lower_tiers: false,
            memory_high: false,
            memory_reclaim: false,
        },
        reclaim_step: Bytes::gibi(1),
    };
    assert_eq!(written.unwrap().convergence, expected);
    for (text, named) in [
        (
            "convergence: {onExit: forget}",
            "agent.yaml:3: convergence.onExit is `forget`",
        ),
        ("convergence: {onExit: forget}", "write restore or keep"),
        (
            "convergence: {reclaimStep: 2Gi}",
            "convergence.reclaimStep is `2Gi`: out of range",
        ),
        (
            "convergence: {reclaimStep: much}",
            "convergence.reclaimStep",
        ),
        ("convergence: {capLowerTiers: maybe}", "agent.yaml:3"),
        ("convergence: {cap: true}", "cap"),
    ] {
        let error = error(text);
        assert!(error.contains(named), "{text}: {error}");
    }
}
