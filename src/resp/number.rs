//! Redis's grammar for the numbers in length lines and in arguments.

/// The longest decimal text of an `i64`, sign included.
pub(crate) const MAX_DIGITS: usize = 20;

/// Reads a decimal integer exactly as Redis does: an optional minus, no plus, no leading zero, no blank, no
/// `-0`. Returns `None` for any other text, and if the number does not fit.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if text.len() <= MAX_DIGITS => {}
        _ => return None,
    }
    let mut value: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // The value is built below zero, where there is room for `i64::MIN`.
        value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_redis_reads_and_nothing_else() {
        for good in ["0", "1", "-1", "10", "9223372036854775807", "-9223372036854775808"] {
            assert_eq!(integer(good.as_bytes()), Some(good.parse().unwrap()), "{good}");
        }
        for bad in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            "00",
            "1 ",
            " 1",
            "1a",
            "0x1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "111111111111111111111",
            "1\0",
        ] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
