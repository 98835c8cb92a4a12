//! `cargo xtask image`: the agent as it is shipped, in an image, with the list of its parts.

mod parts;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xtask::cmd;
use xtask::image::{self, About};
use xtask::paths::Workspace;
use xtask::platform::Platform;
use xtask::step::step;

use crate::build;

/// A larger image has something in it that no node needs.
const MOST_BYTES: u64 = 25 << 20;

/// How the image is made.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image's name, with registry and tag
    #[arg(long, default_value = concat!("docker.io/library/podwarden:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// Where it is written; the list of its parts goes beside it [default: target/image/podwarden.tar, for machines
    /// other than this one podwarden-arm64.tar]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Machines that it is for [default: this one's]
    #[arg(long, value_enum)]
    platform: Option<Platform>,
    /// Take this agent in place of building one
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

/// Builds the agent and writes image and list.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    let (_, tag) = args.name.rsplit_once(':').unwrap_or_default();
    ensure!(
        !tag.is_empty() && !tag.contains('/'),
        "--name {}: it has no tag; write it as registry/name:tag",
        args.name
    );
    let platform = args.platform.unwrap_or(Platform::HERE);
    let output = match &args.output {
        Some(output) => output.clone(),
        None if platform.is_here() => workspace.image().join("podwarden.tar"),
        None => workspace
            .image()
            .join(format!("podwarden-{}.tar", platform.architecture())),
    };
    cmd::create_parent(&output)?;
    let agent = match &args.agent {
        Some(agent) => agent.clone(),
        None => built(workspace, platform)?,
    };
    let its = Platform::of_program(&agent)?;
    ensure!(
        its == platform,
        "{} is a program for {its}: --platform {platform} takes one for that; leave out --agent to have it built",
        agent.display()
    );
    let list = output.with_extension("spdx.json");
    let (revision, created) = source(workspace.root())?;
    let about = About {
        created: Some(&created),
        annotations: annotations(&revision),
    };
    let written = image::write(&agent, &args.name, about, &output)?;
    parts::write(workspace.root(), &agent, &written.digest, &created, &list)?;
    println!(
        "{} {}\n{:.1} MiB to pull: {}\nits parts: {}\n\nInto a registry:    skopeo copy oci-archive:{} docker://{}\n\
         Into this node:     ctr --namespace k8s.io images import {}",
        args.name,
        written.digest,
        written.compressed_bytes as f64 / f64::from(1 << 20),
        output.display(),
        list.display(),
        output.display(),
        args.name,
        output.display(),
    );
    ensure!(
        written.compressed_bytes <= MOST_BYTES,
        "the image has more than {} MiB",
        MOST_BYTES >> 20
    );
    Ok(())
}

/// The agent as it is shipped for this machine.
pub(crate) fn shipped(workspace: &Workspace) -> Result<PathBuf> {
    built(workspace, Platform::HERE)
}

/// The agent with the kernel programs in it, without a path of this machine.
fn built(workspace: &Workspace, platform: Platform) -> Result<PathBuf> {
    platform.require()?;
    build::kernel_programs(workspace)?;
    let root = workspace.root();
    let home = cargo_home()?;
    let flags = [(root, "/podwarden"), (&home, "/cargo")]
        .map(|(from, to)| format!("\"--remap-path-prefix={}={to}\"", from.display()));
    step("build the agent as it is shipped", || {
        let mut cargo = cmd::cargo();
        cargo
            .current_dir(root)
            .args(["build", "--locked", "--quiet"]);
        cargo.args(["--profile", "dist", "--package", "podwarden"]);
        if !platform.is_here() {
            cargo.args(["--target", platform.target()]);
            cargo.envs(platform.linker());
        }
        cargo.arg("--config");
        cargo.arg(format!("build.rustflags=[{}]", flags.join(", ")));
        cmd::run(&mut cargo)
    })?;
    Ok(workspace.shipped_agent((!platform.is_here()).then(|| platform.target())))
}

fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set")
}

/// The commit, and when it was made.
fn source(root: &Path) -> Result<(String, String)> {
    let git = Command::new("git")
        .current_dir(root)
        .args(["log", "--max-count=1", "--format=%H %cd"])
        .arg("--date=format-local:%Y-%m-%dT%H:%M:%SZ")
        .env("TZ", "UTC")
        .output()
        .context("start git")?;
    let text = String::from_utf8_lossy(&git.stdout);
    let (revision, created) = text
        .trim()
        .split_once(' ')
        .context("an image is made from a git checkout")?;
    Ok((revision.to_owned(), created.to_owned()))
}

fn annotations(revision: &str) -> HashMap<String, String> {
    let all = [
        ("title", "podwarden"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", revision),
        ("licenses", env!("CARGO_PKG_LICENSE")),
        ("source", env!("CARGO_PKG_REPOSITORY")),
    ];
    all.map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned()))
        .into()
}
