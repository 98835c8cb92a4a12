//! The agent's image, as `cargo xtask image` writes it, of the agent that is tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use xtask::image::{self, About};

use crate::containerd::find;
use crate::harness::Shipped;

/// Makes the image that the shipped DaemonSet names in the new directory `dir`; the answer is the file.
pub(super) fn build(dir: &Path, agent: &Path) -> Result<PathBuf> {
    let shipped = Shipped::read()?;
    let pod = &shipped.object("DaemonSet")?["spec"]["template"]["spec"];
    let name = pod["containers"][0]["image"]
        .as_str()
        .context("it has no image")?;
    fs::create_dir(dir)?;
    let program = dir.join("podwarden");
    if !strip(agent, &program) {
        fs::copy(agent, &program).context("copy the agent")?;
    }
    let image = dir.join("image.tar");
    // What has no registry in its name is one of Docker's to a runtime.
    let name = format!("docker.io/library/{name}");
    image::write(&program, &name, About::default(), &image)?;
    Ok(image)
}

/// Half of a debug build is what only a debugger reads; not every machine has the tool.
fn strip(agent: &Path, to: &Path) -> bool {
    find("strip").is_some_and(|strip| {
        let ended = Command::new(strip).arg("-o").arg(to).arg(agent).output();
        ended.is_ok_and(|output| output.status.success())
    })
}
