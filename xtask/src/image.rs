//! podwarden's image: the agent, the libraries that it is linked to, and the public certificate authorities. There is
//! no shell in it and no package manager.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cmd;
use crate::oci::{Image, Layer, RunBuilder, Written};
use crate::platform::Platform;

/// Where the agent is.
const PROGRAM: &str = "/usr/local/bin/podwarden";

/// For an API server with a certificate of a public authority; Debian's package ca-certificates.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Writes the image `name` with this agent to the file `to`.
pub fn write(agent: &Path, name: &str, about: About<'_>, to: &Path) -> Result<Written> {
    let platform = Platform::of_program(agent)?;
    let mut below = Layer::default();
    for library in libraries(agent)? {
        below.file(platform.in_image(&library), &library, 0o755);
    }
    if Path::new(AUTHORITIES).exists() {
        below.file(AUTHORITIES, AUTHORITIES, 0o644);
    }
    below.directory("tmp", 0o1777);
    let mut program = Layer::default();
    program.file(PROGRAM, agent, 0o755);
    let image = Image {
        name,
        architecture: platform.architecture(),
        run: RunBuilder::default()
            .entrypoint([PROGRAM.to_owned()])
            .cmd(["run".to_owned()])
            .build()?,
        // What changes least is lowest: a node that has a release pulls the program alone.
        layers: &[below, program],
        created: about.created,
        annotations: about.annotations,
    };
    image.write(to)
}

/// What the image says of itself.
#[derive(Debug, Default)]
pub struct About<'a> {
    /// When its source was written, RFC 3339.
    pub created: Option<&'a str>,
    /// Version, revision, licence, source.
    pub annotations: HashMap<String, String>,
}

/// The libraries and the loader, where they are on this machine.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let platform = Platform::of_program(program)?;
    if !platform.is_here() {
        return platform.libraries(program);
    }
    // As `ldd` prints them.
    let printed = cmd::capture(Command::new("ldd").arg(program))
        .with_context(|| format!("find the libraries of {}", program.display()))?;
    let words = printed.lines().flat_map(str::split_whitespace);
    Ok(words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}
