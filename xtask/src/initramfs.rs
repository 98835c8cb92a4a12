//! The file system that a test machine boots into: the agent, the cases, and what they link to.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use cpio::newc::{Builder, ModeFileType, trailer};

use crate::cmd;
use crate::paths::Workspace;

/// Directories that are mount points or that programs expect.
const DIRS: &[&str] = &["bin", "dev", "etc", "proc", "run", "sys", "tmp", "var"];
/// Names of busybox that the cases may call.
const APPLETS: &[&str] = &[
    "sh", "cat", "ls", "mount", "umount", "sleep", "kill", "ps", "dmesg",
];

/// Packs the release binaries into a newc archive (kernel
/// `Documentation/driver-api/early-userspace/buffer-format.rst`), uncompressed: an emulated CPU
/// takes longer to unpack one than to read it.
pub(crate) fn pack(workspace: &Workspace) -> Result<PathBuf> {
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

/// A newc archive that is being written.
struct Archive {
    out: BufWriter<File>,
    path: PathBuf,
    /// Directories that it has; a file's parents must come before it.
    made: BTreeSet<PathBuf>,
    /// The last inode number given out: equal ones would be taken for hard links.
    inode: u32,
}

impl Archive {
    fn create(path: &Path) -> Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let out = File::create(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self {
            out: BufWriter::new(out),
            path: path.to_path_buf(),
            made: BTreeSet::new(),
            inode: 0,
        })
    }

    fn directories(&mut self, dir: &Path) -> Result<()> {
        let mut ancestors: Vec<&Path> = dir.ancestors().collect();
        ancestors.reverse();
        for dir in ancestors
            .into_iter()
            .filter(|dir| !dir.as_os_str().is_empty())
        {
            if self.made.insert(dir.to_path_buf()) {
                self.entry(&dir.to_string_lossy(), ModeFileType::Directory, &[])?;
            }
        }
        Ok(())
    }

    fn file(&mut self, source: &Path, name: &Path) -> Result<()> {
        let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
        self.bytes(&name.to_string_lossy(), &bytes)
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.directories(Path::new(name).parent().unwrap_or(Path::new("")))?;
        self.entry(name, ModeFileType::Regular, bytes)
    }

    fn symlink(&mut self, name: &str, target: &str) -> Result<()> {
        self.entry(name, ModeFileType::Symlink, target.as_bytes())
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, bytes: &[u8]) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(bytes.len()).with_context(|| format!("{name} is too large"))?;
        let mut writer = Builder::new(name)
            .ino(self.inode)
            .mode(0o755)
            .set_mode_file_type(kind)
            .write(&mut self.out, size);
        writer
            .write_all(bytes)
            .and_then(|()| writer.finish().map(drop))
            .with_context(|| format!("write {name} to {}", self.path.display()))
    }

    fn finish(self) -> Result<()> {
        trailer(self.out)
            .and_then(|mut out| out.flush())
            .with_context(|| format!("write {}", self.path.display()))
    }
}
