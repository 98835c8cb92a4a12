//! Images as `docker save` writes them, of one layer; and one with busybox, which is linked statically.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// What it is called. No such registry exists; nothing is ever pulled.
pub(crate) const NAME: &str = "registry.invalid/podwarden/busybox:1";

/// What of busybox is used by name. The image's own command, which sandboxes run, is `sleep`: a sandbox whose
/// process is called anything but `pause` is known by what the runtime says alone.
const APPLETS: [&str; 4] = ["sh", "sleep", "usleep", "cat"];

/// Makes it in the new directory `dir`; the answer is the file.
pub(crate) fn build(dir: &Path) -> Result<PathBuf> {
    let root = dir.join("root");
    // The last three are for what the cases mount.
    for directory in [
        "bin", "tmp", "etc", "proc", "dev", "sys", "usr/lib", "lib", "lib64", "go",
    ] {
        fs::create_dir_all(root.join(directory))?;
    }
    let busybox = super::find("busybox").context("there is no busybox")?;
    fs::copy(busybox, root.join("bin/busybox")).context("copy busybox")?;
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    let run = json!({"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]});
    pack(dir, NAME, &run)
}

/// Makes the image `name` of what is in `root` of the directory; the answer is the file. `run` is how its
/// containers run.
pub(crate) fn pack(dir: &Path, name: &str, run: &Value) -> Result<PathBuf> {
    let saved = dir.join("saved");
    fs::create_dir(&saved)?;
    let layer = saved.join("layer.tar");
    tar(&dir.join("root"), &layer)?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer)?)]},
    });
    fs::write(saved.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(saved.join("manifest.json"), manifest.to_string())?;
    let image = dir.join("image.tar");
    tar(&saved, &image)?;
    Ok(image)
}

fn tar(from: &Path, to: &Path) -> Result<()> {
    let output = Command::new("tar")
        .args(["--create", "--owner=0", "--group=0", "--file"])
        .arg(to)
        .arg("--directory")
        .arg(from)
        .args(["--transform", "s,^\\./,,", "."])
        .output()
        .context("start tar")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tar: {said}");
    Ok(())
}

fn digest(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum")
        .arg(file)
        .output()
        .context("start sha256sum")?;
    let text = String::from_utf8(output.stdout)?;
    text.split(' ')
        .next()
        .filter(|digest| digest.len() == 64)
        .map(str::to_owned)
        .with_context(|| format!("sha256sum says {text:?}"))
}
