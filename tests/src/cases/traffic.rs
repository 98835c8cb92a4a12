//! What pods send to disks and networks, beside the kernel's own counters.

mod latency;

use std::fs::{self, File};
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sched::{CloneFlags, setns};
use podwarden::api::types::{DiskStats, InterfaceStats, NetworkStats, PodStats};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::{Case, Context, case, portable, skip};
use crate::harness::{DISK_PROGRAMS, Node, Objects, Options, Pod, PodSpec, eventually};

pub(super) const CASES: &[Case] = &[
    case("disk_equals_kernel", disk_equals_kernel),
    case("disk_latency", latency::disk_latency),
    case("network_told_apart", network_told_apart),
    case("network_equals_interfaces", network_equals_interfaces),
    case("retransmits_equal_socket", retransmits_equal_socket),
    portable("traffic_switched_off", traffic_switched_off),
];

const MIB: u64 = 1 << 20;

/// A field of `/proc/PID/io`.
fn process_io(pid: u32, name: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Ok(value.with_context(|| format!("no {name}"))?.parse()?)
}

/// Where the kernel's `io.stat` of the container is, with the controller on in every cgroup on the way.
fn io_stat(pod: &Pod) -> Result<Option<std::path::PathBuf>> {
    let mounts = pod.main.mounts();
    if !mounts.memory_on_v2() {
        return Ok(None);
    }
    let main = mounts.memory().join(pod.main.path());
    let above = main.ancestors().skip(1);
    let mut above: Vec<_> = above
        .take_while(|dir| dir.starts_with(mounts.memory()))
        .collect();
    above.reverse();
    for dir in above {
        fs::write(dir.join("cgroup.subtree_control"), "+io").context("the IO controller")?;
    }
    Ok(Some(main.join("io.stat")))
}

/// The sum of a field over all disks, without the hidden paths to one (`nvme0c0n1`), which have no name here and count
/// what goes through the disk once more.
fn field(io_stat: &str, name: &str) -> u64 {
    let disks = io_stat
        .lines()
        .filter(|line| !line.starts_with("(unknown)"));
    let words = disks.flat_map(str::split_whitespace);
    let values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.filter_map(|value| value.parse::<u64>().ok()).sum()
}

fn disk(stats: &PodStats) -> Result<DiskStats> {
    let container = &stats.containers.first().context("no container")?.disk;
    ensure!(
        *container == stats.disk,
        "{container:?}, its pod {:?}",
        stats.disk
    );
    stats.disk.clone().context("no disk")
}

/// Reads are those of `/proc/PID/io`, to the byte; writes are what the pod wrote past the page cache, and on v2 what
/// the kernel writes back of its page cache too: `io.stat`, to the byte.
fn disk_equals_kernel(context: &Context) -> Result<()> {
    const DIRECT: u64 = 32 * MIB;
    const CACHED: u64 = 8 * MIB;
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::best_effort("disk"),
        PodSpec::best_effort("idle"),
    ])?;
    let io_stat = io_stat(&pods[0])?;
    let home = tempfile::tempdir_in("/var/tmp")?;
    let file = home.path().join("file").display().to_string();
    let work = pods[0].start(&["disk", "--mib", "32", "--cached-mib", "8", "--file", &file])?;
    let idle = pods[1].start(&["sleep"])?;
    eventually(node.limit(), || {
        let (read, written) = (
            process_io(work.pid(), "read_bytes")?,
            process_io(work.pid(), "write_bytes")?,
        );
        ensure!(
            read >= DIRECT && written >= DIRECT + CACHED,
            "{read} bytes read, {written} written"
        );
        Ok(())
    })?;
    // By the kernel's own threads, as it would do by itself after half a minute.
    nix::unistd::sync();
    let stats = node.expect(pods[0].uid(), |stats| {
        let found = disk(stats)?;
        let read = process_io(work.pid(), "read_bytes")?;
        ensure!(found.read_bytes == read, "{found:?}, io has {read}");
        ensure!(found.reads >= 32 && found.writes >= 32, "{found:?}");
        let Some(io_stat) = &io_stat else {
            let written = DIRECT..DIRECT + MIB;
            ensure!(written.contains(&found.written_bytes), "{found:?}");
            return Ok(());
        };
        let text = fs::read_to_string(io_stat)?;
        let (read, written) = (field(&text, "rbytes"), field(&text, "wbytes"));
        ensure!(written >= DIRECT + CACHED, "{text}");
        ensure!(
            (found.read_bytes, found.written_bytes) == (read, written),
            "{found:?}, the kernel has {text}"
        );
        Ok(())
    })?;
    let found = disk(&stats)?;
    context.figure("written", found.written_bytes as f64 / 1e6, "MB");
    let idle_disk = disk(&node.agent.pod(pods[1].uid())?)?;
    let read = process_io(idle.pid(), "read_bytes")?;
    ensure!(
        idle_disk.read_bytes == read && idle_disk.written_bytes == 0,
        "{idle_disk:?}, io has {read}"
    );
    drop((work, idle));
    node.finish()
}

fn network(stats: &PodStats) -> Result<&NetworkStats> {
    stats.network.as_ref().context("no network")
}

/// A pod in the node's network, and one in a network of its own in which there is nothing but `lo`.
fn network_told_apart(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::best_effort("of-the-node"),
        PodSpec::best_effort("of-its-own"),
    ])?;
    let held = [pods[0].start(&["sleep"])?, pods[1].start(&["network"])?];
    for (pod, of_the_node) in pods.iter().zip([true, false]) {
        let stats = node.expect(pod.uid(), |stats| {
            let network = network(stats)?;
            ensure!(network.host_network == of_the_node, "{network:?}");
            ensure!(network.interfaces.is_empty(), "{network:?}");
            Ok(())
        })?;
        // Where sockets know their cgroup.
        let counted = network(&stats)?.tcp_retransmitted_segments;
        ensure!(
            counted.is_some() == pod.main.mounts().v2().is_some(),
            "{counted:?}"
        );
    }
    drop(held);
    node.finish()
}

fn ip(args: &str) -> Result<String> {
    let output = Command::new("ip").args(args.split(' ')).output();
    let output = output.with_context(|| format!("ip {args}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {args}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Makes two interfaces at the ends of one wire, and sends 1 MiB from one to the other.
fn send_a_mebibyte() -> Result<()> {
    for args in [
        "link add eth0 type veth peer name net1",
        "link set eth0 up",
        "link set net1 up",
        "addr add 198.18.0.1/24 dev eth0",
        "neigh add 198.18.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent",
    ] {
        ip(args)?;
    }
    let socket = UdpSocket::bind("198.18.0.1:0")?;
    for _ in 0..1024 {
        socket.send_to(&[0x5a; 1024], "198.18.0.2:9")?;
    }
    Ok(())
}

/// Does something in a process's network namespace.
fn inside<T: Send>(pid: u32, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let inside = scope.spawn(move || {
            let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
            setns(namespace, CloneFlags::CLONE_NEWNET).context("enter the network namespace")?;
            what()
        });
        inside.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })
}

/// What iproute2 says of an interface (`IFLA_STATS64`).
fn link(pid: u32, name: &str) -> Result<InterfaceStats> {
    let text = inside(pid, || ip(&format!("-j -s link show dev {name}")))?;
    let links: serde_json::Value = serde_json::from_str(&text)?;
    let counters = &links[0]["stats64"];
    let number = |way: &str, what: &str| counters[way][what].as_u64().context("no counter");
    Ok(InterfaceStats {
        name: name.to_owned(),
        rx_bytes: number("rx", "bytes")?,
        rx_packets: number("rx", "packets")?,
        rx_errors: number("rx", "errors")?,
        rx_dropped: number("rx", "dropped")?,
        tx_bytes: number("tx", "bytes")?,
        tx_packets: number("tx", "packets")?,
        tx_errors: number("tx", "errors")?,
        tx_dropped: number("tx", "dropped")?,
    })
}

fn network_equals_interfaces(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::best_effort("network"))?;
    let held = pod.start(&["network"])?;
    let pid = held.pid();
    node.expect(pod.uid(), |stats| {
        let network = network(stats)?;
        ensure!(!network.host_network, "{network:?}");
        Ok(())
    })?;
    let [own, ours] = [pid.to_string(), "self".to_owned()]
        .map(|process| fs::read_link(format!("/proc/{process}/ns/net")));
    ensure!(
        own? != ours?,
        "the workload is in the network of this process"
    );
    if let Err(error) = inside(pid, send_a_mebibyte) {
        drop(held);
        node.finish()?;
        return skip(format!("no veth here: {error:#}"));
    }
    let stats = node.expect(pod.uid(), |stats| {
        let network = network(stats)?;
        let expected = [link(pid, "eth0")?, link(pid, "net1")?];
        ensure!(expected[0].tx_bytes >= MIB, "{expected:?}");
        ensure!(expected[1].rx_bytes >= MIB, "{expected:?}");
        for one in &expected {
            ensure!(network.interfaces.contains(one), "{network:?}, not {one:?}");
        }
        let default = network.default.as_ref();
        ensure!(default == Some(&expected[0]), "{network:?}");
        Ok(())
    })?;
    ensure!(network(&stats)?.interfaces.len() == 2, "{stats:?}");
    drop(held);
    node.finish()
}

/// How often a process's connection that is under way has sent a segment again: `tcpi_total_retrans` of its socket. A
/// timer that finds the segment still on its way out counts in `/proc/net/tcp` and sends nothing
/// (`skb_still_in_host_queue`, `net/ipv4/tcp_output.c`).
fn repeated(pid: u32) -> Result<u64> {
    let process = Pid::from_raw(pid.cast_signed()).context("no process")?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let is_socket = fs::read_link(entry.path())?
            .to_string_lossy()
            .starts_with("socket:");
        if is_socket {
            let number = entry.file_name().to_string_lossy().parse()?;
            let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
            let info = tcp_info(&socket)?;
            if info[0] == SYN_SENT {
                let total: [u8; 4] = info[TOTAL_RETRANS].try_into()?;
                return Ok(u32::from_ne_bytes(total).into());
            }
        }
    }
    bail!("no connection under way")
}

/// `tcpi_state` of a connection that is not answered (`include/net/tcp_states.h`).
const SYN_SENT: u8 = 2;
/// Where `tcpi_total_retrans` is in `struct tcp_info` (`include/uapi/linux/tcp.h`).
const TOTAL_RETRANS: Range<usize> = 100..104;

/// The first bytes of a socket's `struct tcp_info`.
fn tcp_info(socket: &OwnedFd) -> Result<[u8; TOTAL_RETRANS.end]> {
    let mut info = [0; TOTAL_RETRANS.end];
    let mut size = libc::socklen_t::try_from(info.len())?;
    // SAFETY: the kernel writes as many bytes as it is told there are.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    ensure!(done == 0, "TCP_INFO: {}", std::io::Error::last_os_error());
    ensure!(
        usize::try_from(size)? == info.len(),
        "TCP_INFO has {size} bytes"
    );
    Ok(info)
}

fn retransmits_equal_socket(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::best_effort("unanswered"))?;
    if pod.main.mounts().v2().is_none() {
        node.finish()?;
        return skip("without a v2 mount sockets do not know their pod");
    }
    let held = pod.start(&["unanswered"])?;
    node.expect(pod.uid(), |stats| {
        let found = network(stats)?.tcp_retransmitted_segments;
        let expected = repeated(held.pid())?;
        ensure!(
            expected > 0 && found == Some(expected),
            "{found:?}, the socket has {expected}"
        );
        Ok(())
    })?;
    drop(held);
    node.finish()
}

/// As the kernel keeps its name.
const RETRANSMITS: &str = "tcp_retransmit_";

/// Nothing is loaded, read and reported; with both on the programs are there.
fn traffic_switched_off(context: &Context) -> Result<()> {
    for off in [false, true] {
        let config = match off {
            true => "sampling: {disk: false, network: false}\n",
            false => "",
        };
        let options = Options {
            config: config.to_owned(),
            ..Options::default()
        };
        let node = Node::start(context, &options)?;
        let pod = node.pod(PodSpec::best_effort("pod"))?;
        let held = pod.start(&["sleep"])?;
        let loaded = Objects::of_process(node.agent.pid())?.program_names();
        let has_v2 = pod.main.mounts().v2().is_some();
        let disks = DISK_PROGRAMS.map(|name| (name, !off));
        for (name, wanted) in disks.into_iter().chain([(RETRANSMITS, !off && has_v2)]) {
            ensure!(loaded.contains(name) == wanted, "{name}: {loaded:?}");
        }
        node.expect(pod.uid(), |stats| {
            let container = stats.containers.first().context("no container")?;
            let found = [
                stats.disk.is_some(),
                container.disk.is_some(),
                stats.network.is_some(),
            ];
            ensure!(found == [!off; 3], "{found:?}");
            Ok(())
        })?;
        let degradations = node.agent.node()?.degradations;
        let of_these = |d: &&String| d.contains("disks") || d.contains("TCP");
        ensure!(
            degradations.iter().find(of_these).is_none(),
            "{degradations:?}"
        );
        drop(held);
        node.finish()?;
    }
    Ok(())
}
