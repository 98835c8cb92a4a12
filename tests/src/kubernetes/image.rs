//! The agent's image: the program that was built, and the libraries that it is linked to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::containerd::{find, pack};

/// Makes the image `name` in the new directory `dir`; the answer is the file.
pub(super) fn build(dir: &Path, name: &str, agent: &Path) -> Result<PathBuf> {
    let root = dir.join("root");
    let bin = root.join("usr/local/bin");
    fs::create_dir_all(&bin)?;
    fs::create_dir(root.join("tmp"))?;
    let program = bin.join("podwarden");
    if !strip(agent, &program) {
        fs::copy(agent, &program).context("copy the agent")?;
    }
    for library in libraries(agent)? {
        let to = root.join(library.strip_prefix("/").unwrap_or(&library));
        fs::create_dir_all(to.parent().context("a library at the root")?)?;
        fs::copy(&library, to).with_context(|| format!("copy {}", library.display()))?;
    }
    let run = json!({"Entrypoint": ["/usr/local/bin/podwarden"], "Cmd": ["run"]});
    // What has no registry in its name is one of Docker's to a runtime.
    pack(dir, &format!("docker.io/library/{name}"), &run)
}

/// Half of a debug build is what only a debugger reads; not every machine has the tool.
fn strip(agent: &Path, to: &Path) -> bool {
    find("strip").is_some_and(|strip| {
        let ended = Command::new(strip).arg("-o").arg(to).arg(agent).output();
        ended.is_ok_and(|output| output.status.success())
    })
}

/// The libraries and the loader, as `ldd` prints them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("start ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "ldd: {said}");
    let words = said.lines().flat_map(str::split_whitespace);
    Ok(words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}
