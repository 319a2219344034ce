//! A queue that rarely has more than one element, which then needs no memory of its own.

use std::collections::VecDeque;

/// A queue. Its first element is stored in place.
#[derive(Debug)]
pub(super) struct ShortQueue<T> {
    first: Option<T>,
    /// What stands behind the first element; empty if there is none.
    rest: VecDeque<T>,
}

impl<T> Default for ShortQueue<T> {
    fn default() -> ShortQueue<T> {
        ShortQueue { first: None, rest: VecDeque::new() }
    }
}

impl<T> ShortQueue<T> {
    #[inline]
    pub(super) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    #[inline]
    pub(super) fn back_mut(&mut self) -> Option<&mut T> {
        self.rest.back_mut().or(self.first.as_mut())
    }

    #[inline]
    pub(super) fn push_back(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.rest.push_back(element),
        }
    }

    pub(super) fn push_front(&mut self, element: T) {
        if let Some(second) = self.first.replace(element) {
            self.rest.push_front(second);
        }
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        std::mem::replace(&mut self.first, self.rest.pop_front())
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec((0u8..4, any::<u16>()), 0..200)) {
            let (mut short, mut plain) = (ShortQueue::default(), VecDeque::new());
            for (step, element) in steps {
                match step {
                    0 => {
                        short.push_back(element);
                        plain.push_back(element);
                    }
                    1 => {
                        short.push_front(element);
                        plain.push_front(element);
                    }
                    _ => prop_assert_eq!(short.pop_front(), plain.pop_front()),
                }
                prop_assert_eq!((short.len(), short.is_empty()), (plain.len(), plain.is_empty()));
                prop_assert_eq!(short.front(), plain.front());
                prop_assert_eq!(short.front_mut(), plain.front_mut());
                prop_assert_eq!(short.back_mut(), plain.back_mut());
            }
        }
    }
}
