//! kubelet `pkg/kubelet/cm/helpers_linux_test.go`, `TestResourceConfigForPod`, and
//! `qos_container_manager_linux_test.go`.

use podwarden_policy::{
    Bytes, CpuShares, Pod, QosClass, Resources,
    limits::{CpuMax, Limit, LimitOptions, pod_config, tier_config},
};

use crate::support::{pod, resources};

fn options(enforce_cpu_limits: bool, cpu_period_us: u64) -> LimitOptions {
    LimitOptions {
        enforce_cpu_limits,
        cpu_period_us,
        ..LimitOptions::default()
    }
}

fn with_pod_level(uid: &str, written: [&str; 4]) -> Pod {
    let mut pod = pod(uid, &[["", "", "", ""]]);
    pod.pod_resources = Some(resources(written));
    pod
}

struct Row {
    pod: Pod,
    options: LimitOptions,
    qos: QosClass,
    shares: u64,
    cpu_max: Option<(Option<u64>, u64)>,
    memory: Option<u64>,
}

#[test]
fn config() {
    let burstable = || pod("b", &[["100m", "100Mi", "200m", "200Mi"]]);
    let rows = [
        Row {
            pod: pod("a", &[["", "", "", ""]]),
            options: options(true, 100_000),
            qos: QosClass::BestEffort,
            shares: 2,
            cpu_max: None,
            memory: None,
        },
        Row {
            pod: burstable(),
            options: options(false, 100_000),
            qos: QosClass::Burstable,
            shares: 102,
            cpu_max: Some((None, 100_000)),
            memory: Some(209_715_200),
        },
        Row {
            pod: burstable(),
            options: options(true, 5000),
            qos: QosClass::Burstable,
            shares: 102,
            cpu_max: Some((Some(1000), 5000)),
            memory: Some(209_715_200),
        },
        Row {
            pod: with_pod_level("c", ["100m", "100Mi", "", ""]),
            options: options(true, 100_000),
            qos: QosClass::Burstable,
            shares: 102,
            cpu_max: None,
            memory: None,
        },
        Row {
            pod: with_pod_level("d", ["100m", "100Mi", "100m", "100Mi"]),
            options: options(true, 100_000),
            qos: QosClass::Guaranteed,
            shares: 102,
            cpu_max: Some((Some(10_000), 100_000)),
            memory: Some(104_857_600),
        },
        // One container without limits takes the limit of the pod away.
        Row {
            pod: pod(
                "e",
                &[
                    ["100m", "100Mi", "200m", "200Mi"],
                    ["100m", "100Mi", "", ""],
                ],
            ),
            options: options(true, 100_000),
            qos: QosClass::Burstable,
            shares: 204,
            cpu_max: None,
            memory: None,
        },
    ];
    for row in rows {
        let config = pod_config(&row.pod, &row.options);
        let max = row.cpu_max.map(|(quota, period_us)| CpuMax {
            quota_us: quota.into(),
            period_us,
        });
        assert_eq!(config.qos, row.qos, "{}", row.pod.name);
        assert_eq!(config.shares, CpuShares(row.shares), "{}", row.pod.name);
        assert_eq!(config.cpu_max, max, "{}", row.pod.name);
        assert_eq!(
            config.memory_limit,
            row.memory.map(Bytes),
            "{}",
            row.pod.name
        );
    }
}

#[test]
fn quota_switched_off_is_unlimited() {
    let config = pod_config(
        &pod("g", &[["1", "1Gi", "1", "1Gi"]]),
        &options(false, 100_000),
    );
    assert_eq!(
        config.cpu_max.map(|max| max.quota_us),
        Some(Limit::Unlimited)
    );
}

#[test]
fn memory_reservation() {
    let options = LimitOptions {
        memory_reservation: true,
        ..LimitOptions::default()
    };
    let guaranteed = pod_config(&pod("g", &[["100m", "100Mi", "100m", "100Mi"]]), &options);
    assert_eq!(guaranteed.memory_min, Some(Bytes(104_857_600)));
    assert_eq!(guaranteed.memory_low, None);
    let burstable = pod_config(&pod("b", &[["", "128Mi", "", "256Mi"]]), &options);
    assert_eq!(burstable.memory_min, None);
    assert_eq!(burstable.memory_low, Some(Bytes(134_217_728)));
}

#[test]
fn huge_pages() {
    let size = Bytes::mebi(2);
    let mut pod = pod("h", &[["1", "1Gi", "1", "1Gi"]]);
    pod.containers[0].resources = Resources {
        hugepages: [(size, Bytes(128))].into(),
        ..pod.containers[0].resources.clone()
    };
    let config = pod_config(&pod, &LimitOptions::default());
    assert_eq!(config.hugetlb, [(size, Bytes(128))].into());
}

#[test]
fn tier_shares() {
    let guaranteed = pod("g", &[["1", "128Mi", "1", "128Mi"]]);
    let pods = [
        guaranteed.clone(),
        pod("b1", &[["1", "128Mi", "", ""]]),
        pod("b2", &[["2", "256Mi", "", ""]]),
    ];
    let rows: [(&[Pod], u64); 2] = [(&[guaranteed], 2), (&pods, 3072)];
    for (pods, burstable) in rows {
        let shares = |class| tier_config(pods, class).shares;
        assert_eq!(shares(QosClass::Burstable), CpuShares(burstable));
        assert_eq!(shares(QosClass::BestEffort), CpuShares(2));
    }
}
