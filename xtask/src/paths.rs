//! Paths in the workspace.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The target of the kernel programs.
pub const BPF_TARGET: &str = "bpfel-unknown-none";

/// The workspace and the files that the tasks make below it.
#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the workspace that this program was built in.
    pub fn locate() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap_or(Path::new("."))
            .to_path_buf();
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |dir| root.join(dir));
        Self { root, target }
    }

    /// The directory of the root `Cargo.toml`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Programs that setup builds for the project only.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// The linker of the kernel programs.
    pub fn bpf_linker(&self) -> PathBuf {
        self.tools().join("bin/bpf-linker")
    }

    /// Checks what `/metrics` answers.
    pub fn promtool(&self) -> PathBuf {
        self.tools().join("bin/promtool")
    }

    /// Scrapes agents in the cases that are about that.
    pub fn prometheus(&self) -> PathBuf {
        self.tools().join("bin/prometheus")
    }

    /// The rules of accessibility that the page is held to.
    pub fn axe(&self) -> PathBuf {
        self.tools().join("axe.min.js")
    }

    /// `PATH` with the project's own programs last.
    pub fn search_path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&path).chain([self.tools().join("bin")]);
        std::env::join_paths(dirs).unwrap_or(path)
    }

    /// The target directory of the kernel programs: their toolchain and flags are others than the
    /// host's, so that sharing one would rebuild both each time.
    pub fn bpf_build(&self) -> PathBuf {
        self.target.join("bpf-build")
    }

    /// The kernel programs as `agent/build.rs` finds them.
    pub fn bpf_object(&self) -> PathBuf {
        self.root.join("target/bpf/podwarden.bpf.o")
    }

    /// The target directory of what is built for no operating system, see `bpf_build`.
    pub fn bare_build(&self) -> PathBuf {
        self.target.join("bare-build")
    }

    /// What fuzzing leaves: the programs, what they learnt and what they found.
    pub fn fuzz_build(&self) -> PathBuf {
        self.target.join("fuzz")
    }

    /// Where fuzz targets are only compiled: beside what the workspace's own checks have built.
    pub fn fuzz_check(&self) -> PathBuf {
        self.target.clone()
    }

    /// Container images.
    pub fn image(&self) -> PathBuf {
        self.target.join("image")
    }

    /// apt's package lists for setup.
    pub fn apt(&self) -> PathBuf {
        self.target.join("apt")
    }

    /// Kernels for virtual machines, and the package lists that they were found in.
    pub fn kernels(&self) -> PathBuf {
        self.target.join("kernels")
    }

    /// Programs of Kubernetes, unpacked.
    pub fn kubernetes(&self) -> PathBuf {
        self.target.join("kubernetes")
    }

    /// The daemons to measure beside.
    pub fn peers(&self) -> PathBuf {
        self.target.join("peers")
    }

    /// What tests leave to read: results and consoles.
    pub fn results(&self) -> PathBuf {
        self.target.join("test-results")
    }

    /// How the stages with end-to-end cases ended, for the task that had them run.
    pub fn stages(&self) -> PathBuf {
        self.results().join("stages.json")
    }

    /// The output of commands whose output is worth a look only when they fail.
    pub fn logs(&self) -> PathBuf {
        self.target.join("logs")
    }

    /// The agent, release build.
    pub fn agent(&self) -> PathBuf {
        self.target.join("release/podwarden")
    }

    /// The agent as it is shipped, for a target other than this machine's where one is given.
    pub fn shipped_agent(&self, target: Option<&str>) -> PathBuf {
        let dir = target.map_or_else(|| self.target.clone(), |target| self.target.join(target));
        dir.join("dist/podwarden")
    }

    /// The end-to-end cases and the demo, release build.
    pub fn e2e(&self) -> PathBuf {
        self.target.join("release/e2e")
    }
}
