use super::{machine::meminfo, *};

const HEAD: &str = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n";

fn parse(rest: &str) -> Result<Config, ConfigError> {
    Config::parse("agent.yaml", &format!("{HEAD}{rest}"), Overrides::default())
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
         evictionMinimumReclaim: {memory.available: 200Mi}\nqosReserved: {memory: 50%}\n\
         ranking: kubelet\ncapacity: {cpu: 2, memory: 1073741824}\n",
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
    let overrides = Overrides {
        mode: Some(Mode::Observe),
        cgroup_root: Some("/a//b/".to_owned()),
        cgroup_driver: Some(None),
        api_socket: Some("/tmp/s".into()),
        ..Overrides::default()
    };
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
fn errors_name_file_line_field_value_and_remedy() {
    let cases: &[(&str, &[&str])] = &[
        (
            "kubeReserved: {memory: lots}",
            &["agent.yaml:3", "kubeReserved.memory", "`lots`", "500Mi"],
        ),
        (
            "\nevictionHard:\n  memory.available: 120%",
            &["agent.yaml:5", "`120%`", "100%"],
        ),
        (
            "cgroupDriver: cgroup",
            &[
                "agent.yaml:3",
                "cgroupDriver",
                "`cgroup`",
                "auto, cgroupfs or systemd",
            ],
        ),
        (
            "cgroupRoot: kubepods",
            &["agent.yaml:3", "cgroupRoot", "start with /"],
        ),
        ("cgroupRoot: /a/../b", &["cgroupRoot", ".."]),
        (
            "qosReserved: {memory: 101%}",
            &["qosReserved.memory", "`101%`"],
        ),
        (
            "sampling: {interval: 1ms}",
            &["sampling.interval", "`1ms`", "within 100ms and 60s"],
        ),
        (
            "reactor: {minInterval: 1s, maxInterval: 1ms}",
            &["reactor.maxInterval", "`1ms`"],
        ),
        (
            "reactor: {maxEvictionsPerMinute: 0}",
            &["reactor.maxEvictionsPerMinute", "`0`", "1 to 6000"],
        ),
        (
            "pressure: {memory: {some: 100ms}}",
            &["pressure.memory.some", "`100ms`", "200ms/2s"],
        ),
        (
            "pressure: {memory: {full: 100ms/100ms}}",
            &["pressure.memory.full", "a window of 100ms"],
        ),
        (
            "pressure: {memory: {full: 3s/2s}}",
            &["pressure.memory.full", "the window at most"],
        ),
        (
            "reactor: {maxHeadroom: 60%}",
            &["reactor.maxHeadroom", "`60%`", "half empty", "up to 50%"],
        ),
        ("capacity: {memory: 0}", &["capacity.memory", "`0`"]),
        ("podPidsLimit: many", &["podPidsLimit", "`many`", "-1"]),
        ("podPidsLimit: -2", &["podPidsLimit", "`-2`"]),
        ("podPidsLimit: 5000000", &["podPidsLimit", "4194304"]),
        (
            "cpuCFSQuotaPeriod: 2s",
            &["agent.yaml:3", "cpuCFSQuotaPeriod", "within 1ms and 1s"],
        ),
        (
            "memoryReservationPolicy: HardReservation",
            &["memoryReservationPolicy", "None or TieredReservation"],
        ),
        (
            "memoryThrottlingFactor: 1.5",
            &["memoryThrottlingFactor", "`1.5`", "0.9"],
        ),
        ("memoryThrottlingFactor: 0", &["memoryThrottlingFactor"]),
        (
            "memorySwap: {swapBehavior: UnlimitedSwap}",
            &["memorySwap.swapBehavior", "NoSwap or LimitedSwap"],
        ),
        (
            "enforceNodeAllocatable: [pods, none]",
            &["enforceNodeAllocatable", "`none`", "beside others"],
        ),
        (
            "enforceNodeAllocatable: [pods, pods]",
            &["enforceNodeAllocatable", "twice"],
        ),
        (
            "enforceNodeAllocatable: [kube]",
            &["agent.yaml:3", "`kube`", "kube-reserved"],
        ),
        (
            "enforceNodeAllocatable: [kube-reserved]",
            &["kubeReservedCgroup", "enforceNodeAllocatable"],
        ),
        (
            "systemReservedCgroup: /",
            &["systemReservedCgroup", "`/`", "/system.slice"],
        ),
        ("nodeName: Node_1", &["nodeName", "`Node_1`"]),
        ("listen: localhost", &["listen", "127.0.0.1:9595"]),
        (
            "evictionSoft: {memory.available: 1Gi}",
            &["evictionSoftGracePeriod.memory.available"],
        ),
        (
            "evictionHard: {nodefs.available: 10%}",
            &["agent.yaml:3", "nodefs.available", "memory.available"],
        ),
        (
            "kubereserved: {}",
            &["agent.yaml:3", "kubereserved", "kubeReserved"],
        ),
        ("mode: on", &["agent.yaml:3", "observe", "enforce"]),
        ("mode: [", &["agent.yaml:"]),
    ];
    for (text, parts) in cases {
        let error = error(text);
        for part in *parts {
            assert!(
                error.contains(part),
                "{text:?}: {part:?} is not in {error:?}"
            );
        }
        assert!(!error.contains('\n'), "{text:?}: {error:?} is not one line");
    }
}

#[test]
fn a_file_for_something_else_is_refused() {
    for text in [
        "kind: AgentConfig",
        "apiVersion: v2\nkind: AgentConfig",
        "apiVersion: podwarden.io/v1alpha1\nkind: Pod",
    ] {
        let error = Config::parse("x", text, Overrides::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("apiVersion: podwarden.io/v1alpha1"),
            "{error}"
        );
    }
}

#[test]
fn what_is_not_acted_on_is_said() {
    assert_eq!(parse("mode: enforce").unwrap().not_acted_on().len(), 0);
    let throttled = parse("memoryThrottlingFactor: 0.9").unwrap();
    assert!(throttled.not_acted_on()[0].contains("memoryThrottlingFactor"));
    let soft =
        "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}";
    assert_eq!(parse(soft).unwrap().not_acted_on().len(), 0);
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
fn the_runtime_is_where_the_operator_says() {
    let socket = |text: &str| parse(text).unwrap().container_runtime_endpoint;
    assert_eq!(socket(""), None);
    let path = Some("/run/containerd/containerd.sock".into());
    for written in [
        "unix:///run/containerd/containerd.sock",
        "/run/containerd/containerd.sock",
    ] {
        assert_eq!(
            socket(&format!("containerRuntimeEndpoint: {written}")),
            path
        );
    }
    let overrides = Overrides {
        cri_socket: Some("unix:///run/crio/crio.sock".to_owned()),
        ..Overrides::default()
    };
    let config = Config::load(None, overrides).unwrap();
    let crio = Some("/run/crio/crio.sock".into());
    assert_eq!(config.container_runtime_endpoint, crio);
    let long = format!("unix:///{}", "x".repeat(107));
    for (written, problem) in [
        ("tcp://127.0.0.1:1", "tcp is no unix socket"),
        ("containerd.sock", "not the absolute path of a file"),
        ("unix://run/containerd.sock", "not the absolute path"),
        (&long, "at most 107 bytes"),
    ] {
        let text = error(&format!("containerRuntimeEndpoint: {written}"));
        assert!(text.contains(problem), "{text}");
        assert!(text.contains("containerRuntimeEndpoint is `"), "{text}");
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
fn nothing_is_kept_until_there_is_a_place_for_it() {
    assert_eq!(parse("").unwrap().state_dir, None);
    let kept = parse("stateDir: /var/lib/podwarden").unwrap();
    assert_eq!(kept.state_dir, Some("/var/lib/podwarden".into()));
    let error = error("stateDir: lib");
    assert!(
        error.contains("stateDir") && error.contains("`lib`"),
        "{error}"
    );
}

#[test]
fn manifests_are_read_from_the_url_that_is_set() {
    assert_eq!(
        parse("httpCheckFrequency: 5s").unwrap().static_pod_url,
        None
    );
    let text = "staticPodURL: http://10.0.0.1:8080/pods.yaml?node=a\n\
                staticPodURLHeader: {X-Token: [one, two]}\nhttpCheckFrequency: 5s";
    let found = parse(text).unwrap().static_pod_url.unwrap();
    assert_eq!(found.url, "http://10.0.0.1:8080/pods.yaml?node=a");
    let headers: Vec<_> = found
        .headers
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_bytes()))
        .collect();
    assert_eq!(headers, [("x-token", &b"one"[..]), ("x-token", b"two")]);
    assert_eq!(found.interval, Duration::from_secs(5));
    for (text, named) in [
        ("staticPodURL: /pods.yaml", "staticPodURL"),
        ("staticPodURL: ftp://a/b", "neither http nor https"),
        ("staticPodURLHeader: {A: [b]}", "staticPodURL is not set"),
        (
            "staticPodURL: http://a/\nstaticPodURLHeader: {\"a b\": [c]}",
            "a b",
        ),
        (
            "staticPodURL: http://a/\nhttpCheckFrequency: 1ms",
            "httpCheckFrequency",
        ),
    ] {
        let error = error(text);
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn the_kubelet_is_asked_where_the_operator_says() {
    assert_eq!(parse("").unwrap().kubelet, None);
    let of = |text: &str| parse(text).unwrap().kubelet.unwrap();
    let pinned = of(
        "nodeName: n1\nkubelet: {url: \"https://127.0.0.1:10250/\", \
                     certificateAuthority: /pki/kubelet.crt, tokenFile: /token}",
    );
    let expected = KubeletConfig {
        url: "https://127.0.0.1:10250".to_owned(),
        token_file: Some("/token".into()),
        certificate_authority: Some("/pki/kubelet.crt".into()),
        server_name: Some("n1".to_owned()),
        interval: Duration::from_secs(5),
    };
    assert_eq!(pinned, expected);
    let named =
        of("kubelet: {url: \"https://n2:10250\", certificateAuthority: /ca, serverName: x}");
    assert_eq!(named.server_name.as_deref(), Some("x"));
    assert_eq!(
        of("kubelet: {url: \"http://[::1]:10255\"}").token_file,
        None
    );
    for (text, named) in [
        (
            "kubelet: {url: \"https://n2:10250\"}",
            "kubelet.certificateAuthority is not set",
        ),
        (
            "kubelet: {url: \"http://127.0.0.1\", interval: 10ms}",
            "kubelet.interval",
        ),
        ("kubelet: {tokenFile: /token}", "kubelet.url is not set"),
        (
            "kubelet: {url: \"http://10.0.0.7:10255\"}",
            "over the network",
        ),
        ("kubelet: {url: n2}", "kubelet.url"),
        (
            "kubelet: {url: \"https://n2/pods\", certificateAuthority: /ca}",
            "not the address of a server",
        ),
        (
            "kubelet: {url: \"https://n2\", certificateAuthority: ca}",
            "kubelet.certificateAuthority",
        ),
    ] {
        let error = error(text);
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn the_api_server_is_where_the_operator_says() {
    let of = |text: &str, overrides: Overrides| {
        let text = format!("{HEAD}{text}");
        Config::parse("agent.yaml", &text, overrides)
            .unwrap()
            .apiserver
    };
    let flag = || Overrides {
        kubeconfig: Some("/flag".into()),
        ..Overrides::default()
    };
    let off = Overrides {
        no_apiserver: true,
        ..Overrides::default()
    };
    let kubeconfig = |path: &str| ApiserverConfig::Kubeconfig(path.into());
    assert_eq!(of("", Overrides::default()), ApiserverConfig::Auto);
    assert_eq!(
        of("kubeconfig: /file", Overrides::default()),
        kubeconfig("/file")
    );
    assert_eq!(of("kubeconfig: /file", flag()), kubeconfig("/flag"));
    assert_eq!(of("kubeconfig: /file", off), ApiserverConfig::Off);
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
