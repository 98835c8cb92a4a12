//! The machines that podwarden is shipped for. For other machines than this one it is cross-built, with Debian's
//! compiler and libraries for them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use oci_spec::image::Arch;

use crate::cmd;

/// As container runtimes name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// x86-64.
    #[value(name = "linux/amd64")]
    Amd64,
    /// AArch64.
    #[value(name = "linux/arm64")]
    Arm64,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "linux/{}", self.architecture())
    }
}

impl Platform {
    /// This machine's.
    pub const HERE: Self = if cfg!(target_arch = "aarch64") {
        Self::Arm64
    } else {
        Self::Amd64
    };

    /// Whether programs for it run here.
    pub fn is_here(self) -> bool {
        self == Self::HERE
    }

    /// As the OCI image specification names it.
    pub const fn architecture(self) -> Arch {
        match self {
            Self::Amd64 => Arch::Amd64,
            Self::Arm64 => Arch::ARM64,
        }
    }

    /// As rustc names it.
    pub const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// As Debian's tools and directories of libraries name it.
    const fn triplet(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// What cargo needs to know to link for it on another machine.
    pub fn linker(self) -> [(String, String); 1] {
        let target = self.target().to_uppercase().replace('-', "_");
        let name = format!("CARGO_TARGET_{target}_LINKER");
        [(name, format!("{}-gcc", self.triplet()))]
    }

    /// Checks that this machine has a compiler and a standard library for it; the error says what installs them.
    pub fn require(self) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        let compiler = format!("{}-gcc", self.triplet());
        ensure!(
            cmd::find(&compiler).is_some(),
            "{compiler} is missing: apt-get install gcc-{0} libc6-dev-{1}-cross",
            self.triplet(),
            self.architecture(),
        );
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", self.target()]);
        let dir = PathBuf::from(cmd::capture(&mut rustc)?.trim());
        ensure!(
            dir.is_dir(),
            "there is no standard library for {0}: rustup target add {0}",
            self.target()
        );
        Ok(())
    }

    /// That of an ELF program, by the machine in its header (`e_machine` of elf(5)).
    pub fn of_program(path: &Path) -> Result<Self> {
        let mut header = [0; 20];
        File::open(path)
            .and_then(|mut file| file.read_exact(&mut header))
            .with_context(|| format!("read {}", path.display()))?;
        ensure!(
            header.starts_with(b"\x7fELF"),
            "{} is no ELF file",
            path.display()
        );
        // Little-endian on both; EM_X86_64 and EM_AARCH64 of elf.h.
        match u16::from_le_bytes([header[18], header[19]]) {
            62 => Ok(Self::Amd64),
            183 => Ok(Self::Arm64),
            other => bail!(
                "{} is for machine {other} of elf.h, neither amd64 nor arm64",
                path.display()
            ),
        }
    }

    /// The libraries of a program for another machine and the loader, in the order of their names.
    pub(crate) fn libraries(self, program: &Path) -> Result<Vec<PathBuf>> {
        let dir = self.cross_libraries();
        let mut found = BTreeSet::new();
        let mut open = vec![program.to_owned()];
        while let Some(file) = open.pop() {
            let mut readelf = Command::new("readelf");
            // Where readelf(1) is translated, its words are too.
            readelf.env("LC_ALL", "C").arg("--dynamic").arg(&file);
            for name in needed(&cmd::capture(&mut readelf)?) {
                let library = dir.join(name);
                ensure!(
                    library.exists(),
                    "{} needs {}, which is missing: apt-get install libc6-dev-{}-cross",
                    file.display(),
                    library.display(),
                    self.architecture()
                );
                if found.insert(library.clone()) {
                    open.push(library);
                }
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Where Debian's packages for cross-building put them.
    fn cross_libraries(self) -> PathBuf {
        Path::new("/usr").join(self.triplet()).join("lib")
    }

    /// Where the loader looks for a library of this machine.
    pub(crate) fn in_image(self, library: &Path) -> PathBuf {
        match library.strip_prefix(self.cross_libraries()) {
            // The loader's own path is in each program.
            Ok(name) if name.as_os_str().as_encoded_bytes().starts_with(b"ld-") => {
                Path::new("/lib").join(name)
            }
            Ok(name) => Path::new("/lib").join(self.triplet()).join(name),
            Err(_) => library.to_owned(),
        }
    }
}

/// The libraries that `readelf --dynamic` lists: `0x… (NEEDED) Shared library: [libc.so.6]`.
fn needed(printed: &str) -> impl Iterator<Item = &OsStr> {
    let lines = printed.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use flate2::read::GzDecoder;
    use oci_spec::image::{ImageConfiguration, ImageManifest};
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::oci::{Image, Layer, RunBuilder};

    /// The start of an ELF file.
    fn elf(machine: u16) -> Vec<u8> {
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(18, 0);
        header.extend(machine.to_le_bytes());
        header
    }

    #[test]
    fn a_program_is_for_the_machine_in_its_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            Platform::of_program(&path).map_err(|error| error.to_string())
        };
        assert_eq!(of(&elf(62)), Ok(Platform::Amd64));
        assert_eq!(of(&elf(183)), Ok(Platform::Arm64));
        assert!(of(&elf(243)).unwrap_err().contains("machine 243"));
        assert!(of(&[0x5a; 64]).unwrap_err().contains("no ELF file"));
        assert!(of(b"\x7fELF").is_err());
        let own = std::env::current_exe().unwrap();
        assert_eq!(Platform::of_program(&own).unwrap(), Platform::HERE);
    }

    #[test]
    fn libraries_are_where_the_loader_looks() {
        let arm = Platform::Arm64;
        for (here, there) in [
            (
                "/usr/aarch64-linux-gnu/lib/libc.so.6",
                "/lib/aarch64-linux-gnu/libc.so.6",
            ),
            (
                "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1",
                "/lib/ld-linux-aarch64.so.1",
            ),
            (
                "/lib/aarch64-linux-gnu/libm.so.6",
                "/lib/aarch64-linux-gnu/libm.so.6",
            ),
        ] {
            assert_eq!(arm.in_image(Path::new(here)), Path::new(there));
        }
        let printed =
            " 0x1 (NEEDED)  Shared library: [libc.so.6]\n 0xe (SONAME) Library soname: [x]\n";
        assert_eq!(needed(printed).collect::<Vec<_>>(), ["libc.so.6"]);
    }

    /// An archive's file.
    fn file(archive: impl std::io::Read, name: &str) -> Vec<u8> {
        let mut archive = tar::Archive::new(archive);
        let mut entries = archive.entries().unwrap().map(Result::unwrap);
        let mut entry = entries
            .find(|entry| entry.path().unwrap() == Path::new(name))
            .unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_release_has_each_platform() {
        let workflow = include_str!("../../.github/workflows/release.yaml");
        let all = Platform::value_variants().iter();
        let names: Vec<_> = all.map(|p| p.architecture().to_string()).collect();
        let matrix = format!("platform: [{}]", names.join(", "));
        assert!(workflow.contains(&matrix), "no {matrix}");
    }

    /// What the image says it is for is what the program in it is for.
    #[test]
    fn an_image_is_for_the_machine_of_its_program() {
        let dir = tempfile::tempdir().unwrap();
        let (program, archive) = (dir.path().join("program"), dir.path().join("image.tar"));
        for (machine, platform) in [(62, Platform::Amd64), (183, Platform::Arm64)] {
            fs::write(&program, elf(machine)).unwrap();
            let mut layer = Layer::default();
            layer.file("/program", &program, 0o755);
            let image = Image {
                name: "podwarden:1",
                architecture: Platform::of_program(&program).unwrap().architecture(),
                run: RunBuilder::default().build().unwrap(),
                layers: &[layer],
                created: None,
                annotations: std::collections::HashMap::new(),
            };
            let digest = image.write(&archive).unwrap().digest;
            let blob = |digest: &str| {
                let name = format!("blobs/{}", digest.replace(':', "/"));
                file(File::open(&archive).unwrap(), &name)
            };
            fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> T {
                serde_json::from_slice(bytes).unwrap()
            }
            let manifest: ImageManifest = parsed(&blob(&digest));
            let config: ImageConfiguration = parsed(&blob(manifest.config().digest().as_ref()));
            assert_eq!(*config.architecture(), platform.architecture());
            let layer = blob(manifest.layers()[0].digest().as_ref());
            let held = file(GzDecoder::new(&layer[..]), "program");
            assert_eq!(held[18..20], machine.to_le_bytes());
        }
    }
}
