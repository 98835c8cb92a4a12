//! What runs on the node and for it: command lines and configurations.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::enclosure::Enclosure;
use super::pki::Pki;
use super::{ADDRESS, Driver, NODE, succeed};
use crate::containerd::{BUSYBOX, crun_limits_stay, find};
use crate::harness::{eventually, values};
use crate::machine::init::is_guest;

const ETCD: &str = "http://127.0.0.1:2379";
/// Where containerd is in the enclosure, as the shipped configuration has it.
const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// What pods may use of the node's memory beside huge pages; `kubepods`' limit where there are none.
const ALLOCATABLE: u64 = 1 << 30;
/// Beyond that, what the kubelet's own eviction threshold takes.
const THRESHOLD: u64 = 50 << 20;
/// How long a runtime may take in a test machine: a container with a limit of 1m CPU has 10 ms a second for the
/// interpreted instructions of its start.
const SLOW_RUNTIME: &str = "30m";
const RUNC: &str = "runc";
const CRUN: &str = "crun";
/// Lines of each log that a failure in a test machine leaves.
const PRINTED: usize = 60;

/// One of them; killed when this goes away.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    child: Option<Child>,
}

impl Daemon {
    pub(super) fn new(name: &'static str, program: PathBuf, mut args: Vec<String>) -> Self {
        if is_guest() {
            args.extend(calm(name).iter().map(|&arg| arg.to_owned()));
        }
        Self {
            name,
            program,
            args,
            child: None,
        }
    }

    /// Starts it, or starts it again.
    pub(super) fn start(&mut self, enclosure: &Enclosure) -> Result<()> {
        let log = enclosure.dir().join(format!("{}.log", self.name));
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = enclosure.command(&self.program)?;
        command
            .args(&self.args)
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn();
        self.child = Some(child.with_context(|| format!("start {}", self.name))?);
        Ok(())
    }

    /// Kills it as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What it is told besides in a test machine, where every instruction is interpreted: it does less while nothing happens.
fn calm(name: &str) -> &'static [&'static str] {
    match name {
        // It has no peers to look for ten times a second.
        "etcd" => &["--heartbeat-interval=1000", "--election-timeout=10000"],
        "kube-apiserver" => &["--enable-priority-and-fairness=false"],
        // Those that the cases there need.
        "kube-controller-manager" => {
            &["--controllers=serviceaccount-controller,job-controller,node-lifecycle-controller"]
        }
        // Its figures of containers decide nothing there.
        "kubelet" => &[
            "--housekeeping-interval=1m",
            "--max-housekeeping-interval=2m",
        ],
        _ => &[],
    }
}

/// Its data need not survive the machine.
pub(super) fn etcd(enclosure: &Enclosure) -> Result<Daemon> {
    let data = enclosure.dir().join("etcd").display().to_string();
    let args = [
        "--unsafe-no-fsync",
        &format!("--data-dir={data}"),
        &format!("--listen-client-urls={ETCD}"),
        &format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380",
    ];
    let program = find("etcd").context("there is no etcd")?;
    Ok(Daemon::new("etcd", program, args.map(str::to_owned).into()))
}

pub(super) fn apiserver(program: PathBuf, pki: &Pki) -> Daemon {
    let files = [
        ("tls-cert-file", "server.crt"),
        ("tls-private-key-file", "server.key"),
        ("client-ca-file", "ca.crt"),
        ("token-auth-file", "tokens.csv"),
        ("service-account-key-file", "accounts.pub"),
        ("service-account-signing-key-file", "accounts.key"),
        ("kubelet-client-certificate", "client.crt"),
        ("kubelet-client-key", "client.key"),
    ];
    let files = files.map(|(flag, name)| format!("--{flag}={}", pki.file(name)));
    let further = [
        &format!("--etcd-servers={ETCD}"),
        "--secure-port=443",
        "--bind-address=0.0.0.0",
        &format!("--advertise-address={ADDRESS}"),
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
        "--shutdown-delay-duration=0",
    ];
    let args = further
        .map(str::to_owned)
        .into_iter()
        .chain(files)
        .collect();
    Daemon::new("kube-apiserver", program, args)
}

pub(super) fn controller_manager(program: PathBuf, enclosure: &Enclosure, pki: &Pki) -> Daemon {
    let args = [
        format!("--kubeconfig={}", pki.file("admin.conf")),
        format!("--root-ca-file={}", pki.file("ca.crt")),
        format!(
            "--service-account-private-key-file={}",
            pki.file("accounts.key")
        ),
        "--use-service-account-credentials".to_owned(),
        "--leader-elect=false".to_owned(),
        // It makes the directory where there is none.
        format!(
            "--flex-volume-plugin-dir={}",
            enclosure.dir().join("plugins").display()
        ),
    ];
    Daemon::new("kube-controller-manager", program, args.into())
}

pub(super) fn scheduler(program: PathBuf, pki: &Pki) -> Daemon {
    let args = [
        format!("--kubeconfig={}", pki.file("admin.conf")),
        "--leader-elect=false".to_owned(),
    ];
    Daemon::new("kube-scheduler", program, args.into())
}

/// Static pods are in `manifests` of the enclosure's directory.
pub(super) fn kubelet(
    program: PathBuf,
    enclosure: &Enclosure,
    pki: &Pki,
    driver: Driver,
) -> Result<Daemon> {
    let dir = enclosure.dir();
    let manifests = dir.join("manifests");
    fs::create_dir(&manifests).context("create the directory for static pods")?;
    let config = dir.join("kubelet.yaml");
    let huge: u64 = values::machine_hugepages()?
        .values()
        .map(|size| size.0)
        .sum();
    let reserved = memory_total()?.saturating_sub(huge + ALLOCATABLE + THRESHOLD);
    let text = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": driver.as_str(),
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
        "staticPodPath": manifests,
        "fileCheckFrequency": "1s",
        "volumePluginDir": dir.join("plugins"),
        "systemReserved": {"memory": format!("{}Ki", reserved >> 10)},
        // The disk is the machine's: what is free there is none of these pods' business.
        "evictionHard": {"memory.available": format!("{}Ki", THRESHOLD >> 10)},
        // A node that was short of memory takes the next case's pods.
        "evictionPressureTransitionPeriod": "1s",
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "runtimeRequestTimeout": if is_guest() { SLOW_RUNTIME } else { "2m" },
        "resolvConf": "",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.file("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
    });
    fs::write(&config, text.to_string()).context("write the kubelet's configuration")?;
    let args = [
        format!("--kubeconfig={}", pki.file("kubelet.conf")),
        format!("--config={}", config.display()),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={ADDRESS}"),
    ];
    Ok(Daemon::new("kubelet", program, args.into()))
}

/// The runtime, and a network whose addresses (RFC 2544) the enclosure alone has.
pub(super) fn containerd(enclosure: &Enclosure, plugins: &Path, driver: Driver) -> Result<Daemon> {
    let dir = enclosure.dir();
    let network = dir.join("net.d");
    fs::create_dir(&network).context("create the directory for the network")?;
    let plugin = json!({
        // The kernel of a test machine has no devices for pods: they have their addresses and nothing else.
        "type": if is_guest() { "host-local" } else { "ptp" },
        "ipMasq": false,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "198.18.0.0/24"}]],
            "dataDir": dir.join("addresses"),
        },
    });
    let list = json!({"cniVersion": "0.4.0", "name": "e2e", "plugins": [plugin]});
    fs::write(network.join("10-e2e.conflist"), list.to_string())
        .context("write the CNI configuration")?;
    let config = dir.join("containerd.toml");
    let text = format!(
        r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = {restricted}
  disable_apparmor = true
  sandbox_image = "{BUSYBOX}"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{network}"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{snapshotter}"
  default_runtime_name = "{runtime}"
{runtimes}"#,
        restricted = restricts_oom_score(),
        snapshotter = snapshotter(),
        runtime = default_runtime(driver)?,
        runtimes = [RUNC, CRUN]
            .map(|runtime| handler(runtime, driver))
            .concat(),
        dir = dir.display(),
        plugins = plugins.display(),
        network = network.display(),
    );
    fs::write(&config, text).context("write containerd's configuration")?;
    let program = find("containerd").context("there is no containerd")?;
    let args = vec![format!("--config={}", config.display())];
    Ok(Daemon::new("containerd", program, args))
}

/// The runtime of pods without a class. In a test machine that is crun, which starts a container with far fewer
/// instructions.
fn default_runtime(driver: Driver) -> Result<&'static str> {
    let by_crun = is_guest() && (driver == Driver::Cgroupfs || crun_limits_stay()?);
    Ok(if by_crun { CRUN } else { RUNC })
}

/// A runtime of pods, whose class names it.
fn handler(runtime: &str, driver: Driver) -> String {
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{runtime}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{runtime}.options]
  BinaryName = "{runtime}"
  NoPivotRoot = {in_initramfs}
  SystemdCgroup = {by_systemd}
"#,
        in_initramfs = is_guest(),
        by_systemd = driver == Driver::Systemd,
    )
}

/// Whether the runtime may not lower a process's `oom_score_adj`.
pub(crate) fn restricts_oom_score() -> bool {
    !is_guest()
}

/// What keeps the files of images; the kernel of a test machine has no overlays.
fn snapshotter() -> &'static str {
    if is_guest() { "native" } else { "overlayfs" }
}

/// Imports an image, as soon as the runtime answers, for which it has `limit`.
pub(super) fn import(enclosure: &Enclosure, image: &Path, limit: Duration) -> Result<()> {
    let socket = enclosure.path(CONTAINERD);
    eventually(limit, || {
        ensure!(socket.exists(), "there is no {}", socket.display());
        succeed(&mut ctr(enclosure, &["version"])?)
    })
    .context("containerd does not answer")?;
    let image = image.display().to_string();
    let args = ["images", "import", "--snapshotter", snapshotter(), &image];
    succeed(&mut ctr(enclosure, &args)?).map(drop)
}

/// `ctr` at that runtime.
fn ctr(enclosure: &Enclosure, args: &[&str]) -> Result<Command> {
    let program = find("ctr").context("there is no ctr")?;
    let mut command = enclosure.command(&program)?;
    command
        .args(["--address", CONTAINERD, "--namespace", "k8s.io"])
        .args(args);
    Ok(command)
}

/// The last line that each of them wrote.
pub(super) fn last_words(dir: &Path) -> String {
    let lines = logs(dir).filter_map(|(name, text)| {
        let line = text.lines().last()?;
        Some(format!("{name} says {line:?}"))
    });
    lines.collect::<Vec<_>>().join(", ")
}

/// Prints the end of what each of them wrote. The files of a test machine are gone with it, and its console is kept.
pub(super) fn print_ends(dir: &Path) {
    for (name, text) in logs(dir) {
        let lines: Vec<_> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(PRINTED)..] {
            println!("{name}: {line}");
        }
    }
}

/// Names and texts of the logs in a directory.
fn logs(dir: &Path) -> impl Iterator<Item = (String, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "log"));
    logs.map(|log| {
        let name = log.file_stem().unwrap_or_default().display().to_string();
        (name, fs::read_to_string(&log).unwrap_or_default())
    })
}

/// `MemTotal`, bytes.
fn memory_total() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    let kib: u64 = kib.context("/proc/meminfo has no MemTotal")?.parse()?;
    Ok(kib << 10)
}
