use super::*;

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
        (
            "colocation: {cpuBurstStrategy: {cfsQuotaBurstPercent: 99}}",
            &[
                "agent.yaml:3",
                "colocation.cpuBurstStrategy.cfsQuotaBurstPercent",
                "`99`",
                "100 to 1000",
            ],
        ),
        (
            "colocation: {cpuBurstStrategy: {sharePoolThresholdPercent: 0}}",
            &[
                "colocation.cpuBurstStrategy.sharePoolThresholdPercent",
                "`0`",
                "1 to 100",
            ],
        ),
        (
            "colocation: {cpuBurstStrategy: {cfsQuotaBurstPeriodSeconds: 0}}",
            &[
                "colocation.cpuBurstStrategy.cfsQuotaBurstPeriodSeconds",
                "`0`",
                "or -1",
            ],
        ),
        (
            "colocation: {cpuBurstStrategy: {cpuBurstPercent: lots}}",
            &[
                "colocation.cpuBurstStrategy.cpuBurstPercent",
                "`lots`",
                "1 to 10000",
            ],
        ),
        (
            "colocation: {cpuEvictBESatisfactionLowerPercent: 61}",
            &[
                "colocation.cpuEvictBESatisfactionLowerPercent",
                "`61`",
                "1 to 60",
            ],
        ),
        (
            "colocation: {cpuEvictBESatisfactionLowerPercent: 30}",
            &[
                "colocation.cpuEvictBESatisfactionUpperPercent",
                "colocation.cpuEvictBESatisfactionLowerPercent",
            ],
        ),
        (
            "colocation: {cpuEvictBESatisfactionLowerPercent: 40, cpuEvictBESatisfactionUpperPercent: 30}",
            &[
                "colocation.cpuEvictBESatisfactionUpperPercent",
                "30 is below",
                "40",
            ],
        ),
        (
            "colocation: {cpuEvictTimeWindowSeconds: 10}",
            &[
                "colocation.cpuEvictBESatisfactionLowerPercent",
                "colocation.cpuEvictTimeWindowSeconds",
            ],
        ),
        (
            "colocation: {cpuEvictThresholdPercent: 80, cpuEvictLowerPercent: 81}",
            &["colocation.cpuEvictLowerPercent", "81 is not below", "80"],
        ),
        (
            "colocation: {memoryAllocatableEvictThresholdPercent: 80, memoryAllocatableEvictLowerPercent: 80}",
            &[
                "colocation.memoryAllocatableEvictLowerPercent",
                "80 is not below",
            ],
        ),
        (
            "colocation: {cpuEvictThresholdPercent: 80, cpuEvictLowerPercent: 80}",
            &["colocation.cpuEvictLowerPercent", "80 is not below"],
        ),
        (
            "colocation: {cpuAllocatableEvictLowerPercent: 10}",
            &[
                "colocation.cpuAllocatableEvictThresholdPercent",
                "colocation.cpuAllocatableEvictLowerPercent",
            ],
        ),
        (
            "colocation: {cpuSuppressThresholdPercent: 101}",
            &[
                "colocation.cpuSuppressThresholdPercent",
                "`101`",
                "1 to 100",
            ],
        ),
        (
            "colocation: {cpuSuppressThresholdPercent: 0}",
            &["colocation.cpuSuppressThresholdPercent", "`0`", "1 to 100"],
        ),
        (
            "colocation: {cpuSuppressMinPercent: 5}",
            &[
                "colocation.cpuSuppressThresholdPercent",
                "colocation.cpuSuppressMinPercent",
            ],
        ),
        (
            "colocation: {cpuSuppressThresholdPercent: 65, cpuSuppressPolicy: quota}",
            &["colocation.cpuSuppressPolicy", "cpuset", "cfsQuota"],
        ),
        (
            "colocation: {cpuWaitStrategy: {objective: 0}}",
            &["colocation.cpuWaitStrategy.objective", "`0`"],
        ),
        (
            "colocation: {cpuWaitStrategy: {objective: 2s}}",
            &[
                "colocation.cpuWaitStrategy.objective",
                "`2s`",
                "within 100µs and 1s",
            ],
        ),
        (
            "colocation: {cpuWaitStrategy: {minPercent: 0}}",
            &["colocation.cpuWaitStrategy.minPercent", "`0`", "1 to 100"],
        ),
        (
            "colocation: {memoryReclaimStrategy: {stepPercent: 11}}",
            &[
                "colocation.memoryReclaimStrategy.stepPercent",
                "`11`",
                "1 to 10",
            ],
        ),
        (
            "colocation: {memoryReclaimStrategy: {intervalSeconds: 0}}",
            &[
                "colocation.memoryReclaimStrategy.intervalSeconds",
                "`0`",
                "1 to 300",
            ],
        ),
        (
            "colocation: {memoryReclaimStrategy: {coldSeconds: 9}}",
            &[
                "colocation.memoryReclaimStrategy.coldSeconds",
                "`9`",
                "10 to 86400",
            ],
        ),
        (
            "colocation: {resctrlStrategy: {be: {catRangeStartPercent: 30}}}",
            &[
                "colocation.resctrlStrategy.be.catRangeEndPercent",
                "30 % to 30 %",
                "above the start",
            ],
        ),
        (
            "colocation: {resctrlStrategy: {ls: {mbaPercent: 0}}}",
            &[
                "colocation.resctrlStrategy.ls.mbaPercent",
                "`0`",
                "1 to 100",
            ],
        ),
        ("capacity: {memory: 0}", &["capacity.memory", "`0`"]),
        (
            "evictionMaxPodGracePeriod: -1",
            &["evictionMaxPodGracePeriod", "`-1`", "65535"],
        ),
        (
            "evictionMaxPodGracePeriod: 30s",
            &["evictionMaxPodGracePeriod", "`30s`", "seconds"],
        ),
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
        ("listenApi: true", &["listen", "listenApi"]),
        (
            "secureListen: 10250",
            &["secureListen", "`10250`", "0.0.0.0:9596"],
        ),
        (
            "secureListen: 0.0.0.0:9596\ntlsCertFile: /tls.crt",
            &["tlsPrivateKeyFile", "tlsCertFile"],
        ),
        (
            "secureListen: 0.0.0.0:9596\ntlsPrivateKeyFile: /tls.key",
            &["tlsPrivateKeyFile", "tlsCertFile"],
        ),
        (
            "authentication: {webhook: {cacheTTL: 1m}}",
            &["secureListen", "authentication.webhook.cacheTTL"],
        ),
        (
            "secureListen: 0.0.0.0:9596\nauthorization: {webhook: {cacheAuthorizedTTL: 2h}}",
            &["authorization.webhook.cacheAuthorizedTTL", "`2h`"],
        ),
        (
            "tlsCertFile: /tls.crt\ntlsPrivateKeyFile: /tls.key",
            &["secureListen", "tlsCertFile"],
        ),
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
fn a_key_that_is_written_twice_is_named_with_its_line() {
    for (text, line, key) in [
        ("mode: observe\nmode: enforce", 4, "mode"),
        (
            "reactor:\n  minInterval: 1ms\n  minInterval: 2ms",
            5,
            "minInterval",
        ),
        (
            "evictionHard: {memory.available: 1Gi, memory.available: 2Gi}",
            3,
            "memory.available",
        ),
    ] {
        let said = error(text);
        let expected = format!("agent.yaml:{line}: {key} is written twice; remove one of the two");
        assert_eq!(said, expected, "{text}");
    }
}

#[test]
fn an_old_name_is_not_among_the_keys_to_choose_from() {
    let said = error("evictionStatu: {how: none}");
    assert!(
        said.contains("evictionStatus") && !said.contains("marks"),
        "{said}"
    );
}

#[test]
fn a_key_without_a_value_has_its_default() {
    let text = "mode:\nreactor:\nconvergence:\n  onExit:\n  reclaimStep:\ncapacity: {cpu: , memory: ~}\n\
                sampling: {interval: }\nevictionHard:\npodPidsLimit:\nkubeReserved:\n  memory:\n";
    assert_eq!(parse(text).unwrap(), parse("").unwrap());
}

#[test]
fn a_flag_is_read_as_its_key_is() {
    for (flag, part) in [
        ("--node-name=Node_1", "such as node-1.example.org"),
        ("--cgroup-root=kubepods", "start with /"),
        ("--cri-socket=tcp://a", "tcp is no unix socket"),
        ("--listen=localhost", "127.0.0.1:9595"),
        ("--mode=on", "observe, enforce"),
    ] {
        let error = Overrides::from_flags([flag]).unwrap_err().to_string();
        assert!(error.contains(part), "{flag}: {error}");
    }
}
