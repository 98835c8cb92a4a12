//! Container images, written without a daemon: an OCI image layout in one tar, which containerd, podman, skopeo and
//! Docker load. Equal contents give equal bytes.

mod layer;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use oci_spec::image::{
    Arch, Config, Descriptor, DescriptorBuilder, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, OciLayoutBuilder, Os, RootFsBuilder, SCHEMA_VERSION,
    Sha256Digest,
};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType};

pub use self::layer::Layer;
pub use oci_spec::image::{Config as Run, ConfigBuilder as RunBuilder};

/// The name under which containerd's import lists the image.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// An image of one machine architecture.
#[derive(Debug)]
pub struct Image<'a> {
    /// With registry and tag: `docker.io/library/podwarden:0.2.0`.
    pub name: &'a str,
    /// Of its programs.
    pub architecture: Arch,
    /// How its containers run.
    pub run: Config,
    /// Lowest first.
    pub layers: &'a [Layer],
    /// When its source was written, RFC 3339; `None` leaves it out.
    pub created: Option<&'a str>,
    /// What it says of itself, by keys of the OCI image specification's list of annotations.
    pub annotations: HashMap<String, String>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Of the manifest, `sha256:` and 64 hexadecimal digits: what a registry knows the image by.
    pub digest: String,
    /// Bytes of its compressed layers: what a node pulls.
    pub compressed_bytes: u64,
}

impl Image<'_> {
    /// Writes the image to the file `to`; an image that was there stays until the new one is whole.
    pub fn write(&self, to: &Path) -> Result<Written> {
        let mut blobs = Blobs::default();
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for layer in self.layers {
            let tar = layer.tar()?;
            diff_ids.push(format!("sha256:{}", hash(&tar)));
            layers.push(blobs.add(MediaType::ImageLayerGzip, gzip(&tar)?)?);
        }
        let compressed_bytes = layers.iter().map(Descriptor::size).sum();
        let mut configuration = ImageConfigurationBuilder::default()
            .architecture(self.architecture.clone())
            .os(Os::Linux)
            .config(self.run.clone())
            .rootfs(RootFsBuilder::default().diff_ids(diff_ids).build()?);
        if let Some(created) = self.created {
            configuration = configuration.created(created);
        }
        let config = blobs.add(MediaType::ImageConfig, bytes(&configuration.build()?)?)?;
        // `docker load` before version 25 reads this list and knows no layout.
        let docker = json!([{
            "Config": blob_path(&config),
            "RepoTags": [self.name],
            "Layers": layers.iter().map(blob_path).collect::<Vec<_>>(),
        }]);
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(layers)
            .annotations(self.annotations.clone())
            .build()?;
        let mut manifest = blobs.add(MediaType::ImageManifest, bytes(&manifest)?)?;
        let digest = manifest.digest().to_string();
        manifest.set_annotations(Some(self.names()));
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests([manifest])
            .build()?;
        let layout = OciLayoutBuilder::default()
            .image_layout_version("1.0.0")
            .build()?;
        let mut files = blobs.0;
        files.insert("index.json".to_owned(), bytes(&index)?);
        files.insert("manifest.json".to_owned(), bytes(&docker)?);
        files.insert("oci-layout".to_owned(), bytes(&layout)?);
        archive(&files, to).with_context(|| format!("write {}", to.display()))?;
        Ok(Written {
            digest,
            compressed_bytes,
        })
    }

    /// How the index calls it: whole for containerd, by its tag for the specification.
    fn names(&self) -> HashMap<String, String> {
        let tag = self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        HashMap::from([
            (CONTAINERD_NAME.to_owned(), self.name.to_owned()),
            (
                "org.opencontainers.image.ref.name".to_owned(),
                tag.to_owned(),
            ),
        ])
    }
}

/// Files of the archive whose names are their contents' digests.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    fn add(&mut self, kind: MediaType, contents: Vec<u8>) -> Result<Descriptor> {
        let digest: Sha256Digest = hash(&contents).parse()?;
        let descriptor = DescriptorBuilder::default()
            .media_type(kind)
            .digest(digest)
            .size(contents.len() as u64)
            .build()?;
        self.0.insert(blob_path(&descriptor), contents);
        Ok(descriptor)
    }
}

fn blob_path(descriptor: &Descriptor) -> String {
    format!("blobs/sha256/{}", descriptor.digest().digest())
}

fn hash(contents: &[u8]) -> String {
    let digest = Sha256::digest(contents);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In JSON with sorted keys: the specification's types keep annotations in no order.
fn bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    Ok(serde_json::to_value(value)?.to_string().into_bytes())
}

fn gzip(contents: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    gzip.write_all(contents)?;
    Ok(gzip.finish()?)
}

fn archive(files: &BTreeMap<String, Vec<u8>>, to: &Path) -> Result<()> {
    let mut tar = Builder::new(Vec::new());
    for (path, contents) in files {
        let mut header = layer::header(EntryType::Regular, 0o644, contents.len() as u64);
        tar.append_data(&mut header, path, contents.as_slice())?;
    }
    let partial = to.with_extension("partial");
    fs::write(&partial, tar.into_inner()?)?;
    fs::rename(&partial, to)?;
    Ok(())
}
