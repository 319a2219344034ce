//! May this client lock this key? Exactly who may `SET` it on the data node may.
//!
//! The data node is asked with `SET key x NX XX` on the client's own
//! connection: Redis looks at who asks before it refuses the contradicting
//! options, so that the probe tells and changes nothing.

use std::time::Duration;

use crate::{
    clock::Instant,
    key::{Key, KeyMap},
    resp::encode,
};

/// Keys remembered on one connection; more make it forget all and ask again.
const MAX_KEYS: usize = 64;

/// What the data node said to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// This client may.
    Granted,
    /// It may not: the error line for it, without `-` and line end.
    Refused(String),
}

/// Permissions of one connection, remembered for a short time.
#[derive(Debug)]
pub struct Permissions {
    /// Until when each key's permission holds.
    granted: KeyMap<Instant>,
    /// How long one is believed: a change of the ACL is seen after that.
    lifetime: Duration,
}

impl Permissions {
    /// None yet.
    pub fn new(lifetime: Duration) -> Permissions {
        Permissions { granted: KeyMap::default(), lifetime }
    }

    /// Whether a recent probe for this key was answered well.
    pub fn remembered(&self, key: &Key, now: Instant) -> bool {
        self.granted.get(key).is_some_and(|until| now < *until)
    }

    /// Notes that the client may lock this key.
    pub fn remember(&mut self, key: &Key, now: Instant) {
        if self.granted.len() >= MAX_KEYS {
            self.granted.clear();
        }
        self.granted.insert(key.clone(), now + self.lifetime);
    }

    /// The client may have become somebody else.
    pub fn forget(&mut self) {
        self.granted = KeyMap::default();
    }
}

/// Appends the probe for `key`.
pub fn probe(out: &mut Vec<u8>, key: &[u8]) {
    encode::command(out, &[b"SET", key, b"x", b"NX", b"XX"]);
}

/// Appends the probe for LOCKGATE: who may ask Redis for INFO may ask us. The
/// section is none that Redis has, so that it says nothing.
pub fn probe_operator(out: &mut Vec<u8>) {
    encode::command(out, &[b"INFO", b"lockgate"]);
}

/// Reads the reply to a probe. Other errors than these two (`-ERR syntax
/// error`, but also `-READONLY`, `-OOM`, `-LOADING`, …) come after Redis has
/// let the client pass.
pub fn read(reply: &[u8]) -> Permission {
    if !reply.starts_with(b"-NOAUTH") && !reply.starts_with(b"-NOPERM") {
        return Permission::Granted;
    }
    let text = String::from_utf8_lossy(&reply[1..]);
    // The client did not say SET.
    Permission::Refused(text.trim_end().replacen("'set'", "'lock'", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_errors_refuse() {
        for granted in
            ["-ERR syntax error\r\n", "-READONLY x\r\n", "-OOM x\r\n", "+OK\r\n", "$-1\r\n"]
        {
            assert_eq!(read(granted.as_bytes()), Permission::Granted, "{granted}");
        }
        assert_eq!(
            read(b"-NOAUTH Authentication required.\r\n"),
            Permission::Refused("NOAUTH Authentication required.".into())
        );
        assert_eq!(
            read(b"-NOPERM this user has no permissions to run the 'set' command\r\n"),
            Permission::Refused(
                "NOPERM this user has no permissions to run the 'lock' command".into()
            )
        );
    }

    #[test]
    fn a_permission_is_forgotten_in_time_and_when_there_are_many() {
        let (mut permissions, now) = (Permissions::new(Duration::from_secs(3)), Instant::now());
        let (a, b) = (Key::from("a"), Key::from("b"));
        permissions.remember(&a, now);
        assert!(permissions.remembered(&a, now + Duration::from_millis(2999)));
        assert!(!permissions.remembered(&a, now + Duration::from_secs(3)));
        assert!(!permissions.remembered(&b, now));
        for key in 0..MAX_KEYS {
            permissions.remember(&Key::from(&key.to_string()), now);
        }
        assert!(permissions.granted.len() <= MAX_KEYS);
        permissions.forget();
        assert!(!permissions.remembered(&Key::from("5"), now));
    }
}
