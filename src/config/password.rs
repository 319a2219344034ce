//! Passwords for Redis servers and Sentinels: written in the configuration, or in a file that another program renews.

use std::{
    borrow::Cow,
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// The longest password in a file, in bytes.
const LONGEST: u64 = 4096;

/// A password for AUTH.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// It stands in the configuration, or in the environment.
    Written(String),
    /// It is the content of this file, without the end of the line.
    File(PathBuf),
}

impl From<&str> for Password {
    fn from(text: &str) -> Password {
        Password::Written(text.to_owned())
    }
}

impl fmt::Debug for Password {
    /// Never writes the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Password {
    /// Returns the password. A file is read each time, so that each new connection has what stands there now.
    ///
    /// # Errors
    /// If the file cannot be read, or has no password in it. They name the file, and nothing that it contains.
    pub(crate) fn get(&self) -> io::Result<Cow<'_, str>> {
        match self {
            Password::Written(text) => Ok(Cow::Borrowed(text)),
            Password::File(path) => read(path).map(Cow::Owned).map_err(|what| {
                io::Error::other(format!("the password in {}: {what}", path.display()))
            }),
        }
    }

    /// The file in which it stands.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Password::Written(_) => None,
            Password::File(path) => Some(path),
        }
    }
}

fn read(path: &Path) -> Result<String, Cow<'static, str>> {
    let unread = |error: io::Error| Cow::Owned(format!("cannot be read: {}", error.kind()));
    // To open a pipe could wait for ever.
    if !fs::metadata(path).map_err(unread)?.is_file() {
        return Err("is no file".into());
    }
    let mut text = Vec::new();
    File::open(path).map_err(unread)?.take(LONGEST + 1).read_to_end(&mut text).map_err(unread)?;
    if text.len() as u64 > LONGEST {
        return Err(format!("has more than {LONGEST} bytes").into());
    }
    let mut text = String::from_utf8(text).map_err(|_| "is not UTF-8")?;
    // Editors and echo end the line; nobody means that for a part of the password.
    text.truncate(text.strip_suffix('\n').map_or(text.len(), str::len));
    text.truncate(text.strip_suffix('\r').map_or(text.len(), str::len));
    match text.is_empty() {
        true => Err("is empty".into()),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_anew_each_time_without_the_end_of_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("word");
        let password = Password::File(path.clone());
        let told = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            password.get().map(Cow::into_owned).map_err(|error| error.to_string())
        };
        for (content, read) in [("a", "a"), ("b\n", "b"), ("c d\r\n", "c d"), ("e\n\n", "e\n")] {
            assert_eq!(told(content.as_bytes()).unwrap(), read);
        }
        let long = "secret".repeat(1000);
        for (content, what) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"secret\xff", "is not UTF-8"),
            (long.as_bytes(), "has more than 4096 bytes"),
        ] {
            let error = told(content).unwrap_err();
            assert!(error.ends_with(what) && !error.contains("secret"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let error = password.get().unwrap_err().to_string();
        assert!(error.ends_with("word: cannot be read: entity not found"), "{error}");
        let pipe = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        let error = password.get().unwrap_err().to_string();
        assert!(pipe.success() && error.ends_with("word: is no file"), "{error}");
    }
}
