//! The listening socket: made with the right mode from its first moment, removed only when still ours.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, fchmod};

use super::{ChannelError, HomeLock, MAX_PATH_BYTES};

/// The socket's mode: its owner and the owner's group.
pub const SOCKET_MODE: u32 = 0o660;
/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;

/// A listening socket, not yet accepting. Dropping it removes the socket's file, if it made the file
/// and the file is still the one it made.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    file: Option<SocketFile>,
}

/// The file of a socket of ours; removed when dropped, if it is still that one.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Ok(there) = std::fs::symlink_metadata(&self.path) else { return };
        if there.dev() == self.dev && there.ino() == self.ino {
            if let Err(e) = std::fs::remove_file(&self.path) {
                log::warn!("{}: cannot remove our socket: {e}", self.path.display());
            }
        } else {
            log::warn!("{}: not our socket any more, left alone", self.path.display());
        }
    }
}

impl Listener {
    /// Listens at `path` with mode 0660, whatever the umask. The home's lock is what allows a socket
    /// that is there already, of a daemon that was killed, to be replaced.
    ///
    /// # Errors
    /// [`ChannelError::PathTooLong`], [`ChannelError::NotASocket`], [`ChannelError::InUse`] when somebody
    /// answers there, [`ChannelError::Bind`].
    pub fn bind(path: &Path, _lock: &HomeLock) -> Result<Self, ChannelError> {
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > MAX_PATH_BYTES {
            return Err(ChannelError::PathTooLong { path: path.to_owned(), bytes });
        }
        let failed =
            |step| move |source: io::Error| ChannelError::Bind { path: path.to_owned(), step, source };
        remove_stale(path)?;
        let address = UnixAddr::new(path).map_err(|e| failed("name")(e.into()))?;
        let fd = stream_socket().map_err(failed("make"))?;
        // The mode of the socket is a bound for that of its file, so the file never has a wider one than
        // in the end; only then is it given what the umask may have taken away. And nobody can connect
        // before `listen`.
        fchmod(&fd, Mode::from_bits_truncate(SOCKET_MODE)).map_err(|e| failed("restrict")(e.into()))?;
        socket::bind(fd.as_raw_fd(), &address).map_err(|e| failed("bind")(e.into()))?;
        let there = std::fs::symlink_metadata(path).map_err(failed("look at"))?;
        let file = SocketFile { path: path.to_owned(), dev: there.dev(), ino: there.ino() };
        if there.permissions().mode() & 0o7777 != SOCKET_MODE {
            std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))
                .map_err(failed("set the mode of"))?;
        }
        Backlog::new(BACKLOG)
            .and_then(|backlog| socket::listen(&fd, backlog))
            .map_err(|e| failed("listen on")(e.into()))?;
        Ok(Self { socket: UnixListener::from(fd), file: Some(file) })
    }

    /// A socket that somebody else opened and will remove.
    ///
    /// # Errors
    /// [`ChannelError::Handover`] when it is not a listening Unix stream socket.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, ChannelError> {
        check_listening(fd.as_fd()).map_err(ChannelError::Handover)?;
        Ok(Self { socket: UnixListener::from(fd), file: None })
    }

    /// The socket that systemd hands over, if it does (`LISTEN_PID` and `LISTEN_FDS` of the environment).
    ///
    /// # Errors
    /// [`ChannelError::Handover`] when it is more than one, or not a listening Unix stream socket.
    pub fn from_systemd() -> Result<Option<Self>, ChannelError> {
        let refused = |why: String| Err(ChannelError::Handover(why));
        let mut fds = match sd_notify::listen_fds() {
            Ok(fds) => fds,
            Err(e) => return refused(format!("LISTEN_PID and LISTEN_FDS cannot be used: {e}")),
        };
        match (fds.len(), fds.next()) {
            (1, Some(fd)) => {
                // SAFETY: systemd opened this descriptor for us; it is only borrowed here, and open,
                // since listen_fds has set its close-on-exec flag.
                let handed = unsafe { BorrowedFd::borrow_raw(fd) };
                match handed.try_clone_to_owned() {
                    Ok(own) => Self::from_fd(own).map(Some),
                    Err(e) => refused(format!("the socket handed over cannot be used: {e}")),
                }
            }
            (0, _) => Ok(None),
            (n, _) => refused(format!("{n} sockets were handed over")),
        }
    }

    /// The socket's path, when this process made it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// For tokio, with the file, which goes when dropped.
    pub(super) fn into_tokio(self) -> io::Result<(tokio::net::UnixListener, Option<SocketFile>)> {
        self.socket.set_nonblocking(true)?;
        Ok((tokio::net::UnixListener::from_std(self.socket)?, self.file))
    }
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?)
}

/// Removes a socket that nobody listens on any more; anything else is an error.
fn remove_stale(path: &Path) -> Result<(), ChannelError> {
    let failed = |step| move |source: io::Error| ChannelError::Bind { path: path.to_owned(), step, source };
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("look for")(e)),
    };
    if !there.file_type().is_socket() {
        let what = match there.file_type() {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_symlink() => "a symbolic link",
            kind if kind.is_file() => "a file",
            _ => "something",
        };
        return Err(ChannelError::NotASocket { path: path.to_owned(), what });
    }
    // the lock is this home's; a daemon of another home may have been given the same socket
    let address = UnixAddr::new(path).map_err(|e| failed("name")(e.into()))?;
    let probe = stream_socket().map_err(failed("make"))?;
    match socket::connect(probe.as_raw_fd(), &address) {
        Ok(()) | Err(Errno::EAGAIN) => Err(ChannelError::InUse { path: path.to_owned() }),
        Err(_) => match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("replace")(e)),
            _ => Ok(()),
        },
    }
}

fn check_listening(fd: BorrowedFd<'_>) -> Result<(), String> {
    let kind = socket::getsockopt(&fd, sockopt::SockType)
        .map_err(|e| format!("what was handed over is not a socket: {e}"))?;
    if kind != SockType::Stream {
        return Err("the socket handed over is not a stream socket".to_owned());
    }
    socket::getsockname::<UnixAddr>(fd.as_raw_fd())
        .map_err(|_| "the socket handed over is not a Unix socket".to_owned())?;
    match socket::getsockopt(&fd, sockopt::AcceptConn) {
        Ok(true) => Ok(()),
        Ok(false) => Err("the socket handed over does not listen (Accept=yes?)".to_owned()),
        Err(e) => Err(format!("the socket handed over cannot be asked whether it listens: {e}")),
    }
}
