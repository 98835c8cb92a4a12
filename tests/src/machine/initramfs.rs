//! The file system that a test machine boots into: the agent, the cases, and what they link to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use xtask::cmd;
use xtask::paths::Workspace;

use super::archive::Archive;

/// Directories that are mount points or that programs expect.
const DIRS: &[&str] = &["bin", "dev", "etc", "proc", "run", "sys", "tmp", "var"];
/// Names of busybox that the cases may call.
const APPLETS: &[&str] = &[
    "sh", "cat", "ls", "mount", "umount", "sleep", "kill", "ps", "dmesg",
];

/// Packs the release binaries, uncompressed: an emulated CPU takes longer to unpack an archive than
/// to read it.
pub(super) fn pack(workspace: &Workspace) -> Result<PathBuf> {
    let path = workspace.kernels().join("initramfs.cpio");
    let mut archive = Archive::create(&path)?;
    for dir in DIRS {
        archive.directories(Path::new(dir))?;
    }
    let busybox = cmd::find("busybox").context("busybox is missing: run `cargo xtask setup`")?;
    let programs = [
        (workspace.agent(), "podwarden"),
        (workspace.e2e(), "e2e"),
        (busybox, "bin/busybox"),
    ];
    let mut libraries = BTreeSet::new();
    for (program, name) in &programs {
        archive.file(program, Path::new(name))?;
        libraries.extend(shared_libraries(program));
    }
    archive.symlink("init", "e2e")?;
    for library in libraries {
        // At the same path as here, which is where the dynamic linker looks.
        let name = library.strip_prefix("/").unwrap_or(&library).to_path_buf();
        archive.file(&library, &name)?;
    }
    for applet in APPLETS {
        archive.symlink(&format!("bin/{applet}"), "busybox")?;
    }
    archive.bytes("etc/hosts", b"127.0.0.1 localhost\n")?;
    archive.finish()?;
    Ok(path)
}

/// The libraries that a program is linked to, the dynamic linker among them (ldd(1)); none when it
/// is linked statically, for which ldd ends with an error.
fn shared_libraries(program: &Path) -> Vec<PathBuf> {
    let text = cmd::capture(Command::new("ldd").arg(program)).unwrap_or_default();
    // `libc.so.6 => /lib/…/libc.so.6 (0x…)`, or `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    text.split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}
