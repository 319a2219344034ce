//! Slots of keys, and tags that lead to slots.

use std::sync::LazyLock;

use super::cluster_node::SLOTS;

/// Length of [`tag`].
pub(crate) const TAG: usize = 4;

/// Returns the slot of a key: that of its hash tag, if it has one.
pub(crate) fn slot(key: &[u8]) -> u16 {
    redis_protocol::redis_keyslot(key)
}

/// Returns letters that have this slot: a hash tag for keys that must lie in it. It must never change, as it is part
/// of the names of stored keys.
pub(crate) fn tag(slot: u16) -> [u8; TAG] {
    static TAGS: LazyLock<Vec<[u8; TAG]>> = LazyLock::new(tags);
    TAGS[usize::from(slot % SLOTS)]
}

/// Returns the first of `aaaa` to `zzzz` in each slot.
fn tags() -> Vec<[u8; TAG]> {
    let mut tags = vec![[0; TAG]; usize::from(SLOTS)];
    let mut left = tags.len();
    for number in 0..26_u32.pow(TAG as u32) {
        let mut letters = [b'a'; TAG];
        let mut rest = number;
        for letter in letters.iter_mut().rev() {
            *letter += (rest % 26) as u8;
            rest /= 26;
        }
        let place = &mut tags[usize::from(slot(&letters))];
        if place[0] == 0 {
            *place = letters;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_is_what_redis_says() {
        for (key, expected) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("{user1000}.following", 3443),
            ("user1000", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
            ("", 0),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn each_slot_has_a_tag_which_stays() {
        for number in 0..SLOTS {
            let tag = tag(number);
            assert_eq!(slot(&tag), number);
            assert!(tag.iter().all(u8::is_ascii_lowercase));
        }
        // Keys on data nodes and lock nodes are named so.
        assert_eq!([0, 1, 12182].map(tag), [*b"afps", *b"bgdh", *b"bdfm"]);
    }

    proptest! {
        #[test]
        fn a_key_behind_a_tag_has_its_slot(key in "[{}a*b:]{0,12}", bytes: Vec<u8>) {
            for key in [key.as_bytes(), &bytes] {
                let tagged = [b"x:{".as_slice(), &tag(slot(key)), b"}:", key].concat();
                prop_assert_eq!(slot(&tagged), slot(key));
            }
        }
    }
}
