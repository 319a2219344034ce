//! The name of a lock in JSON. Clients choose it, and it may be any bytes. A name that is not UTF-8 is told as text with
//! replacement characters, and also by its bytes.

use std::fmt::Write as _;

use serde::Serialize;

/// A lock's name.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LockName {
    pub(crate) key: String,
    /// Its bytes in hexadecimal, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_hex: Option<String>,
}

impl LockName {
    /// Names a lock by these bytes.
    pub(crate) fn new(name: &[u8]) -> LockName {
        match std::str::from_utf8(name) {
            Ok(text) => LockName { key: text.to_owned(), key_hex: None },
            Err(_) => {
                let mut hex = String::with_capacity(2 * name.len());
                for byte in name {
                    // Writing to a String cannot fail.
                    let _ = write!(hex, "{byte:02x}");
                }
                let key = String::from_utf8_lossy(name).into_owned();
                LockName { key, key_hex: Some(hex) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_told_by_its_bytes_too() {
        let text = LockName::new("wörk".as_bytes());
        assert_eq!(text, LockName { key: "wörk".into(), key_hex: None });
        let bytes = LockName::new(b"a\xff\x00");
        assert_eq!(bytes, LockName { key: "a\u{fffd}\0".into(), key_hex: Some("61ff00".into()) });
        let json = serde_json::to_string(&bytes).unwrap();
        assert_eq!(json, r#"{"key":"a�\u0000","key_hex":"61ff00"}"#);
    }
}
