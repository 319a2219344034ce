//! The name of a lock in JSON. Clients choose it, and it may be any bytes. A name that is not UTF-8 is told as text with
//! replacement characters, and also by its bytes.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// A lock's name, as clients know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "NameInJson", into = "NameInJson")]
pub(crate) struct LockName(pub(crate) Vec<u8>);

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct NameInJson {
    key: String,
    /// Its bytes in hexadecimal, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
}

impl From<LockName> for NameInJson {
    fn from(LockName(name): LockName) -> NameInJson {
        String::from_utf8(name).map_or_else(
            |error| {
                let (bytes, mut hex) = (error.as_bytes(), String::new());
                for byte in bytes {
                    // Writing to a String cannot fail.
                    let _ = write!(hex, "{byte:02x}");
                }
                let key = String::from_utf8_lossy(bytes).into_owned();
                NameInJson { key, key_hex: Some(hex) }
            },
            |key| NameInJson { key, key_hex: None },
        )
    }
}

impl From<NameInJson> for LockName {
    fn from(NameInJson { key, key_hex }: NameInJson) -> LockName {
        let bytes = key_hex.as_deref().and_then(of_hexadecimal);
        LockName(bytes.unwrap_or_else(|| key.into_bytes()))
    }
}

fn of_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
    digits?.chunks(2).map(|pair| Some(pair.first()? << 4 | pair.get(1)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_told_by_its_bytes_too() {
        for (name, told) in [
            ("wörk".as_bytes(), r#"{"key":"wörk"}"#),
            (b"a\xff\x00", r#"{"key":"a�\u0000","key_hex":"61ff00"}"#),
        ] {
            let name = LockName(name.to_vec());
            assert_eq!(serde_json::to_string(&name).unwrap(), told);
            assert_eq!(serde_json::from_str::<LockName>(told).unwrap(), name);
        }
    }
}
