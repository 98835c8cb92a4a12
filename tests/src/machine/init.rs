//! PID 1 of a guest: mounts a node's file systems, runs the host's request, reports the outcome, powers off.
//! Where systemd is PID 1, it does the first and the last, and the request is a unit's work.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, sethostname};

use super::message::{Ended, Message, Request, Sender};

/// Where messages go: the second serial port, which the host keeps as a file.
const MESSAGES: &str = "/dev/ttyS1";
/// The file for a benchmark's figures.
const MEASURED: &str = "/run/measured.json";
/// A disk to be formatted, where the machine has one; page cache that can be written back takes it.
const DISK: &str = "/dev/nvme0n1";
/// Where the disk is mounted: on a node as well, this is a directory on a disk, not a tmpfs.
const DISK_MOUNT: &str = "/var/tmp";

/// What a node has mounted, in order: type, mount point.
const MOUNTS: &[(&str, &str)] = &[
    ("devtmpfs", "/dev"),
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("tracefs", "/sys/kernel/tracing"),
    ("debugfs", "/sys/kernel/debug"),
    ("securityfs", "/sys/kernel/security"),
];

/// Does what the host requests as the machine's first process, then powers off.
pub(crate) fn main() -> ! {
    if let Err(error) = prepare().and_then(|()| work("/bin")) {
        // The host hears of no end: it counts that as a failure and shows the console.
        println!("podwarden-machine: {error:#}");
    }
    nix::unistd::sync();
    // With qemu's -no-reboot either one ends the machine.
    let _ = reboot(RebootMode::RB_POWER_OFF);
    let _ = reboot(RebootMode::RB_AUTOBOOT);
    panic!("PID 1 can neither power off nor restart");
}

/// Whether this is a test machine, which no other work shares.
pub(crate) fn is_guest() -> bool {
    let arguments = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    Request::of_command_line(&arguments).is_ok()
}

/// Does what the host requests; the unit's end is the machine's.
///
/// # Errors
/// What keeps it from running: the host hears of no end then.
pub(super) fn unit() -> Result<()> {
    // A kubelet and a runtime look for the file system of their files among those that are mounted, and an initramfs is
    // none of them.
    mount(
        Some("tmpfs"),
        DISK_MOUNT,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .with_context(|| format!("mount tmpfs on {DISK_MOUNT}"))?;
    work("/usr/sbin:/usr/bin")
}

fn prepare() -> Result<()> {
    for (kind, target) in MOUNTS {
        fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
        mount(
            Some(*kind),
            *target,
            Some(*kind),
            MsFlags::empty(),
            None::<&str>,
        )
        .with_context(|| format!("mount {kind} on {target}"))?;
        if *target == "/dev" {
            use_console()?;
        }
    }
    sethostname("podwarden-machine").context("set the host name")?;
    enable_controllers()?;
    busybox(&["ip", "link", "set", "lo", "up"])?;
    if fs::exists(DISK).unwrap_or(false) {
        mount_disk()?;
    }
    Ok(())
}

/// The initramfs holds no device nodes, so the kernel could not open the console for us.
fn use_console() -> Result<()> {
    let console = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/console")
        .context("open /dev/console")?;
    dup2_stdin(&console)?;
    dup2_stdout(&console)?;
    dup2_stderr(&console)?;
    Ok(())
}

/// Hands every controller to the root's children, as systemd does for those that a kubelet needs.
fn enable_controllers() -> Result<()> {
    let root = "/sys/fs/cgroup";
    let available = fs::read_to_string(format!("{root}/cgroup.controllers"))
        .context("read cgroup.controllers")?;
    for controller in available.split_whitespace() {
        fs::write(
            format!("{root}/cgroup.subtree_control"),
            format!("+{controller}"),
        )
        .with_context(|| format!("enable the {controller} controller"))?;
    }
    Ok(())
}

fn mount_disk() -> Result<()> {
    busybox(&["mke2fs", "-F", DISK])?;
    fs::create_dir_all(DISK_MOUNT).with_context(|| format!("create {DISK_MOUNT}"))?;
    mount(
        Some(DISK),
        DISK_MOUNT,
        Some("ext4"),
        MsFlags::empty(),
        None::<&str>,
    )
    .with_context(|| format!("mount {DISK} on {DISK_MOUNT}"))
}

fn busybox(args: &[&str]) -> Result<()> {
    let output = Command::new("/bin/busybox")
        .args(args)
        .output()
        .context("start busybox")?;
    anyhow::ensure!(
        output.status.success(),
        "busybox {} ended with {}: {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Runs the request of the kernel's command line and sends the outcome.
fn work(path: &str) -> Result<()> {
    let command_line = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let mut command = Command::new("/e2e");
    match Request::of_command_line(&command_line)? {
        Request::Cases(selection) => {
            command.args(["machine", "cases", "--agent", "/podwarden"]);
            command.args(["--messages", MESSAGES]);
            command.arg(serde_json::to_string(&selection).context("write the selection")?);
        }
        Request::Bench(words) => {
            let (name, rest) = words.split_first().context("the benchmark has no name")?;
            command.args(["bench", name, "--agent", "/podwarden", "--json", MEASURED]);
            command.args(rest);
        }
    }
    let ended = run(command
        .current_dir("/")
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/")
        .env("RUST_BACKTRACE", "1"))?;
    let sender = Sender::to(Some(Path::new(MESSAGES)))?;
    if fs::exists(MEASURED).unwrap_or(false) {
        let text = fs::read_to_string(MEASURED).with_context(|| format!("read {MEASURED}"))?;
        let figures = serde_json::from_str(&text).with_context(|| format!("parse {MEASURED}"))?;
        sender.send(&Message::Measured(figures))?;
    }
    sender.send(&Message::Ended(ended))
}

/// Waits for the command, and reaps the orphans that end before it.
fn run(command: &mut Command) -> Result<Ended> {
    let child = command.spawn().context("start /e2e")?;
    let child = Pid::from_raw(child.id().cast_signed());
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => return Ok(Ended::Exit(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                return Ok(Ended::Signal(signal as i32));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("wait for /e2e"),
        }
    }
}
