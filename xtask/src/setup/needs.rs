//! What must be on the machine: what it is for, how it is found, and which of Debian's packages have it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::Workspace;
use crate::{cmd, toolchain};

use super::bpf_linker;

/// The major version of LLVM that it is built against: it must read what rustc writes.
pub(super) const LLVM: &str = "22";

/// Of this package the release's backports are preferred.
pub(super) const NEWER: &str = "qemu-system-x86";

/// What a need is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// The kernel programs: without it nothing can be built.
    Build,
    /// Linting the kernel programs.
    Lint,
    /// Virtual machines: without it their tests are skipped.
    Machines,
    /// The machine with systemd: without it its tests are skipped.
    Systemd,
    /// The cases with a real container runtime or a real Kubernetes: without it they are skipped.
    Runtime,
    /// The tests of the page: without it they look at its text alone.
    Browser,
}

/// One thing that must be on the machine.
pub(super) struct Need {
    pub(super) what: &'static str,
    pub(super) purpose: For,
    /// Describes what is there; `None` when it is missing.
    pub(super) found: fn(&Workspace) -> Option<String>,
    /// Debian's packages of it.
    pub(super) debian: &'static [&'static str],
    /// What to do on other systems.
    pub(super) elsewhere: &'static str,
}

/// All that apt can install.
pub(super) const NEEDS: &[Need] = &[
    Need {
        what: "the source of core (rust-src)",
        purpose: For::Build,
        found: |_| toolchain::find().map(|found| found.version),
        debian: &["rustc-web", "rust-web-src"],
        elsewhere: "rustup component add rust-src",
    },
    Need {
        what: "clippy for that compiler",
        purpose: For::Lint,
        found: |_| Some(toolchain::find()?.clippy_driver()?.display().to_string()),
        debian: &["rust-web-clippy"],
        elsewhere: "rustup component add clippy",
    },
    Need {
        what: "LLVM for bpf-linker",
        purpose: For::Build,
        // Once the linker runs, its library is there, and the headers are needed no more.
        found: |workspace| match llvm() {
            Some(prefix) => Some(prefix.display().to_string()),
            None => {
                bpf_linker(workspace).map(|_| "its library, enough for what is built".to_owned())
            }
        },
        debian: &["llvm-22-dev"],
        elsewhere: "install LLVM 22 with its headers, then set LLVM_PREFIX to where it is \
                    (the directory that has bin/llvm-config)",
    },
    Need {
        what: "qemu",
        purpose: For::Machines,
        found: |_| qemu(),
        debian: &[NEWER],
        elsewhere: "install qemu-system-x86_64, version 8 or newer",
    },
    Need {
        what: "busybox",
        purpose: For::Machines,
        found: |_| path_of("busybox"),
        debian: &["busybox-static"],
        elsewhere: "install busybox",
    },
    Need {
        what: "debootstrap",
        purpose: For::Systemd,
        found: |_| path_of("debootstrap"),
        debian: &["debootstrap"],
        elsewhere: "run the tests with systemd on Debian",
    },
    Need {
        what: "containerd and runc",
        purpose: For::Runtime,
        found: |_| {
            path_of("ctr")?;
            path_of("runc")?;
            path_of("containerd")
        },
        debian: &["containerd", "runc"],
        elsewhere: "install containerd and runc; the tests start one of their own",
    },
    Need {
        what: "network plugins",
        purpose: For::Runtime,
        found: |_| {
            let directories = ["/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin"];
            let found = directories
                .into_iter()
                .find(|dir| Path::new(dir).join("ptp").is_file());
            found.map(str::to_owned)
        },
        debian: &["containernetworking-plugins"],
        elsewhere: "install the CNI project's plugins in /opt/cni/bin",
    },
    Need {
        what: "etcd",
        purpose: For::Runtime,
        found: |_| path_of("etcd"),
        debian: &["etcd-server"],
        elsewhere: "install etcd; the tests start one of their own",
    },
    Need {
        what: "iptables and ip",
        purpose: For::Runtime,
        found: |_| {
            path_of("ip")?;
            path_of("iptables")
        },
        debian: &["iptables", "iproute2"],
        elsewhere: "install iptables and iproute2; a kubelet needs them",
    },
    Need {
        what: "xz",
        purpose: For::Runtime,
        found: |_| path_of("xz"),
        debian: &["xz-utils"],
        elsewhere: "install xz",
    },
    Need {
        what: "Chromium",
        purpose: For::Browser,
        found: |_| path_of("chromium-headless-shell").or_else(|| path_of("chromium")),
        debian: &["chromium-headless-shell"],
        elsewhere: "install Chromium; the tests of the page start one of their own",
    },
];

pub(super) fn path_of(program: &str) -> Option<String> {
    cmd::find(program).map(|path| path.display().to_string())
}

/// The version of qemu, when it is one that works: 7.2 loses the flags register now and then, and a
/// kernel that patches its own code at boot then dies of a double fault, about one start in six.
fn qemu() -> Option<String> {
    let text =
        cmd::capture(Command::new(cmd::find("qemu-system-x86_64")?).arg("--version")).ok()?;
    let version = text
        .lines()
        .next()?
        .strip_prefix("QEMU emulator version ")?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major >= 8).then(|| version.to_owned())
}

/// Where LLVM is: `LLVM_PREFIX`, else Debian's place for it.
pub(super) fn llvm() -> Option<PathBuf> {
    std::env::var_os("LLVM_PREFIX")
        .map(PathBuf::from)
        .into_iter()
        .chain([PathBuf::from(format!("/usr/lib/llvm-{LLVM}"))])
        .find(|prefix| is_llvm(prefix))
}

/// Whether the headers are there too: they and llvm-config come in different packages.
fn is_llvm(prefix: &Path) -> bool {
    prefix.join("include/llvm-c/Core.h").is_file()
        && cmd::capture(Command::new(prefix.join("bin/llvm-config")).arg("--version"))
            .is_ok_and(|version| version.starts_with(&format!("{LLVM}.")))
}
