//! Builds and lints the kernel programs.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use xtask::paths::{BPF_TARGET, Workspace};
use xtask::toolchain::{self, Toolchain};
use xtask::{cmd, setup, step};

/// The package and its binary.
const PACKAGE: &str = "podwarden-ebpf";

/// `cargo xtask build-ebpf`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Lints instead of building; a warning is an error.
    #[arg(long)]
    clippy: bool,
}

/// The command line's arguments.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::for_build(workspace)?;
    if args.clippy {
        return clippy(workspace);
    }
    step::step("kernel programs", || build(workspace))
}

/// Builds the object and puts it where the agent's build script embeds it from.
///
/// The copy is skipped when nothing changed, so that the agent is not rebuilt for nothing.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let toolchain = toolchain::require()?;
    let linker = workspace.bpf_linker();
    if !linker.is_file() {
        bail!("{} is missing: run `cargo xtask setup`", linker.display());
    }
    cmd::run(&mut command(workspace, &toolchain, "build"))?;
    let built = workspace
        .bpf_build()
        .join(BPF_TARGET)
        .join("release")
        .join(PACKAGE);
    let bytes = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    let object = workspace.bpf_object();
    if fs::read(&object).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    cmd::create_parent(&object)?;
    fs::write(&object, bytes).with_context(|| format!("write {}", object.display()))
}

/// Clippy for the kernel programs, on their own target.
pub(crate) fn clippy(workspace: &Workspace) -> Result<()> {
    let toolchain = toolchain::require()?;
    let Some(driver) = toolchain.clippy_driver() else {
        let remedy = if toolchain.is_debian() {
            "apt-get install rust-web-clippy"
        } else {
            "rustup component add clippy"
        };
        bail!("{} has no clippy: {remedy}", toolchain.version);
    };
    // `cargo clippy` would take the pinned toolchain's own driver, which may be another compiler.
    let mut cargo = command(workspace, &toolchain, "check");
    cargo
        .env("RUSTC_WORKSPACE_WRAPPER", driver)
        // The separator is clippy's own (`cargo clippy -- -D warnings` sets the same variable).
        .env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    cmd::run(&mut cargo)
}

/// `cargo build` or `cargo check` of the kernel programs.
fn command(workspace: &Workspace, toolchain: &Toolchain, verb: &str) -> Command {
    // The encoded form takes the place of RUSTFLAGS and of `build.rustflags`, which are the host's.
    let flags = [
        format!("-Clinker={}", workspace.bpf_linker().display()),
        "-Clink-arg=--btf".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        // v3: 32-bit jumps and ALU operations, kernel 5.1.
        "-Ctarget-cpu=v3".to_owned(),
    ];
    let mut cargo = toolchain.cargo(verb, BPF_TARGET, "core");
    cargo
        .current_dir(workspace.root())
        .args(["--package", PACKAGE, "--release", "--target-dir"])
        .arg(workspace.bpf_build())
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    cargo
}
