use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};
use tar::Archive;

use super::*;

fn write(dir: &Path, to: &str, layers: &[Layer]) -> (PathBuf, Written) {
    let image = Image {
        name: "registry.invalid/team/podwarden:0.2.0",
        architecture: Arch::Amd64,
        run: RunBuilder::default()
            .entrypoint(["/usr/local/bin/podwarden".to_owned()])
            .build()
            .unwrap(),
        layers,
        created: Some("2026-01-02T03:04:05Z"),
        annotations: HashMap::from([("a".into(), "1".into()), ("b".into(), "2".into())]),
    };
    let to = dir.join(to);
    let written = image.write(&to).unwrap();
    (to, written)
}

/// What an archive holds, by path: contents, mode, and where a link leads.
fn contents(tar: impl std::io::Read) -> BTreeMap<PathBuf, (Vec<u8>, u32, Option<PathBuf>)> {
    let mut archive = Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 0));
        let (mode, link) = (header.mode().unwrap(), entry.link_name().unwrap());
        let (path, link) = (entry.path().unwrap().into_owned(), link.map(Into::into));
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (path, (bytes, mode, link))
    });
    entries.collect()
}

fn layers(dir: &Path) -> [Layer; 2] {
    fs::write(dir.join("lib"), "a library").unwrap();
    fs::write(dir.join("bin"), "a program").unwrap();
    let [mut low, mut high] = [Layer::default(), Layer::default()];
    low.file("/lib/x86_64-linux-gnu/libc.so.6", dir.join("lib"), 0o755)
        .directory("tmp", 0o1777)
        .link("lib64", "lib");
    high.file("usr/local/bin/podwarden", dir.join("bin"), 0o755);
    [low, high]
}

#[test]
fn every_digest_is_that_of_what_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let (file, written) = write(dir.path(), "image.tar", &layers(dir.path()));
    let files = contents(fs::File::open(file).unwrap());
    let blob = |descriptor: &Descriptor| {
        let (contents, ..) = &files[Path::new(&blob_path(descriptor))];
        assert_eq!(hash(contents), descriptor.digest().digest());
        assert_eq!(contents.len() as u64, descriptor.size());
        contents.as_slice()
    };
    let index = ImageIndex::from_reader(files[Path::new("index.json")].0.as_slice()).unwrap();
    let [manifest] = index.manifests().as_slice() else {
        panic!("{index:?}");
    };
    assert_eq!(manifest.digest().to_string(), written.digest);
    let names = manifest.annotations().as_ref().unwrap();
    assert_eq!(
        names[CONTAINERD_NAME],
        "registry.invalid/team/podwarden:0.2.0"
    );
    assert_eq!(names["org.opencontainers.image.ref.name"], "0.2.0");
    let manifest = ImageManifest::from_reader(blob(manifest)).unwrap();
    let config = ImageConfiguration::from_reader(blob(manifest.config())).unwrap();
    assert_eq!(config.created().as_deref(), Some("2026-01-02T03:04:05Z"));
    let mut compressed = 0;
    for (layer, diff_id) in manifest.layers().iter().zip(config.rootfs().diff_ids()) {
        let mut tar = Vec::new();
        GzDecoder::new(blob(layer)).read_to_end(&mut tar).unwrap();
        assert_eq!(*diff_id, format!("sha256:{}", hash(&tar)));
        compressed += layer.size();
    }
    assert_eq!(compressed, written.compressed_bytes);
    assert_eq!(config.rootfs().diff_ids().len(), 2);
}

#[test]
fn a_layer_holds_its_parents_modes_and_links() {
    let dir = tempfile::tempdir().unwrap();
    let [low, _] = layers(dir.path());
    let entries = contents(low.tar().unwrap().as_slice());
    let listed: Vec<_> = entries
        .iter()
        .map(|(path, (contents, mode, link))| {
            let contents = String::from_utf8_lossy(contents);
            (path.to_str().unwrap(), contents, *mode, link.as_deref())
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("lib", "".into(), 0o755, None),
            ("lib/x86_64-linux-gnu", "".into(), 0o755, None),
            (
                "lib/x86_64-linux-gnu/libc.so.6",
                "a library".into(),
                0o755,
                None
            ),
            ("lib64", "".into(), 0o777, Some(Path::new("lib"))),
            ("tmp", "".into(), 0o1777, None),
        ]
    );
}

#[test]
fn equal_contents_give_equal_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (first, written) = write(dir.path(), "a.tar", &layers(dir.path()));
    // Files that were made anew have other times.
    let (second, again) = write(dir.path(), "b.tar", &layers(dir.path()));
    assert_eq!(written, again);
    assert_eq!(fs::read(first).unwrap(), fs::read(second).unwrap());
}

#[test]
fn a_file_that_is_not_there_is_named_and_the_last_image_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = write(dir.path(), "image.tar", &layers(dir.path()));
    let before = fs::read(&file).unwrap();
    let mut layer = Layer::default();
    layer.file("usr/bin/x", "/nonexistent/x", 0o755);
    let image = Image {
        name: "podwarden:1",
        architecture: Arch::Amd64,
        run: Run::default(),
        layers: &[layer],
        created: None,
        annotations: HashMap::new(),
    };
    let error = format!("{:#}", image.write(&file).unwrap_err());
    assert!(error.contains("usr/bin/x from /nonexistent/x"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
}
