//! Puts the kernel programs beside the agent's code, from where they are embedded.
//!
//! They are built for another target by `cargo xtask build-ebpf`. Without them the agent still
//! builds, for a quick `cargo check`; it then finds an empty object and says so when it starts.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Names another object file to embed.
const OVERRIDE: &str = "PODWARDEN_EBPF_OBJECT";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    let dir = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .ok_or(io::ErrorKind::NotFound)
    };
    let object = match env::var_os(OVERRIDE) {
        Some(path) => PathBuf::from(path),
        None => dir("CARGO_MANIFEST_DIR")?.join("../target/bpf/podwarden.bpf.o"),
    };
    println!("cargo::rerun-if-changed={}", object.display());
    let bytes = read(&object)?;
    fs::write(dir("OUT_DIR")?.join("podwarden.bpf.o"), bytes)
}

/// The object's bytes; none when it was not built yet.
fn read(object: &Path) -> io::Result<Vec<u8>> {
    match fs::read(object) {
        Ok(bytes) => Ok(bytes),
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && env::var_os(OVERRIDE).is_none() =>
        {
            println!(
                "cargo::warning=the agent is built without its kernel programs: \
                 run `cargo xtask build-ebpf`"
            );
            Ok(Vec::new())
        }
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("read {}: {error}", object.display()),
        )),
    }
}
