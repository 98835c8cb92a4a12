//! The series of pods.

use super::{
    family::{Bounds, Family, Labels, Seconds, counters, gauges, labels},
    text::Text,
};
use crate::{
    api::{
        published::Figures,
        types::{DiskStats, InterfaceStats, LatencyStats, PodStats},
    },
    config::PodSeries,
};

/// A pod with the labels of its series, which are made once.
type Labelled<'a> = (Labels, &'a PodStats);

/// Series of every pod; [`PodSeries::Basic`] has at most twelve of one, and one more of a pod that gives page cache back.
pub(super) fn write(text: &mut Text, figures: &Figures, detail: PodSeries) {
    if detail == PodSeries::None {
        return;
    }
    let labelled = |pod: &PodStats| {
        let pod_ref = &pod.pod_ref;
        labels([
            ("namespace", &pod_ref.namespace),
            ("pod", &pod_ref.name),
            ("uid", pod_ref.uid.as_str()),
            ("qos_class", &pod.qos_class),
        ])
    };
    let pods: Vec<Labelled<'_>> = figures
        .pods
        .iter()
        .map(|pod| (labelled(pod), pod))
        .collect();
    cpu(text, &pods);
    waits(text, &pods, detail);
    memory(text, &pods);
    stalls(text, &pods);
    oom_kills(text, &pods);
    given(text, &pods);
    if detail == PodSeries::Full {
        shared(text, &pods);
        switches_and_periods(text, &pods);
        exits(text, &pods);
        tasks(text, &pods);
        pressure(text, &pods);
        disk(text, &pods);
        network(text, &pods);
    }
}

#[rustfmt::skip]
fn cpu(text: &mut Text, pods: &[Labelled<'_>]) {
    counters(text, pods, &[
        ("podwarden_pod_cpu_usage_seconds_total", "CPU time of the pod",
            |pod| Some(Seconds(pod.cpu.usage_core_nano_seconds))),
        ("podwarden_pod_cpu_throttled_seconds_total",
            "Time that the pod was throttled by its CPU quota, summed over CPUs",
            |pod| Some(Seconds(pod.cpu.throttling?.throttled_nano_seconds))),
    ]);
}

#[rustfmt::skip]
fn switches_and_periods(text: &mut Text, pods: &[Labelled<'_>]) {
    counters(text, pods, &[
        ("podwarden_pod_context_switches_total", "Context switches into tasks of the pod",
            |pod| Some(pod.cpu.context_switches)),
        ("podwarden_pod_cpu_periods_total", "Periods of CPU quotas in which the pod ran",
            |pod| Some(pod.cpu.throttling?.periods)),
        ("podwarden_pod_cpu_throttled_periods_total", "Periods at whose end the pod was throttled by its CPU quota",
            |pod| Some(pod.cpu.throttling?.throttled_periods)),
    ]);
}

/// Without detail the histogram has one bucket: count and sum stay what they are.
#[rustfmt::skip]
fn waits(text: &mut Text, pods: &[Labelled<'_>], detail: PodSeries) {
    let mut family = Family::histogram(text, "podwarden_pod_run_queue_wait_seconds",
        "How long runnable tasks of the pod waited for a CPU");
    let mut bounds = Bounds::default();
    for (labels, pod) in pods {
        let sum = Seconds(pod.cpu.run_queue_wait_nano_seconds);
        let counts = &pod.cpu.run_queue_wait_histogram;
        let all = [counts.iter().sum()];
        let counts = match detail {
            PodSeries::Full => counts.as_slice(),
            _ => &all,
        };
        bounds.resize(counts.len(), 1);
        family.add_buckets(labels, sum, &bounds, counts);
    }
}

#[rustfmt::skip]
fn memory(text: &mut Text, pods: &[Labelled<'_>]) {
    gauges(text, pods, &[
        ("podwarden_pod_memory_usage_bytes", "Memory charged to the pod, page cache included",
            |pod| Some(pod.memory.as_ref()?.usage_bytes)),
        ("podwarden_pod_memory_working_set_bytes", "Usage without inactive page cache, as cAdvisor computes it",
            |pod| Some(pod.memory.as_ref()?.working_set_bytes)),
        ("podwarden_pod_memory_rss_bytes", "Anonymous memory of the pod",
            |pod| Some(pod.memory.as_ref()?.rss_bytes)),
        ("podwarden_pod_memory_limit_bytes", "Memory limit in force on the pod's cgroup; no series when there is none",
            |pod| pod.memory.as_ref()?.limit_bytes),
    ]);
}

#[rustfmt::skip]
fn stalls(text: &mut Text, pods: &[Labelled<'_>]) {
    let mut family = Family::counter(text, "podwarden_pod_reclaim_stall_seconds_total",
        "Time that tasks of the pod reclaimed memory instead of running, by kind of reclaim");
    for (labels, pod) in pods {
        for (kind, nanos) in [
            ("direct_reclaim", pod.stall.direct_reclaim_nano_seconds),
            ("memcg_reclaim", pod.stall.memcg_reclaim_nano_seconds),
        ] {
            family.add_with(labels, ("kind", kind), Seconds(nanos));
        }
    }
}

#[rustfmt::skip]
fn shared(text: &mut Text, pods: &[Labelled<'_>]) {
    gauges(text, pods, &[
        ("podwarden_pod_memory_shared_bytes",
            "Shared memory of the pod: volumes in memory, /dev/shm, what its processes share",
            |pod| Some(pod.memory.as_ref()?.shared_bytes)),
    ]);
}

/// Only of pods that are asked.
#[rustfmt::skip]
fn given(text: &mut Text, pods: &[Labelled<'_>]) {
    if pods.iter().all(|(_, pod)| pod.proactive_reclaim.is_none()) {
        return;
    }
    counters(text, pods, &[
        ("podwarden_pod_memory_proactively_reclaimed_bytes_total",
            "Page cache that the pod gave back before anything needed it",
            |pod| Some(pod.proactive_reclaim.as_ref()?.reclaimed_bytes)),
    ]);
}

#[rustfmt::skip]
fn exits(text: &mut Text, pods: &[Labelled<'_>]) {
    let mut family = Family::counter(text, "podwarden_pod_process_exits_total",
        "Processes of the pod that ended, by outcome");
    for (labels, PodStats { exits, .. }) in pods {
        let succeeded = exits.total.saturating_sub(exits.failed + exits.signaled);
        for (outcome, count) in [
            ("succeeded", succeeded),
            ("failed", exits.failed),
            ("signaled", exits.signaled),
        ] {
            family.add_with(labels, ("outcome", outcome), count);
        }
    }
}

#[rustfmt::skip]
fn tasks(text: &mut Text, pods: &[Labelled<'_>]) {
    gauges(text, pods, &[
        ("podwarden_pod_tasks", "Tasks of the pod: threads, each of which counts against a limit on processes",
            |pod| pod.tasks),
    ]);
    counters(text, pods, &[
        ("podwarden_pod_refused_forks_total", "Forks of the pod that a limit on processes refused (pids.max)",
            |pod| pod.refused_forks),
    ]);
}

#[rustfmt::skip]
fn oom_kills(text: &mut Text, pods: &[Labelled<'_>]) {
    counters(text, pods, &[
        ("podwarden_pod_oom_kills_total", "Processes of the pod that the kernel's OOM killer chose",
            |pod| Some(pod.exits.oom_killed)),
    ]);
}

#[rustfmt::skip]
fn pressure(text: &mut Text, pods: &[Labelled<'_>]) {
    counters(text, pods, &[
        ("podwarden_pod_pressure_cpu_waiting_seconds_total", "Time in which a task of the pod waited for a CPU",
            |pod| Some(Seconds(pod.pressure?.cpu.some_nano_seconds))),
        ("podwarden_pod_pressure_cpu_stalled_seconds_total", "Time in which all tasks of the pod waited for a CPU",
            |pod| pod.pressure?.cpu.full_nano_seconds.map(Seconds)),
        ("podwarden_pod_pressure_memory_waiting_seconds_total", "Time in which a task of the pod waited for memory",
            |pod| Some(Seconds(pod.pressure?.memory.some_nano_seconds))),
        ("podwarden_pod_pressure_memory_stalled_seconds_total", "Time in which all tasks of the pod waited for memory",
            |pod| pod.pressure?.memory.full_nano_seconds.map(Seconds)),
        ("podwarden_pod_pressure_io_waiting_seconds_total", "Time in which a task of the pod waited for disks",
            |pod| Some(Seconds(pod.pressure?.io.some_nano_seconds))),
        ("podwarden_pod_pressure_io_stalled_seconds_total", "Time in which all tasks of the pod waited for disks",
            |pod| pod.pressure?.io.full_nano_seconds.map(Seconds)),
    ]);
}

#[rustfmt::skip]
fn disk(text: &mut Text, pods: &[Labelled<'_>]) {
    counters(text, pods, &[
        ("podwarden_pod_fs_reads_bytes_total", "Bytes that the pod read from disks",
            |pod| Some(pod.disk.as_ref()?.read_bytes)),
        ("podwarden_pod_fs_writes_bytes_total", "Bytes that the pod wrote to disks",
            |pod| Some(pod.disk.as_ref()?.written_bytes)),
        ("podwarden_pod_fs_reads_total", "Reads of disks by the pod", |pod| Some(pod.disk.as_ref()?.reads)),
        ("podwarden_pod_fs_writes_total", "Writes to disks by the pod", |pod| Some(pod.disk.as_ref()?.writes)),
    ]);
    type Latency = fn(&DiskStats) -> Option<&LatencyStats>;
    let histograms: [(_, _, Latency); 2] = [
        ("podwarden_pod_fs_read_latency_seconds", "How long disks took for reads of the pod",
            |disk| disk.read_latency.as_ref()),
        ("podwarden_pod_fs_write_latency_seconds", "How long disks took for writes of the pod",
            |disk| disk.write_latency.as_ref()),
    ];
    let mut bounds = Bounds::default();
    for (name, help, of) in histograms {
        let mut family = Family::histogram(text, name, help);
        for (labels, pod) in pods {
            if let Some(latency) = pod.disk.as_ref().and_then(of) {
                // Half as many series: a pod has two of these histograms.
                let pairs = latency.histogram.chunks(2).map(|pair| pair.iter().sum());
                let counts: Vec<u64> = pairs.collect();
                bounds.resize(counts.len(), 2);
                family.add_buckets(labels, Seconds(latency.total_nano_seconds), &bounds, &counts);
            }
        }
    }
}

#[rustfmt::skip]
fn network(text: &mut Text, pods: &[Labelled<'_>]) {
    type Figure = fn(&InterfaceStats) -> u64;
    let counters_of_interfaces: [(_, _, Figure); 8] = [
        ("podwarden_pod_network_receive_bytes_total", "Bytes that an interface of the pod received", |of| of.rx_bytes),
        ("podwarden_pod_network_receive_packets_total", "Packets that an interface of the pod received", |of| of.rx_packets),
        ("podwarden_pod_network_receive_errors_total", "Errors of an interface of the pod while receiving", |of| of.rx_errors),
        ("podwarden_pod_network_receive_packets_dropped_total", "Packets that an interface of the pod dropped while receiving",
            |of| of.rx_dropped),
        ("podwarden_pod_network_transmit_bytes_total", "Bytes that an interface of the pod sent", |of| of.tx_bytes),
        ("podwarden_pod_network_transmit_packets_total", "Packets that an interface of the pod sent", |of| of.tx_packets),
        ("podwarden_pod_network_transmit_errors_total", "Errors of an interface of the pod while sending", |of| of.tx_errors),
        ("podwarden_pod_network_transmit_packets_dropped_total", "Packets that an interface of the pod dropped while sending",
            |of| of.tx_dropped),
    ];
    for (name, help, of) in counters_of_interfaces {
        let mut family = Family::counter(text, name, help);
        for (labels, pod) in pods {
            for interface in pod.network.iter().flat_map(|network| &network.interfaces) {
                family.add_with(labels, ("interface", &interface.name), of(interface));
            }
        }
    }
    counters(text, pods, &[
        ("podwarden_pod_network_tcp_retransmitted_segments_total", "TCP segments that sockets of the pod sent again",
            |pod| pod.network.as_ref()?.tcp_retransmitted_segments),
    ]);
}
