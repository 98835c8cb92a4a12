//! Boots a kernel and reads the guest's messages until it powers off.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use xtask::cmd;

use super::message::{Ended, Message, Request};

/// The kernel's own arguments. The emulated counters are one host counter, which is in step with
/// itself; older kernels lose the TSC without `tsc=reliable`, because their check of it is too slow.
/// What keeps processors from speculating, and clears memory as it is allocated, is interpreted like everything else, and
/// keeps nothing from anything here.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off init_on_alloc=0";
/// The frequency of the host's counter, which the emulated ones are: a kernel that measures it while the host has other
/// work may find a fraction, and its clock then runs that much faster, so that every limit of a case is shorter.
const FREQUENCY_ARGUMENT: &str = "tsc_early_khz";
/// Without fast copies by bytes: the kernel copies and clears by eight bytes then, which is eight times less
/// work for an emulator.
const CPU: &str = "max,erms=off,fsrm=off";
/// The disk that the guest formats; sparse, so that it costs what is written to it.
const DISK_BYTES: u64 = 512 << 20;
/// An instruction takes a nanosecond (2 to the power of this). While no CPU works, time passes as it does on
/// the host: a disk answers by that.
const INSTRUCTION: &str = "shift=0,sleep=on";
/// How far behind other processes a machine comes, nice(2).
const NICE: i32 = 10;
/// How often a running machine is looked at.
const POLL: Duration = Duration::from_millis(200);

/// By what time passes in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// The host's clock: both CPUs work at the same time, and everything takes some ten times as long as on
    /// a real machine.
    Host,
    /// The host's clock as well, and the CPUs take turns. An emulated CPU that waits for another spins, and where machines
    /// have more CPUs together than the host that other may not run: a fifth of all work is that. Alone, a machine takes as
    /// long as with [`Clock::Host`], as its cases wait for more than half of the time.
    HostInTurn,
    /// The instructions that its CPUs have executed, together: what is measured there is a matter of the
    /// work it takes and not of the host. The CPUs take turns.
    Instructions,
}

impl Clock {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi"],
            Self::HostInTurn => &["-accel", "tcg,thread=single"],
            Self::Instructions => &["-accel", "tcg,thread=single", "-icount", INSTRUCTION],
        }
    }

    /// The kernel's argument that tells it how fast its counter is; empty where it measures that itself.
    fn frequency(self) -> String {
        let khz = match self {
            Self::Host | Self::HostInTurn => counter_khz(),
            // Counted in instructions, a measurement is the same on every host.
            Self::Instructions => None,
        };
        khz.map_or_else(String::new, |khz| format!("{FREQUENCY_ARGUMENT}={khz}"))
    }
}

/// How often this host's time stamp counter counts in a millisecond.
#[cfg(target_arch = "x86_64")]
fn counter_khz() -> Option<u64> {
    /// Enough for a part in 10,000 where reading both takes up to 20 us.
    const MEASURED: Duration = Duration::from_millis(200);
    // Of several readings the one that was interrupted least.
    let both = || {
        let read = || {
            // SAFETY: reading the counter has no effect.
            let before = unsafe { std::arch::x86_64::_rdtsc() };
            let now = Instant::now();
            // SAFETY: the same.
            let after = unsafe { std::arch::x86_64::_rdtsc() };
            (after.saturating_sub(before), before, now)
        };
        (0..100).map(|_| read()).min_by_key(|(took, ..)| *took)
    };
    let (_, start, since) = both()?;
    thread::sleep(MEASURED);
    let (_, end, now) = both()?;
    let counted = u128::from(end.checked_sub(start)?) * 1_000_000;
    let nanos = now.duration_since(since).as_nanos();
    u64::try_from(counted.checked_div(nanos)?).ok()
}

/// An emulator of another architecture has a counter of its own.
#[cfg(not(target_arch = "x86_64"))]
fn counter_khz() -> Option<u64> {
    None
}

/// A machine to boot.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    /// The kernel.
    pub(super) kernel: &'a Path,
    /// Further arguments of the kernel.
    pub(super) kernel_arguments: &'a str,
    /// The file system.
    pub(super) initramfs: &'a Path,
    /// MiB.
    pub(super) memory: u32,
    /// Where the console, the results and the disk go.
    pub(super) dir: &'a Path,
    /// What it is to run.
    pub(super) request: &'a Request,
    /// See there.
    pub(super) clock: Clock,
    /// When it is killed.
    pub(super) timeout: Duration,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Off {
    /// The outcome; `None` for an unfinished run.
    pub(super) ended: Option<Ended>,
    /// Whether it was killed because its time was up.
    pub(super) timed_out: bool,
    /// All that the console showed.
    pub(super) console: PathBuf,
}

/// A message of a running machine.
#[derive(Debug)]
pub(super) enum Said<'a> {
    /// A line on the console.
    Line(&'a str),
    /// A message.
    Message(Message),
}

impl Machine<'_> {
    /// Boots it and returns when it is off; `said` receives each message as it arrives.
    pub(super) fn run(&self, mut said: impl FnMut(Said)) -> Result<Off> {
        fs::create_dir_all(self.dir).with_context(|| format!("create {}", self.dir.display()))?;
        let console = self.dir.join("console.log");
        let messages = self.dir.join("messages.jsonl");
        let disk = self.dir.join("disk.img");
        File::create(&disk)
            .and_then(|file| file.set_len(DISK_BYTES))
            .with_context(|| format!("create {}", disk.display()))?;
        // Made here, so that there is something to follow before qemu opens it, and nothing old.
        for path in [&console, &messages] {
            File::create(path).with_context(|| format!("create {}", path.display()))?;
        }
        let mut qemu = Guard(
            self.command(&console, &messages, &disk)?
                .spawn()
                .context("qemu")?,
        );
        let mut ended = None;
        let (mut lines, mut sent) = (Follow::open(&console)?, Follow::open(&messages)?);
        let mut read = || -> Result<()> {
            lines.lines(|line| said(Said::Line(line)))?;
            sent.lines(|line| match serde_json::from_str(line) {
                Ok(Message::Ended(how)) => ended = Some(how),
                Ok(message) => said(Said::Message(message)),
                Err(error) => said(Said::Line(&format!("no message: {error}: {line}"))),
            })
        };
        let begun = Instant::now();
        let mut timed_out = false;
        while qemu.0.try_wait().context("wait for qemu")?.is_none() {
            if begun.elapsed() > self.timeout {
                timed_out = true;
                break;
            }
            thread::sleep(POLL);
            read()?;
        }
        drop(qemu);
        read()?;
        fs::remove_file(&disk).with_context(|| format!("remove {}", disk.display()))?;
        Ok(Off {
            ended,
            timed_out,
            console,
        })
    }

    fn command(&self, console: &Path, messages: &Path, disk: &Path) -> Result<Command> {
        let program = cmd::find("qemu-system-x86_64").context("qemu-system-x86_64 is missing")?;
        let stderr = self.dir.join("qemu.log");
        let log = File::create(&stderr).with_context(|| format!("create {}", stderr.display()))?;
        let mut qemu = Command::new(program);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none"])
            // Emulation works on every machine, also inside a virtual one.
            .args(self.clock.arguments())
            .args(["-cpu", CPU, "-smp", "2", "-m", &self.memory.to_string()])
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initramfs)
            .arg("-append")
            .arg(format!(
                "{KERNEL_ARGUMENTS} {} {} {}",
                self.clock.frequency(),
                self.kernel_arguments,
                self.request.word()?
            ))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-serial")
            .arg(format!("file:{}", messages.display()))
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
                set_pdeathsig(Signal::SIGKILL)?;
                // Behind the cases on this kernel, which may run at the same time and wait for less.
                rustix::process::nice(NICE)?;
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

    fn lines(&mut self, mut line: impl FnMut(&str)) -> Result<()> {
        self.file
            .read_to_end(&mut self.rest)
            .context("read what a machine says")?;
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let bytes: Vec<u8> = self.rest.drain(..=end).collect();
            line(String::from_utf8_lossy(&bytes).trim_end());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_counter_has_one_frequency() {
        let [one, other] = [counter_khz(), counter_khz()].map(|khz| khz.expect("a frequency"));
        assert!(one.abs_diff(other) * 100 < one, "{one} and {other} kHz");
        assert!((100_000..20_000_000).contains(&one), "{one} kHz");
    }

    #[test]
    fn a_line_comes_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        let mut console = File::create(&path).unwrap();
        let mut follow = Follow::open(&path).unwrap();
        let mut found = Vec::new();
        for part in ["boot\r\nhalf a", " line\r\nno", " end"] {
            console.write_all(part.as_bytes()).unwrap();
            follow.lines(|line| found.push(line.to_owned())).unwrap();
        }
        assert_eq!(found, ["boot", "half a line"]);
    }
}
