//! Finds the configuration's files that every user of the machine may write, or may read although they hold
//! secrets.

use std::{
    collections::BTreeSet,
    fs::{self, Metadata},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use serde_yaml::Value;

use super::Config;

/// Mode bits for users other than the owner and the group.
const READ: u32 = 0o004;
const WRITE: u32 = 0o002;
const SEARCH: u32 = 0o001;

impl Config {
    /// Returns a line for each file that others may write, or may read although it holds secrets: of `file`, from
    /// which this configuration was read, and the files that the configuration names.
    pub fn exposed_files(&self, file: Option<&Path>) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(file) = file {
            let secrets = fs::read_to_string(file).is_ok_and(|text| has_secrets(&text));
            notes.extend(note(&file.display().to_string(), file, secrets.then_some("passwords")));
        }
        let key = Some("a private key");
        for listener in &self.listen {
            if let Some(tls) = &listener.tls {
                let place = format!("listen {}, tls", listener.address);
                notes.extend(note(&format!("{place} (key_file)"), &tls.key_file, key));
                notes.extend(note(&format!("{place} (cert_file)"), &tls.cert_file, None));
                let ca = tls.ca_cert_file.as_deref();
                notes.extend(ca.and_then(|ca| note(&format!("{place} (ca_cert_file)"), ca, None)));
            }
        }
        let is_one = self.locks.tls == self.tls;
        let own = Some(("locks.tls", &self.locks.tls)).filter(|_| !is_one);
        for (place, tls) in [("tls", &self.tls)].into_iter().chain(own) {
            for (name, file, holds) in [
                ("key_file", &tls.key_file, key),
                ("cert_file", &tls.cert_file, None),
                ("ca_cert_file", &tls.ca_cert_file, None),
            ] {
                let file = file.as_deref();
                notes.extend(file.and_then(|file| note(&format!("{place} ({name})"), file, holds)));
            }
        }
        let nodes = self.locks.nodes.iter().chain(&self.locks.next_nodes);
        let of_nodes = nodes.flat_map(|node| node.written().iter().chain([node.login()]));
        let logins = self.data.written().iter().chain([self.data.login()]).chain(of_nodes);
        let files: BTreeSet<&Path> =
            logins.filter_map(|url| url.password.as_ref()?.file()).collect();
        for file in files {
            notes.extend(note(
                &format!("password_file {}", file.display()),
                file,
                Some("a password"),
            ));
        }
        notes
    }
}

/// Returns the warning about a file that others may write, or may read although it `holds` a secret.
fn note(name: &str, file: &Path, holds: Option<&str>) -> Option<String> {
    let mode = rights_of_others(file)?;
    let may = match (mode & WRITE > 0, holds.filter(|_| mode & READ > 0)) {
        (true, None) => "write: chmod o-w it".to_owned(),
        (true, Some(holds)) => format!("write, and read though it has {holds}: chmod o-rw it"),
        (false, Some(holds)) => format!("read though it has {holds}: chmod o-r it"),
        (false, None) => return None,
    };
    Some(format!("{name} is a file that every user of this machine may {may}"))
}

/// Returns what others may do with a file. `None` if its mode cannot be read, or if others may not enter one
/// of its folders.
fn rights_of_others(file: &Path) -> Option<u32> {
    let file = file.canonicalize().ok()?;
    let mode = |metadata: Metadata| metadata.permissions().mode();
    let folders = file.ancestors().skip(1);
    let is_reached = folders
        .map(|folder| fs::metadata(folder).map(mode))
        .all(|folder| folder.is_ok_and(|mode| mode & SEARCH > 0));
    is_reached.then(|| fs::metadata(&file).map(mode).ok()).flatten()
}

/// Whether this text contains a password or a token itself, not only the name of a variable with it.
fn has_secrets(text: &str) -> bool {
    serde_yaml::from_str(text).is_ok_and(|value| has_secret(&value))
}

fn has_secret(value: &Value) -> bool {
    match value {
        Value::String(text) => is_secret(password_of_url(text)),
        Value::Sequence(all) => all.iter().any(has_secret),
        Value::Mapping(all) => all.iter().any(|(key, value)| {
            let is_named =
                key.as_str().is_some_and(|key| key.ends_with("password") || key == "token");
            match value {
                Value::String(text) if is_named => is_secret(text),
                Value::Number(_) => is_named,
                value => has_secret(value),
            }
        }),
        Value::Tagged(tagged) => has_secret(&tagged.value),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether this is a secret and not the name of a variable.
fn is_secret(text: &str) -> bool {
    !text.is_empty() && !text.contains("${")
}

/// The password in a URL; empty if there is none.
fn password_of_url(text: &str) -> &str {
    let behind_scheme = text.split_once("://").map_or("", |(_, rest)| rest);
    let user = behind_scheme.rsplit_once('@').map_or("", |(user, _)| user);
    user.split_once(':').map_or("", |(_, password)| password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_that_stands_there_itself() {
        for text in [
            "data: redis://:secret@127.0.0.1:6379",
            "locks: {nodes: ['redis://127.0.0.1:1', 'rediss://user:secret@10.0.0.1:2']}",
            "data: {sentinels: [a:1], master: m, sentinel_password: secret}",
            "data: {password: 12345}",
            "admin: {token: 0123456789abcdef0123}",
        ] {
            assert!(has_secrets(text), "{text}");
        }
        for text in [
            "",
            ": :",
            "data: redis://127.0.0.1:6379",
            "data: 'redis://:${PASSWORD}@127.0.0.1:6379'",
            "data: redis://user@127.0.0.1:6379",
            "admin: {token: '${TOKEN}'}",
            "data: {password: }",
            "locks: {max_token: 1kb}",
        ] {
            assert!(!has_secrets(text), "{text}");
        }
    }

    #[test]
    fn what_every_user_may_read_or_write_is_told_if_they_can_get_there() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let open =
            |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        open(0o755);
        let told = |text: &str, mode: u32| {
            let config = file("lockgate.yaml", text, mode);
            Config::default().exposed_files(Some(&config)).concat()
        };
        let secret = "data: redis://:secret@127.0.0.1:6379";
        let begins = format!("{}/lockgate.yaml is a file that", dir.path().display());
        for (text, mode, may) in [
            (secret, 0o644, "may read though it has passwords: chmod o-r it"),
            (secret, 0o666, "may write, and read though it has passwords: chmod o-rw it"),
            ("", 0o666, "may write: chmod o-w it"),
            (secret, 0o642, "may write: chmod o-w it"),
        ] {
            let told = told(text, mode);
            assert!(told.starts_with(&begins) && told.ends_with(may), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
        assert_eq!((told(secret, 0o660), told("", 0o644)), (String::new(), String::new()));

        let (key, cert) = (file("key", "k", 0o644), file("cert", "c", 0o644));
        let mut config = Config::default();
        (config.tls.key_file, config.tls.cert_file) = (Some(key), Some(cert));
        config.locks.tls = config.tls.clone();
        let [told] = &config.exposed_files(None)[..] else { panic!("one") };
        assert!(told.starts_with("tls (key_file) is") && told.contains("a private key"), "{told}");
        file("cert", "c", 0o646);
        config.locks.tls.cert_file = None;
        let told = config.exposed_files(None);
        let begin = |word: &str| told.iter().any(|told| told.starts_with(word));
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(begin("tls (cert_file)") && begin("locks.tls (key_file)"), "{told:?}");
        let word = file("word", "w", 0o644);
        let text = format!("data: {{url: 'redis://a', password_file: {}}}\n", word.display());
        let [told] = &Config::parse(&text, "f", &|_| None).unwrap().exposed_files(None)[..] else {
            panic!("one")
        };
        assert!(told.ends_with("may read though it has a password: chmod o-r it"), "{told}");
        open(0o700);
        assert_eq!(config.exposed_files(None), Vec::<String>::new());
    }
}
