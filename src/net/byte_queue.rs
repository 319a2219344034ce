//! Bytes in order, put at one end and taken at the other.

/// Taken bytes are dropped from the front once there are this many of them, and at least half as many as those that are
/// left: where one side is always ahead of the other, a queue is never empty, and would grow without end.
const STALE: usize = 256 * 1024;

/// A queue of bytes. Its memory is a small multiple of what is in it.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    bytes: Vec<u8>,
    /// How many of `bytes` were taken.
    taken: usize,
}

impl ByteQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Puts bytes behind the others.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns all bytes that are there.
    pub(crate) fn all(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Takes the first `count` bytes away. `keep`: how many bytes of memory an empty queue keeps.
    pub(crate) fn take(&mut self, count: usize, keep: usize) {
        self.taken += count;
        if self.taken >= self.bytes.len() {
            self.taken = 0;
            match self.bytes.capacity() > keep {
                true => self.bytes = Vec::new(),
                false => self.bytes.clear(),
            }
        } else if self.taken >= STALE && self.taken >= self.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            if self.bytes.capacity() / 4 > self.bytes.len() {
                self.bytes.shrink_to(self.bytes.len() * 2);
            }
        }
    }

    /// Takes the last `count` bytes back, if so many are left.
    pub(crate) fn take_back(&mut self, count: usize) -> bool {
        let may = count <= self.len();
        if may {
            self.bytes.truncate(self.bytes.len() - count);
            self.take(0, usize::MAX);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_never_empty_does_not_grow() {
        let part = [b'x'; 64 * 1024];
        for held in [1, 10, 64] {
            let mut queue = ByteQueue::default();
            (0..held).for_each(|_| queue.put(&part));
            for _ in 0..1000 {
                queue.put(&part);
                queue.take(part.len(), 0);
                assert_eq!(queue.len(), held * part.len());
                assert!(queue.bytes.capacity() <= 4 * (queue.len() + STALE));
            }
            queue.take(queue.len(), 0);
            assert!(queue.is_empty() && queue.bytes.capacity() == 0);
        }
    }

    #[test]
    fn bytes_are_taken_at_either_end() {
        let mut queue = ByteQueue::default();
        queue.put(b"abcdef");
        queue.take(2, 100);
        assert!(!queue.take_back(5) && queue.take_back(1));
        assert_eq!(queue.all(), b"cde");
        assert!(queue.take_back(3) && queue.is_empty());
        queue.put(b"x");
        assert_eq!(queue.all(), b"x");
    }
}
