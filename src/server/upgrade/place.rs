//! The socket in the file system over which a process can be replaced.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// A path that is this process's.
pub(crate) struct Place {
    path: PathBuf,
    /// Which file it is: another process may put its own there.
    file: (u64, u64),
    pub(super) listener: UnixListener,
}

/// A socket that is there, under a name that nobody knows yet. Dropped, it goes again.
pub(crate) struct Prepared {
    path: PathBuf,
    own: PathBuf,
    file: (u64, u64),
    listener: Option<UnixListener>,
}

impl Place {
    /// Whether nobody is there who answers: nothing, or what a crash has left.
    ///
    /// # Errors
    /// If it cannot be found out.
    pub(crate) fn is_free(path: &Path) -> io::Result<bool> {
        match UnixStream::connect(path) {
            Ok(_) => Ok(false),
            Err(error) if is_nobody(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Leaves nothing behind, unless another process has taken the path over.
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
    /// If there is a file that is not a socket, or as the operating system says.
    pub(crate) fn new(path: &Path) -> io::Result<Prepared> {
        if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            let what = "there is a file that is not a socket; remove it, or give another path";
            return Err(io::Error::new(ErrorKind::AlreadyExists, what));
        }
        // Always the same name, so that crashes leave one file at the most.
        let mut own = path.as_os_str().to_owned();
        own.push(".new");
        let (own, path) = (PathBuf::from(own), path.to_owned());
        match fs::remove_file(&own) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&own)?;
        let file = identity(&own)?;
        let prepared = Prepared { path, own, file, listener: Some(listener) };
        // Whoever comes before that is asked who they are, as everybody.
        fs::set_permissions(&prepared.own, fs::Permissions::from_mode(0o600))?;
        Ok(prepared)
    }

    /// Puts it at its path, in the place of what was there: whoever connects meets the
    /// one or the other.
    ///
    /// # Errors
    /// As the operating system says.
    pub(crate) fn install(mut self) -> io::Result<Place> {
        if identity(&self.own)? != self.file {
            return Err(io::Error::other("another process is making one at the same time"));
        }
        fs::rename(&self.own, &self.path)?;
        let listener = self.listener.take().ok_or(ErrorKind::NotConnected)?;
        Ok(Place { path: self.path.clone(), file: self.file, listener })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.listener.is_some() && identity(&self.own).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.own);
        }
    }
}

/// Whether `error` says that no process listens.
pub(super) fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}
