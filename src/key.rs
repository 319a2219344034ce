//! A lock's key and a token, as all parts of the proxy pass them on: copied once from the client's bytes, and shared
//! from there.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    ops::Deref,
    sync::{Arc, LazyLock},
};

/// A lock's key on the nodes, with its hash, computed once: for a LOCK with its UNLOCK, the connection and the engine
/// look the key up some ten times.
///
/// A shared lock has many holders at once. Each reader is kept under a key of its own, which has the lock's bytes and
/// the number of the reader's grant: [`Key::of_reader`].
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    hash: u64,
    /// The number of a reader's grant; 0: the key stands for the lock itself, and for whoever has it alone.
    reader: u64,
    bytes: Arc<[u8]>,
}

/// Spreads the numbers of readers over all bits of a hash: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Key {
    /// Makes the nodes' key for a client's `key`.
    pub(crate) fn new(prefix: &[u8], key: &[u8]) -> Key {
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

    /// Returns the key under which a reader of the lock is kept, by the number of its grant, which is not 0.
    pub(crate) fn of_reader(&self, grant: u64) -> Key {
        debug_assert!(self.reader == 0 && grant != 0, "a reader has no readers");
        let hash = self.hash ^ grant.wrapping_mul(SPREAD);
        Key { hash, reader: grant, bytes: self.bytes.clone() }
    }

    /// Whether the key is that of a reader.
    pub(crate) fn is_of_reader(&self) -> bool {
        self.reader != 0
    }

    /// Returns the key of the lock itself.
    #[inline]
    pub(crate) fn of_lock(&self) -> Cow<'_, Key> {
        match self.reader {
            0 => Cow::Borrowed(self),
            _ => Cow::Owned(Key { hash: self.lock_hash(), reader: 0, bytes: self.bytes.clone() }),
        }
    }

    fn lock_hash(&self) -> u64 {
        self.hash ^ self.reader.wrapping_mul(SPREAD)
    }

    /// Returns the key's hash. No client can choose two keys that share it.
    pub(crate) fn number(&self) -> u64 {
        self.hash
    }

    /// Returns bits of the hash that maps do not use. They reveal nothing of the key outside this process.
    /// Readers of a lock have the lock's.
    pub(crate) fn spread(&self) -> usize {
        (self.lock_hash() >> 32) as usize
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Key {
    fn from(bytes: &T) -> Key {
        // Seeded at random: clients choose keys, and must not be able to make hashes collide.
        static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let bytes = bytes.as_ref();
        let mut hasher = HASHES.build_hasher();
        hasher.write(bytes);
        Key { hash: hasher.finish(), reader: 0, bytes: bytes.into() }
    }
}

/// Orders keys by their bytes, the order in which operators see them.
impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.bytes.cmp(&other.bytes).then(self.reader.cmp(&other.reader))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
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

/// A map from keys to values.
pub(crate) type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<PrehashedHasher>>;

/// Passes on the hash that a [`Key`] already has.
#[derive(Debug, Default)]
pub(crate) struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
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

/// The secret by which a client holds a lock.
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

impl Token {
    /// What lock nodes store for a lock that a client takes with an empty value, as clients of adopted locks may. In
    /// a node's answer an empty string means no token at all. A constant that no client has by chance serves as well:
    /// clients that take such locks do not tell one holder from another either. No client may use it as a token.
    pub(crate) const OF_EMPTY_VALUE: &[u8] =
        b"lockgate:empty-value:a61d1ae28b34e94e2ab2b0bdf0f16c4e";

    /// What lock nodes tell in place of a token where a lock has readers. No client may use it as a token.
    pub(crate) const OF_READERS: &[u8] = b"lockgate-readers";

    /// Returns what the lock nodes store for a value that a client of an adopted lock gives.
    pub(crate) fn stored(value: &[u8]) -> &[u8] {
        if value.is_empty() { Token::OF_EMPTY_VALUE } else { value }
    }

    /// Returns the value that a client of an adopted lock gave, for the client to read back.
    pub(crate) fn value(&self) -> &[u8] {
        if *self.0 == *Token::OF_EMPTY_VALUE { b"" } else { &self.0 }
    }
}

/// Hides the token: a client that knows it can release the lock.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_value_is_read_back_and_is_no_empty_token() {
        for value in [&b""[..], b"t", b"\0", b"lockgate:empty-value:"] {
            let token = Token::from(Token::stored(value));
            assert!(!token.is_empty());
            assert_eq!(token.value(), value);
        }
    }

    #[test]
    fn a_readers_key_has_the_locks_bytes_and_is_another() {
        let lock = Key::from(b"lock:k");
        let (one, other) = (lock.of_reader(7), lock.of_reader(8));
        assert_eq!((&*one, &*other), (&b"lock:k"[..], &b"lock:k"[..]));
        assert!(one != other && one != lock && one.number() != other.number());
        assert!(one.is_of_reader() && !lock.is_of_reader());
        assert_eq!((&*one.of_lock(), &*lock.of_lock()), (&lock, &lock));
        assert_eq!(one.of_lock().number(), lock.number());
        let mut map = KeyMap::default();
        map.insert(one.clone(), 1);
        assert_eq!((map.get(&one), map.get(&lock), map.get(&other)), (Some(&1), None, None));
    }

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
