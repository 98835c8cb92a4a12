//! PID 1 of the test machines: mounts what a node has, runs the cases, says how they ended, powers off.
//! Where systemd is PID 1, it does the first and the last, and the cases are a unit.
//!
//! The arguments of `/e2e run` are what follows `--` on the kernel's command line; with `bench NAME` as
//! the first two it is that benchmark. `cargo xtask` reads the verdict line from the console.

use std::fs::{self, File, OpenOptions};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use rustix::system::{RebootCommand, reboot, sethostname};

/// How the verdict line begins; the exit status of the cases follows.
const VERDICT: &str = "podwarden-machine: cases ended with";
/// Where the cases write their results: the second serial port, which the host keeps as a file.
const RESULTS: &str = "/dev/ttyS1";
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

/// Runs the cases as the machine's first process, then powers off.
pub(crate) fn main() -> ! {
    match prepare().and_then(|()| run_cases("/bin")) {
        Ok(status) => println!("{VERDICT} {status}"),
        // No verdict: the host counts that as a failure and shows the console.
        Err(error) => println!("podwarden-machine: {error:#}"),
    }
    rustix::fs::sync();
    // With qemu's -no-reboot either one ends the machine.
    let _ = reboot(RebootCommand::PowerOff);
    let _ = reboot(RebootCommand::Restart);
    panic!("PID 1 can neither power off nor restart");
}

/// Runs the cases and says how they ended; the unit's end is the machine's.
///
/// # Errors
/// Whatever keeps the cases from running: there is no verdict then.
pub(crate) fn unit() -> Result<()> {
    let status = run_cases("/usr/sbin:/usr/bin")?;
    println!("{VERDICT} {status}");
    Ok(())
}

fn prepare() -> Result<()> {
    for (kind, target) in MOUNTS {
        fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
        mount(*kind, *target, *kind, MountFlags::empty(), None)
            .with_context(|| format!("mount {kind} on {target}"))?;
        if *target == "/dev" {
            use_console()?;
        }
    }
    sethostname(b"podwarden-machine").context("set the host name")?;
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
    rustix::stdio::dup2_stdin(&console)?;
    rustix::stdio::dup2_stdout(&console)?;
    rustix::stdio::dup2_stderr(&console)?;
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
    mount(DISK, DISK_MOUNT, "ext4", MountFlags::empty(), None)
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

/// Runs the cases and returns `exit code N` or `signal N`.
fn run_cases(path: &str) -> Result<String> {
    let command_line = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let mut command = Command::new("/e2e");
    let arguments: Vec<_> = arguments(&command_line).collect();
    let (words, arguments) = match arguments.as_slice() {
        ["bench", name, rest @ ..] => (vec!["bench", *name], rest),
        all => (vec!["run"], all),
    };
    command.args(words).args(["--agent", "/podwarden"]);
    // A test machine may be started without a second port.
    if File::options().write(true).open(RESULTS).is_ok() {
        command.args(["--json", RESULTS]);
    }
    let child = command
        .args(arguments)
        .current_dir("/")
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/")
        .env("RUST_BACKTRACE", "1")
        .spawn()
        .context("start /e2e")?;
    let child = Pid::from_child(&child);
    loop {
        // Orphans are ours as well: whoever ended is reaped here.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => return Ok(describe(status)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for /e2e"),
        }
    }
}

/// What the kernel does not read itself: the words after `--`.
fn arguments(command_line: &str) -> impl Iterator<Item = &str> {
    command_line
        .split_whitespace()
        .skip_while(|word| *word != "--")
        .skip(1)
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => format!("wait status {status:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::arguments;

    #[test]
    fn the_cases_arguments_follow_two_dashes() {
        let words = |line| arguments(line).collect::<Vec<_>>();
        assert_eq!(
            words("console=ttyS0 quiet -- --filter eviction\n"),
            ["--filter", "eviction"]
        );
        assert!(words("console=ttyS0 quiet --\n").is_empty());
        assert!(words("console=ttyS0 quiet\n").is_empty());
    }
}
