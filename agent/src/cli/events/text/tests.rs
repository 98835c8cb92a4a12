use super::*;

fn pod() -> PodRef {
    PodRef {
        name: "hog".into(),
        namespace: "batch".into(),
        uid: "3f0c6d1e-8a55-4a3e-9a53-0d3f3a1f9f10".into(),
    }
}

fn event(kind: EventKind) -> Event {
    Event {
        id: 7,
        time: "2026-11-21T08:57:48.123456Z".to_owned(),
        pod: Some(pod()),
        kind,
    }
}

fn eviction() -> Eviction {
    Eviction {
        pod: pod(),
        qos_class: "BestEffort".to_owned(),
        scope: ScopeName::Kubepods,
        level_bytes: 1536 << 20,
        detected_by: Some(podwarden_policy::signal::Detector::Switch),
        usage_bytes: 1540 << 20,
        victim_usage_bytes: 600 << 20,
        processes: 3,
        reason: "lowest class, largest usage".to_owned(),
        timeline: EvictionTimeline {
            crossing_nanos: 1_000_000_000,
            crossing_source: "kernel".to_owned(),
            wake_nanos: 1_000_085_000,
            verified_nanos: 1_000_140_000,
            killed_nanos: Some(1_001_200_000),
            freed_nanos: Some(1_061_000_000),
        },
        ..Eviction::default()
    }
}

fn evicted(eviction: Eviction) -> Event {
    event(EventKind::Eviction(Box::new(eviction)))
}

#[test]
fn an_eviction_shows_its_timeline() {
    assert_eq!(
        lines(&evicted(eviction())),
        "\
2026-11-21T08:57:48.123Z  batch/hog                             \
EVICTED batch/hog (BestEffort), using 600Mi: kubepods used 1.50Gi, past its level of 1.50Gi
      crossing         +0  stamped in the kernel
      wake       +85.0 us  noticed by switch
      verified    +140 us  lowest class, largest usage
      killed     +1.20 ms  3 processes
      freed      +61.0 ms"
    );
}

#[test]
fn a_dry_run_kills_and_frees_nothing() {
    let mut dry = eviction();
    dry.dry_run = true;
    dry.processes = 0;
    dry.timeline.killed_nanos = None;
    dry.timeline.freed_nanos = None;
    dry.timeline.crossing_source = "sampled".to_owned();
    // Interpolated, the crossing may come out after the wake.
    dry.timeline.wake_nanos = 999_999_000;
    assert_eq!(
        lines(&evicted(dry)),
        "\
2026-11-21T08:57:48.123Z  batch/hog                             \
WOULD EVICT batch/hog (BestEffort), using 600Mi: kubepods used 1.50Gi, past its level of 1.50Gi
      crossing         +0  between two samples, interpolated
      wake       -1.00 us  noticed by switch
      verified    +140 us  lowest class, largest usage
      killed            -  nothing was done: observe mode"
    );
}

#[test]
fn a_level_that_was_lowered_says_why() {
    let mut fast = eviction();
    (fast.headroom_bytes, fast.fill_bytes_per_second) = (64 << 20, 2 << 30);
    let text = lines(&evicted(fast));
    let expected =
        "past its level of 1.50Gi (64.0Mi lower than configured, as it filled by 2.00Gi a second)";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn what_decided_is_told_before_what_is_used_in_all() {
    let mut cached = eviction();
    cached.working_set_bytes = Some(1538 << 20);
    cached.usage_bytes = 4 << 30;
    let text = lines(&evicted(cached.clone()));
    let expected = "kubepods used 1.50Gi (4.00Gi with page cache), past its level of 1.50Gi";
    assert!(text.contains(expected), "{text}");
    cached.target_bytes = Some(1 << 30);
    let text = lines(&evicted(cached));
    let expected = "which is brought below 1.00Gi (evictionMinimumReclaim) since it passed its level of 1.50Gi";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn what_is_not_known_yet_says_so() {
    let mut early = eviction();
    early.processes = 1;
    early.timeline.freed_nanos = None;
    let text = lines(&evicted(early.clone()));
    assert!(text.contains("killed     +1.20 ms  1 process\n"), "{text}");
    assert!(text.ends_with("freed             -  not seen"), "{text}");
    early.interrupted = true;
    let text = lines(&evicted(early));
    assert!(text.ends_with("unknown: the agent ended before"), "{text}");
}

#[test]
fn every_other_event_is_one_sentence() {
    let exit = |exit_code, signal, oom_killed| EventKind::ProcessExit {
        pid: 42,
        command: "sh".to_owned(),
        exit_code,
        signal,
        oom_killed,
        run_time_nanos: 1_500_000,
        max_rss_bytes: 2 << 20,
    };
    for (kind, expected) in [
        (
            EventKind::PodAdded {
                qos_class: "Burstable".to_owned(),
            },
            "pod added, Burstable",
        ),
        (
            EventKind::PodRemoved {
                usage_core_nano_seconds: 3_500_000_000,
                exits: 1,
            },
            "pod removed after 3.50 s of CPU and 1 exit",
        ),
        (
            EventKind::ContainerStarted {
                container: "web".to_owned(),
            },
            "container web started",
        ),
        (
            exit(Some(3), None, false),
            "sh[42] exited with 3 after 1.50 ms, at most 2.00Mi resident",
        ),
        (
            exit(None, Some(9), false),
            "sh[42] ended by SIGKILL after 1.50 ms, at most 2.00Mi resident",
        ),
        (
            exit(None, Some(9), true),
            "sh[42] was OOM-killed after 1.50 ms, at most 2.00Mi resident",
        ),
        (
            EventKind::KernelOom { pid: 42 },
            "the kernel's OOM killer chose process 42",
        ),
        (
            EventKind::MemoryNearLimit {
                container: None,
                percent: 80,
                usage_bytes: 80 << 20,
                limit_bytes: 100 << 20,
            },
            "pod uses 80.0Mi, 80 % of its memory limit of 100Mi",
        ),
        (
            EventKind::MemoryNearLimit {
                container: Some("web".to_owned()),
                percent: 95,
                usage_bytes: 96 << 20,
                limit_bytes: 100 << 20,
            },
            "container web uses 96.0Mi, 95 % of its memory limit of 100Mi",
        ),
        (
            EventKind::ForksRefused {
                container: Some("web".to_owned()),
                count: 3,
            },
            "3 forks refused in container web, at its pids.max or one above",
        ),
        (
            EventKind::ForksRefused {
                container: None,
                count: 1,
            },
            "1 fork refused, at its pids.max or one above",
        ),
        (
            EventKind::LevelCrossed {
                scope: ScopeName::Kubepods,
                level_bytes: 1 << 30,
                usage_bytes: 1100 << 20,
                working_set_bytes: None,
                detected_by: podwarden_policy::signal::Detector::Switch,
            },
            "kubepods uses 1.07Gi, past its level of 1.00Gi (noticed by switch)",
        ),
        (
            EventKind::ForeignWrite {
                cgroup: "/kubepods/burstable".to_owned(),
                property: "cpu shares".to_owned(),
                found: "2 shares".to_owned(),
                wanted: "1024 shares".to_owned(),
                corrected: true,
            },
            "cpu shares of /kubepods/burstable was changed to 2 shares by another, put back to 1024 shares",
        ),
        (
            EventKind::ForeignWrite {
                cgroup: "/kubepods".to_owned(),
                property: "memory limit".to_owned(),
                found: "max".to_owned(),
                wanted: "1Gi".to_owned(),
                corrected: false,
            },
            "memory limit of /kubepods was changed to max by another, could not be put back to 1Gi",
        ),
        (
            EventKind::ForeignWriteContested {
                cgroup: "/kubepods".to_owned(),
                property: "memory limit".to_owned(),
                found: "max".to_owned(),
                wanted: "1Gi".to_owned(),
            },
            "another keeps changing memory limit of /kubepods to max: 1Gi is written at growing intervals",
        ),
        (
            EventKind::ForeignWriteSettled {
                cgroup: "/kubepods".to_owned(),
                property: "memory limit".to_owned(),
                corrections: 3,
            },
            "memory limit of /kubepods is left alone again after 3 corrections",
        ),
        (
            EventKind::CpuQuota {
                container: "web".to_owned(),
                throttled_nanos: 41_000_000,
                from_us: 50_000,
                to_us: 60_000,
                period_us: 100_000,
                reason: "throttled".to_owned(),
                dry_run: false,
            },
            "web throttled 41.0 ms of 100 ms: quota 50 -> 60 ms",
        ),
        (
            EventKind::BestEffortHeld {
                from_milli: 1_800,
                to_milli: 600,
                waited_nanos: 3_100_000,
                delay_nanos: 90_000,
                dry_run: false,
            },
            "waited 3.10 ms for a CPU: best-effort held from 1.8 to 0.6 CPUs",
        ),
        (
            EventKind::BestEffortSuppressed {
                from_milli: Some(1_800),
                to_milli: 600,
                cpus: None,
                others_milli: 700,
                capacity_milli: 2000,
                threshold_percent: 65,
                dry_run: false,
            },
            "best-effort held from 1.8 to 0.6 CPUs: others use 0.7, all may use 65 % of 2.0",
        ),
        (
            EventKind::BestEffortSuppressed {
                from_milli: None,
                to_milli: 2_000,
                cpus: Some("0-1".to_owned()),
                others_milli: 0,
                capacity_milli: 4000,
                threshold_percent: 50,
                dry_run: true,
            },
            "best-effort would be held to 2.0 CPUs (0-1): others use 0.0, all may use 50 % of 4.0",
        ),
        (
            EventKind::BestEffortFreed {
                held_nanos: 1_200_000_000,
                waits: 4,
                dry_run: true,
            },
            "best-effort would be free again after 1.20 s: 4 waits were too long",
        ),
        (
            EventKind::GapOpened {
                tier: "besteffort".to_owned(),
                target_bytes: 256 << 20,
                usage_bytes: 336 << 20,
            },
            "besteffort uses 336Mi, its reserve leaves it 256Mi: kept from growing until it fits",
        ),
        (
            EventKind::GapClosed {
                tier: "besteffort".to_owned(),
                target_bytes: 256 << 20,
                usage_before_bytes: 336 << 20,
                usage_bytes: 208 << 20,
                reclaimed_bytes: 32 << 20,
                writes: 3,
                open_nanos: 1_500_000_000,
            },
            "besteffort is limited to 256Mi after 1.50 s, in 3 steps: used 336Mi then, 208Mi now, 32.0Mi \
             of page cache dropped",
        ),
        (
            EventKind::Degraded {
                message: "no fentry".to_owned(),
            },
            "degraded: no fentry",
        ),
    ] {
        let event = event(kind);
        assert_eq!(sentence(&event), expected);
        let line = lines(&event);
        assert_eq!(
            line,
            format!("2026-11-21T08:57:48.123Z  {:<36}  {expected}", "batch/hog")
        );
    }
}

#[test]
fn a_pod_known_by_its_cgroup_goes_by_uid_and_none_by_a_dash() {
    let mut event = event(EventKind::KernelOom { pid: 1 });
    let uid = pod().uid;
    event.pod = Some(PodRef {
        name: uid.as_str().into(),
        namespace: "".into(),
        uid: uid.clone(),
    });
    assert!(lines(&event).contains(&format!("Z  {uid}  the kernel's")));
    event.pod = None;
    assert!(lines(&event).contains("Z  -      "));
}

#[test]
fn a_process_cannot_write_to_the_terminal_with_its_name() {
    let kind = EventKind::ContainerStarted {
        container: "a\u{1b}]0;owned\u{7}\nb".to_owned(),
    };
    assert!(!lines(&event(kind)).contains(['\u{1b}', '\u{7}', '\n']));
}
