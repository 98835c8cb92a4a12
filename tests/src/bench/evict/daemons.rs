//! The daemons: each is told to act at once at the threshold, to use SIGKILL, and to prefer the
//! victim; otherwise it has its own defaults.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use workload::VICTIM_NAMES;

use super::MIB;
use super::scope::OomdUnit;
use crate::harness::{Cgroup, check_interrupt, sleep};

/// Their programs and nohang's default configuration, below the root of the packages.
const EARLYOOM: &str = "usr/bin/earlyoom";
const NOHANG: &str = "usr/sbin/nohang";
const OOMD: &str = "usr/bin/oomd";
const SYSTEMD_OOMD: &str = "lib/systemd/systemd-oomd";
const NOHANG_CONFIG: &str = "usr/share/nohang/nohang.conf";
/// Once it says that it has begun, until it has looked at the node for the first time.
const FIRST_LOOK: Duration = Duration::from_millis(300);
/// How long a daemon may take to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Daemon {
    /// This project's agent, always the first.
    Podwarden,
    /// <https://github.com/rfjakob/earlyoom>
    Earlyoom,
    /// <https://github.com/hakavlad/nohang>
    Nohang,
    /// <https://github.com/facebookincubator/oomd>
    Oomd,
    /// systemd's own.
    SystemdOomd,
}

impl Daemon {
    /// As tables have it, and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Podwarden => "podwarden",
            Self::Earlyoom => "earlyoom",
            Self::Nohang => "nohang",
            Self::Oomd => "oomd",
            Self::SystemdOomd => "systemd-oomd",
        }
    }

    /// An error that says what to do where it is missing below `root`.
    pub(super) fn ensure_installed(self, root: &Path) -> Result<()> {
        let program = root.join(match self {
            Self::Podwarden => return Ok(()),
            Self::Earlyoom => EARLYOOM,
            Self::Nohang => NOHANG,
            Self::Oomd => OOMD,
            Self::SystemdOomd => SYSTEMD_OOMD,
        });
        ensure!(
            program.is_file(),
            "{} is missing: `cargo xtask bench evict` fetches earlyoom and nohang on Debian, with --vm oomd \
             and systemd-oomd into a machine; --peers none measures podwarden alone",
            program.display()
        );
        Ok(())
    }
}

/// A daemon beside podwarden; ended when this goes away.
#[derive(Debug)]
pub(super) struct Running {
    child: Option<Child>,
    /// A unit of systemd's.
    unit: Option<OomdUnit>,
    _dir: TempDir,
}

impl Running {
    /// Starts it, with a threshold of so many bytes (of `kubepods`, if it watches cgroups), and waits until it watches; podwarden runs
    /// already.
    pub(super) fn start(
        daemon: Daemon,
        root: &Path,
        threshold: u64,
        kubepods: &Cgroup,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (command, begun) = match daemon {
            Daemon::Podwarden => {
                return Ok(Self {
                    child: None,
                    unit: None,
                    _dir: dir,
                });
            }
            Daemon::SystemdOomd => {
                return Ok(Self {
                    child: None,
                    unit: Some(OomdUnit::start()?),
                    _dir: dir,
                });
            }
            Daemon::Oomd => oomd(root, threshold, kubepods, dir.path())?,
            Daemon::Earlyoom => earlyoom(root, threshold),
            Daemon::Nohang => nohang(root, threshold, dir.path())?,
        };
        let (child, lines) = spawn(command)?;
        let running = Self {
            child: Some(child),
            unit: None,
            _dir: dir,
        };
        wait_for(&lines, begun).with_context(|| format!("start {}", daemon.name()))?;
        sleep(FIRST_LOOK)?;
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.unit.take());
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// With SIGKILL at the threshold, to the whole process group, and without its line each second. Its
/// unit and -p are of one mind that it should come before ordinary work.
fn earlyoom(root: &Path, threshold: u64) -> (Command, &'static str) {
    let kib = threshold / 1024;
    let mut command = Command::new(root.join(EARLYOOM));
    command
        .args(["-M", &format!("{kib},{kib}")])
        .args(["-r", "0", "-g", "-p"])
        .args(["--prefer", &format!("^{}$", VICTIM_NAMES[0])]);
    (command, "SIGTERM when")
}

/// With its default configuration but for the thresholds and the preference.
fn nohang(root: &Path, threshold: u64, dir: &Path) -> Result<(Command, &'static str)> {
    let text = read(&root.join(NOHANG_CONFIG))?;
    let own: String = text
        .lines()
        .filter(|line| !line.starts_with("hard_threshold_min_mem"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let config = dir.join("nohang.conf");
    let text = format!(
        "{own}hard_threshold_min_mem = {} M\n@BADNESS_ADJ_RE_NAME 900 /// ^{}$\n",
        threshold / MIB,
        VICTIM_NAMES[0]
    );
    fs::write(&config, text).context("write nohang's configuration")?;
    let mut command = Command::new("python3");
    command
        .arg(nohang_program(root, dir)?)
        .args(["--monitor", "--config"])
        .arg(&config);
    Ok((command, "Monitoring has started"))
}

/// nohang refuses thresholds above half of the memory. On a machine with more than that to spare a run
/// would have to fill the rest first, so the one check is lifted in a copy; it is made once, at the
/// start.
fn nohang_program(root: &Path, dir: &Path) -> Result<PathBuf> {
    const CHECK: &str = "if mem_min_kb > mem_total * 0.5 or mem_min_kb < 0:";
    let program = root.join(NOHANG);
    let text = read(&program)?;
    ensure!(
        text.matches(CHECK).count() == 1,
        "{} is not version 0.2.0: it has no line `{CHECK}`",
        program.display()
    );
    let copy = dir.join("nohang");
    fs::write(&copy, text.replace(CHECK, "if mem_min_kb < 0:"))
        .context("write a copy of nohang")?;
    Ok(copy)
}

/// As often as it can look, once a second, and with SIGKILL to the largest cgroup of the victim's tier as
/// soon as it sees the threshold passed.
fn oomd(
    root: &Path,
    threshold: u64,
    kubepods: &Cgroup,
    dir: &Path,
) -> Result<(Command, &'static str)> {
    let past = serde_json::json!({"name": "memory_above", "args": {
        "cgroup": kubepods.path(),
        "threshold": format!("{}M", threshold / MIB),
        "duration": "0",
    }});
    let kill = serde_json::json!({"name": "kill_by_memory_size_or_growth", "args": {
        "cgroup": format!("{}/besteffort/*", kubepods.path()),
    }});
    let rules = serde_json::json!({"rulesets": [
        {"name": "benchmark", "detectors": [["past the threshold", past]], "actions": [kill]},
    ]});
    let config = dir.join("oomd.json");
    fs::write(&config, rules.to_string()).context("write oomd's configuration")?;
    let mut command = Command::new(root.join(OOMD));
    command
        .args(["--interval", "1", "--config"])
        .arg(&config)
        .arg("--cgroup-fs")
        .arg(kubepods.mounts().memory());
    // Said once its configuration is compiled.
    Ok((command, "Running oomd"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Starts it before all ordinary work, as operators do with such daemons.
fn spawn(mut command: Command) -> Result<(Child, Receiver<String>)> {
    let (reader, writer) = std::io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    // SAFETY: two system calls between fork and exec, and no allocation.
    unsafe {
        command.pre_exec(|| {
            set_pdeathsig(Signal::SIGKILL)?;
            Ok(setpriority_process(None, -20)?)
        });
    }
    let child = command
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    // It holds the pipe's writing ends.
    drop(command);
    let (say, lines) = channel();
    std::thread::spawn(move || {
        // Read to the end: with a full pipe the daemon would wait for us.
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            let _ = say.send(line);
        }
    });
    Ok((child, lines))
}

fn wait_for(lines: &Receiver<String>, begun: &str) -> Result<()> {
    let end = Instant::now() + BEGIN;
    let mut said = String::new();
    loop {
        check_interrupt()?;
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) if line.contains(begun) => return Ok(()),
            Ok(line) => said = format!("{said}\n{line}"),
            Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
            Err(_) => bail!("it does not say {begun:?}, but:{said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_names_that_tables_have() {
        for daemon in [
            Daemon::Podwarden,
            Daemon::Earlyoom,
            Daemon::Nohang,
            Daemon::Oomd,
            Daemon::SystemdOomd,
        ] {
            assert_eq!(serde_json::to_value(daemon).unwrap(), daemon.name());
        }
    }
}
