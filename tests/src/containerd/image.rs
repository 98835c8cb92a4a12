//! An image with busybox, which is linked statically.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use xtask::oci::{Image, Layer, RunBuilder};
use xtask::platform::Platform;

/// What it is called. No such registry exists; nothing is ever pulled.
pub(crate) const NAME: &str = "registry.invalid/podwarden/busybox:1";

/// What of busybox is used by name. The image's own command, which sandboxes run, is `sleep`: a sandbox whose
/// process is called anything but `pause` is known by what the runtime says alone.
const APPLETS: [&str; 4] = ["sh", "sleep", "usleep", "cat"];

/// Makes it in the new directory `dir`; the answer is the file.
pub(crate) fn build(dir: &Path) -> Result<PathBuf> {
    fs::create_dir(dir)?;
    let mut layer = Layer::default();
    // The last three are for what the cases mount.
    for directory in [
        "tmp", "etc", "proc", "dev", "sys", "usr/lib", "lib", "lib64", "go",
    ] {
        layer.directory(directory, 0o755);
    }
    let busybox = super::find("busybox").context("there is no busybox")?;
    layer.file("bin/busybox", busybox, 0o755);
    for applet in APPLETS {
        layer.link(Path::new("bin").join(applet), "busybox");
    }
    let image = Image {
        name: NAME,
        architecture: Platform::HERE.architecture(),
        run: RunBuilder::default()
            .cmd(["/bin/sleep", "1000000"].map(str::to_owned))
            .env(["PATH=/bin".to_owned()])
            .build()?,
        layers: &[layer],
        created: None,
        annotations: HashMap::new(),
    };
    let file = dir.join("image.tar");
    image.write(&file)?;
    Ok(file)
}
