//! What systemd-oomd takes: a unit of systemd's with a limit that makes pressure, swap, and the
//! daemon's own unit.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::harness::{Cgroup, Mounts, owner, sleep, until};

/// Its unit.
const OOMD: &str = "systemd-oomd.service";
/// Its configuration: the shortest time that pressure may last; its default is longer than a run.
const CONFIG: &str = "/run/systemd/oomd.conf.d/podwarden-bench.conf";
/// The disk of the test machines, which nothing else uses there.
const DISK: &str = "/dev/nvme0n1";
/// Until it has asked systemd what to watch and looked at it.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// A transient scope; stopped when this goes away.
#[derive(Debug)]
pub(super) struct Scope {
    holder: Child,
    name: String,
    /// Its cgroup.
    pub(super) cgroup: Cgroup,
}

impl Scope {
    /// With `memory.high` at `high` bytes and given to systemd-oomd.
    pub(super) fn start(mounts: &Mounts, high: u64) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("podwarden-bench-{}-{number}.scope", owner());
        let holder = Command::new("systemd-run")
            .args([
                "--scope",
                "--quiet",
                "--unit",
                &name,
                "--slice",
                "system.slice",
            ])
            .args(["-p", "Delegate=yes", "-p", &format!("MemoryHigh={high}")])
            .args(["-p", "ManagedOOMMemoryPressure=kill"])
            .args(["-p", "ManagedOOMMemoryPressureLimit=1%"])
            .args(["sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .context("start systemd-run")?;
        let cgroup = Cgroup::new(mounts, &format!("system.slice/{name}"));
        let scope = Self {
            holder,
            name,
            cgroup,
        };
        until(Duration::from_secs(60), "the scope", || {
            !scope.cgroup.procs().is_empty()
        })?;
        Ok(scope)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // It may have been killed with the victim.
        let _ = systemctl(&["stop", &self.name]);
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The daemon, with swap: without it the kernel finds nothing to reclaim, and systemd-oomd does nothing
/// where it does not. Both end when this goes away.
#[derive(Debug)]
pub(super) struct OomdUnit;

impl OomdUnit {
    /// Starts it and waits until it watches.
    pub(super) fn start() -> Result<Self> {
        ensure!(
            Path::new(DISK).exists(),
            "{DISK} is missing: systemd-oomd takes swap, and this runs in a test machine (--vm)"
        );
        xtask::cmd::create_parent(Path::new(CONFIG))?;
        fs::write(CONFIG, "[OOM]\nDefaultMemoryPressureDurationSec=1s\n")
            .with_context(|| format!("write {CONFIG}"))?;
        run("mkswap", &["--quiet", DISK])?;
        run("swapon", &[DISK])?;
        let unit = Self;
        // A scope that it is to watch has started it already, with its own configuration.
        systemctl(&["restart", OOMD])?;
        sleep(FIRST_LOOK)?;
        Ok(unit)
    }
}

impl Drop for OomdUnit {
    fn drop(&mut self) {
        // What has ended is as good.
        let _ = systemctl(&["stop", OOMD]);
        let _ = run("swapoff", &[DISK]);
        let _ = fs::remove_file(CONFIG);
    }
}

fn systemctl(args: &[&str]) -> Result<()> {
    run("systemctl", args)
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {} ended with {}: {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
