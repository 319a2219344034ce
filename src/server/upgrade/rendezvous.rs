//! The socket in the file system at which a process can be replaced.

use std::{
    fs::{self, Metadata},
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, access},
    process::geteuid,
};
use tokio::net::UnixListener;

/// The socket at its path, while this process owns it.
pub(crate) struct Rendezvous {
    path: PathBuf,
    /// Device and inode of the socket: another process may put its own at the path.
    file: (u64, u64),
    pub(super) listener: UnixListener,
}

/// The socket before it is moved to its path. Dropping it removes the file.
pub(crate) struct Prepared {
    path: PathBuf,
    own: PathBuf,
    file: (u64, u64),
    listener: Option<UnixListener>,
}

impl Rendezvous {
    /// Whether no process answers at `path`: there is nothing, or what a crash left.
    ///
    /// # Errors
    /// If connecting fails in another way.
    pub(crate) fn is_free(path: &Path) -> io::Result<bool> {
        match UnixStream::connect(path) {
            Ok(_) => Ok(false),
            Err(error) if is_nobody(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Removes the socket, unless another process has taken the path over.
    pub(crate) fn leave(self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Prepared {
    /// Makes a socket beside `path`.
    ///
    /// # Errors
    /// The operating system's, or if there is a file that is not a socket.
    pub(crate) fn new(path: &Path) -> io::Result<Prepared> {
        refuse_other_files(path)?;
        let (own, path) = (beside(path), path.to_owned());
        match fs::remove_file(&own) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&own)?;
        let file = identity(&own)?;
        let prepared = Prepared { path, own, file, listener: Some(listener) };
        // A process may connect before this: its user is checked, as that of every process.
        fs::set_permissions(&prepared.own, fs::Permissions::from_mode(0o600))?;
        Ok(prepared)
    }

    /// Checks that [`Prepared::new`] and [`Prepared::install`] can do their part, and that a running process can be
    /// asked for its place, as far as can be told without making or asking anything.
    ///
    /// # Errors
    /// Those that these would return.
    pub(crate) fn check(path: &Path) -> io::Result<()> {
        refuse_other_files(path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let of = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", directory.display()))
        };
        let found = directory.metadata().map_err(of)?;
        if !found.is_dir() {
            let what = format!("{} is no directory", directory.display());
            return Err(io::Error::new(ErrorKind::NotADirectory, what));
        }
        access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| of(error.into()))?;
        if path.exists() {
            access(path, Access::WRITE_OK)?;
        }
        let me = geteuid().as_raw();
        let is_kept = |file: &Metadata| {
            const STICKY: u32 = 0o1000;
            found.mode() & STICKY != 0 && ![0, found.uid(), file.uid()].contains(&me)
        };
        for path in [beside(path), path.to_owned()] {
            if fs::symlink_metadata(&path).is_ok_and(|file| file.is_dir() || is_kept(&file)) {
                let what = format!("{} is in the way and cannot be removed", path.display());
                return Err(io::Error::new(ErrorKind::PermissionDenied, what));
            }
        }
        Ok(())
    }

    /// Moves the socket to its path, over the old one: a process that connects meets one or the other.
    ///
    /// # Errors
    /// The operating system's, or if another process is making a socket too.
    pub(crate) fn install(mut self) -> io::Result<Rendezvous> {
        if identity(&self.own)? != self.file {
            return Err(io::Error::other("another process is making one at the same time"));
        }
        fs::rename(&self.own, &self.path)?;
        let listener = self.listener.take().ok_or(ErrorKind::NotConnected)?;
        Ok(Rendezvous { path: self.path.clone(), file: self.file, listener })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.listener.is_some() && identity(&self.own).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.own);
        }
    }
}

/// Whether the error means that no process listens.
pub(super) fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

/// Checks that no file of another kind lies at the socket's path.
///
/// # Errors
/// If one does.
fn refuse_other_files(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        let what = "there is a file that is not a socket; remove it, or give another path";
        return Err(io::Error::new(ErrorKind::AlreadyExists, what));
    }
    Ok(())
}

/// Returns where the socket is made before it is moved. The name is always the same, so that crashes leave one file
/// at most.
fn beside(path: &Path) -> PathBuf {
    let mut own = path.as_os_str().to_owned();
    own.push(".new");
    PathBuf::from(own)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}
