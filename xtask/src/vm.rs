//! Boots a kernel with the cases in it and watches it until it powers off.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Signal, nice, set_parent_process_death_signal};

use crate::cmd;

/// How `tests/src/init.rs` says that the cases have ended.
const VERDICT: &str = "podwarden-machine: cases ended with exit code ";
/// The kernel's own arguments. The emulated counters are one host counter, which is in step with
/// itself; older kernels lose the TSC without `tsc=reliable`, because their check of it is too slow.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 quiet tsc=reliable";
/// Without fast copies by bytes: the kernel copies and clears by eight bytes then, which is eight times less
/// work for an emulator.
const CPU: &str = "max,erms=off,fsrm=off";
/// The disk that the guest formats; sparse, so that it costs what is written to it.
const DISK_BYTES: u64 = 512 << 20;
/// An instruction takes a nanosecond (2 to the power of this). While nobody works, time passes as it does on
/// the host: a disk answers by that.
const INSTRUCTION: &str = "shift=0,sleep=on";
/// How far behind other processes a machine comes, nice(2).
const NICE: i32 = 10;
/// How often a running machine is looked at.
const POLL: Duration = Duration::from_millis(200);

/// By what time passes in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's clock: both CPUs work at the same time, and everything takes some ten times as long as on
    /// a real machine.
    Host,
    /// The instructions that its CPUs have executed, together: what is measured there is a matter of the
    /// work it takes and not of the host. The CPUs take turns.
    Instructions,
}

impl Clock {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi"],
            Self::Instructions => &["-accel", "tcg,thread=single", "-icount", INSTRUCTION],
        }
    }
}

/// A machine to boot.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// The kernel.
    pub(crate) kernel: &'a Path,
    /// Further arguments of the kernel.
    pub(crate) kernel_arguments: &'a str,
    /// The file system.
    pub(crate) initramfs: &'a Path,
    /// Where the console, the results and the disk go.
    pub(crate) dir: &'a Path,
    /// What the cases are run with.
    pub(crate) arguments: &'a [String],
    /// See there.
    pub(crate) clock: Clock,
    /// When it is killed.
    pub(crate) timeout: Duration,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code of the cases; `None` when they did not come to an end.
    pub(crate) exit_code: Option<i32>,
    /// Whether it was killed because its time was up.
    pub(crate) timed_out: bool,
    /// All that the console showed.
    pub(crate) console: PathBuf,
    /// What the cases wrote as JSON; may be empty.
    pub(crate) results: PathBuf,
}

impl Machine<'_> {
    /// Boots it and returns when it is off; `line` gets each line of the console as it comes.
    pub(crate) fn run(&self, mut line: impl FnMut(&str)) -> Result<Ended> {
        fs::create_dir_all(self.dir).with_context(|| format!("create {}", self.dir.display()))?;
        let console = self.dir.join("console.log");
        let results = self.dir.join("results.json");
        let disk = self.dir.join("disk.img");
        File::create(&disk)
            .and_then(|file| file.set_len(DISK_BYTES))
            .with_context(|| format!("create {}", disk.display()))?;
        // Made here, so that there is something to follow before qemu opens it, and nothing old.
        for path in [&console, &results] {
            File::create(path).with_context(|| format!("create {}", path.display()))?;
        }

        let mut qemu = Guard(
            self.command(&console, &results, &disk)?
                .spawn()
                .context("qemu")?,
        );
        let mut follow = Follow::open(&console)?;
        let begun = Instant::now();
        let mut timed_out = false;
        while qemu.0.try_wait().context("wait for qemu")?.is_none() {
            if begun.elapsed() > self.timeout {
                timed_out = true;
                break;
            }
            thread::sleep(POLL);
            follow.lines(&mut line)?;
        }
        drop(qemu);
        follow.lines(&mut line)?;
        fs::remove_file(&disk).with_context(|| format!("remove {}", disk.display()))?;
        let text = fs::read(&console).with_context(|| format!("read {}", console.display()))?;
        let exit_code = exit_code(&String::from_utf8_lossy(&text));
        Ok(Ended {
            exit_code,
            timed_out,
            console,
            results,
        })
    }

    fn command(&self, console: &Path, results: &Path, disk: &Path) -> Result<Command> {
        let program = cmd::find("qemu-system-x86_64").context("qemu-system-x86_64 is missing")?;
        let stderr = self.dir.join("qemu.log");
        let log = File::create(&stderr).with_context(|| format!("create {}", stderr.display()))?;
        let mut qemu = Command::new(program);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none"])
            // Emulation works on every machine, also inside a virtual one.
            .args(self.clock.arguments())
            .args(["-cpu", CPU, "-smp", "2", "-m", "2048"])
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initramfs)
            .arg("-append")
            .arg(format!(
                "{KERNEL_ARGUMENTS} {} -- {}",
                self.kernel_arguments,
                self.arguments.join(" ")
            ))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-serial")
            .arg(format!("file:{}", results.display()))
            // NVMe: the one disk whose driver is built into all of the kernels.
            .arg("-drive")
            .arg(format!(
                "if=none,id=disk,format=raw,cache=unsafe,file={}",
                disk.display()
            ))
            .args(["-device", "nvme,drive=disk,serial=podwarden"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // SAFETY: between fork and exec only two system calls are made.
        unsafe {
            qemu.pre_exec(|| {
                // Also where a signal ends this process alone.
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // Behind the cases on this kernel, which may run at the same time and wait for less.
                nice(NICE)?;
                Ok(())
            });
        }
        Ok(qemu)
    }
}

/// Kills the process when it goes out of scope.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and been waited for, which is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads a growing file line by line.
struct Follow {
    file: File,
    /// What came after the last end of line.
    rest: Vec<u8>,
}

impl Follow {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        Ok(Self {
            file,
            rest: Vec::new(),
        })
    }

    fn lines(&mut self, line: &mut impl FnMut(&str)) -> Result<()> {
        self.file
            .read_to_end(&mut self.rest)
            .context("read the console")?;
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let bytes: Vec<u8> = self.rest.drain(..=end).collect();
            line(String::from_utf8_lossy(&bytes).trim_end());
        }
        Ok(())
    }
}

/// The exit code in the verdict line.
fn exit_code(console: &str) -> Option<i32> {
    console.lines().rev().find_map(|line| {
        let (_, code) = line.split_once(VERDICT)?;
        code.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::exit_code;

    #[test]
    fn the_verdict_is_found_among_other_lines() {
        let console = "boot\r\nok x (1 s)\r\n\
                       podwarden-machine: cases ended with exit code 1\r\nreboot: Power down\r\n";
        assert_eq!(exit_code(console), Some(1));
    }

    #[test]
    fn no_verdict_is_no_exit_code() {
        assert_eq!(exit_code("Kernel panic - not syncing\r\n"), None);
        assert_eq!(
            exit_code("podwarden-machine: cases ended with signal 9\r\n"),
            None
        );
    }
}
