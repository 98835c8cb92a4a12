//! The tools that the tasks need beyond cargo: finds them, installs the missing ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::Lists;
use crate::paths::Workspace;
use crate::step::{Mark, line, step};
use crate::{apt, cmd, toolchain};

/// The release of bpf-linker that the kernel programs are linked with.
const BPF_LINKER: &str = "0.13.0";
/// The major version of LLVM that it is built against: it must read what rustc writes.
const LLVM: &str = "22";

/// `cargo xtask setup`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Only reports; exit code 1 when something is missing.
    #[arg(long)]
    check: bool,
}

/// What a need is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
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
}

/// One thing that must be on the machine.
struct Need {
    what: &'static str,
    purpose: For,
    /// Describes what is there; `None` when it is missing.
    found: fn(&Workspace) -> Option<String>,
    /// Debian's packages of it.
    debian: &'static [&'static str],
    /// Whether the release's backports are preferred.
    newer: bool,
    /// What to do on other systems.
    elsewhere: &'static str,
}

const NEEDS: &[Need] = &[
    Need {
        what: "the source of core (rust-src)",
        purpose: For::Build,
        found: |_| toolchain::find().map(|found| found.version),
        debian: &["rustc-web", "rust-web-src"],
        newer: false,
        elsewhere: "rustup component add rust-src",
    },
    Need {
        what: "clippy for that compiler",
        purpose: For::Lint,
        found: |_| Some(toolchain::find()?.clippy_driver()?.display().to_string()),
        debian: &["rust-web-clippy"],
        newer: false,
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
        newer: false,
        elsewhere: "install LLVM 22 with its headers, then set LLVM_PREFIX to where it is \
                    (the directory that has bin/llvm-config)",
    },
    Need {
        what: "qemu",
        purpose: For::Machines,
        found: |_| qemu(),
        debian: &["qemu-system-x86"],
        newer: true,
        elsewhere: "install qemu-system-x86_64, version 8 or newer",
    },
    Need {
        what: "busybox",
        purpose: For::Machines,
        found: |_| path_of("busybox"),
        debian: &["busybox-static"],
        newer: false,
        elsewhere: "install busybox",
    },
    Need {
        what: "debootstrap",
        purpose: For::Systemd,
        found: |_| path_of("debootstrap"),
        debian: &["debootstrap"],
        newer: false,
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
        newer: false,
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
        newer: false,
        elsewhere: "install the CNI project's plugins in /opt/cni/bin",
    },
    Need {
        what: "etcd",
        purpose: For::Runtime,
        found: |_| path_of("etcd"),
        debian: &["etcd-server"],
        newer: false,
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
        newer: false,
        elsewhere: "install iptables and iproute2; a kubelet needs them",
    },
    Need {
        what: "xz",
        purpose: For::Runtime,
        found: |_| path_of("xz"),
        debian: &["xz-utils"],
        newer: false,
        elsewhere: "install xz",
    },
];

/// The daemon that installing this would start beside those that the tests start themselves.
fn would_start(need: &Need) -> Option<&'static str> {
    let daemons = [("containerd", "containerd"), ("etcd-server", "etcd")];
    let mut daemons = daemons.into_iter();
    let (_, daemon) = daemons.find(|(package, _)| need.debian.contains(package))?;
    Path::new("/run/systemd/system").is_dir().then_some(daemon)
}

/// The command line's arguments.
pub fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    if report(workspace) {
        return Ok(());
    }
    if args.check {
        bail!("not everything is here: `cargo xtask setup` installs what is missing");
    }
    ensure(workspace, |purpose| purpose != For::Runtime)?;
    for_runtime(workspace);
    for_metrics(workspace);
    Ok(())
}

/// Sees to what the cases with a real container runtime take; they are skipped without it, so that nothing
/// fails here.
pub fn for_runtime(workspace: &Workspace) {
    let of_runtime = |purpose| purpose == For::Runtime;
    if let Err(error) = ensure(workspace, of_runtime) {
        line(Mark::Skipped, &format!("{error:#}"));
    }
}

/// Sees to promtool, which a test of `/metrics` takes; that is skipped without it, so that nothing fails here.
pub fn for_metrics(workspace: &Workspace) {
    if promtool(workspace).is_none()
        && let Err(error) = step("fetch promtool", || fetch_promtool(workspace))
    {
        line(Mark::Skipped, &format!("{error:#}"));
    }
}

/// Debian's package of promtool also starts a server, so that only the program is taken from it.
fn fetch_promtool(workspace: &Workspace) -> Result<()> {
    let suite = apt::debian_release().context("promtool is missing: install Prometheus's tools")?;
    let dir = workspace.tools().join("prometheus");
    let lists = Lists::of_suites(&dir.join("apt"), &[&suite])?;
    lists.update(&workspace.logs().join("apt-prometheus.log"))?;
    let root = dir.join("root");
    lists.unpack(
        &["prometheus"],
        &root,
        &workspace.logs().join("prometheus.log"),
    )?;
    let program = workspace.promtool();
    let bin = program.parent().context("promtool has no directory")?;
    fs::create_dir_all(bin).with_context(|| format!("create {}", bin.display()))?;
    fs::rename(root.join("usr/bin/promtool"), &program)
        .with_context(|| format!("keep {}", program.display()))?;
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
}

/// Where promtool is: the system's, else our own.
fn promtool(workspace: &Workspace) -> Option<String> {
    path_of("promtool").or_else(|| {
        let own = workspace.promtool();
        own.is_file().then(|| own.display().to_string())
    })
}

/// Sees to what building takes; prints nothing when all is there.
pub fn for_build(workspace: &Workspace) -> Result<()> {
    ensure(workspace, |purpose| purpose == For::Build)
}

/// Sees to what linting the kernel programs takes.
pub fn for_lint(workspace: &Workspace) -> Result<()> {
    ensure(workspace, |purpose| {
        matches!(purpose, For::Build | For::Lint)
    })
}

/// Sees to what virtual machines take.
pub fn for_machines(workspace: &Workspace) -> Result<()> {
    ensure(workspace, |purpose| purpose == For::Machines)
}

/// Sees to what building the machine with systemd takes beyond that.
pub fn for_systemd(workspace: &Workspace) -> Result<()> {
    ensure(workspace, |purpose| purpose == For::Systemd)
}

/// One line for each need; whether all are there.
fn report(workspace: &Workspace) -> bool {
    let found = NEEDS
        .iter()
        .map(|need| (need.what, (need.found)(workspace)));
    let own = [
        ("bpf-linker", bpf_linker(workspace)),
        ("promtool", promtool(workspace)),
    ];
    let mut complete = true;
    for (what, found) in found.chain(own) {
        complete &= found.is_some();
        match found {
            Some(found) => line(Mark::Ok, &format!("{what}: {found}")),
            None => line(Mark::Missing, what),
        }
    }
    complete
}

fn ensure(workspace: &Workspace, wanted: impl Fn(For) -> bool) -> Result<()> {
    let missing = || {
        NEEDS
            .iter()
            .filter(|n| wanted(n.purpose) && (n.found)(workspace).is_none())
    };
    if missing().next().is_some() && apt::usable() {
        let packages = |newer| -> Vec<&str> {
            missing()
                .filter(|need| need.newer == newer && would_start(need).is_none())
                .flat_map(|n| n.debian)
                .copied()
                .collect()
        };
        apt::install(workspace, &packages(false), &packages(true))?;
    }
    let remedies: Vec<String> = missing().map(remedy).collect();
    if !remedies.is_empty() {
        bail!("this machine lacks:\n{}", remedies.join("\n"));
    }
    if wanted(For::Build) && bpf_linker(workspace).is_none() {
        step(
            &format!("bpf-linker {BPF_LINKER}, built from source"),
            || install_linker(workspace),
        )?;
    }
    Ok(())
}

fn remedy(need: &Need) -> String {
    let daemon = would_start(need).filter(|_| apt::is_debian());
    let how = if let Some(daemon) = daemon {
        format!(
            "as root: apt-get install {}; the package starts a {daemon}, which the tests do not use: \
             systemctl disable --now {daemon}",
            need.debian.join(" ")
        )
    } else if apt::is_debian() && !nix::unistd::geteuid().is_root() {
        format!(
            "as root: apt-get install {}; or {}",
            need.debian.join(" "),
            need.elsewhere
        )
    } else {
        need.elsewhere.to_owned()
    };
    format!("  {}: {how}", need.what)
}

fn path_of(program: &str) -> Option<String> {
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

/// The version of the linker, when the right one runs.
fn bpf_linker(workspace: &Workspace) -> Option<String> {
    let text = cmd::capture(Command::new(workspace.bpf_linker()).arg("--version")).ok()?;
    text.trim()
        .ends_with(BPF_LINKER)
        .then(|| text.trim().to_owned())
}

/// Where LLVM is: `LLVM_PREFIX`, else Debian's place for it.
fn llvm() -> Option<PathBuf> {
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

/// `cargo install` into the target directory, so that nothing of the user's is touched.
fn install_linker(workspace: &Workspace) -> Result<()> {
    let prefix = llvm().context("LLVM is not there")?;
    let mut cargo = cmd::cargo();
    cargo
        .current_dir("/")
        .args([
            "install",
            "bpf-linker",
            "--version",
            BPF_LINKER,
            "--locked",
            "--force",
            // Its own code is little beside LLVM's, and half of the time to build it.
            "--debug",
        ])
        .args(["--no-default-features", "--features", "llvm-22", "--root"])
        .arg(workspace.tools())
        .env("LLVM_PREFIX", &prefix)
        .env(format!("LLVM_SYS_{LLVM}1_PREFIX"), &prefix)
        .env_remove("CARGO_TARGET_DIR");
    cmd::run_logged(&mut cargo, &workspace.logs().join("bpf-linker.log"))
}
