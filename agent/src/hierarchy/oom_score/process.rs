//! One process by its directory in /proc, which stays that of this process: when it has ended, reads
//! and writes there fail, also when its id has gone to another.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, openat},
    libc::ESRCH,
    sys::stat::Mode,
};
use podwarden_cgroup::CgroupPath;

/// What went wrong, with the file.
#[derive(Debug, thiserror::Error)]
#[error("/proc/{pid}/{file}")]
pub(super) struct ProcessError {
    pid: u32,
    file: &'static str,
    pub(super) source: io::Error,
}

impl ProcessError {
    /// True when the process has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound || self.source.raw_os_error() == Some(ESRCH)
    }
}

/// From `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) command: String,
    pub(super) parent: u32,
    /// Clock ticks since boot.
    pub(super) start: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The command may hold blanks and parentheses.
        let (head, rest) = text.rsplit_once(") ")?;
        let command = head.split_once(" (")?.1.to_owned();
        let mut fields = rest.split_ascii_whitespace();
        // From the third field on: state, parent; the start is the 22nd.
        let parent = fields.nth(1)?.parse().ok()?;
        let start = fields.nth(22 - 5)?.parse().ok()?;
        Some(Self {
            command,
            parent,
            start,
        })
    }

    /// The runtime itself, before exec of the container: it sets its own value.
    pub(super) fn is_runtime(&self) -> bool {
        self.command.starts_with("runc") || self.command.starts_with("crun")
    }

    /// The process that holds a pod's namespaces, whose value is the runtime's
    /// (`PodInfraOOMAdj` of kubelet `pkg/kubelet/qos/policy.go`).
    pub(super) fn is_sandbox(&self) -> bool {
        self.command == "pause"
    }
}

#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    directory: OwnedFd,
}

impl Process {
    pub(super) fn open(pid: u32) -> Result<Self, ProcessError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = format!("/proc/{pid}");
        match openat(AT_FDCWD, path.as_str(), flags, Mode::empty()) {
            Ok(directory) => Ok(Self { pid, directory }),
            Err(errno) => Err(ProcessError {
                pid,
                file: "",
                source: errno.into(),
            }),
        }
    }

    pub(super) fn stat(&self) -> Result<Stat, ProcessError> {
        let text = self.read("stat")?;
        Stat::parse(&text).ok_or_else(|| self.malformed("stat"))
    }

    /// True when it is in a cgroup of some hierarchy, or below it.
    pub(super) fn is_in(&self, root: &str, path: &CgroupPath) -> Result<bool, ProcessError> {
        let cgroup = match root {
            "" => format!("/{path}"),
            root => format!("/{root}/{path}"),
        };
        let text = self.read("cgroup")?;
        Ok(text.lines().any(|line| is_within(line, &cgroup)))
    }

    pub(super) fn score(&self) -> Result<i32, ProcessError> {
        let text = self.read("oom_score_adj")?;
        let score = text.trim_ascii().parse();
        score.map_err(|_| self.malformed("oom_score_adj"))
    }

    pub(super) fn set_score(&self, score: i32) -> Result<(), ProcessError> {
        let file = "oom_score_adj";
        let mut open = self.open_file(file, OFlag::O_WRONLY)?;
        open.write_all(score.to_string().as_bytes())
            .map_err(|error| self.failed(file, error))
    }

    fn read(&self, file: &'static str) -> Result<String, ProcessError> {
        let mut bytes = Vec::with_capacity(1024);
        let mut open = self.open_file(file, OFlag::O_RDONLY)?;
        match open.read_to_end(&mut bytes) {
            Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => Err(self.failed(file, error)),
        }
    }

    fn open_file(&self, file: &'static str, flags: OFlag) -> Result<File, ProcessError> {
        let flags = flags | OFlag::O_CLOEXEC;
        let opened = openat(&self.directory, file, flags, Mode::empty());
        opened
            .map(File::from)
            .map_err(|errno| self.failed(file, errno.into()))
    }

    fn failed(&self, file: &'static str, source: io::Error) -> ProcessError {
        ProcessError {
            pid: self.pid,
            file,
            source,
        }
    }

    fn malformed(&self, file: &'static str) -> ProcessError {
        self.failed(file, io::ErrorKind::InvalidData.into())
    }
}

/// A line of `/proc/PID/cgroup`: `hierarchy:controllers:path`. Our cgroup namespace may hide what is
/// above the root, never what is below.
fn is_within(line: &str, cgroup: &str) -> bool {
    let path = line.splitn(3, ':').nth(2);
    path.is_some_and(|path| {
        path.strip_prefix(cgroup)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_itself() {
        let pid = std::process::id();
        let process = Process::open(pid).unwrap();
        let stat = process.stat().unwrap();
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        assert!(stat.start > 0);
        let score = process.score().unwrap();
        // The same value is always allowed.
        process.set_score(score).unwrap();
        assert_eq!(process.score().unwrap(), score);
        assert!(
            !process
                .is_in("podwarden-no-such", &"cgroup".into())
                .unwrap()
        );
    }

    #[test]
    fn commands_may_hold_anything() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.command, "a) b (c");
        assert_eq!((stat.parent, stat.start), (3, 4711));
        assert_eq!(Stat::parse("7 (sh S 3"), None);
    }

    #[test]
    fn a_cgroup_and_what_is_below_it() {
        for (line, expected) in [
            ("0::/root/pod/main", true),
            ("9:memory:/root/pod/main/nested", true),
            ("0::/root/pod/main2", false),
            ("0::/root/pod", false),
            ("0::/", false),
            ("", false),
        ] {
            assert_eq!(is_within(line, "/root/pod/main"), expected, "{line}");
        }
    }
}
