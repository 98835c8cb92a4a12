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

/// A method for each path below the target directory.
macro_rules! below_target {
    ($($(#[$doc:meta])+ $name:ident: $path:literal;)+) => {
        impl Workspace {
            $($(#[$doc])+ pub fn $name(&self) -> PathBuf {
                self.target.join($path)
            })+
        }
    };
}

below_target! {
    /// Programs that setup builds for the project only.
    tools: "tools";
    /// The linker of the kernel programs.
    bpf_linker: "tools/bin/bpf-linker";
    /// Checks what `/metrics` answers.
    promtool: "tools/bin/promtool";
    /// Scrapes agents in the cases that are about that.
    prometheus: "tools/bin/prometheus";
    /// The rules of accessibility that the page is held to.
    axe: "tools/axe.min.js";
    /// The target directory of the kernel programs: their toolchain and flags are others than the host's, so that
    /// sharing one would rebuild both each time.
    bpf_build: "bpf-build";
    /// The target directory of what is built for no operating system, see `bpf_build`.
    bare_build: "bare-build";
    /// What fuzzing leaves: the programs, what they learnt and what they found.
    fuzz_build: "fuzz";
    /// Container images.
    image: "image";
    /// apt's package lists for setup.
    apt: "apt";
    /// Kernels for virtual machines, and the package lists that they were found in.
    kernels: "kernels";
    /// Programs of Kubernetes, unpacked.
    kubernetes: "kubernetes";
    /// The daemons to measure beside.
    peers: "peers";
    /// What tests leave to read: results and consoles.
    results: "test-results";
    /// How the stages with end-to-end cases ended, for the task that had them run.
    stages: "test-results/stages.json";
    /// The output of commands whose output is worth a look only when they fail.
    logs: "logs";
    /// The agent, release build.
    agent: "release/podwarden";
    /// The end-to-end cases and the demo, release build.
    e2e: "release/e2e";
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

    /// `PATH` with the project's own programs last.
    pub fn search_path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&path).chain([self.tools().join("bin")]);
        std::env::join_paths(dirs).unwrap_or(path)
    }

    /// The kernel programs as `agent/build.rs` finds them.
    pub fn bpf_object(&self) -> PathBuf {
        self.root.join("target/bpf/podwarden.bpf.o")
    }

    /// Where fuzz targets are only compiled: beside what the workspace's own checks have built.
    pub fn fuzz_check(&self) -> &Path {
        &self.target
    }

    /// The agent as it is shipped, for a target other than this machine's where one is given.
    pub fn shipped_agent(&self, target: Option<&str>) -> PathBuf {
        let dir = target.map_or_else(|| self.target.clone(), |target| self.target.join(target));
        dir.join("dist/podwarden")
    }
}
