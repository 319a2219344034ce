//! A lock's key and a token, as all parts of the proxy pass them on: copied once
//! from what the client has sent, and shared from there.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    ops::Deref,
    sync::{Arc, LazyLock},
};

/// A lock's key on the nodes, with its hash: a key is looked up by its connection
/// and by the engine, some ten times for a LOCK with its UNLOCK.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    hash: u64,
    bytes: Arc<[u8]>,
}

impl Key {
    /// The key that a client knows as `key`.
    pub fn new(prefix: &[u8], key: &[u8]) -> Key {
        let length = prefix.len() + key.len();
        let mut space = [0; 128];
        match space.get_mut(..length) {
            Some(bytes) => {
                let (first, second) = bytes.split_at_mut(prefix.len());
                first.copy_from_slice(prefix);
                second.copy_from_slice(key);
                Key::from(&*bytes)
            }
            None => Key::from(&[prefix, key].concat()),
        }
    }

    /// A number that clients cannot make two keys share.
    pub fn number(&self) -> u64 {
        self.hash
    }

    /// A number that tells nothing of the key to who does not know the process,
    /// with bits that maps do not look at.
    pub fn spread(&self) -> usize {
        (self.hash >> 32) as usize
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Key {
    fn from(bytes: &T) -> Key {
        // Clients choose keys, so they must not be able to make them meet.
        static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let bytes = bytes.as_ref();
        let mut hasher = HASHES.build_hasher();
        hasher.write(bytes);
        Key { hash: hasher.finish(), bytes: bytes.into() }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", String::from_utf8_lossy(self))
    }
}

/// Something for each of several keys.
pub type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<Known>>;

/// Takes the hash that a [`Key`] knows already.
#[derive(Debug, Default)]
pub struct Known(u64);

impl Hasher for Known {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = self.0.rotate_left(8) ^ hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a lock is held by.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Token {
    fn from(bytes: &T) -> Token {
        Token(bytes.as_ref().into())
    }
}

impl Deref for Token {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// It is all that it takes to release a lock, so it is not shown.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_bytes_however_it_was_made() {
        let (joined, whole) = (Key::new(b"lock:", b"k"), Key::from(b"lock:k"));
        assert_eq!(joined, whole);
        assert_ne!(joined, Key::from(b"lock:K"));
        let long = [b'k'; 500];
        assert_eq!(&*Key::new(b"lock:", &long), [b"lock:", &long[..]].concat());
        let mut map = KeyMap::default();
        map.insert(joined, 1);
        assert_eq!(map.get(&whole), Some(&1));
    }
}
