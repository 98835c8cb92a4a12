//! Running other programs, with errors that say what ran.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

/// How many lines of a log are shown when the command that wrote it failed.
const TAIL_LINES: usize = 40;

/// The command line as a person would type it, without the environment.
fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Runs it on our own standard streams; anything but exit code 0 is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs it with its output in `log`; when it fails, the error ends with the log's last lines.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    create_parent(log)?;
    let out = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let err = out
        .try_clone()
        .with_context(|| format!("open {}", log.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .status()
        .with_context(|| format!("start `{}`", shown(command)))?;
    if !status.success() {
        bail!(
            "`{}` ended with {status}; the end of {}:\n{}",
            shown(command),
            log.display(),
            tail(log)
        );
    }
    Ok(())
}

/// Runs it and returns what it wrote to standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!(
            "`{}` ended with {}: {}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("the output of `{}` is not UTF-8", shown(command)))
}

/// Runs it with its standard output handed to `line` as it comes; returns its exit status.
pub fn stream(command: &mut Command, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
    let text = shown(command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{text}`"))?;
    let out = child
        .stdout
        .take()
        .with_context(|| format!("read from `{text}`"))?;
    for bytes in BufReader::new(out).split(b'\n') {
        let bytes = bytes.with_context(|| format!("read from `{text}`"))?;
        line(String::from_utf8_lossy(&bytes).trim_end());
    }
    child.wait().with_context(|| format!("wait for `{text}`"))
}

/// The last lines of a text file; empty when there is none.
pub fn tail(path: &Path) -> String {
    let Ok(bytes) = fs::read(path) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Where `program` is in `PATH`; `sbin` is looked at too, since a user's `PATH` often lacks it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Makes the directory that a file is to be written to.
pub fn create_parent(file: &Path) -> Result<()> {
    let Some(dir) = file.parent() else {
        return Ok(());
    };
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))
}

/// What `program --version` prints, when that ends with `version`.
pub fn version(program: &Path, version: &str) -> Option<String> {
    let text = capture(Command::new(program).arg("--version")).ok()?;
    let text = text.trim();
    text.ends_with(version).then(|| text.to_owned())
}

/// The cargo that runs us, of the pinned toolchain, without what it tells us of our own package: build
/// scripts ask for that, and would run anew after each build by hand.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if ours {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// `cargo install` of a program into `root`, so that nothing of the user's is touched.
pub fn cargo_install(package: &str, version: &str, root: &Path) -> Command {
    let mut cargo = cargo();
    cargo
        .current_dir("/")
        .args(["install", package, "--version", version])
        .args(["--locked", "--force", "--root"])
        .arg(root)
        .env_remove("CARGO_TARGET_DIR");
    cargo
}

/// What `cargo tree` prints of each package, without those that no feature switches on.
pub fn cargo_tree(root: &Path, format: &str, args: &[&str]) -> Result<BTreeSet<String>> {
    let mut cargo = cargo();
    cargo
        .current_dir(root)
        .args(["tree", "--quiet", "--locked", "--no-dedupe"])
        .args(["--prefix", "none", "--format", format])
        .args(args);
    let printed = capture(&mut cargo)?;
    let lines = printed.lines().filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}
