//! Opening the two listeners, and leaving no socket file behind.

use std::{
    fs, io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    os::unix::fs::{FileTypeExt, MetadataExt},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::{
    socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
    stat::{Mode, fchmod},
};
use tokio::net::{TcpListener, UnixListener};

use super::{
    HttpError, Limits, Reach,
    secure::{Secure, SecureListen},
};
use crate::{api::published::Published, base::durable};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Between two tries to open a TCP address that is taken, at most: the pause doubles from [`FIRST_TRY`], because an agent
/// that takes over has the address as soon as the one before it is gone.
const TRY_AGAIN: Duration = Duration::from_secs(5);
const FIRST_TRY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listen {
    /// A TCP address; port 0 lets the kernel choose.
    pub tcp: Option<SocketAddr>,
    /// A unix socket, created with mode 0600.
    pub unix: Option<PathBuf>,
    /// What `tcp` answers.
    pub reach: Reach,
    /// Where other machines reach it.
    pub secure: Option<SecureListen>,
    /// What clients are granted.
    pub limits: Limits,
}

/// The open listeners; dropping it closes them and removes the socket file.
#[derive(Debug)]
pub struct Listeners {
    pub(super) tcp: Option<Tcp>,
    pub(super) secure: Option<Secure>,
    pub(super) unix: Option<UnixListener>,
    pub(super) file: Option<SocketFile>,
    pub(super) reach: Reach,
    pub(super) limits: Limits,
}

impl Listeners {
    /// Opens the listeners of `listen`; call it inside a tokio runtime.
    ///
    /// A socket file without a listener is replaced. A TCP address that is taken is no error: it is tried again
    /// while the server runs.
    pub async fn open(listen: &Listen) -> Result<Self, HttpError> {
        let tcp = match listen.tcp {
            None => None,
            Some(addr) if !addr.ip().is_loopback() => {
                return Err(HttpError::NotLoopback { addr });
            }
            Some(addr) => Some(Tcp::bind(addr).await),
        };
        let secure = match &listen.secure {
            None => None,
            Some(secure) => Some(Secure::open(secure).await?),
        };
        let (unix, file) = match &listen.unix {
            None => (None, None),
            Some(path) => {
                let (listener, file) = open_unix(path)?;
                (Some(listener), Some(file))
            }
        };
        Ok(Self {
            tcp,
            secure,
            unix,
            file,
            reach: listen.reach.clone(),
            limits: listen.limits,
        })
    }

    /// The TCP address in use, with the port that the kernel chose; `None` while it is taken.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        match self.tcp.as_ref()? {
            Tcp::Bound(bound) => Some(bound.address),
            Tcp::Taken(..) => None,
        }
    }
}

/// A TCP listener.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
}

impl Bound {
    async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }
}

/// The TCP address at the start.
#[derive(Debug)]
pub(super) enum Tcp {
    Bound(Bound),
    /// Not to be had yet, and why.
    Taken(SocketAddr, io::Error),
}

impl Tcp {
    pub(super) async fn bind(address: SocketAddr) -> Self {
        match Bound::bind(address).await {
            Ok(bound) => Self::Bound(bound),
            Err(why) => Self::Taken(address, why),
        }
    }

    /// Waits for the address of the configuration's `key`, and says what is `lost` for as long as it lasts.
    pub(super) async fn open(self, published: &Published, key: &'static str, lost: &str) -> Bound {
        let (address, mut why) = match self {
            Self::Bound(bound) => return bound,
            Self::Taken(address, why) => (address, why),
        };
        let mut pause = FIRST_TRY;
        loop {
            let problem = format!(
                "{key} {address}: {why}; {lost} until the address is free (it is tried again every {} s), or choose \
                 another address",
                TRY_AGAIN.as_secs()
            );
            published.set_standing(key, Some(problem));
            tokio::time::sleep(pause).await;
            pause = TRY_AGAIN.min(pause * 2);
            match Bound::bind(address).await {
                Ok(bound) => {
                    published.set_standing(key, None);
                    return bound;
                }
                Err(error) => why = error,
            }
        }
    }
}

pub(super) fn open_unix(path: &Path) -> Result<(UnixListener, SocketFile), HttpError> {
    let failed = |operation| {
        move |source: io::Error| HttpError::Unix {
            operation,
            path: path.to_owned(),
            source,
        }
    };
    let made_directory = make_directory(path).map_err(failed("create the directory of"))?;
    let mut file = SocketFile {
        path: path.to_owned(),
        identity: None,
        made_directory,
    };
    clear_stale(path)?;

    let address = UnixAddr::new(path).map_err(|e| failed("listen on")(e.into()))?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|e| failed("create a socket for")(e.into()))?;
    // bind(2) gives the file the socket's own mode (net/unix/af_unix.c, unix_bind_bsd), so no
    // moment exists in which others could connect.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)
        .map_err(|e| failed("set the mode of")(e.into()))?;
    bind(socket.as_raw_fd(), &address).map_err(|e| failed("bind")(e.into()))?;
    file.identity = identity(path).ok();
    let backlog = Backlog::new(BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
    listen(&socket, backlog).map_err(|e| failed("listen on")(e.into()))?;
    let listener = UnixListener::from_std(socket.into()).map_err(failed("listen on"))?;
    Ok((listener, file))
}

/// Creates the last directory of the path when it is missing; true if it did.
fn make_directory(path: &Path) -> io::Result<bool> {
    let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) else {
        return Ok(false);
    };
    match fs::create_dir(parent) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

fn clear_stale(path: &Path) -> Result<(), HttpError> {
    let failed = |operation, source| HttpError::Unix {
        operation,
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("look at", e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(HttpError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        // Only a socket without a listener refuses.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("probe", e)),
        Ok(_) => {
            return Err(HttpError::InUse {
                path: path.to_owned(),
            });
        }
    }
    durable::remove(path).map_err(|e| failed("remove the stale", e))
}

/// Device and inode: which file a path means.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Removes the socket file when dropped, unless another process has put its own there since.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    made_directory: bool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path).ok() == self.identity {
            // Nothing is left to do about it, and the next start replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
        if self.made_directory {
            // Fails, rightly, when the directory has other files.
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}
