//! The certificate that the listener shows.

use std::{
    convert::Infallible,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio_rustls::rustls::{
    self,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    api::{published::Published, server::HttpError},
    base::error::chain,
    config::TlsFiles,
};

/// Between two looks at the files: what replaces certificates does so hours before they expire.
const LOOK: Duration = Duration::from_secs(5);

/// Bytes of a file that are read; chains have a few thousand.
const MOST: u64 = 1 << 20;

/// What is degraded, for [`Published::set_standing`].
const CERTIFICATE: &str = "tlsCertFile";

/// Why files make no certificate.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} has no {wanted} in PEM", path.display())]
    Pem {
        path: PathBuf,
        wanted: &'static str,
        #[source]
        source: pem::Error,
    },
    #[error("the certificate and the key cannot be used together")]
    Pair(#[source] rustls::Error),
}

#[derive(Debug)]
pub(super) struct Certificates {
    current: ArcSwapOption<CertifiedKey>,
    files: Option<TlsFiles>,
}

/// What both files hold.
type Texts = (Vec<u8>, Vec<u8>);

impl Certificates {
    /// Of the files, or made here with this name. Without a certificate in the files there is none until they have
    /// one: handshakes fail, and the agent does its work.
    pub(super) fn new(files: Option<TlsFiles>, name: &str) -> Result<Self, HttpError> {
        let current = match &files {
            None => Some(Arc::new(self_signed(name)?)),
            Some(_) => None,
        };
        Ok(Self {
            current: ArcSwapOption::new(current),
            files,
        })
    }

    /// Reads the files now, and again for as long as the server runs.
    pub(super) async fn follow(&self, published: &Published) -> Infallible {
        let Some(files) = self.files.clone() else {
            return std::future::pending().await;
        };
        let mut last = None;
        loop {
            let of = files.clone();
            // Off this thread: the files may be on a slow file system.
            let read = tokio::task::spawn_blocking(move || texts(&of)).await;
            match read {
                Ok(Ok(texts)) if last.as_ref() == Some(&texts) => {}
                Ok(Ok(texts)) => {
                    self.put(certified(&files, &texts), published);
                    last = Some(texts);
                }
                Ok(Err(error)) => {
                    self.put(Err(error), published);
                    last = None;
                }
                // The runtime is shutting down.
                Err(_) => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Shows this certificate from now on; after an error the last one stays.
    fn put(&self, read: Result<CertifiedKey, FileError>, published: &Published) {
        let problem = match read {
            Ok(certificate) => {
                self.current.store(Some(Arc::new(certificate)));
                None
            }
            Err(error) => {
                let stays = match self.current.load().is_some() {
                    true => "the certificate from before stays in use",
                    false => "secureListen refuses every connection",
                };
                Some(format!(
                    "tlsCertFile, tlsPrivateKeyFile: {}; {stays} until the files hold a certificate and its key (they \
                     are read every {} s)",
                    chain(&error),
                    LOOK.as_secs()
                ))
            }
        };
        published.set_standing(CERTIFICATE, problem);
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

fn texts(files: &TlsFiles) -> Result<Texts, FileError> {
    Ok((read(&files.certificate)?, read(&files.key)?))
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(source) => Err(FileError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn certified(files: &TlsFiles, (chain, key): &Texts) -> Result<CertifiedKey, FileError> {
    let pem = |path: &Path, wanted| {
        let path = path.to_owned();
        move |source| FileError::Pem {
            path,
            wanted,
            source,
        }
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(pem(&files.certificate, "certificate"))?;
    if chain.is_empty() {
        let none = pem::Error::NoItemsFound;
        return Err(pem(&files.certificate, "certificate")(none));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(pem(&files.key, "private key"))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(FileError::Pair)
}

/// A certificate for this process, as kube-rbac-proxy makes one where it gets no files.
fn self_signed(name: &str) -> Result<CertifiedKey, HttpError> {
    let names = vec![name.to_owned(), "localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(HttpError::SelfSigned)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let key = key.map_err(|why| HttpError::Tls(rustls::Error::General(why.to_owned())))?;
    let chain = vec![made.cert.der().clone()];
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(HttpError::Tls)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn files(&self) -> TlsFiles {
            TlsFiles {
                certificate: self.0.path().join("tls.crt"),
                key: self.0.path().join("tls.key"),
            }
        }

        fn write(&self, made: &rcgen::CertifiedKey<rcgen::KeyPair>) {
            let files = self.files();
            fs::write(files.certificate, made.cert.pem()).unwrap();
            fs::write(files.key, made.signing_key.serialize_pem()).unwrap();
        }
    }

    fn made() -> rcgen::CertifiedKey<rcgen::KeyPair> {
        rcgen::generate_simple_self_signed(vec!["node-1".to_owned()]).unwrap()
    }

    fn shown(certificates: &Certificates) -> Option<Vec<u8>> {
        let current = certificates.current.load();
        current.as_ref().map(|key| key.cert[0].to_vec())
    }

    #[test]
    fn the_files_are_shown_and_bad_ones_are_not() {
        let dir = Dir(tempfile::tempdir().unwrap());
        let files = dir.files();
        let certificates = Certificates::new(Some(files.clone()), "node-1").unwrap();
        let published = Published::default();
        let look = || {
            let read = texts(&files).and_then(|texts| certified(&files, &texts));
            certificates.put(read, &published);
        };
        look();
        assert_eq!(shown(&certificates), None);
        let problem = published.standing().concat();
        assert!(
            problem.contains("tls.crt cannot be read")
                && problem.contains("refuses every connection"),
            "{problem}"
        );

        let (first, second) = (made(), made());
        dir.write(&first);
        look();
        let of_first = Some(first.cert.der().to_vec());
        assert_eq!(shown(&certificates), of_first);
        assert_eq!(published.standing(), [""; 0]);

        // Half-way: the certificate of one pair, the key of another.
        fs::write(&files.certificate, second.cert.pem()).unwrap();
        look();
        assert_eq!(shown(&certificates), of_first);
        let problem = published.standing().concat();
        assert!(problem.contains("from before stays"), "{problem}");

        dir.write(&second);
        look();
        assert_eq!(shown(&certificates), Some(second.cert.der().to_vec()));
        assert_eq!(published.standing(), [""; 0]);

        for text in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAA"] {
            fs::write(&files.certificate, text).unwrap();
            look();
            let problem = published.standing().concat();
            assert!(problem.contains("tls.crt has no certificate"), "{problem}");
        }
    }

    #[test]
    fn without_files_there_is_one_of_its_own() {
        let certificates = Certificates::new(None, "node-1").unwrap();
        assert!(shown(&certificates).is_some());
    }
}
